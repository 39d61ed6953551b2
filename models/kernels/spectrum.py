"""The low end of a graph's spectrum, trivial eigenvector included: what SAN and GraphGPS learn their encodings from.

Rule for the zero modes. A connected graph has one, and it is trivial. A graph of several components has one for each,
any rotation of them is as good, and as many as the encoding has columns would say nothing but "same component". So all
of them together count as one: the first column is the trivial vector of the whole graph (D^1/2 where the Laplacian is
normalised, otherwise constant), which is in the null space too, does not depend on a solver and is that of a connected
graph where there is one component; what follows are eigenvectors of positive eigenvalues only. An isolated node has
eigenvalue 1 in the normalised Laplacian and is a zero mode, hence left out, in the other.

Both solvers are Lanczos from one vector: of a positive eigenvalue that a symmetric graph has several times, it may find
fewer vectors than there are, and goes on to the next eigenvalue.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from bench.data.graph import Graph
from bench.prepared import PrepareCache
from models.kernels.positional import laplacian_eigenvectors, random_signs

_VERSION = 1
_TOLERANCE = 1e-7  # of Lanczos, relative to each eigenvalue
_SOLVED = 1e-9  # of the linear systems inside it, relative to their right-hand sides
_NOT_ONE = 1e-3  # an eigenvalue this far from 1 is not that of isolated nodes: their entries are zero, and not rounding
_MOST_STEPS = 20_000  # conjugate gradients per system; hundreds are usual


def lowest_eigenpairs(graph: Graph, count: int, normalized: bool, cache: PrepareCache) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, ascending, and eigenvectors, N x count, both float32, of I - D^-1/2 A D^-1/2 or of D - A.

    The first is the trivial one (see the top of this file), the others have the smallest positive eigenvalues. Columns
    have length 1 and a positive largest entry. Where a graph has fewer than asked for, it gives those that it has. The
    Laplacian without normalisation ignores self-loops, the normalised one counts them in the degrees.
    """
    trivial = _trivial(graph, normalized)[:, :count]
    wanted = count - trivial.shape[1]
    if normalized:
        vectors = laplacian_eigenvectors(graph, wanted, cache)
        values = _quotients(graph, vectors)
        vectors = np.where((graph.degrees == 0)[:, None] & (np.abs(values - 1.0) > _NOT_ONE), 0.0, vectors)
    else:
        key = {"graph": graph.fingerprint, "count": wanted, "tolerance": _TOLERANCE, "version": _VERSION}
        found = cache.get("plain-laplacian", key, lambda: _solve_plain(graph, wanted))
        values, vectors = found["values"], found["vectors"]
    values = np.concatenate([np.zeros(trivial.shape[1]), values]).astype(np.float32)
    return values, np.concatenate([trivial, vectors], axis=1, dtype=np.float32)


def frequency_pairs(graph: Graph, count: int, normalized: bool, cache: PrepareCache) -> Tensor:
    """The same as pairs (entry, eigenvalue), N x count x 2."""
    values, vectors = lowest_eigenpairs(graph, count, normalized, cache)
    return torch.from_numpy(np.stack([vectors, np.broadcast_to(values, vectors.shape)], axis=2))


def flip_signs(pairs: Tensor, drawn: float = 1.0) -> Tensor:
    """The pairs with the sign of each eigenvector drawn at random, since it says nothing.

    A one that is drawn stands for the sign `drawn`: records of SAN rest on 1, those of GraphGPS on -1.
    """
    signs = torch.ones(pairs.shape[1:], device=pairs.device)
    signs[:, 0] = drawn * random_signs(pairs.shape[1], pairs.device)
    return pairs * signs


def _trivial(graph: Graph, normalized: bool) -> np.ndarray:
    """The one zero mode that stands for all, N x 1; N x 0 where there is none, as in a graph without any edge."""
    entries = np.sqrt(graph.degrees.astype(np.float64)) if normalized else np.ones(graph.num_nodes)
    length = np.linalg.norm(entries)
    return (entries / length)[:, None] if length > 0 else np.zeros((graph.num_nodes, 0))


def _quotients(graph: Graph, vectors: np.ndarray) -> np.ndarray:
    """The eigenvalue of each eigenvector of the normalised Laplacian, as its Rayleigh quotient."""
    columns = vectors.astype(np.float64)
    scaled = columns / np.sqrt(np.maximum(graph.degrees, 1.0))[:, None]
    energy = (columns**2).sum(axis=0) - (scaled * (graph.adjacency().astype(np.float64) @ scaled)).sum(axis=0)
    return np.maximum(energy / (columns**2).sum(axis=0), 0.0)


