"""Relations of growing order (NodeFormer): the adjacency, its square, the square of that, as normalised patterns.

Orders 1, 2, 3 are A, A^2, A^4 with self-loops, as in the official code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from bench.graph import Graph
from bench.prepared import PrepareCache
from models.kernels.features import FeatureMatrix
from models.kernels.propagation import SparseOperator, scale_entries

_VERSION = 1  # of what is kept in the cache
_SAMPLE, _MOST_LOOKS = 1024, 50_000_000  # how closely the size of a relation is estimated


@dataclass(frozen=True, eq=False)
class GraphPart:
    """The features and the relations of the whole graph, or of some of its nodes."""

    features: FeatureMatrix
    relations: list[SparseOperator]

    def induced(self, nodes: np.ndarray) -> GraphPart:
        """These nodes (ascending) with the edges among them, normalised by the degrees that are left."""
        matrix = self.features.matrix
        rows = (
            matrix.matrix[nodes]
            if isinstance(matrix, SparseOperator)
            else matrix[torch.from_numpy(nodes).to(matrix.device)].cpu().numpy()
        )
        parts = [sp.csr_array(relation.matrix[nodes][:, nodes]) for relation in self.relations]
        operators = [_operator(part.indptr, part.indices, _normalized(part.indptr, part.indices)) for part in parts]
        return GraphPart(FeatureMatrix(rows), operators)

    def is_cut_by(self, size: int) -> bool:
        """Whether parts of this size are less than the whole; 0 means the whole."""
        return 0 < size < self.features.shape[0]

    def random_parts(self, nodes: Tensor, size: int) -> Iterator[LabelledPart]:
        """Cut at random into parts of `size` nodes, of which those without one of `nodes` are left out."""
        if not self.is_cut_by(size):
            yield LabelledPart(self, nodes, nodes)
            return
        is_labelled = torch.zeros(self.features.shape[0], dtype=torch.bool)
        is_labelled[nodes] = True
        for members in torch.randperm(len(is_labelled)).split(size):
            members = members.sort().values
            places = is_labelled[members].nonzero().squeeze(1)
            if len(places):
                yield LabelledPart(self.induced(members.numpy()), places, members[places])


class LabelledPart(NamedTuple):
    """What one update sees."""

    part: GraphPart
    places: Tensor  # of its labelled nodes, within the part
    labelled: Tensor  # which nodes of the graph these are


def relations(graph: Graph, orders: int, cache: PrepareCache) -> list[SparseOperator]:
    """D^-1/2 A_r D^-1/2 for r = 1 .. orders; each A_r but the first is the pattern of the square of the one before."""
    if orders == 0:
        return []
    pattern = _with_loops(graph)
    found = [_operator(*pattern, _normalized(*pattern))]
    for order in range(2, orders + 1):
        key = {"graph": graph.fingerprint, "order": order, "version": _VERSION}
        before = pattern
        # Two entries, so that a pattern is on disk and out of memory before its values are computed.
        kept = cache.get("relation", key, lambda before=before: _squared_arrays(before))  # type: ignore[misc]
        pattern = kept["indptr"], kept["indices"]
        values = cache.get("relation-values", key, lambda now=pattern: {"values": _normalized(*now)})  # type: ignore[misc]
        found.append(_operator(*pattern, values["values"]))
    return found


def _with_loops(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """The pattern of A + I."""
    matrix = sp.csr_array(graph.adjacency() + sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr"))
    return matrix.indptr, matrix.indices


def _normalized(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The values of D^-1/2 A D^-1/2 for a symmetric pattern of ones without empty rows."""
    values = np.ones(len(indices), dtype=np.float32)
    scale_entries(indptr, indices, values, (1.0 / np.sqrt(np.diff(indptr))).astype(np.float32))
    return values


def _operator(indptr: np.ndarray, indices: np.ndarray, values: np.ndarray) -> SparseOperator:
    size = len(indptr) - 1
    return SparseOperator(sp.csr_array((values, indices, indptr), shape=(size, size)), symmetric=True)


