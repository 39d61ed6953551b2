"""The paper's claims, put to our records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from bench.datasets.catalogue import datasets
from bench.paper.claims import Claim
from bench.paper.judgement import (
    FAILS,
    HOLDS,
    NOT_RUN,
    UNDECIDED,
    Check,
    Judgement,
    judge,
    significant,
    title,
    weakest,
)
from bench.paper.studies import studies
from bench.paper.trial_index import ACCURACY_STUDIES, TrialIndex
from bench.records import COST, OOM, Record, address, memory_used, seconds_per_epoch, under_load
from bench.report.comparisons import BestGroup, PairedComparison
from bench.report.costs import by_machine, is_bound, whole_inference
from bench.report.entries import brackets
from bench.report.evidence import Trials
from bench.report.results import Results, Sizes, compare_pairs, paired
from bench.report.statistics import ALPHA, MINIMUM_TRIALS, Estimate, Refusal, time_ratio
from bench.sizes import MEGABYTE, megabytes

MEMORY_KINDS = ("oom", "memory_below")  # claims on what fits into how much memory
LEAST_REPEATS = 3  # of a timing, from which on its interval says something
Sweep = list[tuple[float, Trials]]  # the value of the setting that is varied, and the trials there


def audit_ours(claim: Claim, index: TrialIndex) -> Judgement:
    """What our trials say; of memory only for our implementation, on the device where it was run."""
    judged = judge(claim, list(_OUR_CHECKS[claim.kind](claim, index)))
    return replace(judged, place=_device(judged, index)) if claim.kind in MEMORY_KINDS else judged


def _device(judged: Judgement, index: TrialIndex) -> str:
    used = set(judged.keys)
    gpus = {bool(r["environment"]["gpu"]) for r in index.evidence.records if address(r) in used}
    return " and ".join(f"on a {'GPU' if gpu else 'CPU'}" for gpu in sorted(gpus))


def _our_pairs(claim: Claim, index: TrialIndex) -> Iterator[Check]:
    for dataset, model in itertools.product(claim.datasets, claim.models):
        trials = index.trials(claim.study, model, dataset, claim.variant)
        if claim.kind == "best":
            others = [t for t in index.of_study(claim.study) if t.dataset == dataset and t is not trials]
        else:
            pairs = claim.opponents if claim.kind == "beats" else [(model, v) for v in claim.versus_variants]
            others = [t for pair in pairs if (t := index.trials(claim.study, pair[0], dataset, pair[1])) is not None]
        yield weakest(dataset, [our_difference(trials, other, index.sizes(dataset)) for other in others])


def our_difference(trials: Trials | None, other: Trials, sizes: Sizes) -> Check:
    """First minus second over the trials that both have; fewer than ten leave it undecided."""
    dataset, against = other.dataset, f"over {title(other.model, other.variant)}"
    if trials is None or not trials.records or not other.records:
        return Check(dataset, NOT_RUN, against)
    keys = (*trials.keys, *other.keys)
    return _difference_of(dataset, *paired(trials, other), against, keys, sizes)


def _difference_of(
    dataset: str, ours: np.ndarray, theirs: np.ndarray, against: str, keys: tuple[str, ...], sizes: Sizes
) -> Check:
    """First minus second over aligned trials."""
    if not len(ours):
        return Check(dataset, UNDECIDED, f"no common trials {against}", keys)
    compared = compare_pairs(ours, theirs, sizes)
    difference = float(np.mean(ours - theirs))
    effect = f"{difference:+.2f} {against}, n = {len(ours)}"
    if isinstance(compared, Refusal):
        return Check(dataset, UNDECIDED, f"{effect}: {compared.reason}", keys, difference)
    verdict = significant(difference, compared.p) if len(ours) >= MINIMUM_TRIALS else UNDECIDED
    interval = "" if compared.interval is None else f" {brackets(compared.interval)}"
    return Check(dataset, verdict, f"{effect}{interval}, p = {compared.p:.2g}", keys, difference)


def _sweep(claim: Claim, index: TrialIndex, dataset: str, model: str) -> Sweep:
    """(value of the first setting, trials) along the sweep, as far as it has been run."""
    found = []
    for variant in studies()[claim.study].variants:
        trials = index.trials(claim.study, model, dataset, variant.label)
        if trials is not None and trials.good:
            found.append((float(variant.settings[claim.settings[0]]), trials))
    return found


def _is_complete(claim: Claim, sweep: Sweep) -> bool:
    """Whether every point was run, and often enough."""
    few = min((len(trials.good) for _, trials in sweep), default=0) < MINIMUM_TRIALS
    return len(sweep) == len(studies()[claim.study].variants) and not few


def _how_far(claim: Claim, sweep: Sweep) -> str:
    wanted = len(studies()[claim.study].variants)
    return f"{len(sweep)} of {wanted} points, fewer than {MINIMUM_TRIALS} trials in some"


def _along(
    judge_sweep: Callable[[Claim, TrialIndex, str, Sweep], tuple[str, str]],
) -> Callable[[Claim, TrialIndex], Iterator[Check]]:
    """A check of a whole sweep; one that has not been run from end to end is not judged."""

    def check(claim: Claim, index: TrialIndex) -> Iterator[Check]:
        for dataset, model in itertools.product(claim.datasets, claim.models):
            sweep = _sweep(claim, index, dataset, model)
            keys = tuple(key for _, trials in sweep for key in trials.keys)
            if len(sweep) < 2:  # one point is the model as it is, which other studies have run
                yield Check(dataset, NOT_RUN, title(model))
            elif not _is_complete(claim, sweep):
                yield Check(dataset, UNDECIDED, f"{title(model)}: {_how_far(claim, sweep)}", keys)
            else:
                verdict, effect = judge_sweep(claim, index, dataset, sweep)
                yield Check(dataset, verdict, f"{title(model)}: {effect}", keys)

    return check


def _means(sweep: Sweep) -> list[float]:
    return [float(np.mean(trials.accuracies)) for _, trials in sweep]


def _compared(first: Trials, second: Trials, sizes: Sizes) -> PairedComparison | Refusal:
    """By the trials that both have; fewer than ten tell nothing."""
    ours, theirs = paired(first, second)
    if len(ours) < MINIMUM_TRIALS:
        return Refusal(f"only {len(ours)} common trials")
    return compare_pairs(ours, theirs, sizes)


def _change_below(claim: Claim, index: TrialIndex, dataset: str, sweep: Sweep) -> tuple[str, str]:
    """By the interval of the highest minus the lowest point: it lies below the threshold, above it, or around it."""
    assert claim.threshold is not None
    means = _means(sweep)
    highest, lowest = (sweep[int(place)][1] for place in (np.argmax(means), np.argmin(means)))
    effect = f"{max(means) - min(means):.2f} points between highest and lowest"
    compared = _compared(highest, lowest, index.sizes(dataset))
    if isinstance(compared, Refusal):
        return UNDECIDED, f"{effect}: {compared.reason}"
    assert compared.interval is not None  # there are ten pairs
    effect = f"{effect} {brackets(compared.interval)}"
    if compared.interval.high < claim.threshold:
        return HOLDS, effect
    return FAILS if compared.interval.low > claim.threshold else UNDECIDED, effect


def _holds_at_end(claim: Claim, index: TrialIndex, dataset: str, sweep: Sweep) -> tuple[str, str]:
    best = sweep[int(np.argmax(_means(sweep)))][1]
    last = sweep[-1][1]
    if best is last:
        return HOLDS, "the last value is the best"
    sizes = index.sizes(dataset)
    check = our_difference(last, best, sizes)
    if isinstance(_compared(last, best, sizes), Refusal):  # where nothing could be found, nothing is shown
        return UNDECIDED, check.effect
    return FAILS if check.verdict == FAILS else HOLDS, check.effect


def _ends(direction: int) -> Callable[[Claim, TrialIndex, str, Sweep], tuple[str, str]]:
    def compare(claim: Claim, index: TrialIndex, dataset: str, sweep: Sweep) -> tuple[str, str]:
        """The end of the sweep against its beginning, in the direction that the claim names."""
        values = [value for value, _ in sweep]
        ends = (max(values), min(values)) if direction > 0 else (min(values), max(values))
        first, second = (_averaged([trials for value, trials in sweep if value == end]) for end in ends)
        shared = sorted(first.keys() & second.keys())
        ours, theirs = (np.array([side[seeds] for seeds in shared]) for side in (first, second))
        against = f"over {claim.settings[0]}={ends[1]:g}"
        check = _difference_of(dataset, ours, theirs, against, (), index.sizes(dataset))
        return check.verdict, check.effect

    return compare


def _averaged(several: Sequence[Trials]) -> dict[tuple[int, int], float]:
    """Seeds -> accuracy averaged over these variants, for the trials that all of them have."""
    found = [trials.by_seeds() for trials in several]
    shared = set.intersection(*(set(one) for one in found))
    return {seeds: float(np.mean([one[seeds] for one in found])) for seeds in shared}


def _best_value_differs(claim: Claim, index: TrialIndex) -> Iterator[Check]:
    """Whether no value is among the best on every dataset; where on each the same one is alone the best, it fails."""
    for model in claim.models:
        groups: dict[str, tuple[str, ...]] = {}
        keys, effects = [], []
        for dataset in claim.datasets:
            sweep = _sweep(claim, index, dataset, model)
            if len(sweep) < 2:
                continue
            keys += [key for _, trials in sweep for key in trials.keys]
            group = _best_values(claim, index, dataset, sweep)
            if isinstance(group, Refusal):
                effects.append(f"{title(dataset)}: {group.reason}")
            else:
                groups[dataset] = group.members
                effects.append(f"{title(dataset)} is best with {' or '.join(group.members)}")
        verdict = UNDECIDED if keys else NOT_RUN
        if len(groups) == len(claim.datasets):
            common = set.intersection(*map(set, groups.values()))
            alone = all(len(members) == 1 for members in groups.values())
            verdict = HOLDS if not common else FAILS if alone else UNDECIDED
        yield Check(title(model), verdict, "; ".join(effects), tuple(keys))


def _best_values(claim: Claim, index: TrialIndex, dataset: str, sweep: Sweep) -> BestGroup | Refusal:
    """The variants that no other one is significantly better than."""
    if not _is_complete(claim, sweep):
        return Refusal(_how_far(claim, sweep))
    return Results(datasets()[dataset], {t.variant: t for _, t in sweep}, index.sizes(dataset)).leaders


def _same_trend(claim: Claim, index: TrialIndex) -> Iterator[Check]:
    for dataset, model, other in itertools.product(claim.datasets, claim.models, claim.versus):
        sweeps = [_sweep(claim, index, dataset, name) for name in (model, other)]
        keys = tuple(key for sweep in sweeps for _, trials in sweep for key in trials.keys)
        if any(not _is_complete(claim, sweep) for sweep in sweeps):
            yield Check(dataset, UNDECIDED if keys else NOT_RUN, "", keys)
            continue
        related = stats.kendalltau(_means(sweeps[0]), _means(sweeps[1]))  # exact: a sweep has few points
        significant = bool(related.pvalue < ALPHA)  # not so where one does not move at all and there is no p
        verdict = UNDECIDED if not significant else HOLDS if related.statistic > 0 else FAILS
        yield Check(dataset, verdict, f"Kendall's τ = {related.statistic:.2f}, p = {related.pvalue:.2g}", keys)


def _gain_varies(claim: Claim, index: TrialIndex) -> Iterator[Check]:
    for model in claim.models:
        gains, keys = [], []
        for dataset in claim.datasets:
            first, second = (
                index.trials(claim.study, model, dataset, v) for v in (claim.variant, claim.versus_variants[0])
            )
            assert first is not None and second is not None  # a claim names variants that its study has
            keys += [*first.keys, *second.keys]
            gains.append(np.subtract(*paired(first, second)))
        known = sum(len(values) >= MINIMUM_TRIALS for values in gains)
        verdict, effect = UNDECIDED if keys else NOT_RUN, f"{known} of {len(claim.datasets)} datasets"
        if known == len(claim.datasets):
            p = float(stats.kruskal(*gains).pvalue)
            verdict, effect = HOLDS if p < ALPHA else UNDECIDED, f"Kruskal-Wallis p = {p:.2g}"
        yield Check(title(model), verdict, effect, tuple(keys))


def _cost_trials(claim: Claim, index: TrialIndex, model: str, dataset: str) -> Trials | None:
    """On the dataset or, where it is not at hand, on its twin, which has its costs."""
    for name in (dataset, f"{dataset}-twin"):
        trials = index.trials("cost", model, name) or index.of_model(claim.study, model, name)
        if trials is not None and trials.good:
            return trials
    return index.of_model(claim.study, model, dataset)


def _faster(claim: Claim, index: TrialIndex) -> Iterator[Check]:
    """Seconds of whole trainings and their inference; where only epochs were measured, what can be said of those."""
    for dataset, model, other in itertools.product(claim.datasets, claim.models, claim.versus):
        places = [*((study, dataset) for study in (*ACCURACY_STUDIES, claim.study)), (claim.study, f"{dataset}-twin")]
        pairs = [
            (first, second)
            for study, name in places
            if (first := index.trials(study, model, name)) is not None
            and (second := index.trials(study, other, name)) is not None
            and first.good
            and second.good
        ]
        checks = (_compared_seconds(claim, dataset, *pair) for pair in pairs)
        found = next((check for check in checks if check is not None), None)
        if found is None and pairs:
            keys = tuple(key for trials in pairs[0] for key in trials.keys)
            found = Check(dataset, UNDECIDED, f"never timed undisturbed and on one machine with {title(other)}", keys)
        yield found or Check(dataset, NOT_RUN, f"against {title(other)}")


def _compared_seconds(claim: Claim, dataset: str, trials: Trials, other: Trials) -> Check | None:
    """By undisturbed trials on one machine, that with the most of both; None where there is none."""
    ours, theirs = (by_machine(r for r in each.good if under_load(r) is False) for each in (trials, other))
    machines = sorted(ours.keys() & theirs.keys(), key=lambda name: -len(ours[name]) - len(theirs[name]))
    if not machines:
        return None
    first, second = ours[machines[0]], theirs[machines[0]]
    keys = tuple(map(address, (*first, *second)))
    place = f" on {title(trials.dataset)}" if trials.dataset != dataset else ""
    if _ends_early(trials) or _ends_early(other):
        epochs, text = _times_as_long(first, second, seconds_per_epoch)
        effect = f"an epoch of {title(other.model)} takes {text} times as long"
        if all(whole_inference(record) and not is_bound(record) for record in (*first, *second)):
            effect += f", inference {_times_as_long(first, second, whole_inference)[1]} times"
        return Check(dataset, UNDECIDED, f"{effect}{place}; whole trainings were not timed", keys, epochs.value)
    ratio, text = _times_as_long(
        first, second, lambda record: record["phases"]["train"]["seconds"] + record["phases"]["infer"]["seconds"]
    )
    assert claim.threshold is not None
    effect = f"{title(other.model)} takes {text} times as long{place}"
    if min(len(first), len(second)) < LEAST_REPEATS:
        return Check(dataset, UNDECIDED, f"{effect}; fewer than {LEAST_REPEATS} repeats", keys, ratio.value)
    low, high = ratio.interval.low, ratio.interval.high
    verdict = HOLDS if low >= claim.threshold else FAILS if high < claim.threshold else UNDECIDED
    return Check(dataset, verdict, effect, keys, ratio.value)


def _ends_early(trials: Trials) -> bool:
    """Whether something else than the model's own recipe ended trainings: a study that measures epochs, or a cap."""
    measured = (record.get("purpose") == COST and record["config"]["stop"] == "never" for record in trials.good)
    return any(measured) or trials.capped > 0


