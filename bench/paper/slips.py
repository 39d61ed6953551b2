"""Where the paper's text contradicts itself, its tables or the official code (slips.toml); a reader meets these places.

The printed numbers keep what stands in the tables and take nothing from a slip.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.paper.claims import read_entries
from bench.report.table import Entry, Table

SLIPS_FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Slip:
    """A place where the paper's text is wrong, contradicts itself or says less than one needs."""

    id: str
    kind: str  # one of SLIP_KINDS
    where: str
    printed: str  # what stands there, in our words
    right: str  # what is right, or what the tables or the official code say

    def __post_init__(self) -> None:
        if self.kind not in SLIP_KINDS:
            raise ValueError(f"there is no kind '{self.kind}' (known: {', '.join(SLIP_KINDS)})")


SLIP_KINDS = {
    "misprint": "a wrong number, name, caption or index",
    "text-tables": "the text says more than the paper's own tables show",
    "text-text": "two places of the paper contradict each other",
    "text-code": "the official code does something else",
    "silent": "the paper leaves out what a reader needs to repeat it",
}


def slips(file: Path = SLIPS_FILE) -> list[Slip]:
    """The paper's slips."""
    return read_entries(file, "slip", Slip)


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