def _squared_arrays(pattern: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(zip(("indptr", "indices"), squared(*pattern), strict=True))


def squared(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pattern of the square of a square pattern, rows ascending."""
    lengths = np.zeros(len(indptr), dtype=np.int64)
    _square_lengths(indptr, indices, lengths[1:])
    starts = np.cumsum(lengths)
    starts = starts.astype(np.int32 if starts[-1] < 2**31 else np.int64)
    columns = np.empty(starts[-1], dtype=starts.dtype)
    _square_fill(indptr, indices, starts, columns)
    return starts, columns


def plain_squared(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the same by scipy, which needs memory for the values as well."""
    size = len(indptr) - 1
    ones = sp.csr_array((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(size, size))
    square = sp.csr_array(ones @ ones)
    square.sort_indices()
    return square.indptr, square.indices


@numba.njit(cache=True, nogil=True)
def _square_lengths(indptr: np.ndarray, indices: np.ndarray, lengths: np.ndarray) -> None:
    seen_by = np.full(len(lengths), -1, dtype=np.int32)
    for row in range(len(lengths)):
        for entry in range(indptr[row], indptr[row + 1]):
            middle = indices[entry]
            for place in range(indptr[middle], indptr[middle + 1]):
                if seen_by[indices[place]] != row:
                    seen_by[indices[place]] = row
                    lengths[row] += 1


@numba.njit(cache=True, nogil=True)
def _square_fill(indptr: np.ndarray, indices: np.ndarray, starts: np.ndarray, columns: np.ndarray) -> None:
    seen_by = np.full(len(starts) - 1, -1, dtype=np.int32)
    for row in range(len(starts) - 1):
        at = starts[row]
        for entry in range(indptr[row], indptr[row + 1]):
            middle = indices[entry]
            for place in range(indptr[middle], indptr[middle + 1]):
                if seen_by[indices[place]] != row:
                    seen_by[indices[place]] = row
                    columns[at] = indices[place]
                    at += 1
        columns[starts[row] : at].sort()


def relation_bytes(graph: Graph, orders: int) -> tuple[int, float]:
    """Bytes of the first relation, which stays in memory, and of what is there while the largest is built."""
    if orders == 0:
        return 0, 0.0
    largest = max((expected_entries(graph, order) for order in range(2, orders + 1)), default=0.0)
    return 8 * (graph.num_nodes + graph.num_entries), 4 * (largest + graph.num_entries)


def expected_entries(graph: Graph, order: int) -> float:
    """About how many entries A_order has: nodes within 2^(order - 1) steps, counted exactly for some of the nodes."""
    starts = np.random.default_rng(0).permutation(graph.num_nodes)[:_SAMPLE]
    return graph.num_nodes * _mean_reach(graph.indptr, graph.indices, starts, 2 ** (order - 1), _MOST_LOOKS)


@numba.njit(cache=True, nogil=True)
def _mean_reach(indptr: np.ndarray, indices: np.ndarray, starts: np.ndarray, steps: int, most_looks: int) -> float:
    """The mean number of nodes within so many steps of a start, over as many starts as the looks at entries allow."""
    seen_by, queue = np.full(len(indptr) - 1, -1, dtype=np.int32), np.empty(len(indptr) - 1, dtype=np.int32)
    total, looks, done = 0, 0, 0
    for number in range(len(starts)):
        queue[0] = starts[number]
        seen_by[queue[0]] = number
        first, last = 0, 1
        for _ in range(steps):
            end = last
            for at in range(first, end):
                node = queue[at]
                looks += indptr[node + 1] - indptr[node]
                for entry in range(indptr[node], indptr[node + 1]):
                    if seen_by[indices[entry]] != number:
                        seen_by[indices[entry]] = number
                        queue[last] = indices[entry]
                        last += 1
            first = end
        total += last
        done += 1
        if looks > most_looks:
            break
    return total / done
