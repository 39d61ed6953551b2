"""The paper's claims, each put to its own printed numbers and to our records: does it hold, and on what does that rest?

For each dataset (and model, and opponent) that a claim speaks of there is one check; the claim holds where all of them
hold (or most, where the paper says no more), fails where one fails, and is undecided otherwise. A difference counts
only if a test finds it: Welch's t on printed means and spreads, and for our trials the test that suits their splits.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from bench.data.catalogue import datasets
from bench.paper import Claim, claims, published
from bench.records import OOM, Record, address, memory_used, seconds_per_epoch, under_load
from bench.registry import models
from bench.report.costs import by_machine, is_bound, whole_inference
from bench.report.entries import brackets
from bench.report.evidence import Trials
from bench.report.findings import ACCURACY_STUDIES, Findings, compare_pairs, paired
from bench.report.statistics import ALPHA, MINIMUM_TRIALS, Refusal, Reported, SplitSizes, time_ratio, welch
from bench.report.table import Entry, Table, entry
from bench.sizes import MEGABYTE, megabytes
from bench.studies import COST, studies

CLAIMS = "claims"
PAPER, OURS = "Paper's numbers", "Our trials"  # columns of the table
HOLDS, FAILS, UNDECIDED, NOT_RUN, NO_NUMBERS = "holds", "fails", "undecided", "not run", "no numbers"


@dataclass(frozen=True)
class Check:
    """One claim on one dataset."""

    dataset: str
    verdict: str
    effect: str = ""
    keys: tuple[str, ...] = ()
    margin: float = math.inf  # how far in the claim's favour, where that is a difference


@dataclass(frozen=True)
class Judgement:
    """What becomes of a claim."""

    verdict: str
    checks: tuple[Check, ...]

    @property
    def text(self) -> str:
        counts = Counter(check.verdict for check in self.checks)
        if len(self.checks) < 2:
            return self.verdict
        return f"{self.verdict} ({', '.join(f'{count} {verdict}' for verdict, count in counts.items())})"

    @property
    def deciding(self) -> str:
        """The check that the verdict hangs on: of those that say so, the one with the least in the claim's favour."""
        deciding = [check for check in self.checks if check.verdict == self.verdict and check.effect]
        if not deciding or self.verdict in (NOT_RUN, NO_NUMBERS):
            return ""
        check = min(deciding, key=lambda check: check.margin)
        contrary = [_name(other.dataset) for other in self.checks if {other.verdict, self.verdict} == {HOLDS, FAILS}]
        against = f"; not on {', '.join(contrary)}" if contrary and self.verdict == HOLDS else ""
        return f"{_name(check.dataset)}: {check.effect}{against}"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for check in self.checks for key in check.keys))

    @property
    def note(self) -> str:
        return "\n".join(f"{_name(check.dataset)}: {check.verdict} {check.effect}".rstrip() for check in self.checks)


def judge(claim: Claim, checks: Sequence[Check]) -> Judgement:
    """All (or most) must hold; what has not been run leaves a claim undecided unless something fails already."""
    counts = Counter(check.verdict for check in checks)
    total = len(checks)
    if not total or counts[NO_NUMBERS] == total:
        verdict = NO_NUMBERS
    elif counts[NOT_RUN] == total:
        verdict = NOT_RUN
    elif claim.holds_on == "most":
        verdict = HOLDS if 2 * counts[HOLDS] > total else FAILS if 2 * counts[FAILS] >= total else UNDECIDED
    else:
        verdict = FAILS if counts[FAILS] else HOLDS if counts[HOLDS] == total else UNDECIDED
    return Judgement(verdict, tuple(checks))


# -- the paper's own numbers ------------------------------------------------------------------------------------------


def audit_paper(claim: Claim) -> Judgement:
    """What the printed numbers alone say, without any run."""
    if not claim.table:
        return judge(claim, [Check(dataset, NO_NUMBERS) for dataset in claim.datasets])
    numbers = published(claim.table)
    numbers = numbers[numbers["measure"] == claim.measure].set_index(["row", "variant", "column"])
    check = _PAPER_CHECKS.get(claim.kind)
    return judge(claim, list(check(claim, numbers)) if check else [])


