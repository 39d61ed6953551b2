"""The paper's six tables, filled from the ledger; costs are in `costs`, the paper's numbers in `scorecard`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.datasets.catalogue import resolve
from bench.paper import published
from bench.registry import models
from bench.report.comparisons import best_group
from bench.report.costs import cost_table
from bench.report.entries import accuracy_entry, gain_entry, protocol_lines
from bench.report.findings import Findings, column_title, model_title
from bench.report.statistics import MINIMUM_TRIALS, Refusal, minimum_detectable_difference, pooled_spread
from bench.report.table import Entry, Table, entry
from bench.studies import Study, studies

Place = tuple[str, str, str]  # model, variant, dataset
FEW = 3  # variants, up to which every one is compared with the first


@dataclass(frozen=True)
class Printed:
    """An accuracy as the paper prints it."""

    text: str = ""
    mean: float = math.nan

    @property
    def note(self) -> str:
        return f"the paper has {self.text}" if self.text else ""


def all_tables(findings: Findings) -> list[Table]:
    """The six tables of the paper in its order, and its figures in numbers."""
    known = studies()
    return [
        dataset_table(),
        accuracy_table(findings, known["accuracy-small"], "tab:normal-data"),
        accuracy_table(findings, known["accuracy-large"], "tab:large-data"),
        *(
            ablation_table(findings, known[name], paper_table, lines(known[name]))
            for name, (paper_table, lines) in ABLATIONS.items()
        ),
        *(figure_table(findings, study) for study in known.values() if _has_numbers(findings, study)),
        cost_table(findings, known["cost"], model_order("tab:cost"), "tab:cost"),
        cost_table(findings, known["accuracy-small"], model_order("tab:normal-data")),
    ]


def model_order(table: str) -> list[str]:
    """Models as the paper lists them, then those that it does not have."""
    listed = list(dict.fromkeys(published(table)["row"]))
    known = models()
    return [name for name in listed if name in known] + [name for name in known if name not in listed]


def printed(table: str) -> dict[Place, Printed]:
    """The accuracies of one of the paper's tables."""
    numbers = published(table)
    return {
        (line.row, line.variant, line.column): Printed(
            line.status.upper() or f"{line.mean:.2f}" + ("" if math.isnan(line.std) else f" ± {line.std:.2f}"),
            line.mean,
        )
        for line in numbers[numbers["measure"] == "accuracy"].itertuples()
    }


# -- accuracy ---------------------------------------------------------------------------------------------------------


def accuracy_table(findings: Findings, study: Study, paper_table: str) -> Table:
    """Rows are models, columns datasets."""
    columns, paper = findings.columns(study), printed(paper_table)
    leading, remarks = {}, []
    for dataset in columns:
        leading[dataset.name], remark = _leaders(findings, study.name, dataset.name)
        remarks += [f"{dataset.title}: {remark}."] if remark else []
    rows = []
    for model in model_order(paper_table):
        found = {dataset.name: findings.trials(study.name, model, dataset.name) for dataset in columns}
        if any(trials is not None for trials in found.values()):
            entries = [
                accuracy_entry(
                    trials,
                    model in leading[name],
                    paper.get((model, "", name), Printed()).note,
                    findings.column_keys(study.name, name),
                )
                for name, trials in found.items()
            ]
            rows.append((entry(model_title(model)), *entries))
    return Table(
        study.name,
        f"{study.shows}: {study.about}",
        ("Method", *(dataset.title for dataset in columns)),
        tuple(rows),
        (*protocol_lines(findings, study.name), *_detectable(findings, study), *remarks),
    )


def _leaders(findings: Findings, study: str, dataset: str) -> tuple[tuple[str, ...], str]:
    """The models that are not worse than the best, or why nobody can say."""
    if not any(trials.good for trials in findings.of_study(study, dataset)):
        return (), ""
    scores = findings.aligned(study, dataset)
    group = scores if isinstance(scores, Refusal) else best_group(scores, findings.sizes(dataset))
    if isinstance(scores, Refusal) or isinstance(group, Refusal):
        return (), f"undecided, {group.reason}" if isinstance(group, Refusal) else ""
    return group.members, f"{len(group.members)} of {len(scores)} models lead (bold)"


def _detectable(findings: Findings, study: Study) -> list[str]:
    """The smallest true difference of two models that ten trials would show, with the spread of those seen."""
    parts = []
    for dataset in findings.columns(study):
        sizes, scores = findings.sizes(dataset.name), findings.aligned(study.name, dataset.name)
        if isinstance(scores, Refusal) or (sizes is not None and sizes.test > sizes.train):
            continue
        std = pooled_spread(list(first - second) for first, second in itertools.combinations(scores.values(), 2))
        if std is not None:
            parts.append(f"{dataset.title} {minimum_detectable_difference(std, MINIMUM_TRIALS, sizes):.2f}")
    if not parts:
        return []
    return [
        f"A difference of two models that {MINIMUM_TRIALS} trials show in four of five cases, before any correction "
        f"for many comparisons: {', '.join(parts)}."
    ]


