"""Studies of `tune` in the report: what each cost and found, its curve, and the budget below tuned tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import ticker
from opda.nonparametric import EmpiricalDistribution

from bench.datasets.catalogue import datasets
from bench.lanes import find_winner
from bench.records import OK, address
from bench.report.drawing import STYLE, Drawing, as_files, legend_below, looks, panels
from bench.report.evidence import Evidence
from bench.report.results import dataset_title, model_title
from bench.report.table import Entry, Table, entry
from bench.settings import TUNED_LANES
from bench.tuning.winners import read_studies

NAME = "tuning"
CONFIDENCE = 0.95
ENOUGH = 10  # random trials for a band that says something
Study = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]  # identity and trials, as `tune` wrote them


def best_so_far(trials: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The best validation accuracy after each trial in per cent; NaN until the first one is complete."""
    values = [np.nan if trial["val_accuracy"] is None else 100.0 * trial["val_accuracy"] for trial in trials]
    return np.fmax.accumulate(np.array(values, dtype=float))


def independent_draws(study: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """Accuracies of trials that were drawn independently of each other, 0 for one that failed; None if they were not.

    Only a random search without pruning draws so, and the published settings were not drawn at all.
    """
    identity = study["identity"]
    if identity["sampler"] != "random" or may_prune(study):
        return None
    drawn = [trial for trial in trials if trial["trial"] > 0 or not study["published_first"]]
    return np.array([0.0 if trial["val_accuracy"] is None else trial["val_accuracy"] for trial in drawn])


def may_prune(study: Mapping[str, Any]) -> bool:
    """Whether trials of the study could be ended early; older files say so in its identity."""
    return bool(study.get("pruning", study["identity"].get("pruning")))


def expected_best(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What 1, 2, ... random trials find on average, in per cent: lower end of the band, value, upper end."""
    bands = EmpiricalDistribution.confidence_bands(
        draws, CONFIDENCE, a=0.0, b=1.0, method="ld_equal_tailed", generator=np.random.default_rng(0), n_jobs=1
    )
    counts = np.arange(1, len(draws) + 1)
    above, middle, below = (100.0 * distribution.average_tuning_curve(counts) for distribution in bands)
    return below, middle, above


def tuning_drawing(results: Path) -> Drawing | None:
    """The best-so-far curve of every study, a panel per dataset."""
    found = read_studies(results)
    if not found:
        return None
    names = list(dict.fromkeys(study["identity"]["dataset"] for study, _ in found))
    styles = looks([study["name"] for study, _ in found])
    with mpl.rc_context(STYLE):
        figure, axes = panels(len(names), 3.2)
        for study, trials in found:
            axis = axes[names.index(study["identity"]["dataset"])]
            look, curve = styles[study["name"]], best_so_far(trials)
            axis.step(
                np.arange(1, len(curve) + 1), curve, where="post", label=study_label(study), **look, markevery=[-1]
            )
            draws = independent_draws(study, trials)
            if draws is not None and len(draws) >= ENOUGH:
                below, middle, above = expected_best(draws)
                counts = np.arange(1, len(draws) + 1)
                axis.plot(counts, middle, color=look["color"], linestyle=":")
                axis.fill_between(counts, below, above, color=look["color"], alpha=0.15, linewidth=0)
        for axis, name in zip(axes, names, strict=True):
            axis.set(title=dataset_title(name), xlabel="trials", ylabel="best validation accuracy %")
            axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        legend_below(figure, axes, across=1)
        title = (
            "Tuning: the best validation accuracy so far. Dotted, where trials were drawn at random and none was "
            f"pruned: the expected best of that many, with a simultaneous {100 * CONFIDENCE:.0f} % band"
        )
        return Drawing(NAME, title, as_files(figure))


def study_label(study: Mapping[str, Any]) -> str:
    """What tells the study from the others of its dataset."""
    identity = study["identity"]
    name = model_title(identity["model"])
    pareto = "," in identity["objective"]
    words = [identity["model"], identity["dataset"], study["space"], identity["sampler"], *(["pareto"] * pareto)]
    if study["name"] != "-".join([*words, f"s{identity['seed']}"]):
        return str(study["name"])  # the user gave it one that says more
    objective = ", accuracy and seconds" if pareto else ""
    return f"{name}, {identity['sampler']}, {study['space']}{objective}, seed {identity['seed']}"


def tuning_table(results: Path) -> Table | None:
    """Every study's budget and what it found."""
    rows = tuple(_row(study, trials) for study, trials in read_studies(results))
    if not rows:
        return None
    return Table(
        NAME,
        "Tuning",
        ("study", "model", "dataset", "space", "sampler", "pruning", "trials", "outcomes", "hours", "best val %"),
        rows,
        (
            "Every trial is a cell trained and validated on the sealed split. `tune` reads a dataset with all its "
            "labels and drops those of the sealed test fifth before anything is tuned: no driver or worker has them. "
            "Hours: all trials of a study together. Best: the most accurate complete trial.",
        ),
    )


def _row(study: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> tuple[Entry, ...]:
    identity = study["identity"]
    counts = Counter("complete" if trial["outcome"] == OK else trial["outcome"] for trial in trials)
    done = [trial for trial in trials if trial["val_accuracy"] is not None]
    best = max(done, key=lambda trial: (trial["val_accuracy"], -trial["trial"]), default=None)
    words = (
        study["name"], identity["model"], identity["dataset"], study["space"], identity["sampler"],
        "yes" if may_prune(study) else "no",
    )  # fmt: skip
    return (
        *map(entry, words),
        Entry(str(len(trials)), tuple(trial["cell"] for trial in trials if trial["cell"])),
        entry(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())),
        entry(f"{sum(trial['seconds'] for trial in trials) / 3600:.2f}"),
        entry("") if best is None else Entry(f"{100 * best['val_accuracy']:.2f}", (best["cell"],)),
    )


def with_budgets(part: Table | Drawing, evidence: Evidence, lane: str) -> Table | Drawing:
    """In a report on tuned settings, every table says below what it cost to find those it shows."""
    if lane not in TUNED_LANES or isinstance(part, Drawing):
        return part
    places = {address(record): (record["model"], record["dataset"]) for record in evidence.records}
    lines = tuple(_budgets(part, places, evidence, lane))
    brief = part.brief and replace(part.brief, caption=(*part.brief.caption, *lines))
    return replace(part, caption=(*part.caption, *lines), brief=brief)


def _budgets(table: Table, places: Mapping[str, tuple[str, str]], evidence: Evidence, lane: str) -> Iterator[str]:
    shown = dict.fromkeys(places[key] for row in table.rows for item in row for key in item.keys if key in places)
    for model, name in shown:
        winner = find_winner(evidence.results, lane, model, datasets().get(name, name))
        if winner is not None:
            yield f"Tuned: {winner.line}."
