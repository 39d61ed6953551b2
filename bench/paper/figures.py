"""The scorecard as a picture, and the paper's figures: what becomes of a model along a setting, dataset by dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.paper.scorecard import NOT_RUN, Score
from bench.paper.studies import studies
from bench.paper.trial_index import TrialIndex, column_title
from bench.report.drawing import Drawing, legend_below, panels
from bench.report.evidence import Trials
from bench.report.figures import LEAST_FOR_INTERVAL, PERFECT, draw, looks_of, shown_interval
from bench.report.results import dataset_title, each_once, model_title

SWEEPS = {  # study -> what its figure is called, and the axis along which it varies
    "readout": ("three readouts", "readout"),
    "hops": ("hops K", "hops K"),
    "layers": ("layers L", "layers L"),
}


def study_figures(index: TrialIndex) -> dict[str, Drawing]:
    """Figures 2 to 5 by study, as far as there is something to compare."""
    found: list[Drawing] = []
    for name, (about, label) in SWEEPS.items():
        title = f"{studies()[name].shows}: {about} ({drawn_of(index, name)})"
        found += draw(name, title, sweep_figure, index, name, label)
    title = "Figure 5: mask ratio against augmentation probability, mean test accuracy"
    found += draw("augmentation-grid", title, grid_figure, index, "augmentation-grid")
    return {drawing.name: drawing for drawing in found}


def scorecard_drawing(found: Sequence[Score]) -> list[Drawing]:
    return draw("scorecard", "Ours minus the paper's, with the verdict", scorecard_figure, found)


def scorecard_figure(found: Sequence[Score]) -> Figure | None:
    """Ours minus the paper's of the two main tables, model by dataset, with the verdict in words."""
    main = [score for score in found if not score.trials.variant]
    if not any(score.result for score in main):
        return None
    rows = list(dict.fromkeys(score.trials.model for score in main))
    columns = list(dict.fromkeys(score.trials.dataset for score in main))
    differences = [abs(score.result.difference) for score in main if score.result]
    reach = max(1.0, *differences)
    figure = Figure(figsize=(1.05 * len(columns) + 1.7, 0.42 * len(rows) + 1.0), layout="constrained")
    axis = figure.add_subplot()
    grid = np.full((len(rows), len(columns)), np.nan)
    for score in main:
        row, column = rows.index(score.trials.model), columns.index(score.trials.dataset)
        text, colour = ("–" if score.verdict == NOT_RUN else score.verdict), "0.45"
        if score.result is not None:
            grid[row, column] = score.result.difference
            text = f"{score.result.difference:+.2f}\n{score.verdict}".replace("-", "−")
            colour = "white" if abs(score.result.difference) > 0.6 * reach else "black"
        axis.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)
    image = axis.imshow(np.ma.masked_invalid(grid), cmap="PuOr", vmin=-reach, vmax=reach, aspect="auto")
    axis.set_facecolor("0.97")
    axis.set_xticks(range(len(columns)), [dataset_title(name) for name in columns])
    axis.set_yticks(range(len(rows)), [model_title(name) for name in rows])
    axis.tick_params(length=0, top=True, labeltop=True, labelbottom=False)
    axis.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axis.grid(visible=False)
    axis.grid(which="minor", color="white", alpha=1, linewidth=2)
    axis.tick_params(which="minor", length=0)
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, shrink=0.6, aspect=30, label="ours − paper, points of test accuracy")
    return figure


def drawn_of(index: TrialIndex, study: str) -> str:
    """What stands for the trials in a study's figure, with their number."""
    counts = [len(trials.good) for trials in _varied(index, study)]
    if not counts:
        return ""
    fewest, most = min(counts), max(counts)
    bars = "bars: 95 % interval of the mean"
    dots = f"below {LEAST_FOR_INTERVAL} trials the dots are the trials and there is no interval"
    said = [f"n = {fewest}" if fewest == most else f"n = {fewest} to {most}"]
    said += [bars] if most >= LEAST_FOR_INTERVAL else []
    said += [dots] if fewest < LEAST_FOR_INTERVAL else []
    return "; ".join(said)


def _varied(index: TrialIndex, study: str) -> list[Trials]:
    """Trials of a study with results, on the datasets where there is more than one variant to compare."""
    found = [trials for trials in index.of_study(study) if trials.good]
    variants = {name: {trials.variant for trials in found if trials.dataset == name} for name in _datasets(found)}
    return [trials for trials in found if len(variants[trials.dataset]) > 1]


def _datasets(trials: Sequence[Trials]) -> list[str]:
    return each_once(each.dataset for each in trials)


def sweep_figure(index: TrialIndex, study: str, label: str) -> Figure | None:
    """Mean and interval along the one setting that the study varies; values that are words stand side by side."""
    found = _varied(index, study)
    if not found:
        return None
    [setting], variants = studies()[study].varied, studies()[study].variants
    values = {variant.label: variant.settings[setting] for variant in variants}
    in_words = any(isinstance(value, str) for value in values.values())
    ticks = list(values.values())
    names = _datasets(found)
    figure, axes = panels(len(names))
    shown_as = looks_of(found)
    for axis, name in zip(axes, names, strict=True):
        for at, (model, look) in enumerate(shown_as.items()):
            shown = [trials for trials in found if (trials.dataset, trials.model) == (name, model)]
            shift = 0.2 * (at - (len(shown_as) - 1) / 2)
            places = [ticks.index(values[t.variant]) + shift if in_words else values[t.variant] for t in shown]
            points = sorted(zip(places, shown, strict=True), key=lambda point: point[0])
            _draw_points(axis, points, model_title(model), look, linestyle="none" if in_words else "-")
        if in_words:
            axis.set_xticks(range(len(ticks)), ticks)
            axis.set_xlim(-0.5, len(ticks) - 0.5)
        else:
            axis.set_xticks(sorted(set(ticks)))
            axis.set_xlabel(label)
        _end_at_perfect(axis)
        axis.set(title=column_title(studies()[study], name), ylabel="test accuracy, %")
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


def grid_figure(index: TrialIndex, study: str) -> Figure | None:
    """A heat map of accuracies per dataset: the study's first setting down, its second across."""
    found = _varied(index, study)
    if not found:
        return None
    down, across = studies()[study].varied
    settings = {variant.label: variant.settings for variant in studies()[study].variants}
    rows, columns = (sorted({chosen[name] for chosen in settings.values()}) for name in (down, across))
    names = _datasets(found)
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
