"""The paper's figures: what becomes of a model along a setting, a panel per dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.report.drawing import legend_below, looks, panels
from bench.report.evidence import Trials
from bench.report.findings import Findings, column_title, dataset_title, model_title
from bench.report.statistics import Interval, summarise
from bench.studies import studies

LEAST_FOR_INTERVAL = 5  # trials: the 95 % interval of two is nine standard deviations long on either side
PERFECT = 100.0  # per cent: there is nothing beyond


def shown_interval(trials: Trials) -> Interval | None:
    """The 95 % interval of the mean as far as it lies within 100 %; none where it would be mostly Student's t."""
    summary = summarise(trials.accuracies)
    if summary.interval is None or summary.n < LEAST_FOR_INTERVAL:
        return None
    return Interval(summary.interval.low, min(summary.interval.high, PERFECT))


def drawn_of(findings: Findings, study: str) -> str:
    """What stands for the trials in a study's figure, with their number."""
    counts = [len(trials.good) for trials in _varied(findings, study)]
    if not counts:
        return ""
    fewest, most = min(counts), max(counts)
    bars = "bars: 95 % interval of the mean"
    dots = f"below {LEAST_FOR_INTERVAL} trials the dots are the trials and there is no interval"
    said = [f"n = {fewest}" if fewest == most else f"n = {fewest} to {most}"]
    said += [bars] if most >= LEAST_FOR_INTERVAL else []
    said += [dots] if fewest < LEAST_FOR_INTERVAL else []
    return "; ".join(said)


def named(trials: Sequence[Trials]) -> list[str]:
    """The datasets, each once."""
    return list(dict.fromkeys(each.dataset for each in trials))


def _varied(findings: Findings, study: str) -> list[Trials]:
    """Trials of a study with results, on the datasets where there is more than one variant to compare."""
    found = [trials for trials in findings.of_study(study) if trials.good]
    variants = {name: {trials.variant for trials in found if trials.dataset == name} for name in named(found)}
    return [trials for trials in found if len(variants[trials.dataset]) > 1]


def variants_figure(findings: Findings, study: str) -> Figure | None:
    """Mean and interval of each variant, a panel per dataset."""
    found = _varied(findings, study)
    if not found:
        return None
    names = named(found)
    figure, axes = panels(len(names))
    shown_as = looks(list(dict.fromkeys(trials.model for trials in found)))
    labels = [variant.label for variant in studies()[study].variants]
    for axis, name in zip(axes, names, strict=True):
        for at, (model, look) in enumerate(shown_as.items()):
            shift = 0.2 * (at - (len(shown_as) - 1) / 2)
            shown = [trials for trials in found if (trials.dataset, trials.model) == (name, model)]
            points = [(labels.index(trials.variant) + shift, trials) for trials in shown]
            _draw_points(axis, points, model_title(model), look, linestyle="none")
        axis.set_xticks(range(len(labels)), [label.partition("=")[2] or label for label in labels])
        axis.set_xlim(-0.5, len(labels) - 0.5)
        _end_at_perfect(axis)
        axis.set(title=dataset_title(name), ylabel="test accuracy, %")
    legend_below(figure, axes)
    return figure


def sweep_figure(findings: Findings, study: str, setting: str, label: str) -> Figure | None:
    """Accuracy along a setting, a panel per dataset."""
    found = _varied(findings, study)
    if not found:
        return None
    values = {variant.label: variant.settings[setting] for variant in studies()[study].variants}
    names = named(found)
    figure, axes = panels(len(names))
    shown_as = looks(list(dict.fromkeys(trials.model for trials in found)))
    for axis, name in zip(axes, names, strict=True):
        for model, look in shown_as.items():
            shown = [trials for trials in found if (trials.dataset, trials.model) == (name, model)]
            points = sorted(((values[trials.variant], trials) for trials in shown), key=lambda point: point[0])
            _draw_points(axis, points, model_title(model), look, linestyle="-")
        axis.set_xticks(sorted(set(values.values())))
        _end_at_perfect(axis)
        axis.set(title=column_title(studies()[study], name), xlabel=label, ylabel="test accuracy, %")
    legend_below(figure, axes)
    return figure


def _draw_points(
    axis: Axes, points: Sequence[tuple[float, Trials]], label: str, look: dict[str, Any], linestyle: str
) -> None:
    """A mark at each mean, with its interval or, where there are few, with the trials themselves."""
    if not points:
        return
    means = [float(np.mean(trials.accuracies)) for _, trials in points]
    axis.plot([place for place, _ in points], means, label=label, linestyle=linestyle, **look)
    for (place, trials), mean in zip(points, means, strict=True):
        interval = shown_interval(trials)
        if interval is not None:
            reach = [[mean - interval.low], [interval.high - mean]]
            axis.errorbar([place], [mean], reach, linestyle="none", capsize=3, color=look["color"])
        elif len(trials.good) > 1:
            dots = trials.accuracies
            axis.plot([place] * len(dots), dots, "o", markersize=3, alpha=0.6, color=look["color"], markeredgewidth=0)


def _end_at_perfect(axis: Axes) -> None:
    """Once everything is drawn: a limit that is set by hand no longer follows the data."""
    axis.set_ylim(top=min(axis.get_ylim()[1], PERFECT))


def grid_figure(findings: Findings, study: str, down: str, across: str) -> Figure | None:
    """A heat map of accuracies per dataset."""
    found = _varied(findings, study)
    if not found:
        return None
    settings = {variant.label: variant.settings for variant in studies()[study].variants}
    rows, columns = (sorted({chosen[name] for chosen in settings.values()}) for name in (down, across))
    names = named(found)
    figure, axes = panels(len(names), height=2.4)
    for axis, name in zip(axes, names, strict=True):
        grid = np.full((len(rows), len(columns)), np.nan)
        for trials in found:
            if trials.dataset == name:
                chosen = settings[trials.variant]
                grid[rows.index(chosen[down]), columns.index(chosen[across])] = np.mean(trials.accuracies)
        axis.imshow(grid, cmap="cividis", aspect="auto")
        middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
        for (row, column), mean in np.ndenumerate(grid):
            text, colour = ("–", "0.45") if np.isnan(mean) else (f"{mean:.2f}", "white" if mean < middle else "black")
            axis.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
        axis.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
        axis.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set(title=dataset_title(name), xlabel=across.replace("_", " "), ylabel=down.replace("_", " "))
        axis.grid(visible=False)
    return figure
