"""The statistics of the report: known values, laws, and (slow) how often each is wrong on its kind of data."""

import functools
import math
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.report.across import (
    iqm_over_datasets,
    mean_over_datasets,
    probability_of_improvement,
)
from bench.report.comparisons import (
    BestGroup,
    PairedComparison,
    best_group,
    compare_on_fresh_splits,
    compare_on_frozen_split,
    compare_with_control,
    holm,
    pairs_needed,
    probability_of_outperforming,
)
from bench.report.statistics import (
    Equivalence,
    Estimate,
    Interval,
    Refusal,
    Reported,
    SplitSizes,
    compare_with_reported,
    minimum_detectable_difference,
    pooled_spread,
    summarise,
    summarise_times,
    time_ratio,
    welch,
)

SMALL_SETS = SplitSizes(test=20, train=60)
TWENTY_PER_CLASS = SplitSizes(test=230_000, train=820)
TEN_ZEROS = np.zeros(10)


def both(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


# ---------------------------------------------------------------------------------------------- one cell


def test_the_interval_of_ten_values_is_that_of_a_t_table() -> None:
    summary = summarise(range(1, 11))
    assert (summary.n, summary.mean) == (10, 5.5)
    assert summary.std == pytest.approx(math.sqrt(82.5 / 9))  # the divisor is n - 1
    reach = 2.262 * math.sqrt(82.5 / 9 / 10)
    assert both(summary.interval) == pytest.approx((5.5 - reach, 5.5 + reach), abs=1e-3)


def test_a_single_value_has_no_spread() -> None:
    summary = summarise([91.5])
    assert (summary.mean, summary.std, summary.interval) == (91.5, None, None)


def test_equal_values_have_a_spread_of_exactly_zero() -> None:
    assert summarise([0.1] * 3).std == 0  # the sum of the three is not three times 0.1


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [[1.0], [2.0]]])
def test_what_is_missing_is_not_summarised(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        summarise(values)


# ---------------------------------------------------------------------------------------------- the paper


def test_the_papers_own_numbers_for_computer() -> None:
    result = welch(Reported(91.22, 0.14), Reported(91.18, 0.17))
    assert result.difference == pytest.approx(0.04)
    assert result.p == pytest.approx(0.57, abs=0.005)
    scipys = stats.ttest_ind_from_stats(91.22, 0.14, 10, 91.18, 0.17, 10, equal_var=False)
    assert result.p == pytest.approx(scipys.pvalue)
    assert result.interval.low < 0 < result.interval.high


def test_welch_without_any_spread() -> None:
    assert welch(Reported(90, 0), Reported(90, 0)).p == 1
    assert welch(Reported(91, 0), Reported(90, 0)).p == 0
    with pytest.raises(ValueError, match="two trials"):
        welch(Reported(91, 0.1), Reported(90, 0.1, n=1))


def around(mean: float, reach: float, n: int = 10) -> np.ndarray:
    return mean + np.linspace(-reach, reach, n)


@pytest.mark.parametrize(
    ("mean", "verdict"), [(90.1, "reproduced"), (91.0, "higher"), (89.0, "lower"), (90.5, "undecided")]
)
def test_the_verdict_on_the_paper(mean: float, verdict: str) -> None:
    assert compare_with_reported(around(mean, 0.2), Reported(90, 0.1)).verdict == verdict


def test_the_bound_is_half_a_point_or_twice_the_spread_over_splits() -> None:
    ours, paper = around(90.5, 0.2), Reported(90, 0.1)
    narrow, wide = compare_with_reported(ours, paper, split_std=0.1), compare_with_reported(ours, paper, split_std=0.6)
    assert (narrow.bound, narrow.verdict) == (0.5, "undecided")
    assert (wide.bound, wide.verdict) == (1.2, "reproduced")
    assert pooled_spread([[1, 3], [10, 10, 10], [7]]) == pytest.approx(math.sqrt(2 / 3))
    assert pooled_spread([[1.0], [2.0]]) is None


def test_the_papers_uncertainty_counts() -> None:
    assert compare_with_reported(around(90, 0.2), Reported(90, 1.5)).verdict == "undecided"


def test_few_trials_decide_nothing_about_the_paper() -> None:
    nine = compare_with_reported(around(90, 0.1, n=9), Reported(90, 0.1))
    assert nine.verdict == "undecided" and nine.interval is not None
    assert compare_with_reported([90.0], Reported(89, 0.1)) == Equivalence("undecided", 1.0, None, 0.5, 1)


def test_what_ten_pairs_can_show() -> None:
    corrected = minimum_detectable_difference(1.0, 10, SMALL_SETS)
    plain = minimum_detectable_difference(1.0, 10, SplitSizes(0, 60))
    assert plain == pytest.approx(0.9965, abs=5e-4)  # R: power.t.test(n=10, sd=1, power=0.8, type="paired")
    assert corrected / plain == pytest.approx(math.sqrt(0.4333 / 0.1), rel=1e-3)
    assert minimum_detectable_difference(2.0, 10) == pytest.approx(2 * minimum_detectable_difference(1.0, 10))


def test_what_sign_flips_can_never_show() -> None:
    assert minimum_detectable_difference(1.0, 5) == math.inf  # 2/32 is more than 5 %
    assert minimum_detectable_difference(1.0, 6) < math.inf
    assert minimum_detectable_difference(1.0, 9, comparisons=13) == math.inf
    # 13 comparisons: ten differences must all have one sign, so each has it with probability 0.8^(1/10)
    assert float(stats.norm.cdf(minimum_detectable_difference(1.0, 10, comparisons=13))) == pytest.approx(0.8**0.1)


# ---------------------------------------------------------------------------------------------- pairs


def test_ten_differences_of_one_sign() -> None:
    result = compare_on_frozen_split(np.arange(1.0, 11), TEN_ZEROS)
    assert result.p == 2 / 1024
    assert result.difference == 5.5
    assert result.effect_size == pytest.approx(5.5 / math.sqrt(82.5 / 9))
    reach = 2.262 * math.sqrt(82.5 / 9 / 10)
    assert both(result.interval) == pytest.approx((5.5 - reach, 5.5 + reach), abs=1e-3)


def test_sign_flips_by_hand() -> None:
    # ±3 ±1 ±1 sums to 5, 3, 3, 1 and their negatives: six of eight are at least 3 in size, the observed 3 + 1 - 1
    assert compare_on_frozen_split([3, 1, 0], [0, 0, 1]).p == 6 / 8


def test_sign_flips_as_scipy_has_them() -> None:
    rng = np.random.default_rng(1)
    for _ in range(5):
        differences = np.round(rng.normal(0.3, 1, size=8), 1)  # rounded, so that there are ties
        scipys = stats.permutation_test(
            (differences,), np.mean, permutation_type="samples", n_resamples=math.inf, vectorized=True
        )
        assert compare_on_frozen_split(differences, np.zeros(8)).p == pytest.approx(scipys.pvalue)


def test_many_trials_are_flipped_at_random_and_p_is_never_zero() -> None:
    assert compare_on_frozen_split(np.ones(40), np.zeros(40)).p == 1 / 2**16
    differences = np.random.default_rng(0).normal(0.4, 1, size=18)
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    exact = np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-9)
    assert compare_on_frozen_split(differences, np.zeros(18)).p == pytest.approx(exact, abs=0.005)


