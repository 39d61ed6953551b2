"""The paper's model against every other: dataset by dataset, and over all datasets at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from bench.paper.numbers import control, model_order
from bench.paper.studies import studies
from bench.paper.tables import PAPER_TABLES
from bench.paper.trial_index import ACCURACY_STUDIES, TrialIndex
from bench.report.across import (
    iqm_over_datasets,
    mean_over_datasets,
    probability_of_improvement,
)
from bench.report.comparisons import PairedComparison, compare_with_control, pairs_needed, probability_of_outperforming
from bench.report.entries import brackets, gain_entry, setting_lines
from bench.report.results import Results, compare_pairs, each_once, model_title, paired
from bench.report.statistics import ALPHA, MINIMUM_TRIALS, Refusal
from bench.report.table import Entry, Table, entry, without_empty

SIGNIFICANT = "*"


def control_table(index: TrialIndex) -> Table:
    """The control minus every other model, dataset by dataset; Holm's correction is over the models of a dataset."""
    study, first = studies()[ACCURACY_STUDIES[0]], control()
    columns = [(each, _adjusted(each, first)) for each in index.results(study)]
    rows = [
        (entry(model_title(model)), *(_control_entry(each, first, model, adjusted) for each, adjusted in columns))
        for model in model_order(PAPER_TABLES[study.name])
        if model != first and any(model in each.trials for each, _ in columns)
    ]
    return Table(
        f"{study.name}-control",
        f"{study.shows} against {model_title(first)}: this model minus each other",
        (f"{model_title(first)} minus", *(each.title for each, _ in columns)),
        tuple(rows),
        (
            "Points of test accuracy: mean of paired differences [95 % interval] (n pairs). "
            f"{SIGNIFICANT}: significant at {ALPHA:.0%} after Holm's correction over the models of the dataset, which "
            f"needs {MINIMUM_TRIALS} trials that all of them share; without the mark nothing is decided.",
            f"{pairs_needed(0.75)} pairs show in 95 of 100 cases that one model is better in three trials of four.",
            *setting_lines(index.setting, index.in_table(study), False, index.fill_command(study.name)),
        ),
    )


def _adjusted(results: Results, first: str) -> dict[str, PairedComparison]:
    """Model -> control minus model with Holm's p, where the control and the model have enough trials."""
    if isinstance(results.aligned, Refusal) or first not in results.aligned:
        return {}
    compared = compare_with_control(first, results.aligned, partial(compare_pairs, sizes=results.sizes))
    return {model: found for model, found in compared.items() if isinstance(found, PairedComparison)}


def _control_entry(results: Results, first: str, model: str, adjusted: dict[str, PairedComparison]) -> Entry:
    ours, other = results.trials.get(first), results.trials.get(model)
    found = gain_entry(ours, other, results.sizes)
    if found.value is None or ours is None or other is None:
        return found
    chance = probability_of_outperforming(*paired(ours, other)).probability
    low, high = 100 * chance.interval.low, 100 * chance.interval.high
    note = f"{found.note}\nbetter in {100 * chance.value:.0f} % of pairs ({low:.0f} to {high:.0f} %)"
    p = adjusted[model].adjusted_p if model in adjusted else None
    if p is None:
        return replace(found, note=note, mark_keys=results.keys)
    note += f"\nHolm's p over the models of this dataset: {p:.3g}"
    return replace(found, text=found.text + SIGNIFICANT * (p < ALPHA), note=note, mark_keys=results.keys)


# -- over all datasets ------------------------------------------------------------------------------------------------


def across_table(index: TrialIndex) -> Table:
    """The control against each model, averaged over the datasets that both finished."""
    first, columns = control(), index.published
    names = each_once(model for each in columns for model in each.trials if model != first)
    shown = [trials for each in columns for trials in each.trials.values()]
    return without_empty(
        Table(
            "across",
            f"Over all datasets: {model_title(first)} minus each other model",
            ("Method", "Datasets", "These graphs", "Graphs like these", "Middle half", "P(better)", "Failed"),
            tuple(row for name in names if (row := _across_row(columns, first, name)) is not None),
            (
                f"{model_title(first)} minus the model named, in points of test accuracy, paired by seeds; a mean "
                "gives every dataset the same weight. These graphs: trials are resampled inside each dataset "
                "(stratified bootstrap, 95 %). Graphs like these: datasets are resampled first (hierarchical "
                "bootstrap). Middle half: interquartile mean of the differences, of each dataset the first as many as "
                "all have. P(better): that a trial of the one beats a trial of the other.",
                "A dataset counts where both have two trials or more; two datasets are needed. What failed is named "
                "and never averaged away.",
                *setting_lines(index.setting, shown, marked=False),
            ),
        )
    )


def _across_row(columns: Sequence[Results], first: str, name: str) -> tuple[Entry, ...] | None:
    pairs, failed, keys = [], [], []
    for each in columns:
        ours, other = each.trials.get(first), each.trials.get(name)
        if ours is None or other is None or not other.records:
            continue
        values = paired(ours, other)
        if len(values[0]) > 1:
            pairs.append((each.title, *values))
            keys += [*ours.keys, *other.keys]
        elif not other.good:
            failed.append((other.keys, f"{each.title} ({', '.join(other.failures)})"))
    if not pairs and not failed:
        return None
    where = Entry(str(len(pairs)), tuple(keys), note=", ".join(title for title, *_ in pairs))
    gone = Entry(", ".join(text for _, text in failed), tuple(key for several, _ in failed for key in several))
    estimates = _estimates([(ours, theirs) for _, ours, theirs in pairs], tuple(keys))
    return (entry(model_title(name)), where, *estimates, gone)


def _estimates(pairs: Sequence[tuple[np.ndarray, np.ndarray]], keys: tuple[str, ...]) -> list[Entry]:
    if len(pairs) < 2:
        return [Entry()] * 4
    differences = [ours - theirs for ours, theirs in pairs]
    fewest = min(map(len, differences))
    middle = iqm_over_datasets(np.stack([values[:fewest] for values in differences]))
    better = probability_of_improvement(*zip(*pairs, strict=True))
    means = [mean_over_datasets(differences), mean_over_datasets(differences, hierarchical=True), middle]
    entries = [Entry(f"{each.value:+.2f} {brackets(each.interval)}", keys, value=each.value) for each in means]
    chance = f"{better.value:.2f} [{better.interval.low:.2f}, {better.interval.high:.2f}]"
    return [*entries, Entry(chance, keys, value=better.value)]
