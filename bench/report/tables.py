"""The paper's six tables, filled from the ledger, and the scorecard that lays them beside the paper's own numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from bench.data.catalogue import Dataset, datasets, resolve
from bench.paper import published
from bench.records import Record, memory_used
from bench.registry import models
from bench.report.comparisons import Refusal, best_group, compare_on_fresh_splits, compare_on_frozen_split
from bench.report.evidence import Evidence, Trials
from bench.report.statistics import (
    MINIMUM_TRIALS,
    Equivalence,
    Reported,
    SplitSizes,
    compare_with_paper,
    minimum_detectable_difference,
    spread,
    summarise,
)
from bench.report.table import Entry, Table, entry
from bench.studies import Study, studies

MISSING, NO_SETTINGS = "–", "†"
MEGABYTE = 1e6


@dataclass(frozen=True)
class Setting:
    """Under which protocol a report's numbers were made."""

    mode: str = "fresh"
    lane: str = "author"


class Findings:
    """Every study's trials, looked up once and shared by tables, figures, scorecard and claims."""

    def __init__(self, evidence: Evidence, setting: Setting) -> None:
        self.evidence, self.setting = evidence, setting
        self._trials: dict[tuple[str, str, str, str], Trials] = {}
        for study in studies().values():
            for model, dataset, variant in study.combinations():
                self._trials[study.name, model.name, dataset.name, variant.label] = evidence.trials(
                    model, dataset, variant.settings, variant.label, setting.mode, setting.lane
                )

    def trials(self, study: str, model: str, dataset: str, variant: str = "") -> Trials | None:
        """What is known about a column of cells; None where the study has no such cells."""
        return self._trials.get((study, model, dataset, variant))

    def of_study(self, study: str) -> list[Trials]:
        return [trials for (name, *_), trials in self._trials.items() if name == study]

    def sizes(self, dataset: str) -> SplitSizes | None:
        """What the corrected t needs to know about re-drawn splits; None on a frozen one."""
        return None if self.setting.mode == "frozen" else split_sizes(datasets()[dataset])

    @cached_property
    def split_std(self) -> dict[str, float]:
        """Dataset -> the spread over trials, pooled over the models of the accuracy studies."""
        found: dict[str, list[float]] = {}
        for study in ("accuracy-small", "accuracy-large"):
            for trials in self.of_study(study):
                if len(trials.accuracies) >= 2:
                    found.setdefault(trials.dataset, []).append(spread(np.array(trials.accuracies)))
        return {dataset: math.sqrt(float(np.mean(np.square(values)))) for dataset, values in found.items()}


def split_sizes(dataset: Dataset) -> SplitSizes:
    """Test and training nodes under the dataset's rule; for uniform rules their ratio is all that matters."""
    shares = re.fullmatch(r"uniform-([\d.]+)/([\d.]+)/([\d.]+)", dataset.split_rule)
    if shares:
        return SplitSizes(test=round(float(shares[3])), train=round(float(shares[1])))
    assert dataset.paper is not None  # the other rules belong to the paper's large graphs
    per_class = int(re.findall(r"\d+", dataset.split_rule)[0])
    return SplitSizes(test=dataset.paper.nodes, train=per_class * dataset.paper.classes)


# -- entries ----------------------------------------------------------------------------------------------------------


def accuracy_entry(trials: Trials | None, bold: bool = False) -> Entry:
    """Mean ± spread (n), then whatever a reader must know about it."""
    if trials is None:
        return Entry("")
    marks = [f"{count} {status}" for status, count in trials.failures.items()]
    if not trials.good:
        text = ", ".join(status if count == 1 else f"{count} {status}" for status, count in trials.failures.items())
        return Entry(text or MISSING, trials.keys, note=_reason(trials) if text else trials.command)
    summary = summarise(trials.accuracies)
    text = f"{summary.mean:.2f}" + (f" ± {summary.std:.2f}" if summary.std is not None else "") + f" ({summary.n})"
    text += NO_SETTINGS if trials.lane == "default" else ""
    if trials.capped:
        marks.append("capped")
    if trials.stale:
        marks.append("stale")
    note = f"95 % interval {summary.interval.low:.2f} to {summary.interval.high:.2f}" if summary.interval else ""
    return Entry(" ".join([text, *(f"[{mark}]" for mark in marks)]), trials.keys, bold, note, summary.mean)


