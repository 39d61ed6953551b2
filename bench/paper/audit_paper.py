"""The paper's claims, put to the numbers that it prints itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from bench.paper.claims import Claim
from bench.paper.judgement import (
    FAILS,
    HOLDS,
    NO_NUMBERS,
    UNDECIDED,
    Check,
    Judgement,
    judge,
    significant,
    title,
    weakest,
)
from bench.paper.numbers import published
from bench.report.entries import brackets
from bench.report.statistics import Reported, welch

NO_SPREAD = "no spread is printed"


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
        yield weakest(dataset, [check for check in checks if check is not None])


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
    difference, against = float(first["mean"] - second["mean"]), f"over {title(other[0], other[1])}"
    if np.isnan(first["std"]) or np.isnan(second["std"]):
        verdict = HOLDS if difference > 0 else FAILS if difference < 0 else UNDECIDED
        effect = f"{difference:+.2f} {against} ({NO_SPREAD})"
        return Check(place[2], verdict, effect, margin=difference, sign_only=True)
    compared = welch(Reported(first["mean"], first["std"]), Reported(second["mean"], second["std"]))
    effect = f"{difference:+.2f} {against} {brackets(compared.interval)}, p = {compared.p:.2g}"
    return Check(place[2], significant(difference, compared.p), effect, margin=difference)


def _paper_gain_varies(claim: Claim, numbers: pd.DataFrame) -> Iterator[Check]:
    for model in claim.models:
        gains = [
            float(
                numbers.loc[(model, claim.variant, d), "mean"]
                - numbers.loc[(model, claim.versus_variants[0], d), "mean"]
            )
            for d in claim.datasets
        ]
        # Means of trials are never all equal; whether these differ by more than chance, only spreads could tell.
        yield Check(model, UNDECIDED, f"{min(gains):+.2f} to {max(gains):+.2f} ({NO_SPREAD})")


def _paper_oom(claim: Claim, numbers: pd.DataFrame) -> Iterator[Check]:
    for dataset, model in itertools.product(claim.datasets, claim.models):
        yield Check(dataset, HOLDS if numbers.loc[(model, claim.variant, dataset), "status"] == "oom" else FAILS)


def _paper_faster(claim: Claim, numbers: pd.DataFrame) -> Iterator[Check]:
    for dataset, model, (other, variant) in itertools.product(claim.datasets, claim.models, claim.opponents):
        theirs = float(numbers.loc[(other, variant, dataset), "mean"])
        ratio = theirs / float(numbers.loc[(model, claim.variant, dataset), "mean"])
        assert claim.threshold is not None
        effect = f"{title(other)} takes {ratio:.2f} times as long"
        yield Check(dataset, HOLDS if ratio >= claim.threshold else FAILS, effect, margin=ratio, sign_only=True)


def _paper_memory(claim: Claim, numbers: pd.DataFrame) -> Iterator[Check]:
    for dataset, model in itertools.product(claim.datasets, claim.models):
        needed = float(numbers.loc[(model, claim.variant, dataset), "mean"])
        assert claim.threshold is not None
        left = claim.threshold - needed
        yield Check(dataset, HOLDS if left > 0 else FAILS, f"{title(model)}: {needed:,.0f} MB", margin=left)


_PAPER_CHECKS: dict[str, Callable[[Claim, pd.DataFrame], Iterator[Check]]] = {
    "best": _paper_pairs,
    "beats": _paper_pairs,
    "gain": _paper_pairs,
    "gain_varies": _paper_gain_varies,
    "oom": _paper_oom,
    "faster": _paper_faster,
    "memory_below": _paper_memory,
}
