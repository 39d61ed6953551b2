"""The paper's tables of accuracies, filled from the ledger, and its figures in numbers; Table 6 is in `costs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.datasets.catalogue import resolve
from bench.paper.costs import cost_study_table
from bench.paper.numbers import Place, Printed, model_order, printed, published
from bench.paper.studies import Study, studies
from bench.paper.trial_index import ACCURACY_STUDIES, TrialIndex, column_title
from bench.report.entries import SCORES, accuracy_entry, gain_entry, setting_lines
from bench.report.results import model_title
from bench.report.table import Entry, Table, entry
from bench.report.tables import accuracy_table

GAIN = ", gain"  # behind what a row is called
FEW = 3  # variants, up to which every one is compared with the first
PAPER_TABLES = {  # the studies whose accuracies the paper prints
    "accuracy-small": "tab:normal-data",
    "accuracy-large": "tab:large-data",
    "structural-encoding": "tab:ab-str",
    "augmentation-parts": "tab:DA_result",
}


def study_tables(index: TrialIndex) -> dict[str, Table]:
    """The six tables of the paper and its figures in numbers, by study; the table of datasets has none."""
    found = {name: study_accuracy(index, studies()[name]) for name in ACCURACY_STUDIES}
    for name, lines in ABLATIONS.items():
        found[name] = ablation_table(index, studies()[name], PAPER_TABLES[name], lines(studies()[name]))
    found |= {study.name: figure_table(index, study) for study in studies().values() if _has_numbers(index, study)}
    return {**found, "cost": cost_study_table(index, studies()["cost"])}


def study_accuracy(index: TrialIndex, study: Study) -> Table:
    """Tables 2 and 3."""
    paper = printed(PAPER_TABLES[study.name])
    return accuracy_table(
        study.name,
        f"{study.shows}: {study.about}",
        index.results(study),
        index.setting,
        model_order(PAPER_TABLES[study.name]),
        lambda model, dataset: paper.get((model, "", dataset), Printed()).note,
        index.fill_command(study.name),
    )


# -- variants of one model --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A row of an ablation table: trials of a variant, or what one variant gains over another."""

    title: str
    model: str
    variant: str
    over: tuple[str, str] | None = None  # (model, variant) it is compared with


def ablation_table(index: TrialIndex, study: Study, paper_table: str, lines: Sequence[Line]) -> Table:
    """Rows are variants and gains, columns datasets; `paper_table` is empty where the paper has a figure."""
    columns, paper = index.columns(study), printed(paper_table) if paper_table else {}
    rows = [
        (entry(line.title), *(_ablation_entry(index, study.name, line, dataset.name, paper) for dataset in columns))
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
            SCORES,
            *setting_lines(index.setting, index.in_table(study), fill=index.fill_command(study.name)),
            *gains,
        ),
    )


def _ablation_entry(index: TrialIndex, study: str, line: Line, dataset: str, paper: Mapping[Place, Printed]) -> Entry:
    trials = index.trials(study, line.model, dataset, line.variant)
    theirs = paper.get((line.model, line.variant, dataset), Printed())
    if line.over is None:
        return accuracy_entry(trials, remark=theirs.note)
    other = index.trials(study, line.over[0], dataset, line.over[1])
    found = gain_entry(trials, other, index.sizes(dataset))
    gain = theirs.mean - paper.get((*line.over, dataset), Printed()).mean
    return found if math.isnan(gain) or not found.text else replace(found, text=f"{found.text}; {gain:+.2f}")


def _has_numbers(index: TrialIndex, study: Study) -> bool:
    """Whether it is drawn as a figure and has more to show than the settings that all studies share."""
    tried = {trials.variant for trials in index.of_study(study.name) if trials.records}
    return study.shows.startswith("Figure") and len(tried) > 1


def figure_table(index: TrialIndex, study: Study) -> Table:
    """A sweep in numbers, so that those of a figure can be traced as well."""
    lines = dict.fromkeys(
        Line(f"{model_title(model.name)}, {variant.label}", model.name, variant.label)
        for model, _, variant in study.combinations()
    )
    if len(study.variants) <= FEW:
        first = study.variants[0].label
        gains = [
            Line(f"{line.title}{GAIN}", line.model, line.variant, (line.model, first))
            for line in lines
            if line.variant != first
        ]
        lines |= dict.fromkeys(gains)
    table = ablation_table(index, study, "", sorted(lines, key=lambda line: line.model))
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
            Line(f"{model_title(name)}{GAIN}", name, with_it.label, (name, without.label)),
        ]
    return lines


def against_first(study: Study) -> list[Line]:
    """Each variant, and what each but the first gains over the first."""
    first, *others = study.variants
    lines = [Line(variant.label, variant.models, variant.label) for variant in study.variants]
    return lines + [
        Line(f"{variant.label}{GAIN}", variant.models, variant.label, (first.models, first.label)) for variant in others
    ]


ABLATIONS: dict[str, Callable[[Study], list[Line]]] = {  # study -> the rows of the paper's table of it
    "structural-encoding": with_and_without,
    "augmentation-parts": against_first,
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