def _paper_pairs(claim: Claim, numbers: pd.DataFrame) -> Iterator[Check]:
    for dataset, model in itertools.product(claim.datasets, claim.models):
        opponents = _paper_opponents(claim, numbers, dataset, model)
        checks = [_paper_difference(numbers, (model, claim.variant, dataset), other) for other in opponents]
        yield _weakest(dataset, [check for check in checks if check is not None])


def _paper_opponents(claim: Claim, numbers: pd.DataFrame, dataset: str, model: str) -> list[tuple[str, str, str]]:
    if claim.kind == "best":
        return [place for place in numbers.index if place[2] == dataset and place[:2] != (model, claim.variant)]
    if claim.kind == "gain":
        return [(model, variant, dataset) for variant in claim.versus_variants]
    return [(other, variant, dataset) for other, variant in claim.opponents]


def _paper_difference(numbers: pd.DataFrame, place: tuple[str, str, str], other: tuple[str, str, str]) -> Check | None:
    """First minus second; None where the second ran out of memory: it is not beaten, it did not finish."""
    first, second = numbers.loc[place], numbers.loc[other]
    if second["status"]:
        return None
    difference, against = float(first["mean"] - second["mean"]), f"over {_name(other[0], other[1])}"
    if np.isnan(first["std"]) or np.isnan(second["std"]):
        verdict = HOLDS if difference > 0 else FAILS if difference < 0 else UNDECIDED
        return Check(place[2], verdict, f"{difference:+.2f} {against} (no spread is printed)", margin=difference)
    compared = welch(Reported(first["mean"], first["std"]), Reported(second["mean"], second["std"]))
    effect = f"{difference:+.2f} {against} {brackets(compared.interval)}, p = {compared.p:.2g}"
    return Check(place[2], _significant(difference, compared.p), effect, margin=difference)


def _paper_gain_varies(claim: Claim, numbers: pd.DataFrame) -> Iterator[Check]:
    for model in claim.models:
        gains = [
            float(
                numbers.loc[(model, claim.variant, d), "mean"]
                - numbers.loc[(model, claim.versus_variants[0], d), "mean"]
            )
            for d in claim.datasets
        ]
        varies = max(gains) - min(gains)
        yield Check(model, HOLDS if varies > 0 else FAILS, f"{min(gains):+.2f} to {max(gains):+.2f}", margin=varies)


def _paper_oom(claim: Claim, numbers: pd.DataFrame) -> Iterator[Check]:
    for dataset, model in itertools.product(claim.datasets, claim.models):
        yield Check(dataset, HOLDS if numbers.loc[(model, claim.variant, dataset), "status"] == "oom" else FAILS)


def _paper_faster(claim: Claim, numbers: pd.DataFrame) -> Iterator[Check]:
    for dataset, model, (other, variant) in itertools.product(claim.datasets, claim.models, claim.opponents):
        theirs = float(numbers.loc[(other, variant, dataset), "mean"])
        ratio = theirs / float(numbers.loc[(model, claim.variant, dataset), "mean"])
        assert claim.threshold is not None
        effect = f"{_name(other)} takes {ratio:.2f} times as long"
        yield Check(dataset, HOLDS if ratio >= claim.threshold else FAILS, effect, margin=ratio)


def _paper_memory(claim: Claim, numbers: pd.DataFrame) -> Iterator[Check]:
    for dataset, model in itertools.product(claim.datasets, claim.models):
        needed = float(numbers.loc[(model, claim.variant, dataset), "mean"])
        assert claim.threshold is not None
        left = claim.threshold - needed
        yield Check(dataset, HOLDS if left > 0 else FAILS, f"{_name(model)}: {needed:,.0f} MB", margin=left)


