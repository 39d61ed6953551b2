"""The push behind PPRGo against torch_geometric's, on one graph and in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from bench.datasets.catalogue import resolve
from bench.datasets.store import cache_root, open_dataset
from bench.executors.process import use_threads
from bench.graph import Graph
from perf.measure import Failed
from perf.table import Row

if TYPE_CHECKING:
    from perf.cases import Options  # which imports this file

WARM_UP_ROWS = 4


@dataclass(frozen=True)
class Push:
    """The same rows of approximate PageRank by both, taking turns; ours also picks the largest of each row."""

    name: str = "ppr-push"
    dataset: str = "physics"
    alpha: float = 0.25
    top_k: int = 32
    tasks: tuple[tuple[int, float], ...] = ((4000, 1e-4), (1000, 1e-5))  # rows and ε
    rounds: int = 3
    ratio: float = 8  # target: torch_geometric / ours, at least

    @property
    def about(self) -> str:
        counts = " and ".join(f"{rows} rows at ε = {epsilon:g}" for rows, epsilon in self.tasks)
        return f"PageRank by pushes on {self.dataset}: {counts}, torch_geometric and ours"

    def run(self, options: Options) -> list[Row]:
        options.say(f"{self.name}: opening the data")
        [dataset] = resolve(self.dataset)
        graph = open_dataset(dataset, options.data, cache_root()).graph
        use_threads(options.threads)
        return [self._task(graph, rows, epsilon, options) for rows, epsilon in self.tasks]

    def _task(self, graph: Graph, rows: int, epsilon: float, options: Options) -> Row:
        chosen = np.random.default_rng(0).permutation(graph.num_nodes)[:rows]
        sides = self._sides(graph, epsilon)
        options.say(f"{self.name}: compiling")
        for side in sides.values():
            side(chosen[:WARM_UP_ROWS])
        taken: dict[str, list[float]] = {kind: [] for kind in sides}
        found: dict[str, Any] = {}
        for number in range(1, (options.rounds or self.rounds) + 1):
            for kind, side in sides.items():
                start = time.perf_counter()
                found[kind] = side(chosen)
                taken[kind].append(time.perf_counter() - start)
                options.say(f"{self.name}: {kind}, {rows} rows, round {number}: {taken[kind][-1]:.3f} s")
        check_agreement(graph, chosen, epsilon, found["reference"], found["ours"])
        reference, ours = (statistics.median(taken[kind]) for kind in ("reference", "ours"))
        return Row(self.name, f"seconds, {rows} rows, ε = {epsilon:g}", ours, reference, self.ratio)

    def _sides(self, graph: Graph, epsilon: float) -> dict[str, Callable[[np.ndarray], Any]]:
        import torch
        from torch_geometric.utils import get_ppr

        from models.kernels.push import ppr_rows

        sources = np.repeat(np.arange(graph.num_nodes), graph.degrees)
        edges = torch.from_numpy(np.stack([sources, graph.indices]).astype(np.int64))
        return {
            "reference": lambda rows: get_ppr(edges, self.alpha, epsilon, torch.from_numpy(rows), graph.num_nodes),
            "ours": lambda rows: ppr_rows(graph, rows, self.alpha, epsilon, self.top_k),
        }


def check_agreement(graph: Graph, rows: np.ndarray, epsilon: float, theirs: Any, ours: dict[str, np.ndarray]) -> None:
    """Both must lie within ε times the degree below the exact value, hence as close to each other."""
    (sources, targets), values = theirs[0].numpy(), theirs[1].numpy()
    table = sp.csr_array((values, (sources, targets)), shape=(graph.num_nodes, graph.num_nodes))
    for row, columns, weights in zip(rows, ours["columns"], ours["weights"], strict=True):
        kept = columns[weights > 0]
        apart = np.abs(table[[row]].toarray()[0, kept] - weights[weights > 0])
        if (apart > epsilon * graph.degrees[kept] + 1e-5).any():
            raise Failed(f"the two pushes disagree on node {row}")
