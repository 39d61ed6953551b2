"""Each kernel against what a user would take instead on the same inputs: seconds and memory, forward and backward.

The rows are in rivals.py. Each builds the same inputs for every side, and the numbers must agree to 1e-4. Where chance
or a threshold is part of a kernel, `exact` leaves it out for that comparison; what is timed has it.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from bench.datasets.store import open_arrays
from bench.executors.meter import RESET_FILE, read_memory
from bench.executors.process import use_threads
from bench.graph import Graph
from perf.cases import Options, open_data
from perf.measure import Failed, Measurement, measure, scratch_folder
from perf.rivals import ROWS, Build, Comparison
from perf.table import Row

WORTH = 1.3  # a kernel stays if it takes this many times less time or less memory
AGREEMENT = 1e-4  # of the largest number of an array
SECONDS, MOST_STEPS = 1.5, 30  # how long a process repeats a step, which a long one does once
CORNER = 200  # nodes of the small graph on which code is loaded before anything is measured


@dataclass(frozen=True)
class Kernels:
    """All rows of the table, or those named; the sides take turns, each time in a separate process."""

    name: str = "kernels"
    chosen: tuple[str, ...] = tuple(ROWS)
    rounds: int = 3

    @property
    def about(self) -> str:
        return f"{len(self.chosen)} kernels against what a user would take instead"

    def run(self, options: Options) -> list[Row]:
        return [row for name in self.chosen for row in self._compare(name, ROWS[name], options)]

    def _compare(self, name: str, comparison: Comparison, options: Options) -> list[Row]:
        stored = open_data(comparison.dataset, options)
        sides = ("ours", *comparison.rivals)
        taken: dict[str, list[Measurement]] = {side: [] for side in sides}
        with scratch_folder() as folder:
            task = {"kind": "perf.kernels:run_side", "folder": str(stored.folder), "row": name}
            for side in sides:  # compiles what is not compiled yet
                exact = {"side": side, "result": str(folder / f"{side}.npz")}
                measure({**task, **exact}, options.threads)
            check_agreement(name, [folder / f"{side}.npz" for side in sides])
            for number in range(1, (options.rounds or self.rounds) + 1):
                for side, measurements in taken.items():
                    result = measure({**task, "side": side}, options.threads)
                    measurements.append(result)
                    options.say(f"{name}: {side}, round {number}: {describe(result)}")
        return [row for rival in comparison.rivals for row in self._rows(name, rival, taken)]

    def _rows(self, name: str, rival: str, taken: dict[str, list[Measurement]]) -> list[Row]:
        def row(what: str, value: Callable[[Measurement], float]) -> Row:
            ours, theirs = (statistics.median(map(value, taken[side])) for side in ("ours", rival))
            return Row(name, f"{rival}: {what}", ours, theirs, WORTH)

        return [
            row("seconds", lambda side: side.per_epoch),
            row("CPU seconds", lambda side: side.values["cpu"]),
            row("MB", lambda side: side.values["memory"] / 1e6),
        ]


def describe(result: Measurement) -> str:
    """A measurement in one line."""
    cpu, memory = result.values["cpu"], result.values["memory"] / 1e6
    return f"{result.per_epoch:.4f} s ({cpu:.4f} s of the processor), {memory:.0f} MB"


def check_agreement(name: str, files: list[Path]) -> None:
    """Outputs and gradients of all sides, from files that they wrote, must be those of the first."""
    expected, *others = ([array for _, array in sorted(np.load(file).items())] for file in files)
    for file, found in zip(files[1:], others, strict=True):
        for at, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
            apart = np.abs(ours.astype(np.float64) - theirs).max(initial=0.0)
            if not apart <= AGREEMENT * np.abs(ours).max(initial=0.0):
                raise Failed(f"{name}: array {at} of {file.stem} is {apart:g} away from ours")


# -- in the measured process ------------------------------------------------------------------------------------------


def run_side(task: dict[str, Any]) -> dict[str, Any]:
    """Measure one side of a row; with a `result` file, only compute what is compared and write it there."""
    use_threads(task["threads"])
    graph, build = open_arrays(Path(task["folder"])), ROWS[task["row"]].build
    if "result" in task:
        arrays = prepare_step(build, graph, task["side"], exact=True)()
        np.savez(task["result"], *arrays)
        return {}
    prepare_step(build, corner(graph), task["side"])()
    before = _start_of_peak()
    step, seconds, cpu = prepare_step(build, graph, task["side"]), list[float](), list[float]()
    while not seconds or (sum(seconds) < SECONDS and len(seconds) < MOST_STEPS):
        start, cpu_start = time.perf_counter(), time.process_time()
        step()
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    memory = read_memory()
    memory_used = (memory.resident_peak if memory else 0) - before
    return {"epochs": seconds, "cpu": statistics.median(cpu[1:] or cpu), "memory": memory_used}


def prepare_step(build: Build, graph: Graph, side: str, exact: bool = False) -> Callable[[], list[np.ndarray]]:
    """What computes a side's outputs and gradients, for the same inputs on every side."""
    torch.manual_seed(0)
    leaves, sides = build(graph, exact)
    compute = sides[side]()

    def step() -> list[np.ndarray]:
        out = compute()
        outs = [*out] if isinstance(out, tuple) else [out]
        if leaves:
            outs += torch.autograd.grad(outs[0], leaves, _arrived(outs[0].shape))
        return [part.detach().numpy() if isinstance(part, Tensor) else part for part in outs]

    return step


@functools.cache
def _arrived(shape: torch.Size) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _start_of_peak() -> int:
    """Forget the highest memory so far; returns what there is now."""
    Path(RESET_FILE).write_text("5")
    memory = read_memory()
    return memory.resident_peak if memory else 0


def corner(graph: Graph) -> Graph:
    """The nodes of highest degree, in arrays that are as writable as the graph's: compiled code depends on that."""
    nodes = np.sort(np.argsort(-graph.degrees, kind="stable")[:CORNER])
    edges: Any = graph.adjacency()[nodes][:, nodes]
    edges.sort_indices()
    features = sp.csr_array(graph.features[nodes])
    for part in (edges.indptr, edges.indices, features.indptr, features.indices, features.data):
        part.flags.writeable = graph.indptr.flags.writeable
    return replace(
        graph, indptr=edges.indptr, indices=edges.indices, features=features, labels=graph.labels[nodes], fingerprint=""
    )
