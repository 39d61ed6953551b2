"""Positional encodings that several papers share."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from bench.graph import Graph
from bench.prepared import PrepareCache
from models.kernels.propagation import scale_entries, sparse_dense

_VERSION = 4
_TOLERANCE = 1e-5
# From here on a solver for large graphs takes over: one walk along the edges serves a whole block of vectors.
_LARGE = 100_000  # nodes
_BLOCK = 8  # columns, or as many as are asked for: an eigenvalue that occurs that often is found as often
_WIDEST = 200  # vectors in the basis, before it starts anew from the best third
_LARGE_TOLERANCE = 1e-4  # length of the residual; float32 gives no more than a tenth of it
_STEPS = 200
_NOTHING = 1e-5  # a direction that is no longer than this is rounding


def laplacian_key(count: int) -> dict[str, Any]:
    """What the encoding depends on beside the graph; what is cached and built on it needs this in its key."""
    return {"count": count, "tolerance": _TOLERANCE, "version": _VERSION}


def laplacian_eigenvectors(graph: Graph, count: int, cache: PrepareCache) -> np.ndarray:
    """The eigenvectors of the `count` smallest positive eigenvalues of I - D^-1/2 A D^-1/2, N x count, float32.

    Rule for the zero modes: every component with an edge has exactly one (D^1/2 on its nodes), all of them are
    known without a solver, and all are left out, however small the component; an isolated node has eigenvalue 1
    and no part in the others. Symmetric Lanczos from a fixed start, on graphs of 100,000 nodes and more from a block of
    them and in float32; the largest entry of each column is positive. Where a graph has fewer such eigenvectors than
    asked for, it gets those that it has.
    """
    if count == 0:  # switched off: nothing to look up or to keep
        return np.zeros((graph.num_nodes, 0), dtype=np.float32)
    key = {"graph": graph.fingerprint, **laplacian_key(count)}
    return cache.get("laplacian", key, lambda: {"vectors": _solve(graph, count)})["vectors"]


def random_signs(count: int, device: torch.device) -> Tensor:
    """Plus or minus one, `count` times; drawn where torch's global generator is, the same on every device."""
    return (2.0 * torch.randint(2, (count,)) - 1.0).to(device)


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
        values, vectors = _block_lanczos(adjacency, modes, count)
    return with_positive_peaks(vectors[:, np.argsort(-values, kind="stable")[:count]]).astype(np.float32)


def with_positive_peaks(vectors: np.ndarray) -> np.ndarray:
    """Give each column the sign that makes its largest entry positive."""
    return vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])])


