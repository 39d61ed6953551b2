"""The figures that every ledger has, a panel per dataset; a figure without data is not drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import UserError
from bench.predictions import PredictionStore
from bench.records import Record, machine_of, memory_used, under_load
from bench.report.drawing import PANEL, STYLE, Drawing, as_files, legend_below, logarithmic, looks, panels
from bench.report.evidence import Evidence, Trials
from bench.report.results import Results, each_once, model_title
from bench.report.statistics import Interval, summarise
from bench.sizes import megabytes

WORTH_SEEING = 25.0  # points below the best: where curves lie that may still catch up
LEAST_FOR_INTERVAL = 5  # trials: the 95 % interval of two is nine standard deviations long on either side
PERFECT = 100.0  # per cent: there is nothing beyond


def shown_interval(trials: Trials) -> Interval | None:
    """The 95 % interval of the mean as far as it lies within 100 %; none where it would be mostly Student's t."""
    summary = summarise(trials.accuracies)
    if summary.interval is None or summary.n < LEAST_FOR_INTERVAL:
        return None
    return Interval(summary.interval.low, min(summary.interval.high, PERFECT))


def draw(name: str, title: str, make: Callable[..., Figure | None], *about: Any) -> list[Drawing]:
    """One drawing, or none where there is nothing to draw."""
    with mpl.rc_context(STYLE):
        figure = make(*about)
    return [] if figure is None else [Drawing(name, title, as_files(figure))]


def looks_of(found: Sequence[Trials]) -> dict[str, dict[str, Any]]:
    """A look for each model that is drawn."""
    return looks(each_once(trials.model for trials in found))


def all_good(results: Sequence[Results]) -> list[Trials]:
    return [trials for each in results for trials in each.good]


def _undisturbed_seconds(record: Record) -> float | None:
    return record["phases"]["train"]["seconds"] if under_load(record) is False else None


@dataclass(frozen=True)
class Cost:
    """What accuracy is set against, and where it may be compared."""

    label: str
    of: Callable[[Record], float | None]
    place: Callable[[Record], str]


PARETO = (
    Cost("training, s", _undisturbed_seconds, machine_of),
    # neither other work nor the processor changes how much is needed, only on what it lies
    Cost(
        "peak memory, MB",
        lambda record: megabytes(memory_used(record)),
        lambda record: f"on {record['environment']['gpu']}" if record["environment"]["gpu"] else "main memory",
    ),
)


def pareto_figure(results: Sequence[Results]) -> Figure | None:
    """Scores against training seconds and against memory: a panel for each, per dataset and place."""
    compared = [
        (each.title, place, cost.label, several)
        for each in results
        for cost in PARETO
        for place in sorted({cost.place(record) for trials in each.good for record in trials.good})
        if len(several := _costs_at(place, each.good, cost)) > 1
    ]
    if not compared:
        return None
    many = len(compared) > 4  # then two datasets stand in a row
    figure, axes = panels(len(compared), 3.0, *((4, 2.8) if many else (2, PANEL)))
    shown_as = looks_of(all_good(results))
    for axis, (title, place, label, several) in zip(axes, compared, strict=True):
        for trials, cost in several:
            mean, interval = float(np.mean(trials.accuracies)), shown_interval(trials)
            reach = None if interval is None else [[mean - interval.low], [interval.high - mean]]
            axis.errorbar(
                [cost], [mean], reach, label=model_title(trials.model), capsize=2, linestyle="none",
                elinewidth=1, **shown_as[trials.model],
            )  # fmt: skip
        _front(axis, several)
        logarithmic(axis, [cost for _, cost in several])
        axis.set(xlabel=label, ylabel="test accuracy, %")
        axis.set_title(f"{title}\n", loc="left")
        axis.text(0, 1.02, place, transform=axis.transAxes, fontsize=7, color="0.35")
    legend_below(figure, axes)
    return figure