_PAPER_CHECKS: dict[str, Callable[[Claim, pd.DataFrame], Iterator[Check]]] = {
    "best": _paper_pairs,
    "beats": _paper_pairs,
    "gain": _paper_pairs,
    "gain_varies": _paper_gain_varies,
    "oom": _paper_oom,
    "faster": _paper_faster,
    "memory_below": _paper_memory,
}


# -- our records ------------------------------------------------------------------------------------------------------


def audit_ours(claim: Claim, findings: Findings) -> Judgement:
    """What our trials say."""
    return judge(claim, list(_OUR_CHECKS[claim.kind](claim, findings)))


def _our_pairs(claim: Claim, findings: Findings) -> Iterator[Check]:
    for dataset, model in itertools.product(claim.datasets, claim.models):
        trials = findings.trials(claim.study, model, dataset, claim.variant)
        if claim.kind == "best":
            others = [t for t in findings.of_study(claim.study) if t.dataset == dataset and t is not trials]
        else:
            pairs = claim.opponents if claim.kind == "beats" else [(model, v) for v in claim.versus_variants]
            others = [t for pair in pairs if (t := findings.trials(claim.study, pair[0], dataset, pair[1])) is not None]
        yield _weakest(dataset, [our_difference(trials, other, findings.sizes(dataset)) for other in others])


def our_difference(trials: Trials | None, other: Trials, sizes: SplitSizes | None) -> Check:
    """First minus second over the trials that both have; fewer than ten leave it undecided."""
    dataset, against = other.dataset, f"over {_name(other.model, other.variant)}"
    if trials is None or not trials.records or not other.records:
        return Check(dataset, NOT_RUN, against)
    ours, theirs = paired(trials, other)
    keys = (*trials.keys, *other.keys)
    if not len(ours):
        return Check(dataset, UNDECIDED, f"no common trials {against}", keys)
    compared = compare_pairs(ours, theirs, sizes)
    difference = float(np.mean(ours - theirs))
    effect = f"{difference:+.2f} {against}, n = {len(ours)}"
    if isinstance(compared, Refusal):
        return Check(dataset, UNDECIDED, f"{effect}: {compared.reason}", keys, difference)
    verdict = _significant(difference, compared.p) if len(ours) >= MINIMUM_TRIALS else UNDECIDED
    interval = "" if compared.interval is None else f" {brackets(compared.interval)}"
    return Check(dataset, verdict, f"{effect}{interval}, p = {compared.p:.2g}", keys, difference)


def _weakest(dataset: str, checks: Sequence[Check]) -> Check:
    """One check for "above every one of them": its weakest link, and the records of all."""
    if not checks:
        return Check(dataset, NOT_RUN)
    order = (FAILS, NOT_RUN, UNDECIDED, NO_NUMBERS, HOLDS)
    weakest = min(checks, key=lambda check: (order.index(check.verdict), check.margin))
    return replace(weakest, dataset=dataset, keys=tuple(dict.fromkeys(k for check in checks for k in check.keys)))


def _sweep(claim: Claim, findings: Findings, dataset: str, model: str) -> list[tuple[float, Trials]]:
    """(value of the first setting, trials) along the sweep, as far as it has been run."""
    found = []
    for variant in studies()[claim.study].variants:
        trials = findings.trials(claim.study, model, dataset, variant.label)
        if trials is not None and trials.good:
            found.append((float(variant.settings[claim.settings[0]]), trials))
    return found


def _along(
    judge_sweep: Callable[[Claim, Findings, str, list[tuple[float, Trials]]], tuple[str, str]],
) -> Callable[[Claim, Findings], Iterator[Check]]:
    """A check of a whole sweep; one that has not been run from end to end is not judged."""

    def check(claim: Claim, findings: Findings) -> Iterator[Check]:
        for dataset, model in itertools.product(claim.datasets, claim.models):
            sweep = _sweep(claim, findings, dataset, model)
            keys = tuple(key for _, trials in sweep for key in trials.keys)
            wanted = len(studies()[claim.study].variants)
            if len(sweep) < 2:  # one point is the model as it is, which other studies have run
                yield Check(dataset, NOT_RUN, _name(model))
            elif len(sweep) < wanted or min(len(trials.good) for _, trials in sweep) < MINIMUM_TRIALS:
                effect = f"{_name(model)}: {len(sweep)} of {wanted} points, fewer than {MINIMUM_TRIALS} trials in some"
                yield Check(dataset, UNDECIDED, effect, keys)
            else:
                verdict, effect = judge_sweep(claim, findings, dataset, sweep)
                yield Check(dataset, verdict, f"{_name(model)}: {effect}", keys)

    return check