def _reason(trials: Trials) -> str:
    return "; ".join(dict.fromkeys(str(record["reason"]) for record in trials.records if record["reason"]))


def model_order(table: str) -> list[str]:
    """Models as the paper lists them, then those that it does not have."""
    listed = list(dict.fromkeys(published(table)["row"]))
    known = models()
    return [name for name in listed if name in known] + [name for name in known if name not in listed]


def _title(model: str) -> str:
    return models()[model].title or model


# -- accuracy ---------------------------------------------------------------------------------------------------------


def accuracy_table(findings: Findings, study: Study, paper_table: str) -> Table:
    """Rows are models, columns datasets."""
    columns = resolve(study.datasets)
    leading, remarks = {}, []
    for dataset in columns:
        leading[dataset.name], remark = _leaders(findings, study.name, dataset.name)
        remarks += [f"{dataset.title}: {remark}."] if remark else []
    rows = []
    for model in model_order(paper_table):
        found = [findings.trials(study.name, model, dataset.name) for dataset in columns]
        if any(trials is not None for trials in found):
            entries = [
                accuracy_entry(trials, bold=model in leading[dataset.name])
                for trials, dataset in zip(found, columns, strict=True)
            ]
            rows.append((entry(_title(model)), *entries))
    return Table(
        study.name,
        f"{study.shows}: {study.about}",
        ("Method", *(dataset.title for dataset in columns)),
        tuple(rows),
        (*_protocol(findings, findings.of_study(study.name)), *_detectable(findings, study), *remarks),
    )


def _leaders(findings: Findings, study: str, dataset: str) -> tuple[tuple[str, ...], str]:
    """The models that are not worse than the best, or why nobody can say; trials are paired by their seeds."""
    scores = {
        trials.model: trials.by_seeds()
        for trials in findings.of_study(study)
        if trials.dataset == dataset and len(trials.good) >= MINIMUM_TRIALS
    }
    tried = [trials for trials in findings.of_study(study) if trials.dataset == dataset and trials.good]
    if not tried:
        return (), ""
    if len(scores) < 2:
        return (), f"undecided, fewer than two models have {MINIMUM_TRIALS} trials"
    shared = sorted(set.intersection(*(set(found) for found in scores.values())))
    aligned = {model: np.array([found[seeds] for seeds in shared]) for model, found in scores.items()}
    if len(shared) < MINIMUM_TRIALS:
        return (), f"undecided, the models share only {len(shared)} trials"
    group = best_group(aligned, findings.sizes(dataset))
    if isinstance(group, Refusal):
        return (), f"undecided, {group.reason}"
    return group.members, f"{len(group.members)} of {len(scores)} models lead (bold)"


def _protocol(findings: Findings, shown: Iterable[Trials]) -> list[str]:
    """Split mode, settings lane, and what the marks mean, as far as they occur."""
    shown = list(shown)
    good = [trials for trials in shown if trials.good]
    lines = [
        f"Test accuracy in %: mean ± sample standard deviation (n trials). Splits: {findings.setting.mode}. "
        f"Settings: {findings.setting.lane}."
    ]
    if findings.setting.lane != "default" and any(trials.lane == "default" for trials in good):
        lines.append(f"{NO_SETTINGS}: the model has no {findings.setting.lane} settings for this graph; its defaults.")
    if any(not trials.records for trials in shown):
        lines.append(f"{MISSING}: not run yet.")
    if any(trials.capped for trials in good):
        lines.append("capped: a limit on epochs ended training before the model's own rule would have.")
    if any(trials.stale for trials in shown):
        lines.append("stale: the model's code has changed since; `run --stale` does these cells again.")
    return lines


