"""The paper's four figures and ours, drawn from the same findings as the tables; a figure without data is not drawn."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.data.catalogue import datasets
from bench.errors import UserError
from bench.predictions import PredictionStore
from bench.records import memory_used
from bench.registry import models
from bench.report.evidence import Trials
from bench.report.statistics import summarise
from bench.report.tables import Findings, Score
from bench.studies import studies

# The same bytes for the same data: no dates, no random ids, no version of the drawing program.
STYLE: Any = {
    "svg.hashsalt": "nagphormer-bench",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 100,
}
MARKERS = "osD^vP*X<>pdhH"  # told apart in grey, where colours are not
WIDTH = 3.2  # inches of one panel


def all_figures(
    findings: Findings, found: Sequence[Score], predictions: PredictionStore
) -> Iterator[tuple[str, Figure]]:
    """Names and figures, as far as there is something to draw; stored curves that cannot be read become warnings."""
    makers: dict[str, Callable[[], Figure | None]] = {
        "readout": lambda: variants_figure(findings, "readout"),
        "hops": lambda: sweep_figure(findings, "hops", "hops", "hops K"),
        "layers": lambda: sweep_figure(findings, "layers", "layers", "layers L"),
        "augmentation-grid": lambda: grid_figure(findings, "augmentation-grid", "mask_ratio", "augment_probability"),
        "scorecard": lambda: scorecard_figure(found),
        "accuracy-and-cost": lambda: pareto_figure(findings),
        "trials": lambda: spread_figure(findings),
        "training-curves": lambda: curves_figure(findings, predictions),
    }
    for name, make in makers.items():
        with mpl.rc_context(STYLE):
            figure = make()
        if figure is not None:
            yield name, figure


def as_bytes(figure: Figure, form: str) -> bytes:
    """PNG or SVG without anything that changes from one drawing to the next."""
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=form, dpi=150, bbox_inches="tight", metadata=metadata)
    return buffer.getvalue()


# -- helpers ----------------------------------------------------------------------------------------------------------


def _panels(count: int, height: float = 2.6, across: int = 3) -> tuple[Figure, list[Axes]]:
    across = min(across, count)
    down = -(-count // across)
    figure = Figure(figsize=(WIDTH * across, height * down), layout="constrained")
    axes = [figure.add_subplot(down, across, at + 1) for at in range(count)]
    return figure, axes


def _model_title(name: str) -> str:
    return models()[name].title or name


def _dataset_title(name: str) -> str:
    return datasets()[name].title


def _looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour and a marker for each name."""
    colours = sns.color_palette("colorblind", 10)
    cycle = itertools.cycle(colours)
    return {
        name: {"color": colour, "marker": MARKERS[at % len(MARKERS)]}
        for at, (name, colour) in enumerate(zip(names, cycle, strict=False))
    }


def _with_results(findings: Findings, study: str) -> list[Trials]:
    return [trials for trials in findings.of_study(study) if trials.good]


def _error(trials: Trials) -> tuple[float, float]:
    """Mean and half the length of its 95 % interval; no length for a single trial."""
    summary = summarise(trials.accuracies)
    return summary.mean, 0.0 if summary.interval is None else (summary.interval.high - summary.interval.low) / 2


# -- the paper's figures ----------------------------------------------------------------------------------------------


def variants_figure(findings: Findings, study: str) -> Figure | None:
    """Mean and interval of each variant, a panel per dataset."""
    found = _with_results(findings, study)
    names = list(dict.fromkeys(trials.dataset for trials in found))
    if not found:
        return None
    figure, axes = _panels(len(names))
    looks = _looks(list(dict.fromkeys(trials.model for trials in found)))
    labels = [variant.label for variant in studies()[study].variants]
    for axis, name in zip(axes, names, strict=True):
        for shift, model in enumerate(looks):
            shown = [trials for trials in found if (trials.dataset, trials.model) == (name, model)]
            places = [labels.index(trials.variant) + 0.15 * shift for trials in shown]
            means, errors = zip(*map(_error, shown), strict=True) if shown else ((), ())
            axis.errorbar(places, means, errors, label=_model_title(model), linestyle="none", capsize=3, **looks[model])
        axis.set_xticks(range(len(labels)), [label.partition("=")[2] or label for label in labels])
        axis.set_title(_dataset_title(name))
        axis.set_ylabel("test accuracy, %")
    axes[0].legend(fontsize=7)
    return figure


