"""One cell and what stands beside it: mean and interval, a reported number, what n trials can show, seconds.

Pure functions: arrays in, small frozen dataclasses out. Accuracies are percent points, standard deviations are sample
ones (ddof 1), larger is better except for seconds. Comparisons of models are in `comparisons`, statements over several
datasets in `across`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize, stats

ALPHA = 0.05
CONFIDENCE = 1 - ALPHA
MINIMUM_TRIALS = 10  # below it the word is "undecided": neither "equal" nor "best"
RESAMPLES = 10_000
SEED = 0  # of every bootstrap and every sampled permutation: the same records give the same report
_ROUNDING = 1e-10  # relative; differences of accuracies that should be equal are equal only up to rounding

Values = np.ndarray | Sequence[float]


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    value: float
    interval: Interval


@dataclass(frozen=True)
class Refusal:
    """No answer, and why: shown in place of a number."""

    reason: str


@dataclass(frozen=True)
class SplitSizes:
    """Nodes in the test and in the training set of one split."""

    test: int
    train: int


@dataclass(frozen=True)
class Summary:
    n: int
    mean: float
    std: float | None  # a single value has no spread, and hence no interval
    interval: Interval | None


@dataclass(frozen=True)
class Reported:
    """A mean and its spread as a paper prints them."""

    mean: float
    std: float
    n: int = 10


@dataclass(frozen=True)
class Welch:
    difference: float
    p: float
    interval: Interval


Verdict = Literal["reproduced", "higher", "lower", "undecided"]


@dataclass(frozen=True)
class Equivalence:
    """Ours minus the reported, with the 90 % interval that the two one-sided 5 % tests look at."""

    verdict: Verdict
    difference: float
    interval: Interval | None
    bound: float
    n: int
    wide: Interval | None = None  # of 95 %: where 0 is outside, there is a difference, be it within the bound or not


@dataclass(frozen=True)
class TimeSummary:
    n: int
    median: float
    mad: float  # median absolute deviation from the median, not rescaled


def as_values(values: Values) -> np.ndarray:
    """A non-empty row of finite numbers, or an error: what is missing is for the caller to decide about."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"expected a non-empty row of finite numbers, not {array!r}")
    return array


def spread(values: np.ndarray) -> float:
    """Sample standard deviation; exactly 0 where the values differ by rounding alone."""
    return float(spread_of_columns(values))


def spread_of_columns(values: np.ndarray) -> np.ndarray:
    equal = np.ptp(values, axis=0) <= _ROUNDING * np.abs(values).max(axis=0)
    return np.where(equal, 0.0, np.std(values, axis=0, ddof=1))


def pooled_spread(samples: Iterable[Values]) -> float | None:
    """The standard deviation that samples of different means have in common, if any has more than one value."""
    arrays = [array for array in map(as_values, samples) if len(array) > 1]
    degrees = sum(len(array) - 1 for array in arrays)
    squares = sum((len(array) - 1) * spread(array) ** 2 for array in arrays)
    return math.sqrt(squares / degrees) if degrees else None


def t_interval(centre: float, standard_error: float, degrees: float, confidence: float = CONFIDENCE) -> Interval:
    reach = standard_error * float(stats.t.isf((1 - confidence) / 2, degrees))
    return Interval(centre - reach, centre + reach)


def two_sided_p(difference: float, standard_error: float, degrees: float) -> float:
    """Of Student's t. Without any spread, a difference is certain and no difference is no evidence."""
    if standard_error == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * stats.t.sf(abs(difference) / standard_error, degrees))


