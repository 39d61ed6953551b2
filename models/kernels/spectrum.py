"""The low end of a graph's spectrum, trivial eigenvector included: what SAN and GraphGPS learn their encodings from.

Rule for the zero modes. A connected graph has one, and it is trivial. A graph of several components has one for each,
any rotation of them is as good, and as many as the encoding has columns would say nothing but "same component". So all
of them together count as one: the first column is the trivial vector of the whole graph (D^1/2 where the Laplacian is
normalised, otherwise constant), which is in the null space too, does not depend on a solver and is that of a connected
graph where there is one component; what follows are eigenvectors of positive eigenvalues only. An isolated node has
eigenvalue 1 in the normalised Laplacian and is a zero mode, hence left out, in the other.

Both Laplacians are solved by Lanczos from one vector; of a positive eigenvalue that a symmetric graph has several
times, it may find fewer vectors than there are, and goes on to the next eigenvalue.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import cg
from torch import Tensor

from bench.graph import Graph
from bench.prepared import PrepareCache
from models.kernels.positional import (
    component_modes,
    laplacian_eigenvectors,
    largest_eigenpairs,
    random_signs,
    with_positive_peaks,
)

_VERSION = 1
_TOLERANCE = 1e-7  # of Lanczos, relative to each eigenvalue
_SOLVED = 1e-9  # of the linear systems inside it, relative to their right-hand sides
_NOT_ONE = 1e-3  # an eigenvalue this far from 1 is not that of isolated nodes: their entries are zero, and not rounding
_MOST_STEPS = 20_000  # of conjugate gradients per system; hundreds are usual


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
    modes = component_modes(member[linked], np.ones(len(linked)))
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
    vectors[linked] = with_positive_peaks(chosen)
    return {"values": values, "vectors": vectors.astype(np.float32)}


def _lanczos(laplacian: sp.csr_array, modes: sp.csr_array, count: int) -> np.ndarray:
    """Eigenvectors of the smallest positive eigenvalues, ascending: the largest of the pseudo-inverse.

    The low end of D - A is crowded beside its largest eigenvalue, which exceeds the largest degree: Lanczos on the
    matrix itself would not get there. Its inverse spreads that end out, at the price of a linear system per step (on
    Pubmed's normalised Laplacian, which positional.py solves without it, seven times as long). The identity is added so
    that no vector is mapped to zero: the zero modes have eigenvalue 1, all others more.
    """
    across = sp.csr_array(modes.T)
    diagonal = sp.diags_array(1.0 / laplacian.diagonal())

    def without_modes(x: np.ndarray) -> np.ndarray:
        return x - modes @ (across @ x)

    def apply(x: np.ndarray) -> np.ndarray:
        solved, unfinished = cg(laplacian, without_modes(x), rtol=_SOLVED, maxiter=_MOST_STEPS, M=diagonal)
        if unfinished:
            raise RuntimeError(f"a linear system of the Laplacian is not solved after {_MOST_STEPS} steps")
        return x + without_modes(solved)

    values, vectors = largest_eigenpairs(apply, laplacian.shape[0], count, _TOLERANCE)
    return vectors[:, np.argsort(-values, kind="stable")]
