"""Shortest distances between all pairs of nodes, a byte each."""

from __future__ import annotations

import numba
import numpy as np
from scipy.sparse.csgraph import shortest_path

from bench.graph import Graph
from bench.prepared import PrepareCache

KINDS = 256  # what a byte can say about a pair of nodes: its distance, or one of these two
FARTHEST = 254  # this distance or a greater one
UNREACHABLE = 255  # no path
_VERSION = 1  # of the distances in the cache


def shortest_distances(graph: Graph, cache: PrepareCache) -> np.ndarray:
    """Edges on the shortest path between any two nodes, N x N, uint8; see FARTHEST and UNREACHABLE."""
    key = {"graph": graph.fingerprint, "version": _VERSION}
    return cache.get("distances", key, lambda: {"distances": _all_distances(graph)})["distances"]


def _all_distances(graph: Graph) -> np.ndarray:
    distances = np.full((graph.num_nodes, graph.num_nodes), UNREACHABLE, dtype=np.uint8)
    _search_from_all(graph.indptr, graph.indices, distances)
    return distances


def plain_distances(graph: Graph) -> np.ndarray:
    """Compute the same by scipy, with eight bytes per pair."""
    distances = shortest_path(graph.adjacency(), unweighted=True)
    return np.where(np.isinf(distances), UNREACHABLE, np.minimum(distances, FARTHEST)).astype(np.uint8)


_WORDS = 8  # of 64 sources each: as many searches go on at once


@numba.njit(cache=True, parallel=True, nogil=True)
def _search_from_all(indptr: np.ndarray, indices: np.ndarray, distances: np.ndarray) -> None:
    at_once = 64 * _WORDS
    for search in numba.prange((len(distances) + at_once - 1) // at_once):
        _search(indptr, indices, search * at_once, distances)


@numba.njit(cache=True, nogil=True, inline="never")
def _search(indptr: np.ndarray, indices: np.ndarray, first: int, distances: np.ndarray) -> None:
    """Breadth-first from 512 sources at once: a bit per source says whether its search has come to a node.

    The graph is undirected: what is found about (source, node) is written to (node, source), next to its neighbours.
    """
    size = len(distances)
    reached = np.zeros((size, _WORDS), dtype=np.uint64)
    for source in range(first, min(first + 64 * _WORDS, size)):
        reached[source, (source - first) // 64] = np.uint64(1) << np.uint64((source - first) % 64)
        distances[source, source] = 0
    frontier, following = reached.copy(), np.zeros_like(reached)
    level, moving = 0, True
    while moving:
        level, moving = min(level + 1, FARTHEST), False
        for node in range(size):
            new = following[node]
            _gather(indices[indptr[node] : indptr[node + 1]], frontier, reached[node], new)
            for word in range(_WORDS):
                if new[word] != 0:
                    start = first + 64 * word
                    _record(new[word], np.uint8(level), distances[node, start : start + 64])
                    moving = True
        frontier, following = following, frontier


@numba.njit(cache=True, nogil=True, inline="never")
def _gather(neighbours: np.ndarray, frontier: np.ndarray, reached: np.ndarray, new: np.ndarray) -> None:
    """new = searches that are at a neighbour and were never here; they count as having been here from now on."""
    new[:] = 0
    for neighbour in neighbours:
        for word in range(_WORDS):
            new[word] |= frontier[neighbour, word]
    for word in range(_WORDS):
        new[word] &= ~reached[word]
        reached[word] |= new[word]


@numba.njit(cache=True, nogil=True, inline="never")
def _record(new: np.uint64, level: np.uint8, distances: np.ndarray) -> None:
    for bit in range(distances.shape[0]):
        if (new >> np.uint64(bit)) & np.uint64(1):
            distances[bit] = level
