"""Positional encodings that several papers share."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh

from bench.data.graph import Graph
from bench.prepared import PrepareCache
from models.propagation import scale_entries, sparse_dense

_VERSION = 3
_TOLERANCE = 1e-5
# From here on a solver for large graphs takes over: one walk along the edges serves a whole block of vectors.
_LARGE = 100_000  # nodes
_BLOCK = 64  # columns: wider than the close group of eigenvalues that communities make
_LARGE_TOLERANCE = 1e-4  # length of the residual; float32 gives no more than a tenth of it
_GROWTH = 1e4  # how far one filter may lift the largest eigenvalue: more would drown the rest in rounding
_ROUNDS = 12


def laplacian_key(count: int) -> dict[str, Any]:
    """What the encoding depends on beside the graph; whoever caches something built on it needs this in the key."""
    return {"count": count, "tolerance": _TOLERANCE, "version": _VERSION}


def laplacian_eigenvectors(graph: Graph, count: int, cache: PrepareCache) -> np.ndarray:
    """The eigenvectors of the `count` smallest positive eigenvalues of I - D^-1/2 A D^-1/2, N x count, float32.

    Rule for the zero modes: every component with an edge has exactly one (D^1/2 on its nodes), all of them are
    known without a solver, and all are left out, however small the component; an isolated node has eigenvalue 1
    and no part in the others. Symmetric Lanczos from a fixed start, on graphs of 100,000 nodes and more filtered
    subspace iteration in float32; the largest entry of each column is positive. Where a graph has fewer such
    eigenvectors than asked for, it gets those that it has.
    """
    if count == 0:  # switched off: nothing to look up or to keep
        return np.zeros((graph.num_nodes, 0), dtype=np.float32)
    key = {"graph": graph.fingerprint, **laplacian_key(count)}
    return cache.get("laplacian", key, lambda: {"vectors": _solve(graph, count)})["vectors"]


def _solve(graph: Graph, count: int) -> np.ndarray:
    size = graph.num_nodes
    adjacency, modes = _normalized_with_zero_modes(graph, np.float32 if size >= _LARGE else np.float64)
    count = min(count, size - modes.shape[1])
    if count == 0:
        return np.zeros((size, 0), dtype=np.float32)
    if size <= 3 * count + 20:  # too small for Lanczos: the dense solver is exact and instant
        values, vectors = np.linalg.eigh(adjacency.toarray() - 3.0 * (modes @ modes.T).toarray())
    elif size < _LARGE:
        values, vectors = _lanczos(adjacency, modes, count)
    else:
        values, vectors = _filtered_subspace(adjacency, modes, count)
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


def _filtered_subspace(adjacency: sp.csr_array, modes: sp.csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The top of the spectrum below the zero modes, for graphs whose edges are too many to walk one vector at a time.

    Chebyshev-filtered subspace iteration (Zhou, Saad, Tiago, Chelikowsky 2006): a polynomial that is at most 1 on the
    eigenvalues from -1 to the smallest one of the block lifts those above; then Rayleigh and Ritz sort the block out.
    Where more eigenvalues than the block is wide lie close together, the last round's vectors are taken as they are:
    mixtures of eigenvectors of nearly the same eigenvalue.
    """
    size, across = adjacency.shape[0], sp.csr_array(modes.T)

    def multiply(block: np.ndarray) -> np.ndarray:
        product = sparse_dense(adjacency, block)
        product -= modes @ (across @ product)
        return product

    start = np.random.default_rng(0).standard_normal((size, max(_BLOCK, 2 * count)), dtype=np.float32)
    values, vectors, images = _ritz(start - modes @ (across @ start), multiply)
    for _ in range(_ROUNDS):
        residuals = images[:, :count] - vectors[:, :count] * values[:count].astype(np.float32)
        if np.linalg.norm(residuals, axis=0).max() <= _LARGE_TOLERANCE:
            break
        values, vectors, images = _ritz(_filter(vectors, images, values, multiply), multiply)
    return values[:count], vectors[:, :count]


def _ritz(block: np.ndarray, multiply: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues of the operator as the block sees it, largest first, their vectors, and the vectors' images."""
    basis = np.linalg.qr(block)[0]
    images = multiply(basis)
    values, turn = np.linalg.eigh((basis.T @ images).astype(np.float64))
    turn = turn[:, ::-1].astype(np.float32)
    return values[::-1], basis @ turn, images @ turn


def _filter(
    vectors: np.ndarray, images: np.ndarray, values: np.ndarray, multiply: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """T_m of the operator, with [-1, smallest value of the block] mapped to [-1, 1], applied to the block."""
    centre, radius = (values[-1] - 1.0) / 2.0, np.float32((values[-1] + 1.0) / 2.0)
    shift = np.float32(centre)
    lift = np.arccosh(max((values[0] - centre) / float(radius), 1.0 + 1e-6))
    degree = int(np.clip(np.arccosh(_GROWTH) / lift, 2, 20))
    earlier, current = vectors, (images - shift * vectors) / radius
    for _ in range(degree - 1):
        following = multiply(current)
        following -= shift * current
        following *= 2.0 / radius
        following -= earlier
        earlier, current = current, following
    return current


def _normalized_with_zero_modes(graph: Graph, precision: type) -> tuple[sp.csr_array, sp.csr_array]:
    """D^-1/2 A D^-1/2, and its eigenvectors of eigenvalue 1: one sparse column per component with edges."""
    degrees = graph.degrees.astype(np.float64)
    adjacency = sp.csr_array(graph.adjacency().astype(precision))
    scale: np.ndarray = (1.0 / np.sqrt(np.maximum(degrees, 1.0))).astype(precision)
    scale_entries(adjacency.indptr, adjacency.indices, adjacency.data, scale)
    components, member = connected_components(adjacency, directed=False)
    volume = np.bincount(member, weights=degrees, minlength=components)
    column = np.cumsum(volume > 0) - 1  # components without an edge have no zero mode
    nodes = np.flatnonzero(degrees > 0)
    entries = np.sqrt(degrees[nodes] / volume[member[nodes]])
    shape = (graph.num_nodes, int((volume > 0).sum()))
    return adjacency, sp.csr_array((entries.astype(precision), (nodes, column[member[nodes]])), shape=shape)