def sweep_figure(findings: Findings, study: str, setting: str, label: str) -> Figure | None:
    """Accuracy along a setting, a panel per dataset."""
    found = _with_results(findings, study)
    if not found:
        return None
    values = {variant.label: variant.settings[setting] for variant in studies()[study].variants}
    names = list(dict.fromkeys(trials.dataset for trials in found))
    figure, axes = _panels(len(names))
    looks = _looks(list(dict.fromkeys(trials.model for trials in found)))
    for axis, name in zip(axes, names, strict=True):
        for model, look in looks.items():
            shown = sorted(
                (values[trials.variant], *_error(trials))
                for trials in found
                if (trials.dataset, trials.model) == (name, model)
            )
            if shown:
                places, means, errors = zip(*shown, strict=True)
                axis.errorbar(places, means, errors, label=_model_title(model), capsize=3, **look)
        axis.set_title(_dataset_title(name))
        axis.set_xlabel(label)
        axis.set_ylabel("test accuracy, %")
    axes[0].legend(fontsize=7)
    return figure


def grid_figure(findings: Findings, study: str, down: str, across: str) -> Figure | None:
    """A heat map of accuracies per dataset."""
    found = _with_results(findings, study)
    if not found:
        return None
    settings = {variant.label: variant.settings for variant in studies()[study].variants}
    rows, columns = (sorted({chosen[name] for chosen in settings.values()}) for name in (down, across))
    names = list(dict.fromkeys(trials.dataset for trials in found))
    figure, axes = _panels(len(names))
    for axis, name in zip(axes, names, strict=True):
        grid = np.full((len(rows), len(columns)), np.nan)
        for trials in found:
            if trials.dataset == name:
                chosen = settings[trials.variant]
                grid[rows.index(chosen[down]), columns.index(chosen[across])] = np.mean(trials.accuracies)
        sns.heatmap(
            grid, ax=axis, annot=True, fmt=".2f", cmap="cividis", cbar=False, xticklabels=columns, yticklabels=rows
        )
        axis.set(title=_dataset_title(name), xlabel=across.replace("_", " "), ylabel=down.replace("_", " "))
        axis.grid(visible=False)
    return figure


# -- ours -------------------------------------------------------------------------------------------------------------