def test_models_that_always_agree() -> None:
    same = compare_on_frozen_split(TEN_ZEROS, TEN_ZEROS)
    assert (same.difference, same.p, same.effect_size, same.interval) == (0, 1, None, Interval(0, 0))
    single = compare_on_frozen_split([2.0], [1.0])
    assert (single.difference, single.p, single.interval) == (1, 1, None)


def test_trials_that_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="paired"):
        compare_on_frozen_split([1.0, 2.0], [1.0])


def test_corrected_t_of_a_worked_example() -> None:
    result = compare_on_fresh_splits([1.0, 0.4, 0.8, -0.2, 0.5], np.zeros(5), SMALL_SETS)
    assert isinstance(result, PairedComparison)
    # mean 0.5; s² = (0.25 + 0.01 + 0.09 + 0.49 + 0) / 4 = 0.21
    # standard error √(0.21 (1/5 + 20/60)) = √0.112 = 0.334664, t = 0.5 / 0.334664 = 1.49403
    # with 4 degrees of freedom P(T < t) = 1/2 + 3/8 u (1 - u²/12), u = t / √(1 + t²/4)
    # u = 1.49403 / 1.24821 = 1.19693, P(T < t) = 0.5 + 0.448850 · 0.880611 = 0.895262
    assert result.difference == pytest.approx(0.5)
    assert result.p == pytest.approx(2 * (1 - 0.895262), abs=2e-5)
    assert both(result.interval) == pytest.approx((0.5 - 2.776 * 0.334664, 0.5 + 2.776 * 0.334664), abs=2e-4)


