"""What is measured, in a separate process: `python -m perf.child TASK.json` prints one JSON line.

Only what the measured side itself needs is imported: the reference's process must not carry ours.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.datasets.store import open_arrays
from bench.graph import Split

Task = dict[str, Any]


def load_split(task: Task) -> tuple[Split, np.ndarray]:
    """The split and the labels; those of test nodes are unknown."""
    with np.load(task["split"], allow_pickle=False) as arrays:
        return Split(arrays["train"], arrays["val"], arrays["test"], task["rule"], 0), arrays["labels"]


def run_reference(task: Task) -> dict[str, Any]:
    import torch

    from perf.reference import Settings, run_reference

    split, labels = load_split(task)
    graph = open_arrays(Path(task["folder"]))
    return run_reference(graph, torch.from_numpy(labels), split, Settings.of(task["config"]), task["epochs"])


def run_ours(task: Task) -> dict[str, Any]:
    """A cell, exactly as a worker runs it; it tells the time by the messages that it sends."""
    from bench.cells import Cell
    from bench.registry import find_model
    from bench.worker import Job, run_cell

    model = find_model(task["model"])
    split, labels = load_split(task)
    config = {**task["config"], "max_epochs": task["epochs"]}
    cell = Cell(model.name, model.revision, task["case"], "", config, split.rule, split.seed, 0, {})
    job = Job(
        cell,
        model.__module__,
        model.__name__,
        Path(task["folder"]),
        labels,
        split,
        threads=task["threads"],
        cache_folder=Path(task["cache"]),
    )
    moments: list[tuple[int, float]] = []  # how many epochs were done, and when

    def send(kind: str, content: Any) -> None:
        if kind == "progress":
            moments.append((content[0], time.perf_counter()))
        elif kind == "phase" and content[0] == "train":
            moments.append((0 if content[1] is None else task["epochs"], time.perf_counter()))

    result = run_cell(job, send)
    if result["status"] != "ok":
        raise RuntimeError(f"the cell ended {result['status']}: {result['reason']}")
    phases, training = result["phases"], result["training"]
    return {
        "before": phases["preprocess"]["seconds"] + phases["preprocess"]["compile_seconds"],
        "epochs": epoch_seconds(moments),
        "loss": training["curve"][-1][0],
        "accuracy": training["curve"][-1][2],
        "compiled": sum(phase["compile_seconds"] for phase in phases.values()),
        "choices": result["choices"],
        # the meter resets the kernel's high-water mark at every phase
        "peak_resident": max(phase["peak_resident"] or 0 for phase in phases.values()),
    }


def epoch_seconds(moments: list[tuple[int, float]]) -> list[float]:
    """Seconds of each epoch; epochs between two messages share their time evenly."""
    seconds: list[float] = []
    for (before, start), (after, end) in itertools.pairwise(moments):
        if after > before:
            seconds += [(end - start) / (after - before)] * (after - before)
    return seconds


KINDS = {"reference": run_reference, "ours": run_ours}  # others are "module:function"


def high_water() -> int:
    """The largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    """Do what the task says and print what was measured."""
    task = json.loads(Path(sys.argv[1]).read_text())
    module, _, function = task["kind"].partition(":")
    result = (getattr(importlib.import_module(module), function) if function else KINDS[module])(task)
    result["peak_resident"] = max(high_water(), result.get("peak_resident", 0))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
