"""The key of every committed record can be recomputed from its fields: no move of code may change one."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from bench.cells import Cell
from bench.ledger import Ledger
from bench.records import Record

RESULTS = Path(__file__).parent.parent / "results" / "reference"
LEDGERS = sorted(folder.parent for folder in RESULTS.rglob("ledger") if folder.is_dir())


def recomputed_key(record: Record) -> str:
    return Cell(
        record["model"],
        record["revision"],
        record["dataset"],
        record["data"],
        record["config"],
        record["split"]["rule"],
        record["split"]["seed"],
        record["seed"],
        record["labels"],
    ).key


@functools.cache
def records(folder: Path) -> list[Record]:
    return list(Ledger(folder))


@pytest.mark.parametrize("folder", LEDGERS, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_keys_are_those_of_the_fields(folder: Path) -> None:
    found = records(folder)
    assert found, "an empty ledger proves nothing"
    assert [recomputed_key(record) for record in found] == [record["key"] for record in found]


def test_every_purpose_has_committed_records() -> None:
    """Trials, pilots, searches for the least memory, and tuning trials, which have a split rule of their own."""
    names = {folder.name for folder in LEDGERS}
    assert {"pilots", "frontier"} <= names
    rules = {record["split"]["rule"].partition(":")[0] for folder in LEDGERS for record in records(folder)}
    assert {"sealed", "tuning"} <= rules
