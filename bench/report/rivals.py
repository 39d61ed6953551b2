"""The paper's model against every other: dataset by dataset, and over all datasets at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bench.datasets.catalogue import resolve
from bench.paper import control
from bench.report.across import (
    RankComparison,
    compare_ranks,
    iqm_over_datasets,
    mean_over_datasets,
    probability_of_improvement,
    why_no_diagram,
)
from bench.report.comparisons import (
    PairedComparison,
    compare_with_control,
    pairs_needed,
    probability_of_outperforming,
)
from bench.report.entries import brackets, gain_entry, setting_lines
from bench.report.evidence import Trials
from bench.report.findings import ACCURACY_STUDIES, Findings, compare_pairs, dataset_title, model_title, paired
from bench.report.statistics import ALPHA, MINIMUM_TRIALS, Estimate, Refusal
from bench.report.table import Entry, Table, entry, without_empty
from bench.studies import Study, studies

SIGNIFICANT = "*"
LEAST_DATASETS = 5  # for ranks: on fewer, Friedman's test could find next to nothing, and one trial decides a rank


def control_table(findings: Findings, study: Study, order: Sequence[str]) -> Table:
    """The control minus every other model, dataset by dataset; Holm's correction is over the models of a dataset."""
    first = control()
    columns = findings.columns(study)
    adjusted = {dataset.name: _adjusted(findings, study.name, dataset.name, first) for dataset in columns}
    rows = []
    for model in order:
        found = {dataset.name: findings.trials(study.name, model, dataset.name) for dataset in columns}
        if model != first and any(trials is not None for trials in found.values()):
            entries = [
                _control_entry(
                    findings, study.name, findings.trials(study.name, first, name), trials, adjusted[name].get(model)
                )
                for name, trials in found.items()
            ]
            rows.append((entry(model_title(model)), *entries))
    return Table(
        f"{study.name}-control",
        f"{study.shows} against {model_title(first)}: this model minus each other",
        (f"{model_title(first)} minus", *(dataset.title for dataset in columns)),
        tuple(rows),
        (
            "Points of test accuracy: mean of paired differences [95 % interval] (n pairs). "
            f"{SIGNIFICANT}: significant at {ALPHA:.0%} after Holm's correction over the models of the dataset, which "
            f"needs {MINIMUM_TRIALS} trials that all of them share; without the mark nothing is decided.",
            f"{pairs_needed(0.75)} pairs show in 95 of 100 cases that one model is better in three trials of four.",
            *setting_lines(findings, findings.in_table(study.name), study.name, marked=False),
        ),
    )


def _adjusted(findings: Findings, study: str, dataset: str, first: str) -> dict[str, PairedComparison]:
    """Model -> control minus model with Holm's p, where the control and the model have enough trials."""
    scores = findings.aligned(study, dataset)
    if isinstance(scores, Refusal) or first not in scores:
        return {}
    compared = compare_with_control(first, scores, partial(compare_pairs, sizes=findings.sizes(dataset)))
    return {model: found for model, found in compared.items() if isinstance(found, PairedComparison)}


def _control_entry(
    findings: Findings, study: str, first: Trials | None, other: Trials | None, adjusted: PairedComparison | None
) -> Entry:
    found = gain_entry(first, other, findings.sizes(other.dataset) if other else None)
    if found.value is None or first is None or other is None:
        return found
    ours, theirs = paired(first, other)
    chance = probability_of_outperforming(ours, theirs).probability
    lines = [found.note, f"better in {100 * chance.value:.0f} % of pairs ({_percent(chance)})"]
    column = findings.column_keys(study, other.dataset)
    if adjusted is None or adjusted.adjusted_p is None:
        return replace(found, note="\n".join(lines), mark_keys=column)
    lines.append(f"Holm's p over the models of this dataset: {adjusted.adjusted_p:.3g}")
    mark = SIGNIFICANT if adjusted.adjusted_p < ALPHA else ""
    return replace(found, text=f"{found.text}{mark}", note="\n".join(lines), mark_keys=column)


# -- over all datasets ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranking:
    """Mean ranks over datasets, what they rest on, and why there is no diagram of them."""

    comparison: RankComparison | None
    why_not: str | None  # the reason against a critical-difference diagram; None where it may be drawn
    keys: tuple[str, ...] = ()


def ranking(findings: Findings) -> Ranking:
    """Models that were tried on the same datasets, ranked by mean accuracy; a model that failed shares the last place.

    Not run is not failed: a dataset counts where every ranked model was tried, and a model is ranked if it was tried on
    as many datasets as the control.
    """
    tried = {
        (trials.model, trials.dataset): trials for trials in _published(findings, ACCURACY_STUDIES[0]) if trials.records
    }
    columns = [dataset for model, dataset in tried if model == control()]
    rows = [model for model in dict.fromkeys(model for model, _ in tried) if all((model, d) in tried for d in columns)]
    several = [[tried[model, dataset] for model in rows] for dataset in columns]
    fewest = min((len(trials.good) for line in several for trials in line if trials.good), default=0)
    if len(rows) < 3 or len(columns) < LEAST_DATASETS or fewest < MINIMUM_TRIALS:
        return Ranking(
            None,
            f"no mean ranks and no Friedman test: they need three models, {LEAST_DATASETS} datasets that all were "
            f"tried on and {MINIMUM_TRIALS} trials each; here are {len(rows)}, {len(columns)} and as few as {fewest}",
        )
    means = np.array([[np.mean(t.accuracies) if t.good else np.nan for t in line] for line in several])
    compared = compare_ranks(means, rows, columns, missing="worst-rank")
    assert isinstance(compared, RankComparison)  # it refuses only what was refused above
    keys = tuple(key for line in several for trials in line for key in trials.keys)
    return Ranking(compared, why_no_diagram(compared), keys)