def test_corrected_t_refuses_where_the_test_set_is_larger_than_the_training_set() -> None:
    refusal = compare_on_fresh_splits(np.ones(10), TEN_ZEROS, TWENTY_PER_CLASS)
    assert isinstance(refusal, Refusal) and "230,000" in refusal.reason and "frozen" in refusal.reason
    assert isinstance(compare_on_fresh_splits(np.ones(10), TEN_ZEROS, SplitSizes(50, 50)), PairedComparison)
    assert compare_on_fresh_splits([1.0], [0.0], SMALL_SETS) == Refusal("a single trial has no spread")


def test_corrected_t_without_spread() -> None:
    for shift, p in ((0.0, 1.0), (0.3, 0.0)):
        result = compare_on_fresh_splits(TEN_ZEROS + shift, TEN_ZEROS, SMALL_SETS)
        assert isinstance(result, PairedComparison) and result.p == p and result.effect_size is None


def test_outperforming() -> None:
    eight = probability_of_outperforming([1] * 8 + [0] * 2, [0] * 8 + [1] * 2)
    assert eight.probability.value == 0.8
    # bootstrap wins are binomial: P(X ≤ 4) = 0.0064 and P(X ≤ 5) = 0.0328 of ten at 0.8, so the 2.5 % point is 5
    assert eight.probability.interval == Interval(0.5, 1.0)
    assert not eight.meaningful
    assert probability_of_outperforming([1] * 9 + [0], [0] * 9 + [1]).meaningful
    assert probability_of_outperforming(TEN_ZEROS, TEN_ZEROS).probability == Estimate(0.5, Interval(0.5, 0.5))


def test_noethers_numbers() -> None:
    assert pairs_needed(0.75) == 29
    assert (pairs_needed(0.825, power=0.8), pairs_needed(0.73, power=0.8)) == (10, 20)


# ---------------------------------------------------------------------------------------------- several models


def test_holm_by_hand() -> None:
    # ascending 0.005·4, 0.01·3, 0.03·2, 0.04·1, and none below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == pytest.approx([1, 1])
    assert holm([]).size == 0


@pytest.mark.parametrize(("n", "adjusted"), [(10, 13 * 2 / 1024), (9, 13 * 2 / 512)])
def test_thirteen_comparisons_with_a_control(n: int, adjusted: float) -> None:
    models = {f"model {index}": np.arange(n) + 0.1 * index for index in range(13)}
    found = compare_with_control("ours", {"ours": np.arange(n) + 9.0, **models}, compare_on_frozen_split)
    assert list(found) == list(models)
    for comparison in found.values():
        assert isinstance(comparison, PairedComparison) and comparison.difference > 0
        assert comparison.adjusted_p == pytest.approx(adjusted)


