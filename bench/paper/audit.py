"""The paper's claims, each put to its own printed numbers and to our records: does it hold, and on what does that rest?

For each dataset (and model, and opponent) that a claim speaks of there is one check; the claim holds where all of them
hold (or most, where the paper says no more), fails where one fails, and is undecided otherwise. A difference counts
only if a test finds it: Welch's t on printed means and spreads, and for our trials the test that suits their splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.paper.audit_ours import LEAST_REPEATS, MEMORY_KINDS, audit_ours
from bench.paper.audit_paper import audit_paper
from bench.paper.claims import Claim, claims
from bench.paper.judgement import FAILS, HOLDS, NO_NUMBERS, NOT_RUN, NOT_SO, UNDECIDED, Judgement
from bench.paper.trial_index import TrialIndex
from bench.report.results import Setting
from bench.report.statistics import ALPHA, MINIMUM_TRIALS
from bench.report.table import Entry, Table, entry


@dataclass(frozen=True)
class Audited:
    """A claim, and what both sides say of it."""

    claim: Claim
    paper: Judgement
    ours: Judgement


def audit(index: TrialIndex) -> list[Audited]:
    """Every claim of the paper."""
    return [Audited(claim, audit_paper(claim), audit_ours(claim, index)) for claim in claims()]


def claim_counts(audited: Sequence[Audited]) -> str:
    """How many claims hold, by the paper's numbers and by ours; what needs memory is counted apart."""
    memory = [each.ours for each in audited if each.claim.kind in MEMORY_KINDS]
    others = [each.ours for each in audited if each.claim.kind not in MEMORY_KINDS]
    signs = sum(each.paper.sign_only for each in audited)
    parts = [
        f"{len(audited)} claims, by the paper's own numbers: {_tally(each.paper for each in audited)}"
        + (f" (of those that hold or fail {signs} by the sign alone)" if signs else ""),
        f"by our trials, the {len(others)} on accuracy and time: {_tally(others)}",
        f"the {len(memory)} on memory, by our implementation, which need not be the paper's: "
        + _tally(memory, fails=NOT_SO),
    ]
    return "; ".join(parts)


def _tally(judged: Iterable[Judgement], fails: str = FAILS) -> str:
    counts = Counter(fails if each.verdict == FAILS else each.verdict for each in judged)
    known = (HOLDS, fails, UNDECIDED, NOT_RUN, NO_NUMBERS)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in known if counts[verdict])


def audit_table(audited: Sequence[Audited], setting: Setting) -> Table:
    """A row per claim: what it says, what the paper's numbers say of it, and what ours do."""
    rows = []
    for each in audited:
        claim, paper, ours = each.claim, each.paper, each.ours
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
        "claims",
        "Claims: what the paper says, put to its own numbers and to ours",
        ("Section", "Claim", "Paper's numbers", "its closest call", "Our trials", "our closest call"),
        tuple(rows),
        (
            f"A difference counts where a test at {ALPHA:.0%} finds it: Welch's t on the paper's printed means and "
            "spreads (taken as ten trials), and on ours the test that suits the split mode, from "
            f"{MINIMUM_TRIALS} trials on ({LEAST_REPEATS} for times). In square brackets: 95 % intervals.",
            "Sign only: the paper prints no spread (Tables 4 and 5, times), so that which of its two numbers is larger "
            "is all that was looked at. On most: the paper says no more than that, and more than half are enough.",
            "In round brackets: on how many of the datasets (and models) that the claim speaks of. Closest call: of "
            "the checks that the verdict hangs on, the one that is least in the claim's favour.",
            f"Splits: {setting.mode}. Settings: {setting.lane}. Times are compared on one machine. "
            "Memory is that of training and inference in our implementation: the process's own where there is no GPU. "
            "It says with how much a method can do, not what the paper's code needed on its card.",
        ),
    )
