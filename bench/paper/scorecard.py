"""Every accuracy that the paper prints, ours beside it, and whether that is the same result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.paper.numbers import Printed, printed
from bench.paper.studies import studies
from bench.paper.tables import PAPER_TABLES
from bench.paper.trial_index import TrialIndex
from bench.report.entries import accuracy_entry, brackets, setting_lines
from bench.report.evidence import Trials
from bench.report.results import dataset_title, model_title
from bench.report.statistics import MINIMUM_TRIALS, Equivalence, Reported, compare_with_reported, spread
from bench.report.table import Entry, Table, entry

UNDECIDED = "undecided"
NOT_RUN = "not run"
VERDICTS = ("reproduced", "higher", "lower", UNDECIDED, "ran here", "failed", NOT_RUN)
LOWER, HIGHER, NOT_SHOWN = "lower", "higher", "not shown"  # whether there is a difference at all, however small
VERDICT = "Verdict"  # the last column


@dataclass(frozen=True)
class Score:
    """One accuracy that the paper prints, and ours."""

    where: str  # the paper's table
    trials: Trials
    printed: str  # the paper's number as it stands there
    result: Equivalence | None  # None where there is nothing to compare
    bound_keys: tuple[str, ...] = ()  # the records that the bound rests on, besides the trials

    @property
    def verdict(self) -> str:
        if self.result is not None:
            return self.result.verdict
        if self.trials.good:
            return "ran here"  # the paper has OOM
        return "failed" if self.trials.failures else NOT_RUN

    @property
    def difference(self) -> str:
        """Which side of the paper's number ours lies on, by Welch's t at 5 %; nothing where the trials are too few."""
        if self.result is None or self.result.wide is None or self.result.n < MINIMUM_TRIALS:
            return ""
        if self.result.wide.high < 0:
            return LOWER
        return HIGHER if self.result.wide.low > 0 else NOT_SHOWN

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.trials.keys, *self.bound_keys)))


def scores(index: TrialIndex) -> list[Score]:
    """Every accuracy of the paper's tables once, in its order; two tables repeat what another has."""
    found: list[Score] = []
    seen: set[tuple[str, str, str]] = set()  # model, dataset, configuration
    for study, table in PAPER_TABLES.items():
        for (model, variant, dataset), cell in printed(table).items():
            trials = index.trials(study, model, dataset, variant)
            if trials is not None and (work := (trials.model, trials.dataset, trials.config)) not in seen:
                seen.add(work)
                found.append(_score(index, studies()[study].shows, trials, cell))
    return found


def _score(index: TrialIndex, where: str, trials: Trials, cell: Printed) -> Score:
    if np.isnan(cell.mean) or not trials.good:
        return Score(where, trials, cell.text, None)
    std = cell.std
    if np.isnan(std):  # then ours is taken for theirs
        std = spread(np.array(trials.accuracies)) if len(trials.good) > 1 else 0.0
    pooled = index.pooled.get(trials.dataset)
    result = compare_with_reported(trials.accuracies, Reported(cell.mean, std), pooled.std if pooled else None)
    return Score(where, trials, cell.text, result, pooled.keys if pooled else ())


def scorecard(index: TrialIndex, found: Sequence[Score]) -> Table:
    """A row per published accuracy; what was run comes first."""
    rows = [_row(score) for score in sorted(found, key=lambda score: not score.trials.records)]
    return Table(
        "scorecard",
        "Scorecard: ours beside the paper's",
        ("Dataset", "Method", "Paper", "Ours (n)", "Ours − paper", "90 % interval", "Difference", "Bound", VERDICT),
        tuple(rows),
        (
            f"{len(found)} published accuracies: {totals(found)}.",
            *differences(found),
            "Difference: whether ours is shown to be lower or higher at all, by Welch's t at 5 %, from "
            f"{MINIMUM_TRIALS} trials on. It says nothing of how much that matters, and no test sees the luck of the "
            "paper's split.",
            "Verdict: two one-sided 5 % tests against the bound, max(0.5 points, twice the spread over fresh trials, "
            f"pooled over the models of the dataset); undecided below {MINIMUM_TRIALS} trials or where the interval "
            "crosses a bound. The paper's numbers are taken as means of ten trials; where it prints no spread (Tables "
            "4 and 5), ours is taken for it. Its spread is most likely over initialisations of one split only. "
            "Reproduced means within the bound, not equal: the bound can be wider than what lies between two models of "
            "the paper.",
            *setting_lines(index.setting, (score.trials for score in found)),
        ),
    )


def without_not_run(table: Table, index: TrialIndex) -> Table:
    """The scorecard as a reader gets it: what was never run is one line, and only the CSV has a row for each."""
    at = table.header.index(VERDICT)
    rows = tuple(row for row in table.rows if row[at].text != NOT_RUN)
    missing = len(table.rows) - len(rows)
    command, names = index.fill_command("NAME"), ", ".join(PAPER_TABLES)
    line = f"{missing} more were not run and stand in {table.name}.csv only; `{command}` runs them (NAME: {names})."
    return replace(table, rows=rows, caption=(*table.caption, line)) if missing else table


def differences(found: Sequence[Score]) -> list[str]:
    """How many lie below and above the paper's, whatever the bound."""
    counts = Counter(score.difference for score in found if score.difference)
    if not counts:
        return []
    return [
        f"Of these with {MINIMUM_TRIALS} trials or more: {counts[LOWER]} lower than the paper, {counts[HIGHER]} "
        f"higher, {counts[NOT_SHOWN]} with no difference shown (Welch's t, 5 %)."
    ]


def totals(found: Sequence[Score]) -> str:
    """How many of each verdict, and how many are undecided for lack of trials."""
    counts = Counter(score.verdict for score in found)
    few = sum(score.verdict == UNDECIDED and len(score.trials.good) < MINIMUM_TRIALS for score in found)
    remarks = {UNDECIDED: f" ({few} with fewer than {MINIMUM_TRIALS} trials)" if few else ""}
    return ", ".join(
        f"{counts[verdict]} {verdict}{remarks.get(verdict, '')}" for verdict in VERDICTS if counts[verdict]
    )


def _row(score: Score) -> tuple[Entry, ...]:
    trials, result = score.trials, score.result
    method = ", ".join(filter(None, [model_title(trials.model), trials.variant]))
    names = (
        entry(dataset_title(trials.dataset)),
        entry(method),
        Entry(score.printed, note=f"{score.where} of the paper"),
    )
    difference = interval = bound = side = Entry("")
    if result is not None:
        difference = Entry(f"{result.difference:+.2f}", trials.keys, value=result.difference)
        bound = Entry(f"± {result.bound:.2f}", score.keys, value=result.bound)
        side = Entry(
            score.difference, trials.keys, note=f"95 % interval {brackets(result.wide)}" if result.wide else ""
        )
        if result.interval is not None:
            interval = Entry(brackets(result.interval), trials.keys, value=result.interval.low)
    verdict = Entry(score.verdict, score.keys, note="" if trials.records else trials.command)
    return (*names, accuracy_entry(trials), difference, interval, side, bound, verdict)