def test_holm_does_not_count_comparisons_that_were_refused() -> None:
    def compare(first: np.ndarray, second: np.ndarray) -> PairedComparison | Refusal:
        return Refusal("no") if second[0] == 1 else compare_on_frozen_split(first, second)

    found = compare_with_control("ours", {"ours": np.arange(10.0), "a": np.ones(10), "b": -np.ones(10)}, compare)
    assert found["a"] == Refusal("no")
    assert isinstance(found["b"], PairedComparison) and found["b"].adjusted_p == found["b"].p


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("sizes", [None, SMALL_SETS])
def test_the_best_group(sizes: SplitSizes | None) -> None:
    shared, own = 5 * noise(10), 0.3 * noise(4, 10, seed=1)  # what all models share must not hide the difference
    scores = dict(zip("abcd", np.array([[90.0], [90.0], [88.0], [85.0]]) + shared + own, strict=True))
    group = best_group(scores, sizes)
    assert isinstance(group, BestGroup)
    assert group.members == ("a", "b") and group.best in group.members
    assert group.p["c"] <= 0.05 < group.p[group.best]


def test_fourteen_models_and_ten_trials_suffice_for_a_best_group() -> None:
    scores = {f"model {index}": noise(10, seed=index) for index in range(13)}
    group = best_group({**scores, "winner": noise(10) + 20})
    assert isinstance(group, BestGroup) and group.members == ("winner",)


@pytest.mark.parametrize("sizes", [None, SMALL_SETS])
def test_models_without_spread_between_them(sizes: SplitSizes | None) -> None:
    trials = noise(10)
    group = best_group({"a": trials, "b": trials, "c": trials - 0.01}, sizes)
    assert isinstance(group, BestGroup) and group.members == ("a", "b")
    assert best_group({"only": trials}, sizes) == BestGroup("only", ("only",), {"only": 1.0})


def test_no_best_group() -> None:
    nine = best_group({"a": noise(9), "b": noise(9) + 100})
    assert isinstance(nine, Refusal) and nine.reason.startswith("undecided: 9 of the 10")
    fresh = best_group({"a": noise(10), "b": noise(10)}, TWENTY_PER_CLASS)
    assert isinstance(fresh, Refusal) and "corrected t" in fresh.reason


# ---------------------------------------------------------------------------------------------- several datasets


def test_means_over_datasets_by_hand() -> None:
    constant = mean_over_datasets([np.full(3, 1.0), np.full(10, 2.0)])
    assert constant == Estimate(1.5, Interval(1.5, 1.5))
    assert both(mean_over_datasets([np.full(3, 1.0), np.full(10, 2.0)], hierarchical=True).interval) == (1, 2)


def test_the_interquartile_mean_by_hand() -> None:
    scores = np.array([[0.0, 1, 2, 3], [4, 5, 6, 1000]])
    assert iqm_over_datasets(scores).value == (2 + 3 + 4 + 5) / 4
    assert iqm_over_datasets(np.ones((3, 1))) == Estimate(1, Interval(1, 1))
    with pytest.raises(ValueError, match="finite"):
        iqm_over_datasets(np.array([[1.0, math.nan]]))


def test_the_probability_of_improvement_by_hand() -> None:
    # 1 and 3 against 2 and 3: of four pairs one is won and one tied; on the second dataset all are won
    estimate = probability_of_improvement([[1, 3], [5]], [[2, 3], [4, 4, 4]])
    assert estimate.value == pytest.approx((1.5 / 4 + 1) / 2)
    assert estimate.interval.low < estimate.value < estimate.interval.high <= 1


def test_a_claim_about_other_datasets_is_wider() -> None:
    scores = np.arange(9)[:, None] + 0.1 * noise(9, 10)
    here, beyond = (both(mean_over_datasets(scores, hierarchical).interval) for hierarchical in (False, True))
    assert beyond[1] - beyond[0] > 5 * (here[1] - here[0])


# ---------------------------------------------------------------------------------------------- seconds


def test_times() -> None:
    summary = summarise_times([1, 2, 3, 4, 100])
    assert (summary.n, summary.median, summary.mad) == (5, 3, 1)
    ratio = time_ratio([4, 4.4, 3.6, 900], [2, 2.2, 1.8, 2])
    assert ratio.value == pytest.approx(math.sqrt(4 * 4.4) / 2)
    assert ratio.interval.low < ratio.value < ratio.interval.high
    with pytest.raises(ValueError, match="positive"):
        time_ratio([1.0], [0.0])


