"""Claims and verdicts: what one check says, and what becomes of a claim that several speak for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.datasets.catalogue import datasets
from bench.paper.claims import Claim
from bench.registry import models
from bench.report.statistics import ALPHA

HOLDS, FAILS, UNDECIDED, NOT_RUN, NO_NUMBERS = "holds", "fails", "undecided", "not run", "no numbers"
NOT_SO = "not so"  # instead of "fails", where ours cannot speak for the paper's implementation


@dataclass(frozen=True)
class Check:
    """One claim on one dataset."""

    dataset: str
    verdict: str
    effect: str = ""
    keys: tuple[str, ...] = ()
    margin: float = math.inf  # how far in the claim's favour, where that is a difference
    sign_only: bool = False  # no spread is known: it says which of two numbers is larger, not whether that is chance


@dataclass(frozen=True)
class Judgement:
    """What becomes of a claim."""

    verdict: str
    checks: tuple[Check, ...]
    most: bool = False  # whether more than half were enough
    place: str = ""  # for what another implementation on another device cannot settle: where ours was run

    @property
    def text(self) -> str:
        return f"{self._words}{self._counts}{', sign only' if self.sign_only else ''}"

    @property
    def _words(self) -> str:
        if self.place and self.verdict in (HOLDS, FAILS):
            return f"{HOLDS if self.verdict == HOLDS else NOT_SO} in our implementation, {self.place}"
        return f"{HOLDS} on most" if self.most and self.verdict == HOLDS else self.verdict

    @property
    def _counts(self) -> str:
        """On how many of the datasets (and models) each verdict was found."""
        if len(self.checks) < 2:
            return ""
        counts = Counter(check.verdict for check in self.checks)
        if self.most and self.verdict == HOLDS:
            return f" ({counts[HOLDS]} of {len(self.checks)})"
        return f" ({', '.join(f'{count} {verdict}' for verdict, count in counts.items())})"

    @property
    def sign_only(self) -> bool:
        """Whether it was decided, and by signs."""
        return self.verdict in (HOLDS, FAILS) and any(check.sign_only for check in self.checks)

    @property
    def deciding(self) -> str:
        """The check that the verdict hangs on: of those that say so, the one with the least in the claim's favour."""
        deciding = [check for check in self.checks if check.verdict == self.verdict and check.effect]
        if not deciding or self.verdict in (NOT_RUN, NO_NUMBERS):
            return ""
        check = min(deciding, key=lambda check: check.margin)
        contrary = [title(other.dataset) for other in self.checks if {other.verdict, self.verdict} == {HOLDS, FAILS}]
        against = f"; not on {', '.join(contrary)}" if contrary and self.verdict == HOLDS else ""
        return f"{title(check.dataset)}: {check.effect}{against}"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for check in self.checks for key in check.keys))

    @property
    def note(self) -> str:
        return "\n".join(f"{title(check.dataset)}: {check.verdict} {check.effect}".rstrip() for check in self.checks)


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
    return Judgement(verdict, tuple(checks), claim.holds_on == "most")


def weakest(dataset: str, checks: Sequence[Check]) -> Check:
    """One check for "above every one of them": its weakest link, and the records of all."""
    if not checks:
        return Check(dataset, NOT_RUN)
    order = (FAILS, NOT_RUN, UNDECIDED, NO_NUMBERS, HOLDS)
    weakest = min(checks, key=lambda check: (order.index(check.verdict), check.margin))
    return replace(weakest, dataset=dataset, keys=tuple(dict.fromkeys(k for check in checks for k in check.keys)))


def significant(difference: float, p: float) -> str:
    if p >= ALPHA:
        return UNDECIDED
    return HOLDS if difference > 0 else FAILS


def title(model: str, variant: str = "") -> str:
    title = models()[model].title if model in models() else datasets()[model].title if model in datasets() else model
    return f"{title} {variant}".strip()
