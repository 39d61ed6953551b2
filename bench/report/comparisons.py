"""Models compared on one dataset, trial by trial: two of them, all against a control, all against the best.

The arrays are aligned: entry i of each is the same trial (same split seed, same init seed). Two kinds of trials need
two tests. On a frozen split only the init seed varies, the differences are independent given the split, and flipping
their signs gives an exact test. Fresh splits share most of their nodes; for a statement that reaches beyond this one
graph their differences are correlated, at the usual 60/20/20 by about 0.25, where the sign-flip test would find a
difference that is not there in 31 % of cases instead of 5 %. There the corrected resampled t is the test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from bench.report.statistics import (
    ALPHA,
    CONFIDENCE,
    MINIMUM_TRIALS,
    SEED,
    Estimate,
    Interval,
    Refusal,
    SplitSizes,
    Values,
    as_values,
    percentile_interval,
    resampled,
    spread,
    spread_of_columns,
    t_interval,
    two_sided_p,
    variance_factor,
)

EXHAUSTIVE_TRIALS = 16  # up to here all 2ⁿ sign patterns are tried, above as many at random
_TIE = 1e-9  # two statistics of order 1 that differ by less are equal: the same sum in another order


@dataclass(frozen=True)
class PairedComparison:
    """First minus second."""

    n: int
    difference: float
    interval: Interval | None  # none for a single pair
    p: float
    effect_size: float | None  # d_z, the mean difference in standard deviations; none without spread
    test: str
    adjusted_p: float | None = None  # by Holm, where this is one of several comparisons


@dataclass(frozen=True)
class BestGroup:
    """The models that are statistically not worse than the best."""

    best: str  # the largest mean
    members: tuple[str, ...]
    p: Mapping[str, float]  # of "no other model is better than this one"


@dataclass(frozen=True)
class Outperforming:
    """P(first > second), where a tie counts one half."""

    probability: Estimate
    meaningful: bool


Compare = Callable[[np.ndarray, np.ndarray], PairedComparison | Refusal]


def compare_on_frozen_split(first: Values, second: Values, confidence: float = CONFIDENCE) -> PairedComparison:
    """Exact two-sided sign-flip permutation test; ten differences of one sign give 2/1024, the least ten can give."""
    differences = _differences(first, second)
    p = _share_at_least_the_observed(np.abs(_sign_patterns(len(differences)) @ _unit_columns(differences)))
    return _comparison(differences, p, None, "sign-flip permutation", confidence)


def compare_on_fresh_splits(
    first: Values, second: Values, sizes: SplitSizes, confidence: float = CONFIDENCE
) -> PairedComparison | Refusal:
    """Corrected resampled t (Nadeau and Bengio 2003): the variance of the mean is s² (1/n + test/train), not s²/n."""
    differences = _differences(first, second)
    reason = why_no_corrected_t(len(differences), sizes)
    if reason:
        return Refusal(reason)
    error = spread(differences) * math.sqrt(variance_factor(len(differences), sizes))
    p = two_sided_p(float(differences.mean()), error, len(differences) - 1)
    return _comparison(differences, p, sizes, "corrected resampled t", confidence)


def why_no_corrected_t(n: int, sizes: SplitSizes) -> str | None:
    """The rule is test ≤ train.

    The correction estimates the correlation of two trials as test / (test + train), which takes for granted that
    results hardly depend on which nodes were trained on. With 20 training nodes per class it is just these that matter;
    and from test = train on, the standard error exceeds the spread of single trials, however many are run.
    """
    if sizes.test > sizes.train:
        return (
            f"the corrected t has no meaning with more test nodes ({sizes.test:,}) than training nodes "
            f"({sizes.train:,}); compare on a frozen split"
        )
    return "a single trial has no spread" if n < 2 else None


def holm(p_values: Values) -> np.ndarray:
    """Holm's adjusted p-values, in the order given: valid whatever the dependence between the tests."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(np.arange(len(p), 0, -1) * p[order]))
    return adjusted


def compare_with_control(
    control: str, scores: Mapping[str, np.ndarray], compare: Compare
) -> dict[str, PairedComparison | Refusal]:
    """Control minus each other model, with Holm's correction over those comparisons that could be made."""
    found = {name: compare(scores[control], scores[name]) for name in scores if name != control}
    made = {name: comparison for name, comparison in found.items() if isinstance(comparison, PairedComparison)}
    adjusted = dict(zip(made, holm([comparison.p for comparison in made.values()]), strict=True))
    return {
        name: replace(made[name], adjusted_p=float(adjusted[name])) if name in made else refusal
        for name, refusal in found.items()
    }


