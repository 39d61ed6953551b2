"""Sampled subgraphs, and how often nodes and edges are in them (GraphSAINT).

Samplers (all with replacement; repeated nodes count once; a subgraph has all edges among its nodes):
  node  nodes with probability proportional to their degree;
  edge  edges with probability proportional to 1/deg u + 1/deg v (a self-loop: 1/deg), both ends kept;
  walk  random walks of a given length from roots drawn uniformly from the training nodes, or from all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
import torch

from bench.graph import UNKNOWN_LABEL, Graph, Split
from bench.prepared import PrepareCache
from models.kernels.features import FeatureRows
from models.kernels.propagation import SparseOperator

_VERSION = 1  # of what is kept in the cache
_FLOOR = 75 * 2**20  # bytes: what the libraries take in any case once they compute, as measured
_LOT = 200  # subgraphs are pre-sampled in lots of this size
_MOST = 10  # how many times more subgraphs than full budgets would need, where subgraphs stay far below their budget
_LARGEST_WEIGHT, _UNSEEN_WEIGHT = 1e4, 0.1  # of an aggregation: at most, and where neither node nor edge was counted


@dataclass(frozen=True, eq=False)
class Subgraph:
    """What one update sees; nodes are numbered within it."""

    nodes: np.ndarray  # ascending, as the graph numbers them
    adjacency: SparseOperator  # the weighted mean over neighbours
    labelled: np.ndarray  # places of the training nodes in `nodes`
    loss_weights: np.ndarray  # of these, float32


@dataclass(frozen=True, eq=False)
class Counts:
    """In how many of the pre-sampled subgraphs each node and each adjacency entry was."""

    of_nodes: np.ndarray  # int32, N
    of_entries: np.ndarray  # int32, one per stored entry of the adjacency
    total: np.ndarray  # a single number, how many subgraphs there were

    @property
    def subgraphs(self) -> int:
        return int(self.total[0])


class Sampler:
    """Draws subgraphs; number i is a pure function of the seed and of i, in whichever order they are asked for."""

    def __init__(self, graph: Graph, training: np.ndarray, config: Any, seed: int) -> None:
        """`config` has the settings `sampler`, `draws`, `walk_length` and `roots` (see models/graphsaint.py)."""
        self.indptr, self.indices, self.degrees = graph.indptr, graph.indices, graph.degrees
        self.num_nodes, self.training, self.config = graph.num_nodes, training, config
        self.is_training = np.zeros(graph.num_nodes, dtype=np.bool_)
        self.is_training[training] = True
        self.linked = np.flatnonzero(self.degrees)  # nodes with a neighbour
        self.seed = np.uint64(seed % 2**64)
        self._place = np.full(graph.num_nodes, -1, dtype=np.int32)  # all -1 between two calls

    @property
    def budget(self) -> int:
        """Nodes that a subgraph would have if none were drawn twice, as the official code counts them."""
        return int(self.config.draws * {"node": 1, "edge": 2, "walk": self.config.walk_length}[self.config.sampler])

    def nodes(self, number: int) -> np.ndarray:
        """The nodes of this subgraph, ascending; one without a training node gets one, drawn uniformly."""
        key = _hashes(self.seed, np.array([number]))
        drawn = self._draw(key)
        chosen = np.unique(drawn)
        if not self.is_training[chosen].any():
            [place] = _random(key, np.array([drawn.size + self.config.draws]), len(self.training))
            added = self.training[place]
            chosen = np.insert(chosen, np.searchsorted(chosen, added), added)
        return chosen

    def _draw(self, key: np.ndarray) -> np.ndarray:
        c = self.config
        draws = np.arange(c.draws)
        if c.sampler == "walk":
            return self._walks(key, c.walk_length, None if c.roots == "all" else self.training)
        if len(self.linked) == 0:  # no edge to go by
            return self._walks(key, 0, None)
        if c.sampler == "node":  # the ends of uniformly drawn entries, among which each node stands degree times
            return self.indices[_random(key, draws, len(self.indices))]
        ends = self.linked[_random(key, 2 * draws, len(self.linked))]  # and one of their neighbours each
        return np.stack([ends, self._neighbours(ends, key, 2 * draws + 1)])

    def _walks(self, key: np.ndarray, length: int, roots: np.ndarray | None) -> np.ndarray:
        """Every node that walks from these roots (None: from all nodes) see; they stay where there is no neighbour."""
        numbers = np.arange(self.config.draws) * (length + 1)
        first = _random(key, numbers, self.num_nodes if roots is None else len(roots))
        walks = [first if roots is None else roots[first]]
        for step in range(1, length + 1):
            walks.append(self._neighbours(walks[-1], key, numbers + step))
        return np.stack(walks)

    def _neighbours(self, nodes: np.ndarray, key: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """One neighbour of each node, uniformly; a node without any stands for itself."""
        places, found = self.indptr[nodes] + _random(key, numbers, self.degrees[nodes]), nodes.copy()
        linked = self.degrees[nodes] > 0
        found[linked] = self.indices[places[linked]]
        return found

    def edges(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The induced subgraph in CSR form: row starts, columns, and where each entry stands in the graph's."""
        return induced(self.indptr, self.indices, nodes, self._place)

    def subgraph(self, number: int, counts: Counts | None) -> Subgraph:
        """The subgraph with its weights: by the counts, or plain means where there are none."""
        nodes = self.nodes(number)
        starts, columns, entries = self.edges(nodes)
        rows = np.repeat(np.arange(len(nodes), dtype=np.int32), np.diff(starts))
        labelled = np.flatnonzero(self.is_training[nodes])
        if counts is None:
            forth, back = (1.0 / np.diff(starts)[ends] for ends in (rows, columns))
            weights = np.full(len(labelled), 1.0 / len(labelled))
        else:
            seen, degrees, together = counts.of_nodes[nodes], self.degrees[nodes], counts.of_entries[entries]
            # The entry in the other direction has the same count: both are in a subgraph or neither is.
            forth, back = (aggregation_weights(seen[ends], together) / degrees[ends] for ends in (rows, columns))
            weights = counts.subgraphs / (np.maximum(seen[labelled], 0.1) * len(self.training))
        return Subgraph(nodes, _WithTranspose(starts, columns, forth, back), labelled, weights.astype(np.float32))


