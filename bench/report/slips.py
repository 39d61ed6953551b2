"""Where the paper's text slips, as a table: a reader who repeats it by the text meets these places."""

from __future__ import annotations

from bench.paper import SLIP_KINDS, slips
from bench.report.table import Table, entry


def slip_table() -> Table:
    """A row per slip, in the order of the kinds."""
    kinds = list(SLIP_KINDS)
    listed = sorted(slips(), key=lambda slip: kinds.index(slip.kind))
    explained = "; ".join(f"{kind}: {means}" for kind, means in SLIP_KINDS.items())
    return Table(
        "slips",
        "Slips: where the paper's text contradicts itself, its tables or the official code, or leaves something out",
        ("Where", "Kind", "Printed", "Right, or what others say"),
        tuple(tuple(map(entry, (slip.where, slip.kind, slip.printed, slip.right))) for slip in listed),
        (f"Read by us; no record is behind it, and the numbers beside ours are as printed. Kinds: {explained}.",),
    )