def _costs_at(place: str, found: Sequence[Trials], cost: Cost) -> list[tuple[Trials, float]]:
    """The models whose cost is known at this place, each with the median over its trials."""
    costs = []
    for trials in found:
        records = [record for record in trials.good if cost.place(record) == place]
        known = [value for record in records if (value := cost.of(record)) is not None]
        costs += [(trials, float(np.median(known)))] if known else []
    return costs


def _front(axis: Axes, shown: Sequence[tuple[Trials, float]]) -> None:
    """The line through the models that nothing beats in both."""
    points = sorted((cost, float(np.mean(trials.accuracies))) for trials, cost in shown)
    front, best = [], -np.inf
    for cost, accuracy in points:
        if accuracy > best:
            front.append((cost, accuracy))
            best = accuracy
    axis.step(*zip(*front, strict=True), where="post", color="0.5", linestyle="--", linewidth=1, zorder=0)


def spread_figure(results: Sequence[Results]) -> Figure | None:
    """Every trial as a point: what lies behind the means."""
    results = [each for each in results if each.good]
    if not results:
        return None
    most = max(len(each.good) for each in results)
    figure, axes = panels(len(results), height=0.27 * most + 0.9, across=2)
    for axis, each in zip(axes, results, strict=True):
        for row, trials in enumerate(each.good):
            values = trials.accuracies
            axis.plot(values, [row] * len(values), "o", markersize=4, alpha=0.5, color="0.25", markeredgewidth=0)
            axis.plot([np.mean(values)], [row], "|", markersize=13, markeredgewidth=2, color="#c44e00")
        labels = [f"{model_title(trials.model)} ({len(trials.good)})" for trials in each.good]
        axis.set_yticks(range(len(labels)), labels)
        axis.set_ylim(most - 0.5, -0.5)
        axis.set(title=each.title, xlabel="test accuracy, %")
    return figure


def curves_figure(results: Sequence[Results], evidence: Evidence) -> Figure | None:
    """Validation scores along training: the median over trials, a panel per dataset.

    A stored curve that cannot be read becomes a warning.
    """
    predictions = PredictionStore(*evidence.folders)
    drawn = [
        (each.title, found)
        for each in results
        if (
            found := [
                (trials, median)
                for trials in each.good
                if (median := _median_curve(list(_curves(trials, predictions, evidence.warnings)))) is not None
            ]
        )
    ]
    if not drawn:
        return None
    figure, axes = panels(len(drawn), height=3.0, across=2)
    shown_as = looks_of([trials for _, found in drawn for trials, _ in found])
    for axis, (title, found) in zip(axes, drawn, strict=True):
        for trials, median in found:
            epochs = trials.good[0]["config"]["evaluate_every"] * np.arange(1, len(median) + 1)
            axis.plot(
                epochs, median, label=model_title(trials.model), markersize=4, linewidth=1,
                markevery=max(1, len(median) // 6), **shown_as[trials.model],
            )  # fmt: skip
        logarithmic(axis, [1, max(axis.dataLim.x1, 1)])
        top = max(float(median.max()) for _, median in found)
        axis.set_ylim(top - WORTH_SEEING, top + 1)
        axis.set(xlabel="epoch", ylabel="validation accuracy, %", title=title)
    legend_below(figure, axes)
    return figure


def _curves(trials: Trials, predictions: PredictionStore, warnings: list[str]) -> Iterator[np.ndarray]:
    """Validation accuracies in per cent, evaluation by evaluation, of each trial."""
    for record in trials.good:
        if record["predictions"]:
            try:
                yield 100 * predictions.curve(record["predictions"], record["key"])[:, 2]
            except UserError as error:
                warnings.append(str(error))


def _median_curve(curves: Sequence[np.ndarray]) -> np.ndarray | None:
    """Over the trials that were still running; it ends where fewer than half were."""
    longest = max(map(len, curves), default=0)
    if not longest:
        return None
    padded = np.full((len(curves), longest), np.nan)
    for row, curve in zip(padded, curves, strict=True):
        row[: len(curve)] = curve
    running = (~np.isnan(padded)).sum(axis=0)
    return np.nanmedian(padded[:, running * 2 >= len(curves)], axis=0)
