"""The figures that the paper does not have, and the list of all; a figure without data is not drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
import scikit_posthocs
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import UserError
from bench.predictions import PredictionStore
from bench.records import Record, machine_of, memory_used, under_load
from bench.report.drawing import PANEL, STYLE, Drawing, as_files, legend_below, logarithmic, looks, panels
from bench.report.evidence import Trials
from bench.report.findings import ACCURACY_STUDIES, Findings, dataset_title, model_title
from bench.report.paper_figures import (
    LEAST_FOR_INTERVAL,
    drawn_of,
    grid_figure,
    named,
    shown_interval,
    sweep_figure,
    variants_figure,
)
from bench.report.rivals import Ranking
from bench.report.scorecard import Score
from bench.report.tables import model_order
from bench.sizes import megabytes

WORTH_SEEING = 25.0  # points below the best: where curves lie that may still catch up


def all_figures(
    findings: Findings, found: Sequence[Score], ranked: Ranking, predictions: PredictionStore
) -> Iterator[Drawing]:
    """What there is something to draw of; stored curves that cannot be read become warnings."""

    def titled(title: str, study: str) -> str:
        return f"{title} ({drawn_of(findings, study)})"

    makers: dict[str, tuple[str, Callable[[], Figure | None]]] = {
        "scorecard": ("Ours minus the paper's, with the verdict", lambda: scorecard_figure(found)),
        "accuracy-and-cost": (
            "Accuracy against memory and, machine by machine, the time of undisturbed trainings (bars: 95 % interval "
            f"of the mean, from {LEAST_FOR_INTERVAL} trials on); the dashed line joins the models that no other beats "
            "in both",
            lambda: pareto_figure(findings),
        ),
        "trials": ("Every trial; the bar is the mean, n in brackets", lambda: spread_figure(findings)),
        "training-curves": (
            "Validation accuracy along training: the median over the trials still running, while half of them are",
            lambda: curves_figure(findings, predictions),
        ),
        "critical-difference": (
            "Mean ranks; models under one bar are not told apart (Nemenyi after Friedman, 5 %)",
            lambda: critical_difference_figure(ranked),
        ),
        "readout": (titled("Figure 2: three readouts", "readout"), lambda: variants_figure(findings, "readout")),
        "hops": (titled("Figure 3: hops K", "hops"), lambda: sweep_figure(findings, "hops", "hops", "hops K")),
        "layers": (
            titled("Figure 4: layers L", "layers"),
            lambda: sweep_figure(findings, "layers", "layers", "layers L"),
        ),
        "augmentation-grid": (
            "Figure 5: mask ratio against augmentation probability, mean test accuracy",
            lambda: grid_figure(findings, "augmentation-grid", "mask_ratio", "augment_probability"),
        ),
    }
    for name, (title, make) in makers.items():
        with mpl.rc_context(STYLE):
            figure = make()
        if figure is not None:
            yield Drawing(name, title, as_files(figure))


# -- ours -------------------------------------------------------------------------------------------------------------


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
        text, colour = ("–" if score.verdict == "not run" else score.verdict), "0.45"
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


def _accuracy_trials(findings: Findings) -> list[Trials]:
    """Those of the paper's two main tables, dataset by dataset and in its order of models."""
    order = model_order("tab:normal-data")
    found = [trials for study in ACCURACY_STUDIES for trials in findings.of_study(study) if trials.good]
    names = named(found)
    return sorted(found, key=lambda trials: (names.index(trials.dataset), order.index(trials.model)))


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


def pareto_figure(findings: Findings) -> Figure | None:
    """Accuracy against training seconds and against memory: a panel for each, per dataset and place."""
    found = _accuracy_trials(findings)
    compared = [
        (dataset, place, cost.label, several)
        for dataset in named(found)
        for cost in PARETO
        for place in sorted({cost.place(record) for t in found if t.dataset == dataset for record in t.good})
        if len(several := _costs_at(place, [t for t in found if t.dataset == dataset], cost)) > 1
    ]
    if not compared:
        return None
    many = len(compared) > 4  # then two datasets stand in a row
    figure, axes = panels(len(compared), 3.0, *((4, 2.8) if many else (2, PANEL)))
    shown_as = looks(list(dict.fromkeys(trials.model for trials in found)))
    for axis, (dataset, place, label, several) in zip(axes, compared, strict=True):
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
        axis.set_title(f"{dataset_title(dataset)}\n", loc="left")
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


def spread_figure(findings: Findings) -> Figure | None:
    """Every trial as a point: what lies behind the means."""
    found = _accuracy_trials(findings)
    if not found:
        return None
    names = named(found)
    most = max(sum(trials.dataset == name for trials in found) for name in names)
    figure, axes = panels(len(names), height=0.27 * most + 0.9, across=2)
    for axis, name in zip(axes, names, strict=True):
        shown = [trials for trials in found if trials.dataset == name]
        for row, trials in enumerate(shown):
            values = trials.accuracies
            axis.plot(values, [row] * len(values), "o", markersize=4, alpha=0.5, color="0.25", markeredgewidth=0)
            axis.plot([np.mean(values)], [row], "|", markersize=13, markeredgewidth=2, color="#c44e00")
        axis.set_yticks(range(len(shown)), [f"{model_title(trials.model)} ({len(trials.good)})" for trials in shown])
        axis.set_ylim(most - 0.5, -0.5)
        axis.set(title=dataset_title(name), xlabel="test accuracy, %")
    return figure


def curves_figure(findings: Findings, predictions: PredictionStore) -> Figure | None:
    """Validation accuracy along training: the median over trials, a panel per dataset."""
    found = [
        (trials, median)
        for trials in _accuracy_trials(findings)
        if (median := _median_curve(list(_curves(trials, predictions, findings.evidence.warnings)))) is not None
    ]
    if not found:
        return None
    names = named([trials for trials, _ in found])
    figure, axes = panels(len(names), height=3.0, across=2)
    shown_as = looks(list(dict.fromkeys(trials.model for trials, _ in found)))
    for axis, name in zip(axes, names, strict=True):
        for trials, median in found:
            if trials.dataset == name:
                epochs = trials.good[0]["config"]["evaluate_every"] * np.arange(1, len(median) + 1)
                axis.plot(
                    epochs, median, label=model_title(trials.model), markersize=4, linewidth=1,
                    markevery=max(1, len(median) // 6), **shown_as[trials.model],
                )  # fmt: skip
        logarithmic(axis, [1, max(axis.dataLim.x1, 1)])
        top = max(float(median.max()) for trials, median in found if trials.dataset == name)
        axis.set_ylim(top - WORTH_SEEING, top + 1)
        axis.set(xlabel="epoch", ylabel="validation accuracy, %", title=dataset_title(name))
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


def critical_difference_figure(ranked: Ranking) -> Figure | None:
    """Demšar's diagram, or nothing where it would mislead: the table over all datasets says why."""
    compared = ranked.comparison
    if compared is None or ranked.why_not is not None:
        return None
    titles = [model_title(model) for model in compared.models]
    figure = Figure(figsize=(2 * PANEL, 0.16 * len(titles) + 1.2), layout="constrained")
    axis = figure.add_subplot()
    p_values = pd.DataFrame(compared.nemenyi_p, index=titles, columns=titles)
    scikit_posthocs.critical_difference_diagram(
        pd.Series(compared.mean_ranks, index=titles),
        p_values,
        ax=axis,
        text_h_margin=0.1,
        color_palette=["0.25"] * len(titles),
    )
    return figure