def _detectable(findings: Findings, study: Study) -> list[str]:
    """The smallest true difference that ten trials would show, with the spread that was seen."""
    parts = []
    for dataset in resolve(study.datasets):
        sizes = findings.sizes(dataset.name)
        std = findings.split_std.get(dataset.name)
        if std is None or (sizes is not None and sizes.test > sizes.train):
            continue
        found = minimum_detectable_difference(std, MINIMUM_TRIALS, sizes)
        parts.append(f"{dataset.title} {found:.2f}")
    return (
        [f"A difference that {MINIMUM_TRIALS} trials show in four of five cases: {', '.join(parts)}."] if parts else []
    )


# -- variants of one model --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A row of an ablation table: trials of a variant, or what one variant gains over another."""

    title: str
    model: str
    variant: str
    over: tuple[str, str] | None = None  # (model, variant) it is compared with


def ablation_table(findings: Findings, study: Study, lines: Sequence[Line]) -> Table:
    """Rows are variants and gains, columns datasets."""
    columns = resolve(study.datasets)
    rows = [
        (entry(line.title), *(_ablation_entry(findings, study.name, line, dataset.name) for dataset in columns))
        for line in lines
    ]
    return Table(
        study.name,
        f"{study.shows}: {study.about}",
        ("", *(dataset.title for dataset in columns)),
        tuple(rows),
        (*_protocol(findings, findings.of_study(study.name)), "Gains: mean of paired differences [95 % interval]."),
    )


def _ablation_entry(findings: Findings, study: str, line: Line, dataset: str) -> Entry:
    trials = findings.trials(study, line.model, dataset, line.variant)
    if line.over is None:
        return accuracy_entry(trials)
    other = findings.trials(study, line.over[0], dataset, line.over[1])
    return gain_entry(trials, other, findings.sizes(dataset))


def gain_entry(trials: Trials | None, other: Trials | None, sizes: SplitSizes | None) -> Entry:
    """The mean paired difference with its interval; trials are paired by their seeds."""
    if trials is None or other is None:
        return Entry("")
    first, second = trials.by_seeds(), other.by_seeds()
    shared = sorted(first.keys() & second.keys())
    if not shared:
        return Entry(MISSING, note=f"{trials.command}; {other.command}")
    ours, theirs = (np.array([scores[seeds] for seeds in shared]) for scores in (first, second))
    compared = (
        compare_on_frozen_split(ours, theirs)
        if sizes is None or sizes.test > sizes.train
        else compare_on_fresh_splits(ours, theirs, sizes)
    )
    difference, keys = float(np.mean(ours - theirs)), (*trials.keys, *other.keys)
    if isinstance(compared, Refusal) or compared.interval is None:
        return Entry(f"{difference:+.2f} ({len(shared)})", keys, value=difference)
    interval = f"[{compared.interval.low:+.2f}, {compared.interval.high:+.2f}]"
    note = f"{compared.test}: p = {compared.p:.3g}"
    return Entry(f"{difference:+.2f} {interval} ({len(shared)})", keys, note=note, value=difference)


# -- datasets and cost ------------------------------------------------------------------------------------------------


def dataset_table() -> Table:
    """What the paper says of each dataset, and what its edge counts count."""
    numbers = published("tab:dataset").pivot(index="column", columns="measure", values="mean")
    rows = []
    for dataset in resolve("all"):
        assert dataset.paper is not None
        printed = [
            Entry(f"{int(numbers.loc[dataset.name, what]):,}") for what in ("nodes", "edges", "features", "classes")
        ]
        rows.append((entry(dataset.title), *printed, entry(dataset.paper.edges_mean), entry(dataset.split_rule)))
    return Table(
        "datasets",
        "Table 1: datasets",
        ("Dataset", "Nodes", "Edges", "Features", "Classes", "What the edge count counts", "Split rule"),
        tuple(rows),
        ("As the paper prints them; `python -m bench data` compares them with the files at hand.",),
    )