def percentile_interval(replicates: np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def resampled(values: np.ndarray, rng: np.random.Generator, draws: int | None = None) -> np.ndarray:
    """Bootstrap samples of the values, one per row, as many draws each as there are values unless told."""
    return values[rng.integers(len(values), size=(RESAMPLES, draws or len(values)))]


def summarise(values: Values, confidence: float = CONFIDENCE) -> Summary:
    """Mean, sample standard deviation and t interval.

    The interval is about the mean over all seeds of the split mode on this graph: given the graph, trials on re-drawn
    splits are independent too. It is not about other graphs of the same kind; there re-drawn splits of one graph are
    correlated, and at a correlation of 0.25 ten of them would make it cover 70 % instead of 95 %.
    """
    array = as_values(values)
    n, mean = len(array), float(array.mean())
    if n == 1:
        return Summary(1, mean, None, None)
    std = spread(array)
    return Summary(n, mean, std, t_interval(mean, std / math.sqrt(n), n - 1, confidence))


def welch(first: Reported, second: Reported, confidence: float = CONFIDENCE) -> Welch:
    """Welch's unequal-variance t of first minus second, from printed numbers alone."""
    if min(first.n, second.n) < 2:
        raise ValueError("Welch's t needs at least two trials on either side")
    difference = first.mean - second.mean
    variances = first.std**2 / first.n, second.std**2 / second.n
    error = math.sqrt(sum(variances))
    if error == 0:
        return Welch(difference, two_sided_p(difference, 0, 1), Interval(difference, difference))
    degrees = error**4 / (variances[0] ** 2 / (first.n - 1) + variances[1] ** 2 / (second.n - 1))
    return Welch(
        difference, two_sided_p(difference, error, degrees), t_interval(difference, error, degrees, confidence)
    )


def compare_with_reported(
    ours: Values,
    reported: Reported,
    split_std: float | None = None,
    floor: float = 0.5,
    minimum_trials: int = MINIMUM_TRIALS,
) -> Equivalence:
    """Two one-sided tests against ± max(floor, 2 split_std), where the bound is how far luck with a split can carry.

    The uncertainty of what was reported is in the standard error. Reproduced: the 90 % interval lies within the bound;
    higher or lower: it lies beyond; each of these is wrong in at most 5 % of cases, and whatever straddles a bound is
    undecided. That holds for a given bound. One from data is itself a matter of luck, so take `split_std` from
    `pooled_spread` over the models of the dataset: exactly at the bound, 5 % are then called reproduced and 6 % higher
    with fourteen models of ten trials, 7 % and 11 % with three, 9 % and 20 % with the model's own ten values alone.
    """
    array = as_values(ours)
    n, mean = len(array), float(array.mean())
    bound = max(floor, 2 * (split_std or 0.0))
    if n == 1:
        return Equivalence("undecided", mean - reported.mean, None, bound, n)
    compared = welch(Reported(mean, spread(array), n), reported, confidence=1 - 2 * ALPHA)
    verdict = _verdict(compared.interval, bound) if n >= minimum_trials else "undecided"
    wide = welch(Reported(mean, spread(array), n), reported).interval
    return Equivalence(verdict, compared.difference, compared.interval, bound, n, wide)


def _verdict(interval: Interval, bound: float) -> Verdict:
    if -bound < interval.low and interval.high < bound:
        return "reproduced"
    if interval.low > bound:
        return "higher"
    return "lower" if interval.high < -bound else "undecided"


def minimum_detectable_difference(
    std: float, n: int, sizes: SplitSizes | None = None, comparisons: int = 1, power: float = 0.8, alpha: float = ALPHA
) -> float:
    """The true mean difference that n pairs, whose differences have this std, show with the given power.

    With `sizes` by the corrected t of fresh splits, else by the sign-flip test of a frozen split, whose p is a multiple
    of 2/2ⁿ: the level is rounded down to what can be reached, and where nothing can the answer is infinity. Its power
    is nearly that of the t test at that level, except at the first step, which n differences of one sign alone reach.
    `comparisons` is the number of tests that Holm corrects for.
    """
    level = alpha / comparisons
    if sizes is None:
        steps = math.floor(level * 2.0 ** (n - 1))
        level = steps / 2.0 ** (n - 1)
        if steps == 1:
            return std * float(stats.norm.ppf(power ** (1 / n)))
    if n < 2 or level == 0:
        return math.inf
    degrees, critical = n - 1, float(stats.t.isf(level / 2, n - 1))

    def missing_power(noncentrality: float) -> float:  # the other tail is negligible at any power worth asking for
        return float(stats.nct.sf(critical, degrees, noncentrality)) - power

    return std * math.sqrt(variance_factor(n, sizes)) * float(optimize.brentq(missing_power, 0, 3 * critical + 5))


def variance_factor(n: int, sizes: SplitSizes | None) -> float:
    """Variance of a mean of n trials over that of one: 1/n if independent, Nadeau and Bengio's on fresh splits."""
    return 1 / n + (sizes.test / sizes.train if sizes else 0.0)


def summarise_times(seconds: Values) -> TimeSummary:
    array = as_values(seconds)
    return TimeSummary(len(array), float(np.median(array)), float(stats.median_abs_deviation(array)))


def time_ratio(ours: Values, theirs: Values, confidence: float = CONFIDENCE) -> Estimate:
    """How many times as long ours takes, with a percentile bootstrap interval.

    Medians of logarithms, so that one disturbed repeat does not decide and that swapping the two inverts the ratio.
    """
    first, second = as_values(ours), as_values(theirs)
    if min(first.min(), second.min()) <= 0:
        raise ValueError("a duration is a positive number of seconds")
    rng = np.random.default_rng(SEED)
    first, second = np.log(first), np.log(second)
    replicates = np.median(resampled(first, rng), axis=1) - np.median(resampled(second, rng), axis=1)
    logs = percentile_interval(replicates, confidence)
    ratio = math.exp(float(np.median(first) - np.median(second)))
    return Estimate(ratio, Interval(math.exp(logs.low), math.exp(logs.high)))