# ---------------------------------------------------------------------------------------------- laws

accuracies = st.integers(0, 1000).map(lambda tenths: tenths / 10)
pairs = st.lists(st.tuples(accuracies, accuracies), min_size=2, max_size=12).map(lambda rows: np.array(rows).T)
shifts = st.integers(-50, 50)
probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=20)
PAIRED_TESTS = [compare_on_frozen_split, functools.partial(compare_on_fresh_splits, sizes=SMALL_SETS)]


@given(pairs, shifts, st.sampled_from(PAIRED_TESTS))
def test_what_both_models_gain_changes_nothing(
    scores: np.ndarray, shift: int, compare: Callable[..., PairedComparison]
) -> None:
    before, after = compare(*scores), compare(*(scores + shift))
    assert after.p == pytest.approx(before.p, rel=1e-6)
    assert both(after.interval) == pytest.approx(both(before.interval), abs=1e-9)


@given(pairs, st.sampled_from(PAIRED_TESTS))
def test_swapping_the_models_turns_the_sign(scores: np.ndarray, compare: Callable[..., PairedComparison]) -> None:
    one, other = compare(scores[0], scores[1]), compare(scores[1], scores[0])
    assert other.difference == -one.difference
    assert other.p == pytest.approx(one.p)
    assert both(other.interval) == pytest.approx((-both(one.interval)[1], -both(one.interval)[0]))


@given(pairs)
def test_the_interval_and_the_corrected_t_agree(scores: np.ndarray) -> None:
    result = compare_on_fresh_splits(*scores, SMALL_SETS)
    assert isinstance(result, PairedComparison)
    low, high = both(result.interval)
    if abs(result.p - 0.05) > 1e-9:
        assert (result.p < 0.05) == (low > 0 or high < 0)


@given(pairs)
def test_the_correction_only_ever_weakens(scores: np.ndarray) -> None:
    result = compare_on_fresh_splits(*scores, SMALL_SETS)
    assert isinstance(result, PairedComparison)
    plain = compare_on_fresh_splits(*scores, SplitSizes(0, 60))
    assert isinstance(plain, PairedComparison) and plain.p <= result.p + 1e-12


@given(pairs)
def test_outperforming_and_being_outperformed_are_complements(scores: np.ndarray) -> None:
    one = probability_of_outperforming(scores[0], scores[1]).probability
    other = probability_of_outperforming(scores[1], scores[0]).probability
    assert one.value == pytest.approx(1 - other.value)
    assert both(one.interval) == pytest.approx((1 - other.interval.high, 1 - other.interval.low))


@given(probabilities)
def test_holm_keeps_the_order_and_lies_between_none_and_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()
    assert (adjusted >= np.array(p)).all() and (adjusted <= np.minimum(1, len(p) * np.array(p))).all()


@given(probabilities, st.randoms(use_true_random=False))
def test_holm_does_not_care_about_the_order_given(p: list[float], random: Random) -> None:
    order = list(range(len(p)))
    random.shuffle(order)
    assert holm([p[index] for index in order]) == pytest.approx(holm(p)[order])


@given(st.lists(accuracies, min_size=10, max_size=10), shifts, st.integers(2, 5))
def test_the_best_group_contains_the_best_and_ignores_a_common_shift(trials: list[float], shift: int, k: int) -> None:
    scores = {str(index): np.roll(trials, index) + 0.1 * index for index in range(k)}
    group = best_group(scores)
    moved = best_group({name: values + shift for name, values in scores.items()})
    assert isinstance(group, BestGroup) and isinstance(moved, BestGroup)
    assert group.best in group.members
    assert group.members == moved.members


@given(pairs)
def test_welch_is_the_t_test_of_the_summaries(scores: np.ndarray) -> None:
    first, second = (summarise(row) for row in scores)
    if first.std and second.std:
        ours = welch(*(Reported(s.mean, s.std or 0, s.n) for s in (first, second)))
        assert ours.p == pytest.approx(stats.ttest_ind(*scores, equal_var=False).pvalue)


# ---------------------------------------------------------------------------------------------- rates


