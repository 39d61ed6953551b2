"""A 60-node graph in a store, cells of the toy models on it, and an executor that only pretends to run them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from toy_models import ToyConfig, find

from bench.cells import Cell
from bench.datasets.catalogue import resolve
from bench.datasets.store import Stored, open_dataset
from bench.executors import Event, Outcome
from bench.executors.local import LocalExecutor
from bench.ledger import Ledger
from bench.runner import RunOptions, Summary, run_cells
from bench.worker import Job


def ring_dataset(folder: Path) -> dict[str, Stored]:
    """The graph of this folder, made on the first call."""
    if not (folder / "ring.npz").exists():
        _write_ring(folder / "ring.npz")
    [dataset] = resolve(str(folder / "ring.npz"))
    return {"ring": open_dataset(dataset, None, folder / "cache")}


def _write_ring(path: Path, num_nodes: int = 60, num_classes: int = 3) -> None:
    """A ring whose features tell the class of a node apart from the others, but not perfectly."""
    random = np.random.RandomState(0)
    nodes = np.arange(num_nodes)
    labels = nodes % num_classes
    features = random.randn(num_nodes, 8).astype(np.float32)
    features[nodes, labels] += 2
    ring = sp.csr_array((np.ones(num_nodes, np.float32), (nodes, np.roll(nodes, 1))), shape=(num_nodes, num_nodes))
    arrays: dict[str, Any] = {
        "adj_data": ring.data,
        "adj_indices": ring.indices,
        "adj_indptr": ring.indptr,
        "adj_shape": np.array(ring.shape),
        "attr_matrix": features,
        "labels": labels,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def toy_cell(stored: dict[str, Stored], model: str = "toy", trial: int = 0, **settings: Any) -> Cell:
    config = asdict(ToyConfig(**settings))
    labels = {"settings": "default", "mode": "fresh", "trial": trial}
    data = stored["ring"].graph.fingerprint
    return Cell(model, find(model).revision, "ring", data, config, "uniform-60/20/20", trial, trial, labels)


def run(
    cells: list[Cell],
    stored: dict[str, Stored],
    results: Path,
    jobs: int = 1,
    events: list[Event] | None = None,
    **options: Any,
) -> Summary:
    ledger = Ledger(results)
    on_event = (lambda event: None) if events is None else events.append
    executor = LocalExecutor(results / "logs", jobs)
    return run_cells(cells, stored, RunOptions(**options), ledger, executor, on_event, find)


class Pretender:
    """Claims success for every job at once; `before` is called ahead of each look for a job."""

    def __init__(self, before: Callable[[], None] = lambda: None, status: str = "ok") -> None:
        self.before, self.status = before, status
        self.asked, self.turned_away = 0, 0

    def run(
        self, jobs: Iterator[Job | None], on_event: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> Iterator[Outcome]:
        while not stopped():
            self.before()
            try:
                job = next(jobs)
            except StopIteration:
                return
            self.asked += 1
            if job is None:
                self.turned_away += 1
            else:
                yield Outcome(job, self.status, "", result=self.result(job))

    def result(self, job: Job) -> dict[str, Any]:
        training = {"epochs": 5, "stopped_by": "max_epochs", "curve": [(1.0, 1.0, 0.5)]}
        ones = {name: np.ones(len(getattr(job.split, name)), np.uint8) for name in ("val", "test")}
        return {"phases": {}, "training": training, **ones}


if __name__ == "__main__":  # a whole run as a process of its own: data, results, models, cells of each, epochs
    data, results, names, count, epochs = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:])
    graphs = ring_dataset(data)
    cells = [toy_cell(graphs, name, trial, max_epochs=epochs) for name in names.split(",") for trial in range(count)]
    summary = run(cells, graphs, results)
    print(summary.earlier, summary.ran, summary.elsewhere, summary.interrupted)
