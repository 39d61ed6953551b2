"""Records as a run would write them, with numbers of our choice: for measuring and testing what reads a ledger."""

from __future__ import annotations

from typing import Any

from bench.cells import Cell

TESTED = 200  # nodes: accuracies are multiples of half a point
ENVIRONMENT = {
    "python": "3.11.7", "torch": "2.13.0", "numpy": "2.0", "scipy": "1.17", "numba": "0.60", "torch_geometric": "2.8",
    "dgl": "1.1.3", "processor": "Paper Tiger 1", "gpu": None, "threads": 2, "device": "cpu", "code": "abc",
    "load_average": 0.1,
}  # fmt: skip


def made_up_record(
    cell: Cell, accuracy: float, source: str, seconds: float = 10.0, memory: int = 300_000_000
) -> dict[str, Any]:
    """An `ok` record of the cell with this accuracy in per cent, a multiple of 0.5; `source` is the model's hash."""
    scores = {"accuracy": round(accuracy * TESTED / 100) / TESTED, "balanced_accuracy": 0.5, "macro_f1": 0.5}
    phase = {"compile_seconds": 0.0, "peak_resident": memory, "peak_anonymous": memory, "peak_data": memory}
    return {
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
            "stopped_by": "max_epochs" if cell.labels.get("cap") else "loss",
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
        "source": source,
        "predictions": None,
        "started": f"2026-01-01T00:00:{cell.seed % 60:02d}.000+00:00",
    }
