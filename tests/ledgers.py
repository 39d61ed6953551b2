"""Ledgers made up for the tests of the report: records as a run would write them, with accuracies of our choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.cells import Protocol, make_cells
from bench.datasets.catalogue import Dataset, resolve
from bench.ledger import Ledger
from bench.predictions import Predictions, PredictionStore
from bench.registry import find_model, source_hash
from bench.settings import resolve_settings
from perf.records import TESTED, made_up_record


def made_up_records(
    model: str,
    dataset: str,
    accuracies: Sequence[float],
    mode: str = "fresh",
    lane: str = "author",
    settings: Mapping[str, Any] | None = None,
    max_epochs: int | None = None,
    seconds: float = 10.0,
    memory: int = 300_000_000,
    purpose: str | None = None,
    others: float = 0.0,
) -> list[dict[str, Any]]:
    """One `ok` record per accuracy (in per cent, a multiple of 0.5), trial after trial.

    Each could use one of the machine's two processors; `others` is how many of them others kept busy.
    """
    load = {"start": 0.1, "end": 0.1, "others": others, "processors": 2, "usable": 1}
    [entry] = resolve(dataset)
    found = find_model(model)
    resolved = resolve_settings(found, entry.settings_name, lane, settings, max_epochs)
    cells = make_cells(found, entry, fingerprint_of(entry), resolved, Protocol(len(accuracies), 0, mode))
    source = source_hash(found)
    return [
        {**made_up_record(cell, accuracy, source, seconds, memory), "load": load, "purpose": purpose}
        for cell, accuracy in zip(cells, accuracies, strict=True)
    ]


def fingerprint_of(dataset: Dataset) -> str:
    """The content that records of a dataset are about: its own, or a made-up one where nobody has had the files."""
    return dataset.fingerprint or dataset.name.ljust(32, "f")


def failed(record: dict[str, Any], status: str, reason: str = "because", memory: int | None = None) -> dict[str, Any]:
    """The same cell, had it failed."""
    limits = {"memory": memory, "time": None}
    return {**record, "status": status, "reason": reason, "metrics": {}, "training": {}, "limits": limits}


def write_ledger(results: Path, records: Sequence[dict[str, Any]], with_predictions: bool = False) -> Path:
    """A results folder with these records, and predictions of the right accuracy where asked for."""
    ledger, store = Ledger(results), PredictionStore(results)
    for number, record in enumerate(records):
        if with_predictions and record["status"] == "ok":
            classes = np.full(TESTED, number % 7, dtype=np.uint8)
            classes[: number // 7] = 9  # every cell has predictions of its own
            curve = [(1.0 / step, 1.2 / step, 0.9 - 0.5 / step) for step in range(1, 6)]
            record["predictions"] = store.save(Predictions(classes, classes), record["key"], curve)
        ledger.append(record)
    ledger.close()
    results.mkdir(exist_ok=True)
    return results