def _published(findings: Findings, study: str) -> list[Trials]:
    """A study's trials on the paper's own datasets."""
    names = {dataset.name for dataset in resolve(studies()[study].datasets)}
    return [trials for trials in findings.of_study(study) if trials.dataset in names]


def across_table(findings: Findings, ranked: Ranking) -> Table:
    """The control against each model, averaged over the datasets that both finished."""
    first = control()
    several = [trials for study in ACCURACY_STUDIES for trials in _published(findings, study)]
    names = dict.fromkeys(trials.model for trials in several)
    rows = [row for name in names if (row := _across_row(findings, first, name, ranked)) is not None]
    caption = [
        f"{model_title(first)} minus the model named, in points of test accuracy, paired by seeds; a mean gives every "
        "dataset the same weight. These graphs: trials are resampled inside each dataset (stratified bootstrap, 95 %). "
        "Graphs like these: datasets are resampled first (hierarchical bootstrap). Middle half: interquartile mean of "
        "the differences, of each dataset the first as many as all have. P(better): that a trial of the one beats a "
        "trial of the other.",
        "A dataset counts where both have two trials or more; two datasets are needed. What failed is named and never "
        "averaged away.",
        *([f"{ranked.why_not[0].upper()}{ranked.why_not[1:]}."] if ranked.why_not else []),
        *([_friedman(ranked.comparison)] if ranked.comparison else []),
        *setting_lines(findings, several, marked=False),
    ]
    header = (
        "Method",
        "Datasets",
        "These graphs",
        "Graphs like these",
        "Middle half",
        "P(better)",
        "Mean rank",
        "Failed",
    )
    title = f"Over all datasets: {model_title(first)} minus each other model"
    return without_empty(Table("across", title, header, tuple(rows), tuple(caption)))


def _friedman(compared: RankComparison) -> str:
    where = ", ".join(map(dataset_title, compared.datasets))
    return (
        f"Mean ranks of {len(compared.models)} models on {where}; a model that failed on a dataset shares its last "
        f"place. Friedman's test: p = {compared.friedman_p:.2g}; told apart are mean ranks more than "
        f"{compared.critical_difference:.2f} apart."
    )


def _across_row(findings: Findings, first: str, name: str, ranked: Ranking) -> tuple[Entry, ...] | None:
    if name == first:
        return (
            (entry(model_title(name)), *[Entry("")] * 5, _rank(ranked, name), Entry("")) if ranked.comparison else None
        )
    pairs, failed, keys = [], [], []
    for study in ACCURACY_STUDIES:
        for trials in _published(findings, study):
            control_trials = findings.trials(study, first, trials.dataset)
            if trials.model != name or not trials.records or control_trials is None:
                continue
            ours, theirs = paired(control_trials, trials)
            if len(ours) > 1:
                pairs.append((trials.dataset, ours, theirs))
                keys += [*control_trials.keys, *trials.keys]
            elif not trials.good:
                failed.append((trials, f"{dataset_title(trials.dataset)} ({', '.join(trials.failures)})"))
    if not pairs and not failed and not _rank(ranked, name).text:
        return None
    where = Entry(str(len(pairs)), tuple(keys), note=", ".join(dataset_title(dataset) for dataset, *_ in pairs))
    gone = Entry(", ".join(text for _, text in failed), tuple(key for trials, _ in failed for key in trials.keys))
    return (entry(model_title(name)), where, *_estimates(pairs, tuple(keys)), _rank(ranked, name), gone)


def _estimates(pairs: Sequence[tuple[str, np.ndarray, np.ndarray]], keys: tuple[str, ...]) -> list[Entry]:
    if len(pairs) < 2:
        return [Entry("")] * 4
    differences = [ours - theirs for _, ours, theirs in pairs]
    fewest = min(map(len, differences))
    middle = iqm_over_datasets(np.stack([values[:fewest] for values in differences]))
    better = probability_of_improvement([ours for _, ours, _ in pairs], [theirs for _, _, theirs in pairs])
    means = [mean_over_datasets(differences), mean_over_datasets(differences, hierarchical=True), middle]
    entries = [Entry(f"{e.value:+.2f} {brackets(e.interval)}", keys, value=e.value) for e in means]
    return [*entries, Entry(f"{better.value:.2f} [{better.interval.low:.2f}, {better.interval.high:.2f}]", keys,
                            value=better.value)]  # fmt: skip


def _rank(ranked: Ranking, name: str) -> Entry:
    compared = ranked.comparison
    if compared is None or name not in compared.models:
        return Entry("")
    rank = compared.mean_ranks[compared.models.index(name)]
    return Entry(f"{rank:.2f}", ranked.keys, value=rank)


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.interval.low:.0f} to {100 * estimate.interval.high:.0f} %"
