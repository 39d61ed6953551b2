"""Ledgers made up for the tests of the report: records as a run would write them, with accuracies of our choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.data.catalogue import resolve
from bench.ledger import Ledger
from bench.plan import Protocol, make_cells
from bench.predictions import Predictions, PredictionStore
from bench.registry import find_model, source_hash
from bench.settings import resolve_settings

TESTED = 200  # nodes: accuracies are multiples of half a point
ENVIRONMENT = {
    "python": "3.11.7", "torch": "2.13.0", "numpy": "2.0", "scipy": "1.17", "numba": "0.60", "torch_geometric": "2.8",
    "dgl": "1.1.3", "processor": "Paper Tiger 1", "gpu": None, "threads": 2, "device": "cpu", "code": "abc",
    "load_average": 0.1,
}  # fmt: skip


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
) -> list[dict[str, Any]]:
    """One `ok` record per accuracy (in per cent, a multiple of 0.5), trial after trial."""
    [entry] = resolve(dataset)
    found = find_model(model)
    resolved = resolve_settings(found, entry.settings_name, lane, settings, max_epochs)
    cells = make_cells(found, entry, entry.name.ljust(32, "f"), resolved, Protocol(len(accuracies), 0, mode))
    phase = {"compile_seconds": 0.0, "peak_resident": memory, "peak_anonymous": memory, "peak_data": memory}
    records = []
    for cell, accuracy in zip(cells, accuracies, strict=True):
        scores = {"accuracy": round(accuracy * TESTED / 100) / TESTED, "balanced_accuracy": 0.5, "macro_f1": 0.5}
        records.append(
            {
                "key": cell.key,
                "model": cell.model,
                "revision": cell.revision,
                "dataset": cell.dataset,
                "data": cell.data,
                "config": dict(cell.config),
                "split": {"rule": cell.split_rule, "seed": cell.split_seed, "fingerprint": "0" * 32},
                "seed": cell.seed,
                "labels": dict(cell.labels),
                "status": "ok",
                "reason": "",
                "metrics": {"test": scores, "val": scores},
                "training": {
                    "epochs": 5,
                    "updates": 5,
                    "best_epoch": 4,
                    "stopped_by": "max_epochs" if max_epochs else "loss",
                },
                "phases": {
                    "load": {"seconds": 0.1, **phase},
                    "preprocess": {"seconds": 1.0, "source": "measured", "reused_seconds": 0.0, **phase},
                    "train": {"seconds": seconds, **phase},
                    "infer": {"seconds": 0.5, **phase},
                },
                "overhead_seconds": 0.1,
                "baseline_anonymous": 0,
                "parameters": 10,
                "choices": {},
                "limits": {"memory": None, "time": None},
                "environment": dict(ENVIRONMENT),
                "source": source_hash(found),
                "predictions": None,
                "started": f"2026-01-01T00:00:{cell.seed % 60:02d}.000+00:00",
            }
        )
    return records


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