def _means(sweep: list[tuple[float, Trials]]) -> list[float]:
    return [float(np.mean(trials.accuracies)) for _, trials in sweep]


def _change_below(claim: Claim, findings: Findings, dataset: str, sweep: list[tuple[float, Trials]]) -> tuple[str, str]:
    means = _means(sweep)
    change = max(means) - min(means)
    assert claim.threshold is not None
    return HOLDS if change < claim.threshold else FAILS, f"{change:.2f} points between highest and lowest"


def _holds_at_end(claim: Claim, findings: Findings, dataset: str, sweep: list[tuple[float, Trials]]) -> tuple[str, str]:
    best = sweep[int(np.argmax(_means(sweep)))][1]
    last = sweep[-1][1]
    if best is last:
        return HOLDS, "the last value is the best"
    check = our_difference(last, best, findings.sizes(dataset))
    return FAILS if check.verdict == FAILS else HOLDS, check.effect


def _ends(direction: int) -> Callable[[Claim, Findings, str, list[tuple[float, Trials]]], tuple[str, str]]:
    def compare(claim: Claim, findings: Findings, dataset: str, sweep: list[tuple[float, Trials]]) -> tuple[str, str]:
        """The end of the sweep against its beginning, in the direction that the claim names."""
        values = [value for value, _ in sweep]
        first, last = (next(t for v, t in sweep if v == end) for end in (min(values), max(values)))
        pair = (last, first) if direction > 0 else (first, last)
        check = our_difference(*pair, findings.sizes(dataset))
        return check.verdict, check.effect

    return compare


def _best_value_differs(claim: Claim, findings: Findings) -> Iterator[Check]:
    for model in claim.models:
        best, keys, missing = {}, [], False
        for dataset in claim.datasets:
            sweep = _sweep(claim, findings, dataset, model)
            missing |= len(sweep) < len(studies()[claim.study].variants)
            if len(sweep) > 1:
                keys += [key for _, trials in sweep for key in trials.keys]
                best[_name(dataset)] = sweep[int(np.argmax(_means(sweep)))][1].variant
        verdict = (UNDECIDED if keys else NOT_RUN) if missing else HOLDS if len(set(best.values())) > 1 else FAILS
        effect = "; ".join(f"{dataset} is best with {variant}" for dataset, variant in best.items())
        yield Check(_name(model), verdict, effect, tuple(keys))


def _same_trend(claim: Claim, findings: Findings) -> Iterator[Check]:
    for dataset, model, other in itertools.product(claim.datasets, claim.models, claim.versus):
        sweeps = [_sweep(claim, findings, dataset, name) for name in (model, other)]
        keys = tuple(key for sweep in sweeps for _, trials in sweep for key in trials.keys)
        if any(len(sweep) < len(studies()[claim.study].variants) for sweep in sweeps):
            yield Check(dataset, UNDECIDED if keys else NOT_RUN, "", keys)
            continue
        related = stats.spearmanr(_means(sweeps[0]), _means(sweeps[1]))
        verdict = UNDECIDED if related.pvalue >= ALPHA else HOLDS if related.statistic > 0 else FAILS
        yield Check(dataset, verdict, f"rank correlation {related.statistic:.2f}, p = {related.pvalue:.2g}", keys)


