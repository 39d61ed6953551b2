"""Positional encodings that several papers share."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh

from bench.data.graph import Graph
from bench.prepared import PrepareCache
from models.propagation import scale_entries

_VERSION = 2
_TOLERANCE = 1e-5


def laplacian_key(count: int) -> dict[str, Any]:
    """What the encoding depends on beside the graph; whoever caches something built on it needs this in the key."""
    return {"count": count, "tolerance": _TOLERANCE, "version": _VERSION}


def laplacian_eigenvectors(graph: Graph, count: int, cache: PrepareCache) -> np.ndarray:
    """The eigenvectors of the `count` smallest positive eigenvalues of I - D^-1/2 A D^-1/2, N x count, float32.

    Rule for the zero modes: every component with an edge has exactly one (D^1/2 on its nodes), all of them are
    known without a solver, and all are left out, however small the component; an isolated node has eigenvalue 1
    and no part in the others. Symmetric Lanczos from a fixed start; the largest entry of each column is positive.
    Where a graph has fewer such eigenvectors than asked for, it gets those that it has.
    """
    if count == 0:  # switched off: nothing to look up or to keep
        return np.zeros((graph.num_nodes, 0), dtype=np.float32)
    key = {"graph": graph.fingerprint, **laplacian_key(count)}
    return cache.get("laplacian", key, lambda: {"vectors": _solve(graph, count)})["vectors"]


def _solve(graph: Graph, count: int) -> np.ndarray:
    adjacency, modes = _normalized_with_zero_modes(graph)
    size = graph.num_nodes
    count = min(count, size - modes.shape[1])
    if count == 0:
        return np.zeros((size, 0), dtype=np.float32)
    if size <= 3 * count + 20:  # too small for Lanczos: the dense solver is exact and instant
        values, vectors = np.linalg.eigh(adjacency.toarray() - 3.0 * (modes @ modes.T).toarray())
    else:
        values, vectors = _lanczos(adjacency, modes, count)
    chosen = vectors[:, np.argsort(-values, kind="stable")[:count]]
    largest = np.abs(chosen).argmax(axis=0)
    signs = np.sign(chosen[largest, np.arange(count)])
    return (chosen * signs).astype(np.float32)


def _lanczos(adjacency: sp.csr_array, modes: sp.csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The top of the spectrum below the zero modes.

    The eigenvalues of D^-1/2 A D^-1/2 lie in [-1, 1]. They are shifted to [1, 3], so that no vector is mapped to zero,
    and the known modes are moved from 3 to -1, away from everything else.
    """
    size, across = adjacency.shape[0], sp.csr_array(modes.T)
    operator = LinearOperator(
        (size, size), matvec=lambda x: 2.0 * x + adjacency @ x - 4.0 * (modes @ (across @ x)), dtype=np.float64
    )
    start = np.random.default_rng(0).standard_normal(size)
    # Newer releases of scipy draw a fresh vector when the Krylov space is exhausted, from a generator of their own.
    seeded: dict[str, Any] = {"rng": np.random.default_rng(0)} if "rng" in signature(eigsh).parameters else {}
    subspace = min(size, 2 * count + 20)
    return eigsh(operator, k=count, which="LA", v0=start, tol=_TOLERANCE, ncv=subspace, **seeded)


def _normalized_with_zero_modes(graph: Graph) -> tuple[sp.csr_array, sp.csr_array]:
    """D^-1/2 A D^-1/2 in float64, and its eigenvectors of eigenvalue 1: one sparse column per component with edges."""
    degrees = graph.degrees.astype(np.float64)
    adjacency = sp.csr_array(graph.adjacency().astype(np.float64))
    scale_entries(adjacency.indptr, adjacency.indices, adjacency.data, 1.0 / np.sqrt(np.maximum(degrees, 1.0)))
    components, member = connected_components(adjacency, directed=False)
    volume = np.bincount(member, weights=degrees, minlength=components)
    column = np.cumsum(volume > 0) - 1  # components without an edge have no zero mode
    nodes = np.flatnonzero(degrees > 0)
    entries = np.sqrt(degrees[nodes] / volume[member[nodes]])
    shape = (graph.num_nodes, int((volume > 0).sum()))
    return adjacency, sp.csr_array((entries, (nodes, column[member[nodes]])), shape=shape)
