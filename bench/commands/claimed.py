"""Names for the cells that are running: a claim is a file named by a key, and its text says whose cell it is."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bench.claims import Claims
from bench.plan import Cell


def note_claim(results: Path, cell: Cell) -> None:
    """Write model and dataset into the claim that this process holds; only `status` reads it, so it may fail."""
    with contextlib.suppress(OSError):
        (Claims(results).folder / cell.key).write_text(f"{cell.model}\t{cell.dataset}")


def running_cells(results: Path) -> list[tuple[str, str]]:
    """(model, dataset) of every cell that a living process holds right now."""
    claims, found = Claims(results), []
    for key in claims.held():
        with contextlib.suppress(OSError):  # released meanwhile
            model, _, dataset = (claims.folder / key).read_text().partition("\t")
            found.append((model or "(starting)", dataset))
    return found