def scorecard_figure(found: Sequence[Score]) -> Figure | None:
    """Ours minus the paper's, model by dataset; the verdict's first letter in each place."""
    if not any(score.result for score in found):
        return None
    rows = list(dict.fromkeys(score.trials.model for score in found))
    columns = list(dict.fromkeys(score.trials.dataset for score in found))
    grid = np.full((len(rows), len(columns)), np.nan)
    texts = np.full(grid.shape, "", dtype=object)
    for score in found:
        place = rows.index(score.trials.model), columns.index(score.trials.dataset)
        texts[place] = score.verdict if score.result is None else f"{score.result.difference:+.2f}\n{score.verdict}"
        if score.result is not None:
            grid[place] = score.result.difference
    figure = Figure(figsize=(1.15 * len(columns) + 1.5, 0.42 * len(rows) + 1.2), layout="constrained")
    axis = figure.add_subplot()
    reach = max(1.0, float(np.nanmax(np.abs(grid))))
    image = axis.imshow(np.nan_to_num(grid), cmap="PuOr", vmin=-reach, vmax=reach, aspect="auto")
    for (row, column), text in np.ndenumerate(texts):
        dark = abs(np.nan_to_num(grid[row, column])) > 0.6 * reach
        axis.text(column, row, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    axis.set_xticks(range(len(columns)), [_dataset_title(name) for name in columns])
    axis.set_yticks(range(len(rows)), [_model_title(name) for name in rows])
    axis.grid(visible=False)
    axis.set_title("ours − paper, points of test accuracy")
    figure.colorbar(image, ax=axis, shrink=0.6)
    return figure


def _accuracy_trials(findings: Findings) -> list[Trials]:
    return [*_with_results(findings, "accuracy-small"), *_with_results(findings, "accuracy-large")]


def pareto_figure(findings: Findings) -> Figure | None:
    """Accuracy against training seconds and against memory, a row of two panels per dataset."""
    found = _accuracy_trials(findings)
    names = list(dict.fromkeys(trials.dataset for trials in found))
    if not found:
        return None
    figure, axes = _panels(2 * len(names), across=2, height=2.8)
    looks = _looks(list(dict.fromkeys(trials.model for trials in found)))
    for at, name in enumerate(names):
        shown = [trials for trials in found if trials.dataset == name]
        seconds = [float(np.median([r["phases"]["train"]["seconds"] for r in trials.good])) for trials in shown]
        memory = [float(np.median([(memory_used(r) or np.nan) / 1e6 for r in trials.good])) for trials in shown]
        for axis, costs, label in (
            (axes[2 * at], seconds, "training, s"),
            (axes[2 * at + 1], memory, "peak memory, MB"),
        ):
            _scatter(axis, shown, costs, looks)
            axis.set(xscale="log", xlabel=label, ylabel="test accuracy, %", title=_dataset_title(name))
    axes[1].legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _scatter(axis: Axes, shown: Sequence[Trials], costs: Sequence[float], looks: dict[str, dict[str, Any]]) -> None:
    """Points, and the line through those that nothing beats in both."""
    points = sorted(zip(costs, (_error(trials)[0] for trials in shown), strict=True))
    front, best = [], -np.inf
    for cost, accuracy in points:
        if accuracy > best:
            front.append((cost, accuracy))
            best = accuracy
    axis.step(*zip(*front, strict=True), where="post", color="0.6", linestyle="--", linewidth=1)
    for trials, cost in zip(shown, costs, strict=True):
        mean, error = _error(trials)
        axis.errorbar([cost], [mean], [error], label=_model_title(trials.model), capsize=2, **looks[trials.model])


def spread_figure(findings: Findings) -> Figure | None:
    """Every trial as a point: what lies behind the means."""
    found = _accuracy_trials(findings)
    names = list(dict.fromkeys(trials.dataset for trials in found))
    if not found:
        return None
    figure, axes = _panels(len(names), height=3.2, across=2)
    for axis, name in zip(axes, names, strict=True):
        shown = [trials for trials in found if trials.dataset == name]
        for row, trials in enumerate(shown):
            values = trials.accuracies
            axis.plot(values, [row] * len(values), "o", markersize=4, alpha=0.6, color="0.2")
            axis.plot([np.mean(values)], [row], "|", markersize=14, color=sns.color_palette("colorblind")[3])
        axis.set_yticks(range(len(shown)), [f"{_model_title(trials.model)} ({len(trials.good)})" for trials in shown])
        axis.invert_yaxis()
        axis.set(title=_dataset_title(name), xlabel="test accuracy, %")
    return figure


def curves_figure(findings: Findings, predictions: PredictionStore) -> Figure | None:
    """Validation accuracy along training: the median over trials, a panel per dataset."""
    found = _accuracy_trials(findings)
    names = list(dict.fromkeys(trials.dataset for trials in found))
    if not found:
        return None
    figure, axes = _panels(len(names), height=3.0, across=2)
    looks = _looks(list(dict.fromkeys(trials.model for trials in found)))
    for axis, name in zip(axes, names, strict=True):
        for trials in (trials for trials in found if trials.dataset == name):
            look = looks[trials.model]
            curves = list(_curves(trials, predictions, findings.evidence.warnings))
            if curves:
                median = _median_curve(curves)
                axis.plot(
                    range(1, len(median) + 1),
                    median,
                    label=_model_title(trials.model),
                    markevery=max(1, len(median) // 6),
                    markersize=4,
                    linewidth=1,
                    **look,
                )
        axis.set(xscale="log", xlabel="evaluation", ylabel="validation accuracy, %", title=_dataset_title(name))
    axes[0].legend(fontsize=6)
    return figure


def _curves(trials: Trials, predictions: PredictionStore, warnings: list[str]) -> Iterator[np.ndarray]:
    """Validation accuracies in per cent, evaluation by evaluation, of each trial."""
    for record in trials.good:
        if record["predictions"]:
            try:
                yield 100 * predictions.curve(record["predictions"], record["key"])[:, 2]
            except UserError as error:
                warnings.append(str(error))


def _median_curve(curves: Sequence[np.ndarray]) -> np.ndarray:
    """Over the trials that were still running; it ends where fewer than half were."""
    longest = max(map(len, curves))
    padded = np.full((len(curves), longest), np.nan)
    for row, curve in zip(padded, curves, strict=True):
        row[: len(curve)] = curve
    running = (~np.isnan(padded)).sum(axis=0)
    return np.nanmedian(padded[:, running * 2 >= len(curves)], axis=0)