def trials(reps: int, n: int, models: int = 2, correlation: float = 0.0, seed: int = 0) -> np.ndarray:
    """Reps × models × trials of equally good models; each model's trials have unit variance and this correlation."""
    rng = np.random.default_rng(seed)
    shared, own = rng.normal(size=(reps, models, 1)), rng.normal(size=(reps, models, n))
    return math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own


def rate(name: str, events: Sequence[bool] | np.ndarray) -> float:
    value = float(np.mean(events))
    print(f"{name}: {100 * value:.1f} % of {len(events)}")
    return value


def covers(interval: Interval | None, truth: float) -> bool:
    low, high = both(interval)
    return low <= truth <= high


def fresh_p(first: np.ndarray, second: np.ndarray) -> float:
    result = compare_on_fresh_splits(first, second, SMALL_SETS)
    assert isinstance(result, PairedComparison)
    return result.p


@pytest.mark.slow
def test_rates_on_a_frozen_split() -> None:
    results = [compare_on_frozen_split(*pair) for pair in trials(4000, 10)]
    assert 0.04 < rate("sign flips, frozen, type I", [r.p <= 0.05 for r in results]) < 0.06
    assert 0.94 < rate("paired t interval, frozen, coverage", [covers(r.interval, 0) for r in results]) < 0.96
    counts = np.random.default_rng(0).binomial(200, 0.97, size=(4000, 2, 10)) / 200  # few test nodes: ties, skew
    assert rate("sign flips, 200 test nodes, type I", [compare_on_frozen_split(*c).p <= 0.05 for c in counts]) < 0.06


@pytest.mark.slow
def test_rates_on_correlated_splits() -> None:
    data = trials(4000, 10, correlation=0.25)
    naive = [compare_on_frozen_split(*pair).p <= 0.05 for pair in data]
    assert 0.28 < rate("sign flips, correlation 0.25, type I", naive) < 0.34
    corrected = [compare_on_fresh_splits(*pair, SMALL_SETS) for pair in data]
    found = [r for r in corrected if isinstance(r, PairedComparison)]
    assert 0.04 < rate("corrected t, correlation 0.25, type I", [r.p <= 0.05 for r in found]) < 0.06
    assert 0.94 < rate("corrected t interval, coverage", [covers(r.interval, 0) for r in found]) < 0.96


@pytest.mark.slow
def test_rates_on_splits_that_are_really_drawn() -> None:
    """A graph of 500 nodes from a larger world, 60/20/20 drawn ten times; of each model a node is right or wrong.

    Splits overlap in the test set alone: a fifth. The correction, made for a quarter, must not be too small.
    """
    rng = np.random.default_rng(0)
    naive, corrected = [], []
    for _ in range(2000):
        right = rng.random((2, 500)) < 0.8
        tests = np.argsort(rng.random((10, 500)), axis=1)[:, :100]
        first, second = right[:, tests].mean(axis=2)
        naive.append(compare_on_frozen_split(first, second).p <= 0.05)
        corrected.append(fresh_p(first, second) <= 0.05)
    assert rate("sign flips, drawn splits, type I", naive) > 0.15
    assert rate("corrected t, drawn splits, type I", corrected) < 0.05