def _lanczos(adjacency: sp.csr_array, modes: sp.csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The top of the spectrum below the zero modes.

    The eigenvalues of D^-1/2 A D^-1/2 lie in [-1, 1]. They are shifted to [1, 3], so that no vector is mapped to zero,
    and the known modes are moved from 3 to -1, away from everything else.
    """
    across = sp.csr_array(modes.T)
    return largest_eigenpairs(
        lambda x: 2.0 * x + adjacency @ x - 4.0 * (modes @ (across @ x)), adjacency.shape[0], count, _TOLERANCE
    )


def largest_eigenpairs(
    apply: Callable[[np.ndarray], np.ndarray], size: int, count: int, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues of a symmetric operator and their vectors, by Lanczos from a fixed start."""
    start = np.random.default_rng(0).standard_normal(size)
    # Newer releases of scipy draw a fresh vector when the Krylov space is exhausted, from their own generator.
    seeded: dict[str, Any] = {"rng": np.random.default_rng(0)} if "rng" in signature(eigsh).parameters else {}
    operator = LinearOperator((size, size), matvec=lambda x: apply(x.ravel()), dtype=np.float64)
    return eigsh(operator, k=count, which="LA", v0=start, tol=tolerance, ncv=min(size, 2 * count + 20), **seeded)


def _block_lanczos(adjacency: sp.csr_array, modes: sp.csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The top of the spectrum below the zero modes, for graphs whose edges are too many to walk one vector at a time.

    Block Lanczos with full orthogonalisation and thick restarts. After `_STEPS` the vectors are taken as they are:
    mixtures of eigenvectors whose eigenvalues lie closer than the steps could tell apart.
    """
    size, across, widest = adjacency.shape[0], sp.csr_array(modes.T), max(_WIDEST, 4 * count)

    def clean(block: np.ndarray) -> np.ndarray:
        return block - modes @ (across @ block)

    start = np.random.default_rng(0).standard_normal((size, max(_BLOCK, count)), dtype=np.float32)
    basis, seen = np.empty((widest + start.shape[1], size), dtype=np.float32), np.zeros((0, 0))
    block, _, _ = _orthogonalise(clean(start), basis[:0])
    for _ in range(_STEPS):
        width = len(seen) + block.shape[1]
        basis[len(seen) : width] = block.T
        following, overlap, rest = _orthogonalise(clean(sparse_dense(adjacency, block)), basis[:width])
        seen = _bordered(seen, overlap)
        values, turn = np.linalg.eigh(seen)
        values, turn = values[::-1], turn[:, ::-1].astype(np.float32)
        if np.linalg.norm(rest @ turn[-block.shape[1] :, :count], axis=0).max() <= _LARGE_TOLERANCE:
            break
        if width >= widest:
            best = turn[:, : widest // 3]
            basis[: best.shape[1]], seen = best.T @ basis[:width], np.diag(values[: best.shape[1]])
        block = following
    return values[:count], basis[:width].T @ turn[:, :count]


def _orthogonalise(block: np.ndarray, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q, C and R with block = basisᵀ C + Q R: Q is orthonormal, orthogonal to the basis, and spans what is left."""
    overlap, rest = np.zeros((len(basis), block.shape[1])), np.eye(block.shape[1])
    for _ in range(2):  # once more against the rounding of the first time
        share = basis @ block
        block = block - basis.T @ share
        overlap += share @ rest
        exact = block.astype(np.float64)
        squares, turn = np.linalg.eigh(exact.T @ exact)
        there = squares > _NOTHING**2
        lengths, turn = np.sqrt(squares[there]), turn[:, there]
        block, rest = block @ (turn / lengths).astype(np.float32), (turn * lengths).T @ rest
    return block, overlap, rest


def _bordered(seen: np.ndarray, overlap: np.ndarray) -> np.ndarray:
    """The operator in the basis, one block wider."""
    old = len(seen)
    wider = np.zeros((len(overlap), len(overlap)))
    wider[:old, :old], wider[:, old:], wider[old:, :old] = seen, overlap, overlap[:old].T
    wider[old:, old:] = (overlap[old:] + overlap[old:].T) / 2.0
    return wider


def _normalized_with_zero_modes(graph: Graph, precision: type) -> tuple[sp.csr_array, sp.csr_array]:
    """D^-1/2 A D^-1/2, and its eigenvectors of eigenvalue 1: one sparse column per component with edges."""
    degrees = graph.degrees.astype(np.float64)
    adjacency = sp.csr_array(graph.adjacency().astype(precision))
    scale: np.ndarray = (1.0 / np.sqrt(np.maximum(degrees, 1.0))).astype(precision)
    scale_entries(adjacency.indptr, adjacency.indices, adjacency.data, scale)
    modes = component_modes(connected_components(adjacency, directed=False)[1], degrees)
    return adjacency, modes.astype(precision)


def component_modes(member: np.ndarray, weights: np.ndarray) -> sp.csr_array:
    """One sparse column of length 1 per component with any weight: the square roots of the weights on its nodes."""
    volume = np.bincount(member, weights=weights)
    column = np.cumsum(volume > 0) - 1
    nodes = np.flatnonzero(weights > 0)
    entries = np.sqrt(weights[nodes] / volume[member[nodes]])
    return sp.csr_array((entries, (nodes, column[member[nodes]])), shape=(len(member), int((volume > 0).sum())))
