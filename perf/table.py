"""Rows of the benchmark's table: a measure, what the reference and ours took, and whether a target was met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

HEADERS = ("case", "measure", "reference", "ours", "ratio", "target", "met")
NOTHING = "–"


@dataclass(frozen=True)
class Row:
    """One measure of one case; smaller is better for every measure here."""

    case: str
    measure: str
    ours: float
    reference: float | None = None
    ratio_target: float | None = None  # reference / ours must be at least this
    limit: float | None = None  # ours must be at most this

    @property
    def ratio(self) -> float | None:
        """How many times less than the reference."""
        return None if self.reference is None else self.reference / self.ours

    @property
    def met(self) -> bool | None:
        """Whether every target is met; None where there is none to judge."""
        verdicts = []
        if self.ratio_target is not None and self.ratio is not None:
            verdicts.append(self.ratio >= self.ratio_target)
        if self.limit is not None:
            verdicts.append(self.ours <= self.limit)
        return all(verdicts) if verdicts else None

    def cells(self) -> tuple[str, ...]:
        targets = []
        if self.ratio_target is not None:
            targets.append(f"ratio ≥ {self.ratio_target:g}")
        if self.limit is not None:
            targets.append(f"≤ {self.limit:g}")
        return (
            self.case,
            self.measure,
            _number(self.reference),
            _number(self.ours),
            _number(self.ratio),
            ", ".join(targets) or NOTHING,
            NOTHING if self.met is None else "yes" if self.met else "NO",
        )


def format_table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    cells = [row.cells() for row in rows]
    return tabulate(cells, headers=HEADERS, tablefmt="github", disable_numparse=True, colalign=_ALIGNMENT)


_ALIGNMENT = ("left", "left", "right", "right", "right", "left", "left")


def _number(value: float | None) -> str:
    """Three significant digits, never in powers of ten."""
    if value is None:
        return NOTHING
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2 if abs(value) >= 0.9995 else 3
    return f"{value:.{digits}f}"
