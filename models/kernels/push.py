"""Rows of a propagation matrix by local pushes (PPRGo, GRAND+).

A push keeps residuals and reserves in arrays of length N, which are wiped after each row by
visiting only what it has touched. Rows are dealt out to the threads and no row sees another, so the result is the same
for any number of threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from torch import Tensor

from bench.graph import UNKNOWN_LABEL, Graph
from bench.prepared import PrepareCache
from models.kernels.propagation import nodes_without_loop

_VERSION = 1  # of what is kept in the cache
_WORKSPACE_BYTES = 24  # of a push, per node and thread: six arrays of four bytes


@dataclass(frozen=True)
class TopRows:
    """The largest entries of some rows; a row that has fewer is filled up with zeros at its own node."""

    nodes: np.ndarray  # whose rows these are, ascending
    columns: np.ndarray  # int32, rows x k
    weights: np.ndarray  # float32, rows x k

    @classmethod
    def cached(
        cls,
        what: str,
        graph: Graph,
        nodes: np.ndarray,
        depends_on: Mapping[str, Any],
        cache: PrepareCache,
        compute: Callable[[], dict[str, np.ndarray]],
    ) -> TopRows:
        """Rows that cells with the same graph, nodes and `depends_on` share."""
        chosen = hashlib.sha256(np.ascontiguousarray(nodes, dtype=np.int64).data).hexdigest()[:32]
        arrays = cache.get(
            what, {"graph": graph.fingerprint, "nodes": chosen, **depends_on, "version": _VERSION}, compute
        )
        return cls(nodes, arrays["columns"], arrays["weights"])

    def of(self, nodes: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Columns and weights of these nodes' rows."""
        wanted = nodes.numpy()
        places = np.searchsorted(self.nodes, wanted)
        if (places == len(self.nodes)).any() or (self.nodes[places] != wanted).any():
            raise ValueError("rows were prepared for other nodes than these")
        return self.columns[places], self.weights[places]


def ppr_rows(graph: Graph, seeds: np.ndarray, alpha: float, epsilon: float, top_k: int) -> dict[str, np.ndarray]:
    """The `top_k` largest entries of each seed's row of α (I - (1 - α) D^-1 A)^-1, by Andersen-Chung-Lang pushes.

    No node is left with a residual of α ε degree or more. An isolated node's row is itself alone, with weight 1.
    """
    columns, weights = _empty_rows(graph, seeds, top_k)
    _ppr(graph.indptr, graph.indices, seeds, alpha, epsilon, numba.get_num_threads(), columns, weights)
    return {"columns": columns, "weights": weights}


def gfpush_rows(graph: Graph, seeds: np.ndarray, mixture: np.ndarray, rmax: float, top_k: int) -> dict[str, np.ndarray]:
    """The `top_k` largest entries of each seed's row of Σ mixture[n] P^n, by GRAND+'s generalised forward push.

    P is row-stochastic, and every node is a neighbour of itself in it. A residual below rmax times the degree
    still counts at its own order, but is not passed on: it is lost.
    """
    columns, weights = _empty_rows(graph, seeds, top_k)
    own, shares = nodes_without_loop(graph), mixture.astype(np.float32)
    _gfpush(graph.indptr, graph.indices, own, seeds, shares, rmax, numba.get_num_threads(), columns, weights)
    return {"columns": columns, "weights": weights}


def cached_ppr(
    graph: Graph, nodes: np.ndarray, alpha: float, epsilon: float, top_k: int, cache: PrepareCache
) -> TopRows:
    """`ppr_rows` of these nodes, which other cells may have computed."""
    push = {"alpha": alpha, "epsilon": epsilon, "top_k": top_k}
    return TopRows.cached("ppr", graph, nodes, push, cache, lambda: ppr_rows(graph, nodes, alpha, epsilon, top_k))


def cached_gfpush(
    graph: Graph, nodes: np.ndarray, mixture: np.ndarray, rmax: float, top_k: int, cache: PrepareCache
) -> TopRows:
    """`gfpush_rows` of these nodes, which other cells may have computed."""
    push = {"mixture": mixture.tolist(), "rmax": rmax, "top_k": top_k}
    return TopRows.cached("gfpush", graph, nodes, push, cache, lambda: gfpush_rows(graph, nodes, mixture, rmax, top_k))