COSTS: dict[str, Callable[[Record], float | None]] = {
    "preprocess s": lambda record: _preprocess(record),
    "train s": lambda record: record["phases"]["train"]["seconds"],
    "s per epoch": lambda record: record["phases"]["train"]["seconds"] / record["training"]["epochs"],
    "infer s": lambda record: record["phases"]["infer"]["seconds"],
    "memory MB": lambda record: (memory_used(record) or 0) / MEGABYTE or None,
}


def _preprocess(record: Record) -> float | None:
    """As measured; where arrays were reused, with the time that somebody had spent on them."""
    phase = record["phases"]["preprocess"]
    return float(phase["seconds"] + (phase.get("reused_seconds") or 0.0))


def machine_of(record: Record) -> str:
    """What timings have in common that may stand in one column."""
    environment = record["environment"]
    return f"{environment['gpu'] or environment['processor']}, {environment['threads']} thread(s)"


def cost_table(findings: Findings, study: Study, paper_table: str) -> Table:
    """One row per model, dataset and machine; twins stand under their own names."""
    paper = published(paper_table).set_index(["row", "column", "measure"])["mean"]
    rows = []
    for dataset in resolve(f"{study.datasets},{study.extra}"):
        for model in model_order(paper_table):
            trials = findings.trials(study.name, model, dataset.name)
            if trials is not None:
                rows += _cost_rows(trials, dataset, paper)
    return Table(
        study.name,
        f"{study.shows}: {study.about}",
        ("Dataset", "Method", *COSTS, "epochs", "n", "machine", "paper: GPU MB", "paper: s"),
        tuple(rows),
        (
            "Medians. Memory: largest of any phase above the start (on a GPU: reserved). The paper's seconds are for "
            "training "
            "and inference on an RTX 2080 Ti.",
            "A twin is a generated graph of the dataset's shape: its costs stand for the dataset, accuracies do not.",
        ),
    )


def _cost_rows(trials: Trials, dataset: Dataset, paper: pd.Series) -> list[tuple[Entry, ...]]:
    real = dataset.settings_name or dataset.name
    printed = [
        entry("" if (trials.model, real, what) not in paper.index else f"{paper[trials.model, real, what]:,g}")
        for what in ("memory_mb", "seconds")
    ]
    names = (entry(dataset.title), entry(_title(trials.model)))
    by_machine: dict[str, list[Record]] = {}
    for record in trials.good:
        by_machine.setdefault(machine_of(record), []).append(record)
    if not by_machine:
        blank = accuracy_entry(trials)
        return [(*names, blank, *[entry("")] * (len(COSTS) - 1), entry(""), entry("0"), entry(""), *printed)]
    rows = []
    for machine, records in sorted(by_machine.items()):
        keys = tuple(record["key"] for record in records)
        costs = [_median_entry([cost(record) for record in records], keys) for cost in COSTS.values()]
        epochs = _median_entry([record["training"]["epochs"] for record in records], keys)
        rows.append((*names, *costs, epochs, entry(str(len(records))), entry(machine), *printed))
    return rows


def _median_entry(values: Sequence[float | None], keys: tuple[str, ...]) -> Entry:
    known = [value for value in values if value is not None]
    if not known:
        return Entry("")
    median = float(np.median(known))
    return Entry(f"{median:,.0f}" if median >= 100 else f"{median:.3g}", keys, value=median)


# -- the scorecard ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """One accuracy that the paper prints, and ours."""

    trials: Trials
    paper: Reported | None  # None where the paper has OOM
    result: Equivalence | None  # None where there is nothing to compare

    @property
    def verdict(self) -> str:
        if self.result is not None:
            return self.result.verdict
        if self.paper is None and self.trials.good:
            return "ran here"
        return "failed" if self.trials.records else "not run"


