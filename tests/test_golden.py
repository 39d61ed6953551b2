"""Every model computes today what it computed when its records were made (see golden_cells.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_cells import GoldenCell, golden_cells, kept, train_golden

from bench.registry import scan

TOLERANCE = 1e-4  # relative; another processor or order of summation stays below it
CELLS = [cell for model in scan().models.values() for cell in golden_cells(model)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.model} {cell.name}")
def test_numbers_are_those_of_the_revision(cell: GoldenCell, folder: Path) -> None:
    values = kept(cell.model)
    if values is None:
        pytest.skip(f"{cell.model} has no golden cells yet: python tests/golden_cells.py {cell.model} makes them")
    assert cell.name in values, f"python tests/golden_cells.py {cell.model} adds this option"
    found, expected = train_golden(cell, folder), values[cell.name]
    for what in ("epochs", "best_epoch", "stopped_by", "test_classes"):
        assert found[what] == expected[what], what
    for what in ("train_loss", "val_loss", "val_accuracy"):
        assert found[what] == pytest.approx(expected[what], rel=TOLERANCE), what