def _times_as_long(
    ours: Sequence[Record], theirs: Sequence[Record], seconds: Callable[[Record], float | None]
) -> tuple[Estimate, str]:
    """How many times as long theirs takes, and that in words, with an interval where there are repeats."""
    first, second = ([value for record in some if (value := seconds(record))] for some in (theirs, ours))
    ratio = time_ratio(first, second)
    repeated = min(len(ours), len(theirs)) > 1
    interval = f" [{ratio.interval.low:.2f}, {ratio.interval.high:.2f}]" if repeated else ""
    return ratio, f"{ratio.value:.2f}{interval}"


def _memory(claim: Claim, index: TrialIndex) -> Iterator[Check]:
    """`oom`: it does not fit into the threshold; `memory_below`: it does."""
    assert claim.threshold is not None
    for dataset, model in itertools.product(claim.datasets, claim.models):
        trials = _cost_trials(claim, index, model, dataset)
        if trials is None or not trials.records:
            yield Check(dataset, NOT_RUN, title(model))
            continue
        place = f" on {title(trials.dataset)}" if trials.dataset != dataset else ""
        needed = [memory for r in trials.good if (memory := megabytes(memory_used(r, ("train", "infer")))) is not None]
        if needed:
            fits, left = max(needed) < claim.threshold, claim.threshold - max(needed)
            effect = f"{title(model)}: {max(needed):,.0f} MB{place}"
        else:
            limits = [r["limits"]["memory"] for r in trials.records if r["status"] == OOM and r["limits"]["memory"]]
            if not limits or max(limits) / MEGABYTE < claim.threshold:
                yield Check(dataset, UNDECIDED, f"{title(model)}: it ended before its memory was known", trials.keys)
                continue
            fits, left = False, claim.threshold - max(limits) / MEGABYTE
            effect = f"{title(model)}: more than {max(limits) / MEGABYTE:,.0f} MB{place}"
        should_fit = claim.kind == "memory_below"
        margin = left if should_fit else -left
        yield Check(dataset, HOLDS if fits == should_fit else FAILS, effect, trials.keys, margin)


_OUR_CHECKS: dict[str, Callable[[Claim, TrialIndex], Iterator[Check]]] = {
    "best": _our_pairs,
    "beats": _our_pairs,
    "gain": _our_pairs,
    "gain_varies": _gain_varies,
    "change_below": _along(_change_below),
    "holds_at_end": _along(_holds_at_end),
    "degrades": _along(_ends(-1)),
    "rises": _along(_ends(+1)),
    "best_value_differs": _best_value_differs,
    "same_trend": _same_trend,
    "faster": _faster,
    "memory_below": _memory,
    "oom": _memory,
}