def _empty_rows(graph: Graph, seeds: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
    shape = (len(seeds), min(top_k, graph.num_nodes))
    return np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.float32)


def push_bytes(graph: Graph, rows: int, top_k: int) -> int:
    """Estimate the bytes of a push: its threads' workspaces, and the rows that come of it."""
    return graph.num_nodes * _WORKSPACE_BYTES * numba.get_num_threads() + 8 * rows * top_k


def count_labelled(graph: Graph) -> tuple[int, int]:
    """Count the training nodes, and guess the number of validation nodes by either of the usual splits."""
    trained = int((graph.labels != UNKNOWN_LABEL).sum())
    return trained, min(3 * trained // 2, (graph.num_nodes - trained) // 2)


# -- personalised PageRank --------------------------------------------------------------------------------------------


@numba.njit(cache=True, parallel=True, nogil=True)
def _ppr(
    indptr: np.ndarray,
    indices: np.ndarray,
    seeds: np.ndarray,
    alpha: float,
    epsilon: float,
    chunks: int,
    columns: np.ndarray,
    weights: np.ndarray,
) -> None:
    for chunk in numba.prange(chunks):
        _ppr_chunk(indptr, indices, seeds, alpha, epsilon, chunk, chunks, columns, weights)


@numba.njit(cache=True, nogil=True)
def _ppr_chunk(
    indptr: np.ndarray,
    indices: np.ndarray,
    seeds: np.ndarray,
    alpha: float,
    epsilon: float,
    first: int,
    step: int,
    columns: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Every `step`-th row, all in one workspace."""
    size = len(indptr) - 1
    state = np.zeros((size, 2), dtype=np.float32)  # residual and limit side by side: the cache fetches both at once
    for node in range(size):
        state[node, 1] = alpha * epsilon * (indptr[node + 1] - indptr[node])
    reserve = np.zeros(size, dtype=np.float32)
    frontier, upcoming = np.empty(size + 1, dtype=np.int32), np.empty(size + 1, dtype=np.int32)
    found = np.empty(size + 1, dtype=np.int32)
    for row in range(first, len(seeds), step):
        seed = seeds[row]
        if indptr[seed] == indptr[seed + 1]:
            reserve[seed], found[0], count = 1.0, seed, 1
        else:
            count = _ppr_row(indptr, indices, seed, np.float32(alpha), state, reserve, frontier, upcoming, found)
        _keep_largest(found[:count], reserve, seed, columns[row], weights[row])
        for at in range(count):
            node = found[at]
            reserve[node] = 0.0
            for entry in range(indptr[node], indptr[node + 1]):
                state[indices[entry], 0] = 0.0


@numba.njit(cache=True, nogil=True)
def _ppr_row(
    indptr: np.ndarray,
    indices: np.ndarray,
    seed: int,
    alpha: np.float32,
    state: np.ndarray,
    reserve: np.ndarray,
    frontier: np.ndarray,
    upcoming: np.ndarray,
    found: np.ndarray,
) -> int:
    """Push until no residual has reached its limit; returns how many nodes of `found` hold a reserve.

    Nodes wait in the order in which they were reached, so that residuals add up before they are passed on; the last in,
    first out of the reference pushes several times as often. A node waits exactly while its residual is at its limit
    or above, so crossing the limit is what puts it in line, and no flag is needed. It is written to the end
    of the line in any case and the line grows only if it belongs there: a branch would be guessed wrong too often.
    """
    state[seed, 0] = alpha
    frontier[0] = seed
    waiting, count = 1, 0
    while waiting > 0:
        reached = 0
        for at in range(waiting):
            node = frontier[at]
            residual = state[node, 0]
            state[node, 0] = 0.0
            found[count] = node
            count += reserve[node] == 0.0
            reserve[node] += residual
            start, end = indptr[node], indptr[node + 1]
            share = (np.float32(1.0) - alpha) * residual / np.float32(end - start)
            for entry in range(start, end):
                neighbour = indices[entry]
                before, limit = state[neighbour, 0], state[neighbour, 1]
                after = before + share
                state[neighbour, 0] = after
                upcoming[reached] = neighbour
                reached += (before < limit) & (after >= limit)
        frontier, upcoming = upcoming, frontier
        waiting = reached
    return count


# -- generalised forward push -----------------------------------------------------------------------------------------


@numba.njit(cache=True, parallel=True, nogil=True)
def _gfpush(
    indptr: np.ndarray,
    indices: np.ndarray,
    own: np.ndarray,
    seeds: np.ndarray,
    mixture: np.ndarray,
    rmax: float,
    chunks: int,
    columns: np.ndarray,
    weights: np.ndarray,
) -> None:
    for chunk in numba.prange(chunks):
        _gfpush_chunk(indptr, indices, own, seeds, mixture, rmax, chunk, chunks, columns, weights)


@numba.njit(cache=True, nogil=True)
def _gfpush_chunk(
    indptr: np.ndarray,
    indices: np.ndarray,
    own: np.ndarray,
    seeds: np.ndarray,
    mixture: np.ndarray,
    rmax: float,
    first: int,
    step: int,
    columns: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Every `step`-th row, all in one workspace."""
    size = len(indptr) - 1
    residual, following = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.float32)
    reserve = np.zeros(size, dtype=np.float32)
    frontier, upcoming = np.empty(size + 1, dtype=np.int32), np.empty(size + 1, dtype=np.int32)
    found = np.empty(size + 1, dtype=np.int32)
    for row in range(first, len(seeds), step):
        seed = seeds[row]
        count = _gfpush_row(
            indptr, indices, own, seed, mixture, rmax, residual, following, reserve, frontier, upcoming, found
        )
        _keep_largest(found[:count], reserve, seed, columns[row], weights[row])
        for at in range(count):
            reserve[found[at]] = 0.0


@numba.njit(cache=True, nogil=True)
def _gfpush_row(
    indptr: np.ndarray,
    indices: np.ndarray,
    own: np.ndarray,
    seed: int,
    mixture: np.ndarray,
    rmax: float,
    residual: np.ndarray,
    following: np.ndarray,
    reserve: np.ndarray,
    frontier: np.ndarray,
    upcoming: np.ndarray,
    found: np.ndarray,
) -> int:
    """Order by order; leaves both residual arrays empty and returns how many nodes of `found` hold a reserve."""
    residual[seed] = 1.0
    frontier[0] = seed
    waiting, count, last = 1, 0, len(mixture) - 1
    for order in range(last + 1):
        reached = 0
        for at in range(waiting):
            node = frontier[at]
            mass = residual[node]
            residual[node] = 0.0
            gain = mixture[order] * mass
            found[count] = node
            count += (reserve[node] == 0.0) & (gain > 0.0)
            reserve[node] += gain
            start, end = indptr[node], indptr[node + 1]
            degree = end - start + own[node]
            share = mass / np.float32(degree)
            if order == last or mass < rmax * degree or share == 0.0:
                continue
            if own[node]:
                upcoming[reached] = node
                reached += following[node] == 0.0
                following[node] += share
            for entry in range(start, end):
                neighbour = indices[entry]
                before = following[neighbour]
                following[neighbour] = before + share
                upcoming[reached] = neighbour
                reached += before == 0.0
        frontier, upcoming = upcoming, frontier
        residual, following = following, residual
        waiting = reached
    return count


# -- the largest entries ----------------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _keep_largest(found: np.ndarray, reserve: np.ndarray, seed: int, columns: np.ndarray, weights: np.ndarray) -> None:
    """The largest reserves, in the order of their nodes; of equal ones the lower node, whatever order they came in."""
    size = min(len(columns), len(found))
    if size < len(found):
        values = reserve[found]
        least = np.partition(values, len(values) - size)[len(values) - size]
        above, level = found[values > least], np.sort(found[values == least])
        found = np.concatenate((above, level[: size - len(above)]))
    columns[:size] = np.sort(found)
    weights[:size] = reserve[columns[:size]]
    columns[size:], weights[size:] = seed, 0.0
