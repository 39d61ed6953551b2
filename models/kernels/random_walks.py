"""How likely random walks return to where they began: GraphGPS's random-walk encoding."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from bench.graph import Graph
from bench.prepared import PrepareCache
from models.kernels.propagation import scale_entries, sparse_dense

WALKS_AT_ONCE = 64  # columns that walk together
_VERSION = 1  # of what is kept in the cache


def return_probabilities(graph: Graph, steps: int, cache: PrepareCache) -> np.ndarray:
    """How likely a random walk from each node is back after 1, ..., steps steps: diagonals of (D^-1 A)^k, N x steps.

    An isolated node never comes back.
    """
    key = {"graph": graph.fingerprint, "steps": steps, "version": _VERSION}
    return cache.get("returns", key, lambda: {"returns": _walk(graph, steps)})["returns"]


def _walk(graph: Graph, steps: int) -> np.ndarray:
    """The symmetric S = D^-1/2 A D^-1/2 has the same diagonals, and S^(a + b) has S^a e_i · S^b e_i in its i-th place.

    So only half as many products are needed. All entries are positive: nothing cancels in float32.
    """
    adjacency = graph.adjacency()
    scale = (1.0 / np.sqrt(np.maximum(graph.degrees, 1))).astype(np.float32)
    scale_entries(adjacency.indptr, adjacency.indices, adjacency.data, scale)
    returns = np.zeros((graph.num_nodes, steps), dtype=np.float32)
    returns[:, 0] = adjacency.diagonal()
    for first in range(0, graph.num_nodes, WALKS_AT_ONCE):
        block = slice(first, min(first + WALKS_AT_ONCE, graph.num_nodes))
        _walk_from(adjacency, block, returns[block])
    return returns


def _walk_from(adjacency: sp.csr_array, block: slice, returns: np.ndarray) -> None:
    """All but the first column of a block's rows."""
    here = np.ascontiguousarray(adjacency[block].toarray().T)  # after one step; the matrix is symmetric
    for column in range(1, returns.shape[1]):
        if column % 2:  # an even number of steps: there and back
            returns[:, column] = np.einsum("nb,nb->b", here, here)
        else:
            before, here = here, sparse_dense(adjacency, here)
            returns[:, column] = np.einsum("nb,nb->b", before, here)
