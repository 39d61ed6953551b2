"""The paper's tables of accuracies, filled from the ledger, and its figures in numbers; Table 6 is in `costs`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.datasets.catalogue import resolve
from bench.paper.costs import cost_study_table
from bench.paper.numbers import Place, Printed, model_order, printed, published
from bench.paper.studies import studies
from bench.paper.trial_index import ACCURACY_STUDIES, TrialIndex, column_title
from bench.report.entries import SCORES, accuracy_entry, gain_entry, setting_lines
from bench.report.results import model_title
from bench.report.table import Entry, Table, entry
from bench.report.tables import accuracy_table
from bench.studies import EMBEDDED, Study

GAIN = ", gain"  # behind what a row is called
PAPER_TABLES = {  # the studies whose accuracies the paper prints
    "accuracy-small": "tab:normal-data",
    "accuracy-large": "tab:large-data",
    "structural-encoding": "tab:ab-str",
    "augmentation-parts": "tab:DA_result",
}


def study_tables(index: TrialIndex) -> dict[str, Table]:
    """The paper's tables and its figures in numbers, by study; a figure that nothing was run for has none."""
    found = {}
    for study in studies().values():
        if study.name in ACCURACY_STUDIES:
            found[study.name] = study_accuracy(index, study)
        elif study.purpose:
            found[study.name] = cost_study_table(index, study)
        elif study.name in PAPER_TABLES or len({t.variant for t in index.of_study(study.name) if t.records}) > 1:
            found[study.name] = ablation_table(index, study)
    return found


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


def ablation_table(index: TrialIndex, study: Study) -> Table:
    """Rows are variants and gains, columns datasets; what the paper has as a figure stands here in numbers."""
    table = PAPER_TABLES.get(study.name)
    columns, paper = index.columns(study), printed(table) if table else {}
    rows = [
        (entry(line.title), *(_ablation_entry(index, study.name, line, dataset.name, paper) for dataset in columns))
        for line in lines_of(study)
    ]
    gain = "Gain: mean difference over the trials that both have [95 % interval] (n pairs)"
    gain += "; then the paper's, between its means." if table else "."
    return Table(
        study.name,
        f"{study.shows}{'' if table else ' in numbers'}: {study.about}",
        ("", *(column_title(study, dataset.name) for dataset in columns)),
        tuple(rows),
        (
            SCORES,
            *setting_lines(index.setting, index.in_table(study), fill=index.fill_command(study.name)),
            *([gain] if study.base else []),
        ),
    )


def lines_of(study: Study) -> list[Line]:
    """Each variant and, where the study has a base, what it gains over that; model by model where models share them."""
    groups: dict[str, list[Line]] = {}
    for model, _, variant in study.combinations(EMBEDDED):
        title = f"{model_title(model.name)}, {variant.label}" if study.varied else variant.label
        groups.setdefault(model.name if study.varied else "", []).append(Line(title, model.name, variant.label))
    found = []
    for _, group in sorted(groups.items()):
        base = [line for line in group if line.variant == study.base]
        others = [line for line in group if line.variant != study.base]
        found += [*base, *others]
        for line in others if base else ():
            name = model_title(line.model) if len(others) == 1 else line.title
            found.append(Line(f"{name}{GAIN}", line.model, line.variant, (base[0].model, base[0].variant)))
    return found


def _ablation_entry(index: TrialIndex, study: str, line: Line, dataset: str, paper: Mapping[Place, Printed]) -> Entry:
    trials = index.trials(study, line.model, dataset, line.variant)
    theirs = paper.get((line.model, line.variant, dataset), Printed())
    if line.over is None:
        return accuracy_entry(trials, remark=theirs.note)
    other = index.trials(study, line.over[0], dataset, line.over[1])
    found = gain_entry(trials, other, index.sizes(dataset))
    gain = theirs.mean - paper.get((*line.over, dataset), Printed()).mean
    return found if math.isnan(gain) or not found.text else replace(found, text=f"{found.text}; {gain:+.2f}")


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