# -- D - A ------------------------------------------------------------------------------------------------------------


def _solve_plain(graph: Graph, count: int) -> dict[str, np.ndarray]:
    """The `count` smallest positive eigenvalues of D - A and their vectors; isolated nodes have no part in them."""
    _, member = connected_components(graph.adjacency(), directed=False)
    linked = np.flatnonzero(np.bincount(member)[member] > 1)
    adjacency = sp.csr_array(graph.adjacency().astype(np.float64)[linked][:, linked])
    laplacian = sp.csr_array(sp.diags_array(adjacency.sum(axis=1)) - adjacency)
    modes = _component_modes(member[linked])
    count = min(count, len(linked) - modes.shape[1])
    vectors = np.zeros((graph.num_nodes, count))
    if count == 0:
        return {"values": np.zeros(0), "vectors": vectors.astype(np.float32)}
    if len(linked) <= 3 * count + 20:  # too small for Lanczos: the dense solver is exact and instant
        above_all = 2.0 * laplacian.diagonal().max() + 1.0
        chosen = np.linalg.eigh(laplacian.toarray() + above_all * (modes @ modes.T).toarray())[1][:, :count]
    else:
        chosen = _lanczos(laplacian, modes, count)
    values = (chosen * (laplacian @ chosen)).sum(axis=0)
    largest = np.abs(chosen).argmax(axis=0)
    vectors[linked] = chosen * np.sign(chosen[largest, np.arange(count)])
    return {"values": values, "vectors": vectors.astype(np.float32)}


def _component_modes(member: np.ndarray) -> sp.csr_array:
    """The zero modes of D - A: one sparse column per component, constant on its nodes, of length 1."""
    _, column, sizes = np.unique(member, return_inverse=True, return_counts=True)
    entries = 1.0 / np.sqrt(sizes[column])
    return sp.csr_array((entries, (np.arange(len(member)), column)), shape=(len(member), len(sizes)))


def _lanczos(laplacian: sp.csr_array, modes: sp.csr_array, count: int) -> np.ndarray:
    """Eigenvectors of the smallest positive eigenvalues, ascending: the largest of the pseudo-inverse.

    The low end of D - A is crowded beside its largest eigenvalue, which exceeds the largest degree: Lanczos on the
    matrix itself would not get there. Its inverse spreads that end out, at the price of a linear system per step. The
    identity is added so that no vector is mapped to zero: the zero modes have eigenvalue 1, all others more.
    """
    size, across = laplacian.shape[0], sp.csr_array(modes.T)

    def without_modes(x: np.ndarray) -> np.ndarray:
        return x - modes @ (across @ x)

    def apply(x: np.ndarray) -> np.ndarray:
        x = x.ravel()
        return x + without_modes(_conjugate_gradients(laplacian, without_modes(x)))

    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    # Newer releases of scipy draw a fresh vector when the Krylov space is exhausted, from a generator of their own.
    seeded: dict[str, Any] = {"rng": np.random.default_rng(0)} if "rng" in signature(eigsh).parameters else {}
    subspace = min(size, 2 * count + 20)
    values, vectors = eigsh(operator, k=count, which="LA", v0=start, tol=_TOLERANCE, ncv=subspace, **seeded)
    return vectors[:, np.argsort(-values, kind="stable")]


def _conjugate_gradients(matrix: sp.csr_array, right: np.ndarray) -> np.ndarray:
    """A solution of matrix x = right, up to zero modes, preconditioned by the diagonal: the degrees."""
    inverse = 1.0 / matrix.diagonal()
    x, residual = np.zeros_like(right), right.copy()
    scaled = inverse * residual
    direction, size = scaled.copy(), residual @ scaled
    enough = _SOLVED**2 * size
    for _ in range(_MOST_STEPS):
        if size <= enough:
            return x
        image = matrix @ direction
        step = size / (direction @ image)
        x += step * direction
        residual -= step * image
        scaled = inverse * residual
        before, size = size, residual @ scaled
        direction = scaled + (size / before) * direction
    raise RuntimeError(f"a linear system of the Laplacian is not solved after {_MOST_STEPS} steps")