@pytest.mark.slow
def test_rates_of_means() -> None:
    for correlation, low, high in ((0.0, 0.94, 0.96), (0.25, 0.66, 0.73)):
        data = trials(4000, 10, 1, correlation)[:, 0]
        coverage = [covers(summarise(values).interval, 0) for values in data]
        assert low < rate(f"t interval of a mean, correlation {correlation}, coverage", coverage) < high
    # given the graph, that is the shared part, the trials are independent: the interval covers this graph's mean
    rng = np.random.default_rng(1)
    graphs = rng.normal(size=4000)
    given_graph = [covers(summarise(rng.normal(mean, 1, size=10)).interval, mean) for mean in graphs]
    assert 0.94 < rate("t interval of a mean, given the graph, coverage", given_graph) < 0.96


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [None, SMALL_SETS])
def test_rates_of_holm_against_a_control(sizes: SplitSizes | None) -> None:
    compare = functools.partial(compare_on_fresh_splits, sizes=sizes) if sizes else compare_on_frozen_split
    wrong = []
    for data in trials(1000, 10, 14, correlation=0.25 if sizes else 0.0):
        found = compare_with_control("0", {str(i): row for i, row in enumerate(data)}, compare).values()
        wrong.append(any((r.adjusted_p or 0) <= 0.05 for r in found if isinstance(r, PairedComparison)))
    assert rate(f"Holm, 13 against a control, {'fresh' if sizes else 'frozen'}, any error", wrong) < 0.06


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [None, SMALL_SETS])
@pytest.mark.parametrize("worse", [0.0, 1.0, 10.0])
def test_rates_of_the_best_group(sizes: SplitSizes | None, worse: float) -> None:
    """Fourteen models that share half of their noise; the first seven are equally good, the others worse by so much."""
    wrong, size = [], []
    correlation = 0.25 if sizes else 0.0
    data = trials(1000, 10, 14, correlation, seed=1) + trials(1000, 10, 1, correlation, seed=2)
    data[:, 7:] -= worse
    for scores in data:
        group = best_group({str(index): row for index, row in enumerate(scores)}, sizes)
        assert isinstance(group, BestGroup)
        wrong.append("0" not in group.members)
        size.append(len(group.members))
    mode = "fresh" if sizes else "frozen"
    assert rate(f"best group, {mode}, others worse by {worse}, the best is left out", wrong) < 0.06
    print(f"best group, {mode}, others worse by {worse}: {np.mean(size):.1f} of 14 are members")


@pytest.mark.slow
def test_rates_of_welch_from_printed_numbers() -> None:
    data = np.random.default_rng(0).normal([[[91.2]], [[91.2]]], [[[0.14]], [[0.3]]], size=(4000, 2, 1, 10))[:, :, 0]
    means, stds = np.round(data.mean(axis=2), 2), np.round(data.std(axis=2, ddof=1), 2)
    found = [welch(*(Reported(*row) for row in zip(m, s, strict=True))) for m, s in zip(means, stds, strict=True)]
    assert 0.035 < rate("Welch from printed numbers, type I", [r.p <= 0.05 for r in found]) < 0.06


@pytest.mark.slow
def test_rates_of_verdicts_on_the_paper() -> None:
    """Ours is truly 1.0 above the paper's and that is the bound: reproduced and higher are each an error of 5 %."""
    rng = np.random.default_rng(0)
    ours, paper = rng.normal(91, 0.5, size=(4000, 10)), rng.normal(90, 0.3, size=(4000, 10))
    printed = [Reported(float(row.mean()), float(row.std(ddof=1))) for row in paper]
    known = [compare_with_reported(row, p, split_std=0.5).verdict for row, p in zip(ours, printed, strict=True)]
    assert rate("at the bound, called reproduced", [v == "reproduced" for v in known]) < 0.06
    assert rate("at the bound, called higher", [v == "higher" for v in known]) < 0.06
    for models, limit in ((14, 0.075), (3, 0.14), (1, 0.25)):
        others = rng.normal(0, 0.5, size=(4000, models - 1, 10))
        bounds = [pooled_spread([row, *rest]) for row, rest in zip(ours, others, strict=True)]
        found = [compare_with_reported(*case).verdict for case in zip(ours, printed, bounds, strict=True)]
        for verdict in ("reproduced", "higher"):
            assert rate(f"bound pooled over {models} models, called {verdict}", [v == verdict for v in found]) < limit
    equal = [compare_with_reported(o - 1, p, split_std=0.5).verdict for o, p in zip(ours, printed, strict=True)]
    assert rate("truly equal, called reproduced", [v == "reproduced" for v in equal]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("n", "comparisons"), [(10, 1), (10, 13), (11, 13), (15, 13)])