def best_group(
    scores: Mapping[str, np.ndarray],
    sizes: SplitSizes | None = None,
    alpha: float = ALPHA,
    minimum_trials: int = MINIMUM_TRIALS,
) -> BestGroup | Refusal:
    """Multiple comparisons with the best: a model stays unless some other is significantly better.

    After Hsu: each model in turn is the control of a one-sided many-to-one test, "no other is better than this one", at
    level alpha. Only one such test can wrongly remove the truly best model, its own, so the group contains it with
    probability 1 - alpha however many models there are. Hsu's normal theory wants independent groups; these are paired
    and correlated, so the reference is another one. On a frozen split (no `sizes`): the largest t of all rivals under
    joint sign flips, the same sign for a whole trial, which keeps the correlation between models. It is exact where
    all are equal and has no price in resolution: ten trials reach 1/1024 with fourteen models. On fresh splits:
    corrected t, Bonferroni over the rivals, which holds whatever the correlation between models.
    """
    trials = np.stack([as_values(values) for values in scores.values()], axis=1)
    n, count = trials.shape
    if n < minimum_trials:
        return Refusal(f"undecided: {n} of the {minimum_trials} trials that a best group needs")
    reason = why_no_corrected_t(n, sizes) if sizes else None
    if reason:
        return Refusal(reason)
    p: dict[str, float] = {}
    for index, name in enumerate(scores):
        leads = np.delete(trials, index, axis=1) - trials[:, [index]]
        p[name] = 1.0 if count == 1 else _p_of_largest_lead(leads, sizes)
    best = list(scores)[int(np.argmax(trials.mean(axis=0)))]
    return BestGroup(best, tuple(name for name in scores if p[name] > alpha), p)


def _p_of_largest_lead(leads: np.ndarray, sizes: SplitSizes | None) -> float:
    """One-sided p that no column (rival minus candidate, a row per trial) has a positive mean."""
    n, rivals = leads.shape
    if sizes is None:
        return _share_at_least_the_observed((_sign_patterns(n) @ _unit_columns(leads)).max(axis=1))
    errors = spread_of_columns(leads) * math.sqrt(variance_factor(n, sizes))
    means = leads.mean(axis=0)
    certain = np.select([means > 0, means < 0], [np.inf, -np.inf])  # where there is no spread at all
    t = np.divide(means, errors, out=certain, where=errors > 0)
    return min(1.0, rivals * float(stats.t.sf(t, n - 1).min()))


def probability_of_outperforming(first: Values, second: Values, confidence: float = CONFIDENCE) -> Outperforming:
    """P(first > second) over trials with a percentile bootstrap interval over pairs (Bouthillier et al. 2021).

    Meaningful where the lower end exceeds 0.5 and the estimate is at least 0.75.
    """
    wins = (np.sign(_differences(first, second)) + 1) / 2
    interval = percentile_interval(resampled(wins, np.random.default_rng(SEED)).mean(axis=1), confidence)
    probability = float(wins.mean())
    return Outperforming(Estimate(probability, interval), interval.low > 0.5 and probability >= 0.75)


def pairs_needed(probability: float, power: float = 0.95, alpha: float = ALPHA) -> int:
    """Noether's number of pairs that show a true P(first > second) in a one-sided test: 29 for 0.75."""
    quantiles = float(stats.norm.isf(alpha) + stats.norm.ppf(power))
    return math.ceil(quantiles**2 / (6 * (probability - 0.5) ** 2))


def _differences(first: Values, second: Values) -> np.ndarray:
    a, b = as_values(first), as_values(second)
    if len(a) != len(b):
        raise ValueError(f"{len(a)} trials cannot be paired with {len(b)}")
    return a - b


def _comparison(
    differences: np.ndarray, p: float, sizes: SplitSizes | None, test: str, confidence: float
) -> PairedComparison:
    n, mean = len(differences), float(differences.mean())
    if n == 1:
        return PairedComparison(n, mean, None, p, None, test)
    std = spread(differences)
    interval = t_interval(mean, std * math.sqrt(variance_factor(n, sizes)), n - 1, confidence)
    return PairedComparison(n, mean, interval, p, mean / std if std else None, test)


def _sign_patterns(n: int) -> np.ndarray:
    """Rows of signs, the first of them all +1: every pattern where that is feasible, else a fixed random sample.

    With the observed signs as one of the sample, p is (1 + count) / (1 + sampled): never zero, and valid.
    """
    if n <= EXHAUSTIVE_TRIALS:
        return 1.0 - 2.0 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    signs = np.random.default_rng(SEED).choice((-1.0, 1.0), size=(2**EXHAUSTIVE_TRIALS, n))
    signs[0] = 1
    return signs


def _unit_columns(differences: np.ndarray) -> np.ndarray:
    """Scaled so that the sum is a monotone function of t, the same one for every column and every flip."""
    lengths = np.linalg.norm(differences, axis=0)
    return differences / np.where(lengths == 0, 1, lengths)


def _share_at_least_the_observed(statistics: np.ndarray) -> float:
    return float(np.mean(statistics >= statistics[0] - _TIE))
