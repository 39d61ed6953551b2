"""From a cell and what became of it to the record that the ledger keeps."""

from __future__ import annotations

from typing import Any

from bench.cells import Cell
from bench.environment import environment
from bench.executors import Outcome
from bench.records import is_capped
from bench.reuse import PROTOCOL_REVISION


def make_record(
    cell: Cell, outcome: Outcome, limits: dict[str, float | None], threads: int, source: str
) -> dict[str, Any]:
    """Everything but the scores, the predictions' hash and the overhead, which are known last."""
    result, job = outcome.result, outcome.job
    record: dict[str, Any] = {
        "key": cell.key,
        "model": cell.model,
        "revision": cell.revision,
        "dataset": cell.dataset,
        "data": cell.data,
        "config": dict(cell.config),
        "split": {
            "rule": cell.split_rule,
            "seed": cell.split_seed,
            "fingerprint": None if job is None else job.split.fingerprint,
        },
        "seed": cell.seed,
        "labels": dict(cell.labels),
        "status": outcome.status,
        "reason": outcome.reason,
        "metrics": {},
        "training": _training(cell, result.get("training")),
        "phases": result["phases"],
        "overhead_seconds": 0.0,
        "baseline_anonymous": result.get("baseline_anonymous"),
        "parameters": result.get("parameters"),
        "choices": result.get("choices", {}),
        "limits": limits,
        "environment": environment(threads, outcome.device, result.get("gpu")),
        "load": result.get("load"),
        "source": source,
        "protocol": PROTOCOL_REVISION,
        "predictions": None,
        "started": outcome.started,
    }
    if outcome.log_tail:
        record["log"] = outcome.log_tail
    return record


def _training(cell: Cell, training: dict[str, Any] | None) -> dict[str, Any]:
    """How the training went, without its curve; `capped` where --max-epochs, not the recipe, ended it."""
    if training is None:
        return {}
    kept = {name: value for name, value in training.items() if name != "curve"}
    return {**kept, "capped": is_capped(training, cell.labels.get("cap") is not None)}