def _gain_varies(claim: Claim, findings: Findings) -> Iterator[Check]:
    for model in claim.models:
        gains, keys = [], []
        for dataset in claim.datasets:
            pair = [findings.trials(claim.study, model, dataset, v) for v in (claim.variant, claim.versus_variants[0])]
            first, second = (t.by_seeds() if t is not None else {} for t in pair)
            shared = sorted(first.keys() & second.keys())
            keys += [key for t in pair if t is not None for key in t.keys]
            if len(shared) >= MINIMUM_TRIALS:
                gains.append([first[seeds] - second[seeds] for seeds in shared])
        if len(gains) < len(claim.datasets):
            yield Check(
                _name(model),
                UNDECIDED if keys else NOT_RUN,
                f"{len(gains)} of {len(claim.datasets)} datasets",
                tuple(keys),
            )
            continue
        p = float(stats.kruskal(*gains).pvalue)
        yield Check(_name(model), HOLDS if p < ALPHA else UNDECIDED, f"Kruskal-Wallis p = {p:.2g}", tuple(keys))


def _cost_trials(claim: Claim, findings: Findings, model: str, dataset: str) -> Trials | None:
    """On the dataset or, where it is not at hand, on its twin, which has its costs."""
    for name in (dataset, f"{dataset}-twin"):
        trials = findings.trials("cost", model, name) or findings.trials(claim.study, model, name)
        if trials is not None and trials.good:
            return trials
    return findings.trials(claim.study, model, dataset)


def _faster(claim: Claim, findings: Findings) -> Iterator[Check]:
    """Seconds of whole trainings and their inference; where only epochs were measured, what can be said of those."""
    for dataset, model, other in itertools.product(claim.datasets, claim.models, claim.versus):
        places = [*((study, dataset) for study in (*ACCURACY_STUDIES, claim.study)), (claim.study, f"{dataset}-twin")]
        pairs = [
            (first, second)
            for study, name in places
            if (first := findings.trials(study, model, name)) is not None
            and (second := findings.trials(study, other, name)) is not None
            and first.good
            and second.good
        ]
        checks = (_compared_seconds(claim, dataset, *pair) for pair in pairs)
        found = next((check for check in checks if check is not None), None)
        if found is None and pairs:
            keys = tuple(key for trials in pairs[0] for key in trials.keys)
            found = Check(dataset, UNDECIDED, f"never timed undisturbed and on one machine with {_name(other)}", keys)
        yield found or Check(dataset, NOT_RUN, f"against {_name(other)}")


def _compared_seconds(claim: Claim, dataset: str, trials: Trials, other: Trials) -> Check | None:
    """By undisturbed trials on one machine, that with the most of both; None where there is none."""
    ours, theirs = (by_machine(r for r in each.good if under_load(r) is False) for each in (trials, other))
    machines = sorted(ours.keys() & theirs.keys(), key=lambda name: -len(ours[name]) - len(theirs[name]))
    if not machines:
        return None
    first, second = ours[machines[0]], theirs[machines[0]]
    keys = tuple(map(address, (*first, *second)))
    place = f" on {_name(trials.dataset)}" if trials.dataset != dataset else ""
    if _ends_early(trials) or _ends_early(other):
        epochs, text = _times_as_long(first, second, seconds_per_epoch)
        effect = f"an epoch of {_name(other.model)} takes {text} times as long"
        if all(whole_inference(record) and not is_bound(record) for record in (*first, *second)):
            effect += f", inference {_times_as_long(first, second, whole_inference)[1]} times"
        return Check(dataset, UNDECIDED, f"{effect}{place}; whole trainings were not timed", keys, epochs)
    ratio, text = _times_as_long(
        first, second, lambda record: record["phases"]["train"]["seconds"] + record["phases"]["infer"]["seconds"]
    )
    assert claim.threshold is not None
    effect = f"{_name(other.model)} takes {text} times as long{place}"
    return Check(dataset, HOLDS if ratio >= claim.threshold else FAILS, effect, keys, ratio)


def _ends_early(trials: Trials) -> bool:
    """Whether something else than the model's own recipe ended trainings: a study that measures epochs, or a cap."""
    measured = (record.get("purpose") == COST and record["config"]["stop"] == "never" for record in trials.good)
    return any(measured) or trials.capped > 0