class SubgraphStream:
    """The subgraphs of training: the pre-sampled ones in a random order, again and again, or always new ones."""

    def __init__(self, sampler: Sampler, counts: Counts | None) -> None:
        self.sampler, self.counts = sampler, counts
        self.numbers = self._numbers()

    @classmethod
    def of(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> SubgraphStream:
        """With counts where `config.normalization` asks for them, which other cells may have computed."""
        sampler = Sampler(graph, split.train, config, seed)
        if not config.normalization:
            return cls(sampler, None)
        key = {
            "graph": graph.fingerprint,
            "split": split.fingerprint,
            "seed": seed,
            "sampler": [config.sampler, config.draws, config.walk_length, config.roots],
            "coverage": config.coverage,
            "version": _VERSION,
        }
        return cls(sampler, Counts(**cache.get("saint", key, lambda: count_subgraphs(sampler, config.coverage))))

    def epoch(self) -> Iterator[Subgraph]:
        """As many subgraphs as full budgets fit into the graph, at least one."""
        for _ in range(max(1, math.ceil(self.sampler.num_nodes / self.sampler.budget))):
            yield self.sampler.subgraph(next(self.numbers), self.counts)

    def _numbers(self) -> Iterator[int]:
        while self.counts is not None:
            yield from torch.randperm(self.counts.subgraphs).flip(0).tolist()
        yield from itertools.count()


class _WithTranspose(SparseOperator):
    """A matrix with a symmetric pattern whose transpose is known: it only has other values."""

    def __init__(self, starts: np.ndarray, columns: np.ndarray, forth: np.ndarray, back: np.ndarray) -> None:
        shape = (len(starts) - 1, len(starts) - 1)
        super().__init__(sp.csr_array((forth.astype(np.float32), columns, starts), shape=shape))
        self._transposed = sp.csr_array((back.astype(np.float32), columns, starts), shape=shape)


def aggregation_weights(of_nodes: np.ndarray, of_entries: np.ndarray) -> np.ndarray:
    """C_v / C_uv, at most 1e4; 0.1 where both are 0."""
    ratios = np.minimum(of_nodes / np.maximum(of_entries, 1), _LARGEST_WEIGHT)
    return np.where(of_entries > 0, ratios, np.where(of_nodes > 0, _LARGEST_WEIGHT, _UNSEEN_WEIGHT))


def count_subgraphs(sampler: Sampler, coverage: float) -> dict[str, np.ndarray]:
    """Sample until the subgraphs have `coverage` times the graph's nodes, and count what was in them."""
    of_nodes = np.zeros(sampler.num_nodes, dtype=np.int32)
    of_entries = np.zeros(len(sampler.indices), dtype=np.int32)
    wanted, found, subgraphs = coverage * sampler.num_nodes, 0, 0
    while found <= wanted and subgraphs * sampler.budget <= _MOST * wanted:
        for number in range(subgraphs, subgraphs + _LOT):
            nodes = sampler.nodes(number)
            found += len(nodes)
            of_nodes[nodes] += 1
            of_entries[sampler.edges(nodes)[2]] += 1
        subgraphs += _LOT
    return {"of_nodes": of_nodes, "of_entries": of_entries, "total": np.array([subgraphs])}


def estimate_memory(graph: Graph, config: Any, widths: list[int]) -> int:
    """Estimate the largest of pre-sampling, training and inference, above what the libraries take.

    `widths` are those of what the layers see, the last one that of what the classifier sees.
    """
    count, hidden, orders = graph.num_nodes, config.hidden, config.orders
    known = np.flatnonzero(graph.labels != UNKNOWN_LABEL)
    part = Sampler(graph, known if len(known) else np.arange(count), config, 0).subgraph(0, None)  # as any other
    dense_copy, per_row = FeatureRows.estimate_bytes(graph, centred=config.standardize)
    weights = sum((order + 1) * width * hidden for order, width in zip(orders, widths, strict=False))
    branches = (len(orders) + sum(orders)) * hidden
    counting = 4 * (count + graph.num_entries) if config.normalization else 0
    training = len(part.nodes) * (2 * per_row + 28 * branches) + 24 * part.adjacency.matrix.nnz
    chunk = min(count, config.evaluation_batch or count)
    inference = 8 * count * max(hidden, graph.num_classes) + chunk * (per_row + 20 * hidden)
    return _FLOOR + int(dense_copy + max(counting, 20 * weights + max(training, inference)))


# -- random numbers ---------------------------------------------------------------------------------------------------


def _hashes(key: np.ndarray | np.uint64, numbers: np.ndarray) -> np.ndarray:
    """The well-mixed 64-bit numbers that belong to the key and have these numbers (splitmix64)."""
    value = key + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _random(key: np.ndarray, numbers: np.ndarray, limits: int | np.ndarray) -> np.ndarray:
    """Random whole numbers, uniform between 0 and limit - 1, of this key."""
    return ((_hashes(key, numbers) >> np.uint64(11)) * 2.0**-53 * limits).astype(np.int64)


# -- induced subgraphs ------------------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def induced(
    indptr: np.ndarray, indices: np.ndarray, nodes: np.ndarray, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row starts, columns and entry numbers of the subgraph of these nodes; `place` is all -1 before and after."""
    most = 0
    for row, node in enumerate(nodes):
        place[node] = row
        most += indptr[node + 1] - indptr[node]
    starts = np.zeros(len(nodes) + 1, dtype=np.int32)
    columns, entries = np.empty(most, dtype=np.int32), np.empty(most, dtype=indptr.dtype)
    at = 0
    for row, node in enumerate(nodes):
        for entry in range(indptr[node], indptr[node + 1]):
            columns[at], entries[at] = place[indices[entry]], entry  # stays only if it belongs there: no branch
            at += columns[at] >= 0
        starts[row + 1] = at
    for node in nodes:
        place[node] = -1
    return starts, columns[:at], entries[:at]


def plain_induced(
    indptr: np.ndarray, indices: np.ndarray, nodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the same by scipy's indexing, which looks at the whole graph."""
    size = len(indptr) - 1
    part = sp.csr_array((np.arange(len(indices)), indices, indptr), shape=(size, size))[nodes][:, nodes]
    return part.indptr, part.indices, part.data
