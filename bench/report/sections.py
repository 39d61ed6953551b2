"""What a report is put together from: sections, and the plain ones that any ledger has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from bench.registry import models
from bench.report.costs import cost_table, in_brief
from bench.report.drawing import Drawing
from bench.report.evidence import Evidence
from bench.report.figures import LEAST_FOR_INTERVAL, curves_figure, draw, pareto_figure, spread_figure
from bench.report.frontier import frontier_table
from bench.report.origins import origin_table
from bench.report.results import Results, Setting, model_title, results_of
from bench.report.statistics import MINIMUM_TRIALS, Refusal
from bench.report.table import Table
from bench.report.tables import Printed, accuracy_table, behind_best_table, conditions_table, machine_table
from bench.report.tuning import tuning_drawing, tuning_table
from bench.text import counted

Part = Table | Drawing
Found = TypeVar("Found", Table, Drawing)


@dataclass(frozen=True)
class Section:
    """Tables and figures in the order a reader meets them, and what they add to the lines above all sections."""

    title: str
    parts: Sequence[Part]
    about: tuple[str, ...] = ()
    headlines: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    chips: tuple[tuple[str, str], ...] = ()  # word, number


def plain_sections(evidence: Evidence, setting: Setting, printed: Printed = lambda model, dataset: "") -> list[Section]:
    """Return what any ledger has to show; `printed` is what a paper says of a model on a dataset."""
    results = results_of(evidence, setting)
    tried = [name for name in models() if any(name in each.trials for each in results)]
    costs = cost_table(results, setting)
    conditions = conditions_table(evidence, printed)
    own = evidence.reference is not None
    return [
        Section(
            "Results",
            [
                *([conditions] if own else []),
                accuracy_table("accuracy", "Test accuracy by dataset", results, setting, tried),
                *draw("trials", "Every trial; the bar is the mean, n in brackets", spread_figure, results),
                behind_best_table(results, tried),
                *draw(
                    "training-curves",
                    "Validation accuracy along training: the median over the trials still running, while half of them "
                    "are",
                    curves_figure,
                    results,
                    evidence,
                ),
            ],
            headlines=(_runs(results), *filter(None, map(_lead, results))),
        ),
        Section(
            "Costs",
            [
                *draw(
                    "accuracy-and-cost",
                    "Accuracy against memory and, machine by machine, the time of undisturbed trainings (bars: 95 % "
                    f"interval of the mean, from {LEAST_FOR_INTERVAL} trials on); the dashed line joins the models "
                    "that no other beats in both",
                    pareto_figure,
                    results,
                ),
                replace(costs, brief=in_brief(costs)),
                *_first(frontier_table, evidence.folders),
            ],
        ),
        Section(
            "Background",
            [
                *([] if own else [conditions]),
                *_first(tuning_drawing, evidence.folders),
                *_first(tuning_table, evidence.folders),
                origin_table(tried),
                machine_table(evidence),
            ],
        ),
    ]


def _first(make: Callable[[Path], Found | None], folders: Sequence[Path]) -> list[Found]:
    """What the first folder gives that has something to show."""
    return [part for folder in folders if (part := make(folder)) is not None][:1]


def _runs(results: Sequence[Results]) -> str:
    """Per graph: how many models with how many trials."""
    ran = []
    for each in results:
        numbers = [len(trials.good) for trials in each.good]
        if numbers:
            many = str(numbers[0]) if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"
            enough = sum(number >= MINIMUM_TRIALS for number in numbers)
            trials = f"{many} trial{'' if many == '1' else 's'}, {enough} with {MINIMUM_TRIALS} or more"
            ran.append(f"{each.title} ({counted(len(numbers), 'model')} of {trials})")
    return f"Accuracy was run on {', '.join(ran) or 'nothing yet'}."


def _lead(results: Results) -> str:
    """Who has the highest mean, and who cannot be told from it."""
    group, scores = results.leaders, results.aligned
    if isinstance(group, Refusal) or isinstance(scores, Refusal):
        return ""
    return (
        f"{results.title}: {model_title(group.best)} has the highest mean, {np.mean(scores[group.best]):.2f}; "
        f"{len(group.members)} of {len(scores)} models with {MINIMUM_TRIALS} trials are tied for best, that "
        f"is, no other is significantly better (5 %): {', '.join(map(model_title, group.members))}."
    )
