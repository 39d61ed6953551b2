"""Statements over several datasets: bootstrapped means.

Each bootstrap comes twice. Stratified (seeds resampled inside each dataset, as in rliable) is about these datasets;
hierarchical (datasets resampled first) is about datasets like these, and much wider. Of n things n - 1 are drawn, which
makes the variance of a mean unbiased: three seeds in nine datasets cover 92 % where 95 % is meant, and 85 % with n
draws as in rliable. Nine datasets are few for the hierarchical one, which covers 87 %. For ranks they are too few:
with fourteen models only mean ranks more than 6.61 apart, of 13, would be told apart (Nemenyi after Friedman, 5 %).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from bench.report.statistics import (
    CONFIDENCE,
    RESAMPLES,
    SEED,
    Estimate,
    Values,
    as_values,
    percentile_interval,
    resampled,
)


def mean_over_datasets(
    scores: Sequence[Values], hierarchical: bool = False, confidence: float = CONFIDENCE
) -> Estimate:
    """Mean over datasets of the mean over trials; the numbers of trials may differ.

    A dataset that is drawn twice brings two independent replicates, not one twice: hence a random column for each.
    """
    rng = np.random.default_rng(SEED)
    arrays = [as_values(values) for values in scores]
    replicates = np.stack([resampled(array, rng, _draws(len(array))).mean(axis=1) for array in arrays])
    if hierarchical:
        size = _draws(len(arrays)), RESAMPLES
        replicates = replicates[rng.integers(len(arrays), size=size), rng.integers(RESAMPLES, size=size)]
    value = float(np.mean([array.mean() for array in arrays]))
    return Estimate(value, percentile_interval(replicates.mean(axis=0), confidence))


def iqm_over_datasets(scores: np.ndarray, confidence: float = CONFIDENCE) -> Estimate:
    """Interquartile mean of all trials of all datasets (a row each): the middle half, so no single dataset decides."""
    if scores.ndim != 2 or not np.isfinite(scores).all():
        raise ValueError("the interquartile mean pools all trials and wants as many of each dataset, all finite")
    datasets, trials = scores.shape
    rng = np.random.default_rng(SEED)
    columns = rng.integers(trials, size=(RESAMPLES, datasets, _draws(trials)))
    replicates = scores[np.arange(datasets)[:, None], columns].reshape(RESAMPLES, -1)
    interval = percentile_interval(np.asarray(stats.trim_mean(replicates, 0.25, axis=1)), confidence)
    return Estimate(float(stats.trim_mean(scores.ravel(), 0.25)), interval)


def probability_of_improvement(
    first: Sequence[Values], second: Sequence[Values], confidence: float = CONFIDENCE
) -> Estimate:
    """Mean over datasets of P(a trial of first > a trial of second), a tie counting one half.

    The two are resampled independently of each other, as in rliable: on shared splits that errs on the wide side.
    """
    rng = np.random.default_rng(SEED)
    values, replicates = [], []
    for ours, theirs in zip(first, second, strict=True):
        a, b = as_values(ours), as_values(theirs)
        wins = (np.sign(a[:, None] - b) + 1) / 2
        values.append(wins.mean())
        often_a, often_b = (_how_often(len(c), rng) for c in (a, b))
        pairs = _draws(len(a)) * _draws(len(b))
        replicates.append(np.einsum("rb,rb->r", often_a @ wins, often_b) / pairs)
    return Estimate(float(np.mean(values)), percentile_interval(np.mean(replicates, axis=0), confidence))


def _how_often(n: int, rng: np.random.Generator) -> np.ndarray:
    """Bootstrap samples of n things, one per row, as the number of times that each was drawn."""
    drawn = resampled(np.arange(n), rng, _draws(n))
    places = drawn + n * np.arange(len(drawn))[:, None]
    return np.bincount(places.ravel(), minlength=len(drawn) * n).reshape(-1, n).astype(np.float64)


def _draws(n: int) -> int:
    return max(n - 1, 1)