def test_power_at_the_minimum_detectable_difference(n: int, comparisons: int) -> None:
    level = 0.05 / comparisons
    data = np.random.default_rng(0).normal(size=(1500, n)) + minimum_detectable_difference(1, n, None, comparisons)
    frozen = [compare_on_frozen_split(row, np.zeros(n)).p <= level for row in data]
    assert 0.72 < rate(f"power of sign flips, n = {n}, {comparisons} comparisons", frozen) < 0.83
    single = trials(4000, n, 1, 0.25)[:, 0] / math.sqrt(0.75)  # unit spread within a graph
    data = single + minimum_detectable_difference(1, n, SMALL_SETS, comparisons)
    fresh = [fresh_p(row, np.zeros(n)) <= level for row in data]
    assert 0.77 < rate(f"power of the corrected t, n = {n}, {comparisons} comparisons", fresh) < 0.83


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 29])
def test_rates_of_outperforming(n: int) -> None:
    null = [probability_of_outperforming(*pair).meaningful for pair in trials(1000, n)]
    assert rate(f"outperforming, n = {n}, equal models called meaningful", null) < 0.05
    better = trials(1000, n, seed=1)
    better[:, 0] += math.sqrt(2) * float(stats.norm.ppf(0.75))
    found = [probability_of_outperforming(*pair) for pair in better]
    assert rate(f"outperforming, n = {n}, coverage", [covers(r.probability.interval, 0.75) for r in found]) > 0.85
    rate(f"outperforming, n = {n}, a true 0.75 called meaningful", [r.meaningful for r in found])


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 10])
def test_rates_of_the_stratified_bootstrap(n: int) -> None:
    """Nine datasets of different level and spread; coverage of the mean and of P(improvement)."""
    rng = np.random.default_rng(0)
    levels, spreads = np.linspace(0.2, 0.9, 9)[:, None], np.linspace(0.01, 0.05, 9)[:, None]
    data = rng.normal(levels, spreads, size=(300, 9, n))
    coverage = [covers(mean_over_datasets(list(scores)).interval, float(levels.mean())) for scores in data]
    assert rate(f"stratified mean, n = {n}, coverage", coverage) > 0.9
    other = rng.normal(levels, spreads, size=(200, 9, n))
    found = [probability_of_improvement(list(a), list(b)) for a, b in zip(data[:200], other, strict=True)]
    coverage = [covers(r.interval, 0.5) for r in found]
    assert rate(f"P(improvement), n = {n}, coverage", coverage) > 0.9


@pytest.mark.slow
def test_rates_of_the_interquartile_mean_and_of_the_hierarchical_bootstrap() -> None:
    rng = np.random.default_rng(0)
    levels, spreads = np.linspace(0.2, 0.9, 9)[:, None], np.linspace(0.01, 0.05, 9)[:, None]
    truth = float(stats.trim_mean(rng.normal(levels, spreads, size=(9, 200_000)).ravel(), 0.25))
    data = rng.normal(levels, spreads, size=(300, 9, 10))
    assert rate("stratified IQM, coverage", [covers(iqm_over_datasets(s).interval, truth) for s in data]) > 0.9
    drawn = rng.normal(0.5, 0.2, size=(300, 9, 1)) + rng.normal(0, 0.03, size=(300, 9, 10))
    within = [covers(mean_over_datasets(list(s)).interval, 0.5) for s in drawn]
    beyond = [covers(mean_over_datasets(list(s), hierarchical=True).interval, 0.5) for s in drawn]
    assert rate("stratified mean, about other datasets, coverage", within) < 0.3
    assert 0.85 < rate("hierarchical mean, about other datasets, coverage", beyond) < 0.96


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 10])
def test_rates_of_time_ratios(n: int) -> None:
    """Seconds with a right tail: a tenth of the repeats is disturbed and takes up to twice as long."""
    rng = np.random.default_rng(0)
    seconds = np.exp(rng.normal(0, 0.05, size=(1000, 2, n))) * (
        1 + (rng.random((1000, 2, n)) < 0.1) * rng.random((1000, 2, n))
    )
    coverage = [covers(time_ratio(3 * a, b).interval, 3.0) for a, b in seconds]
    assert rate(f"time ratio, n = {n}, coverage", coverage) > 0.9
