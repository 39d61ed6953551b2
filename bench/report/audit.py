"""The paper's claims, each put to its own printed numbers and to our records: does it hold, and on what does that rest?

For each dataset (and model, and opponent) that a claim speaks of there is one check; the claim holds where all of them
hold (or most, where the paper says no more), fails where one fails, and is undecided otherwise. A difference counts
only if a test finds it: Welch's t on printed means and spreads, and for our trials the test that suits their splits.
"""

from __future__ import annotations

from bench.paper import claims
from bench.report.audit_ours import LEAST_REPEATS, audit_ours
from bench.report.audit_paper import audit_paper
from bench.report.findings import Findings
from bench.report.statistics import ALPHA, MINIMUM_TRIALS
from bench.report.table import Entry, Table, entry

CLAIMS = "claims"
PAPER, OURS = "Paper's numbers", "Our trials"  # columns of the table


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
            f"{MINIMUM_TRIALS} trials on ({LEAST_REPEATS} for times). In square brackets: 95 % intervals. Where the "
            "paper prints no spread (Tables 4 and 5, times and memory), the sign of its difference alone counts.",
            "In round brackets: on how many of the datasets (and models) that the claim speaks of. Closest call: of "
            "the checks that the verdict hangs on, the one that is least in the claim's favour.",
            f"Splits: {findings.setting.mode}. Settings: {findings.setting.lane}. Times are compared on one machine. "
            "Memory is that of training and inference in our implementation: the process's own where there is no GPU.",
        ),
    )
