"""Positional encodings that several papers share."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh

from bench.data.graph import Graph
from bench.prepared import PrepareCache
from models.propagation import scale_entries

_VERSION = 1
_TOLERANCE = 1e-5


def laplacian_eigenvectors(graph: Graph, count: int, cache: PrepareCache) -> np.ndarray:
    """The eigenvectors of the `count` smallest positive eigenvalues of I - D^-1/2 A D^-1/2, N x count, float32.

    Rule for the zero modes: every component with an edge has exactly one (D^1/2 on its nodes), all of them are
    known without a solver, and all are left out, however small the component; an isolated node has eigenvalue 1
    and no part in the others. Symmetric Lanczos from a fixed start; the largest entry of each column is positive.
    """
    count = min(count, max(graph.num_nodes - 2, 0))
    if count == 0:
        return np.zeros((graph.num_nodes, 0), dtype=np.float32)
    key = {"graph": graph.fingerprint, "count": count, "tolerance": _TOLERANCE, "version": _VERSION}
    return cache.get("laplacian", key, lambda: {"vectors": _solve(graph, count)})["vectors"]


def _solve(graph: Graph, count: int) -> np.ndarray:
    adjacency, zero_modes = _normalized_with_zero_modes(graph)
    size = graph.num_nodes
    if size <= 3 * count + 20:  # too small for Lanczos: the dense solver is exact and instant
        dense = adjacency.toarray() - 2.0 * (zero_modes @ zero_modes.T).toarray()
        values, vectors = np.linalg.eigh(dense)
    else:
        # Deflation: known eigenvectors of eigenvalue 1 are moved to -1, the far end of the spectrum.
        operator = LinearOperator(
            (size, size),
            matvec=lambda x: adjacency @ x - 2.0 * (zero_modes @ (zero_modes.T @ x)),
            dtype=np.float64,
        )
        start = np.random.default_rng(0).standard_normal(size)
        values, vectors = eigsh(operator, k=count, which="LA", v0=start, tol=_TOLERANCE, ncv=min(size, 2 * count + 20))
    chosen = vectors[:, np.argsort(-values, kind="stable")[:count]]
    largest = np.abs(chosen).argmax(axis=0)
    signs = np.sign(chosen[largest, np.arange(count)])
    return (chosen * signs).astype(np.float32)


def _normalized_with_zero_modes(graph: Graph) -> tuple[sp.csr_array, sp.csr_array]:
    """D^-1/2 A D^-1/2 in float64, and its eigenvectors of eigenvalue 1: one sparse column per component with edges."""
    degrees = graph.degrees.astype(np.float64)
    adjacency = sp.csr_array(graph.adjacency().astype(np.float64))
    scale_entries(adjacency.indptr, adjacency.indices, adjacency.data, 1.0 / np.sqrt(np.maximum(degrees, 1.0)))
    components, member = connected_components(adjacency, directed=False)
    volume = np.bincount(member, weights=degrees, minlength=components)
    entry = np.sqrt(np.divide(degrees, volume[member], out=np.zeros_like(degrees), where=degrees > 0))
    nodes = np.flatnonzero(degrees > 0)
    modes = sp.csr_array((entry[nodes], (nodes, member[nodes])), shape=(graph.num_nodes, components))
    return adjacency, modes