def scores(findings: Findings) -> list[Score]:
    """Every accuracy of the paper's two main tables, in its order."""
    found = []
    for study, table in (("accuracy-small", "tab:normal-data"), ("accuracy-large", "tab:large-data")):
        for line in published(table).itertuples():
            trials = findings.trials(study, line.row, line.column)
            if trials is None:
                continue
            paper = None if line.status else Reported(line.mean, line.std)
            std = findings.split_std.get(line.column)
            compared = compare_with_paper(trials.accuracies, paper, std) if paper and trials.good else None
            found.append(Score(trials, paper, compared))
    return found


VERDICTS = ("reproduced", "higher", "lower", "undecided", "ran here", "failed", "not run")


def scorecard(found: Sequence[Score], titles: Mapping[str, str]) -> Table:
    """A row per published accuracy, ours beside it, and the verdict."""
    rows = []
    for score in sorted(found, key=lambda score: not score.trials.records):  # what was run comes first
        trials, result = score.trials, score.result
        paper = "OOM" if score.paper is None else f"{score.paper.mean:.2f} ± {score.paper.std:.2f}"
        difference, interval, bound = Entry(""), "", ""
        if result is not None:
            difference = Entry(f"{result.difference:+.2f}", trials.keys, value=result.difference)
            bound = f"± {result.bound:.2f}"
            interval = f"{result.interval.low:+.2f} to {result.interval.high:+.2f}" if result.interval else ""
        names = (entry(titles.get(trials.dataset, trials.dataset)), entry(_title(trials.model)))
        rows.append(
            (
                *names,
                entry(paper),
                accuracy_entry(trials),
                difference,
                entry(interval),
                entry(bound),
                entry(score.verdict),
            )
        )
    counts = {verdict: sum(score.verdict == verdict for score in found) for verdict in VERDICTS}
    totals = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return Table(
        "scorecard",
        "Scorecard: ours beside the paper's",
        ("Dataset", "Method", "Paper", "Ours (n)", "Ours − paper", "90 % interval", "Bound", "Verdict"),
        tuple(rows),
        (
            f"{len(found)} published accuracies: {totals}.",
            "Verdict: two one-sided 5 % tests against the bound, max(0.5 points, twice the spread over trials); "
            f"undecided below {MINIMUM_TRIALS} trials or where the interval crosses a bound.",
        ),
    )


# -- all of them ------------------------------------------------------------------------------------------------------


def all_tables(findings: Findings) -> list[Table]:
    """The six tables of the paper, in its order."""
    known = studies()
    return [
        dataset_table(),
        accuracy_table(findings, known["accuracy-small"], "tab:normal-data"),
        accuracy_table(findings, known["accuracy-large"], "tab:large-data"),
        ablation_table(findings, known["structural-encoding"], _with_and_without(known["structural-encoding"])),
        ablation_table(findings, known["augmentation-parts"], _against_first(known["augmentation-parts"])),
        cost_table(findings, known["cost"], "tab:cost"),
    ]


def _with_and_without(study: Study) -> list[Line]:
    """Per model: the second variant, the first, and what the first gains over the second."""
    with_it, without = study.variants
    names = list(dict.fromkeys(model.name for model, _, variant in study.combinations() if variant == with_it))
    lines = []
    for name in names:
        lines += [
            Line(f"{_title(name)}, {without.label}", name, without.label),
            Line(f"{_title(name)}, {with_it.label}", name, with_it.label),
            Line(f"{_title(name)}, gain", name, with_it.label, (name, without.label)),
        ]
    return lines


def _against_first(study: Study) -> list[Line]:
    """Each variant, and what each but the first gains over the first."""
    first, *others = study.variants
    lines = [Line(variant.label, variant.models, variant.label) for variant in study.variants]
    return lines + [
        Line(f"{variant.label}, gain", variant.models, variant.label, (first.models, first.label)) for variant in others
    ]