# -- variants of one model --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A row of an ablation table: trials of a variant, or what one variant gains over another."""

    title: str
    model: str
    variant: str
    over: tuple[str, str] | None = None  # (model, variant) it is compared with


def ablation_table(findings: Findings, study: Study, paper_table: str, lines: Sequence[Line]) -> Table:
    """Rows are variants and gains, columns datasets; `paper_table` is empty where the paper has a figure."""
    columns, paper = findings.columns(study), printed(paper_table) if paper_table else {}
    rows = [
        (entry(line.title), *(_ablation_entry(findings, study.name, line, dataset.name, paper) for dataset in columns))
        for line in lines
    ]
    gains = []
    if any(line.over for line in lines):
        gains = ["Gain: mean difference over the trials that both have [95 % interval] (n pairs)"]
        gains[0] += "; then the paper's, between its means." if paper_table else "."
    return Table(
        study.name,
        f"{study.shows}: {study.about}",
        ("", *(column_title(study, dataset.name) for dataset in columns)),
        tuple(rows),
        (
            *protocol_lines(findings, study.name),
            *gains,
        ),
    )


def _ablation_entry(findings: Findings, study: str, line: Line, dataset: str, paper: Mapping[Place, Printed]) -> Entry:
    trials = findings.trials(study, line.model, dataset, line.variant)
    theirs = paper.get((line.model, line.variant, dataset), Printed())
    if line.over is None:
        return accuracy_entry(trials, paper=theirs.note)
    other = findings.trials(study, line.over[0], dataset, line.over[1])
    found = gain_entry(trials, other, findings.sizes(dataset))
    gain = theirs.mean - paper.get((*line.over, dataset), Printed()).mean
    return found if math.isnan(gain) or not found.text else replace(found, text=f"{found.text}; {gain:+.2f}")


def _has_numbers(findings: Findings, study: Study) -> bool:
    """Whether it is drawn as a figure and has more to show than the settings that all studies share."""
    tried = {trials.variant for trials in findings.of_study(study.name) if trials.records}
    return study.shows.startswith("Figure") and len(tried) > 1


def figure_table(findings: Findings, study: Study) -> Table:
    """A sweep in numbers, so that those of a figure can be traced as well."""
    lines = dict.fromkeys(
        Line(f"{model_title(model.name)}, {variant.label}", model.name, variant.label)
        for model, _, variant in study.combinations()
    )
    if len(study.variants) <= FEW:
        first = study.variants[0].label
        gains = [
            Line(f"{line.title}, gain", line.model, line.variant, (line.model, first))
            for line in lines
            if line.variant != first
        ]
        lines |= dict.fromkeys(gains)
    table = ablation_table(findings, study, "", sorted(lines, key=lambda line: line.model))
    return replace(table, title=f"{study.shows} in numbers: {study.about}")


def with_and_without(study: Study) -> list[Line]:
    """Per model: the second variant, the first, and what the first gains over the second."""
    with_it, without = study.variants
    names = list(dict.fromkeys(model.name for model, _, variant in study.combinations() if variant == with_it))
    lines = []
    for name in names:
        lines += [
            Line(f"{model_title(name)}, {without.label}", name, without.label),
            Line(f"{model_title(name)}, {with_it.label}", name, with_it.label),
            Line(f"{model_title(name)}, gain", name, with_it.label, (name, without.label)),
        ]
    return lines


def against_first(study: Study) -> list[Line]:
    """Each variant, and what each but the first gains over the first."""
    first, *others = study.variants
    lines = [Line(variant.label, variant.models, variant.label) for variant in study.variants]
    return lines + [
        Line(f"{variant.label}, gain", variant.models, variant.label, (first.models, first.label)) for variant in others
    ]


# study -> the paper's table of it, and the rows that it has
ABLATIONS: dict[str, tuple[str, Callable[[Study], list[Line]]]] = {
    "structural-encoding": ("tab:ab-str", with_and_without),
    "augmentation-parts": ("tab:DA_result", against_first),
}


# -- datasets ---------------------------------------------------------------------------------------------------------


def dataset_table() -> Table:
    """What the paper says of each dataset, and what its edge counts count."""
    numbers = published("tab:dataset").pivot(index="column", columns="measure", values="mean")
    rows = []
    for dataset in resolve("all"):
        assert dataset.paper is not None
        counts = [
            Entry(f"{int(numbers.loc[dataset.name, what]):,}", note="Table 1 of the paper")
            for what in ("nodes", "edges", "features", "classes")
        ]
        rows.append((entry(dataset.title), *counts, entry(dataset.paper.edges_mean), entry(dataset.split_rule)))
    return Table(
        "datasets",
        "Table 1: datasets",
        ("Dataset", "Nodes", "Edges", "Features", "Classes", "What the edge count counts", "Split rule"),
        tuple(rows),
        ("As the paper prints them; `python -m bench data` compares them with the files at hand.",),
    )