def _times_as_long(
    ours: Sequence[Record], theirs: Sequence[Record], seconds: Callable[[Record], float | None]
) -> tuple[float, str]:
    """How many times as long theirs takes, and that in words, with an interval where there are repeats."""
    first, second = ([value for record in some if (value := seconds(record))] for some in (theirs, ours))
    ratio = time_ratio(first, second)
    repeated = min(len(ours), len(theirs)) > 1
    interval = f" [{ratio.interval.low:.2f}, {ratio.interval.high:.2f}]" if repeated else ""
    return ratio.value, f"{ratio.value:.2f}{interval}"


def _memory(claim: Claim, findings: Findings) -> Iterator[Check]:
    """`oom`: it does not fit into the threshold; `memory_below`: it does."""
    assert claim.threshold is not None
    for dataset, model in itertools.product(claim.datasets, claim.models):
        trials = _cost_trials(claim, findings, model, dataset)
        if trials is None or not trials.records:
            yield Check(dataset, NOT_RUN, _name(model))
            continue
        place = f" on {_name(trials.dataset)}" if trials.dataset != dataset else ""
        needed = [memory for r in trials.good if (memory := megabytes(memory_used(r, ("train", "infer")))) is not None]
        if needed:
            fits, left = max(needed) < claim.threshold, claim.threshold - max(needed)
            effect = f"{_name(model)}: {max(needed):,.0f} MB{place}"
        else:
            limits = [r["limits"]["memory"] for r in trials.records if r["status"] == OOM and r["limits"]["memory"]]
            if not limits or max(limits) / MEGABYTE < claim.threshold:
                yield Check(dataset, UNDECIDED, f"{_name(model)}: it ended before its memory was known", trials.keys)
                continue
            fits, left = False, claim.threshold - max(limits) / MEGABYTE
            effect = f"{_name(model)}: more than {max(limits) / MEGABYTE:,.0f} MB{place}"
        should_fit = claim.kind == "memory_below"
        margin = left if should_fit else -left
        yield Check(dataset, HOLDS if fits == should_fit else FAILS, effect, trials.keys, margin)


_OUR_CHECKS: dict[str, Callable[[Claim, Findings], Iterator[Check]]] = {
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


# -- the table --------------------------------------------------------------------------------------------------------


def audit_table(findings: Findings) -> Table:
    """A row per claim: what it says, what the paper's numbers say of it, and what ours do."""
    rows = []
    for claim in claims():
        paper, ours = audit_paper(claim), audit_ours(claim, findings)
        rows.append(
            (
                entry(claim.section),
                Entry(claim.says, note=claim.reading),
                Entry(paper.text, note=paper.note),
                Entry(paper.deciding, note=paper.note if paper.deciding else ""),
                Entry(ours.text, ours.keys, note=ours.note),
                Entry(ours.deciding, ours.keys, note=ours.note if ours.deciding else ""),
            )
        )
    return Table(
        CLAIMS,
        "Claims: what the paper says, put to its own numbers and to ours",
        ("Section", "Claim", PAPER, "its closest call", OURS, "our closest call"),
        tuple(rows),
        (
            f"A difference counts where a test at {ALPHA:.0%} finds it: Welch's t on the paper's printed means and "
            "spreads (taken as ten trials), and on ours the test that suits the split mode, from "
            f"{MINIMUM_TRIALS} trials on. In square brackets: 95 % intervals.",
            "In round brackets: on how many of the datasets (and models) that the claim speaks of. Closest call: of "
            "the checks that the verdict hangs on, the one that is least in the claim's favour.",
            f"Splits: {findings.setting.mode}. Settings: {findings.setting.lane}. Times are compared on one machine. "
            "Memory is that of training and inference in our implementation: the process's own where there is no GPU.",
        ),
    )


def _significant(difference: float, p: float) -> str:
    if p >= ALPHA:
        return UNDECIDED
    return HOLDS if difference > 0 else FAILS


def _name(model: str, variant: str = "") -> str:
    title = models()[model].title if model in models() else datasets()[model].title if model in datasets() else model
    return f"{title} {variant}".strip()
