"""Where the paper's text slips, as a table: a reader who repeats it by the text meets these places."""

from __future__ import annotations

from bench.paper import SLIP_KINDS, SLIPS_FILE, Slip, slips
from bench.report.table import Entry, Table


def slip_table() -> Table:
    """A row per slip, in the order of the kinds."""
    kinds = list(SLIP_KINDS)
    listed = sorted(slips(), key=lambda slip: kinds.index(slip.kind))
    explained = "; ".join(f"{kind}: {means}" for kind, means in SLIP_KINDS.items())
    return Table(
        "slips",
        "Slips: where the paper's text contradicts itself, its tables or the official code, or leaves something out",
        ("Where", "Kind", "Printed", "Right, or what others say"),
        tuple(map(_row, listed)),
        (f"Read by us; no record is behind it, and the numbers beside ours are as printed. Kinds: {explained}.",),
    )


def _row(slip: Slip) -> tuple[Entry, ...]:
    note = f"bench/paper/{SLIPS_FILE.name}, {slip.id}"
    return tuple(Entry(text, note=note) for text in (slip.where, slip.kind, slip.printed, slip.right))
