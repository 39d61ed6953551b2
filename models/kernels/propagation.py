"""Sparse propagation that several papers share: the normalised adjacency, and products with it that autograd knows."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from bench.graph import Graph
from bench.prepared import as_tensor


def normalized_adjacency(graph: Graph) -> sp.csr_array:
    """D^-1/2 (A + I) D^-1/2; a self-loop that the graph already has gets weight 2, as "+ I" says."""
    matrix = sp.csr_array(graph.adjacency() + sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr"))
    scale = (1.0 / np.sqrt(matrix.sum(axis=1, dtype=np.float64))).astype(np.float32)
    scale_entries(matrix.indptr, matrix.indices, matrix.data, scale)
    return matrix


def sparse_dense(matrix: sp.csr_array, dense: np.ndarray) -> np.ndarray:
    """matrix @ dense for float32, rows in parallel; every row is summed in the same order whatever the threads."""
    out = np.empty((matrix.shape[0], dense.shape[1]), dtype=np.float32)
    _product(matrix.indptr, matrix.indices, matrix.data, dense, out)
    return out


class SparseOperator:
    """A constant sparse matrix whose product with a dense tensor is differentiable in the dense one.

    On the processor the product is a numba kernel (several times faster than torch's CSR product);
    elsewhere it is torch's own.
    """

    def __init__(self, matrix: sp.csr_array, symmetric: bool = False) -> None:
        self.matrix = matrix
        self.symmetric = symmetric
        self._order: np.ndarray | None = None  # where the transpose's entries stand in `matrix`
        self._transposed: sp.csr_array | None = matrix if symmetric else None
        self._elsewhere: dict[tuple[torch.device, bool], Tensor] = {}

    @property
    def transposed(self) -> sp.csr_array:
        if self._transposed is None:
            places = sp.csr_array(
                (np.arange(self.matrix.nnz, dtype=np.int64), self.matrix.indices, self.matrix.indptr),
                shape=self.matrix.shape,
            ).T.tocsr()
            self._order = places.data
            self._transposed = sp.csr_array(
                (self.matrix.data[self._order], places.indices, places.indptr), shape=places.shape
            )
        return self._transposed

    def with_values(self, values: np.ndarray) -> SparseOperator:
        """The same pattern with other values (float32, in the matrix's own order)."""
        other = SparseOperator(_with_data(self.matrix, values))
        transposed = self.transposed
        if self.symmetric:
            raise ValueError("new values would break the symmetry that this operator relies on")
        other._order = self._order
        other._transposed = _with_data(transposed, values[self._order])
        return other

    def dropped(self, rate: float) -> SparseOperator:
        """With each stored entry dropped at this rate and the rest scaled up: dropout on sparse features."""
        if rate == 0.0:
            return self
        keep = (torch.rand(self.matrix.nnz) >= rate).numpy()
        return self.with_values(self.matrix.data * (keep / np.float32(1.0 - rate)))

    def product(self, dense: Tensor, transpose: bool = False) -> Tensor:
        """This matrix (or its transpose) times a dense tensor, outside autograd."""
        matrix = self.transposed if transpose else self.matrix
        if dense.device.type == "cpu":
            return torch.from_numpy(sparse_dense(matrix, dense.detach().contiguous().numpy()))
        place = (dense.device, transpose)
        if place not in self._elsewhere:
            indptr, indices, values = (as_tensor(part) for part in (matrix.indptr, matrix.indices, matrix.data))
            self._elsewhere[place] = torch.sparse_csr_tensor(
                indptr, indices, values, size=matrix.shape, device=dense.device
            )
        return self._elsewhere[place] @ dense

    def __matmul__(self, dense: Tensor) -> Tensor:
        result: Tensor = _Product.apply(dense, self)
        return result


class ScaledAdjacency:
    """D^-left (A + own) D^-right, whose products store no matrix; for dense tensors in main memory.

    `own` nodes (None: no node) are neighbours of themselves, and D counts that; without any neighbour it is 1.
    """

    def __init__(self, graph: Graph, own: np.ndarray | None, left: float, right: float) -> None:
        own = np.zeros(graph.num_nodes, dtype=np.bool_) if own is None else own
        degrees = np.maximum(graph.degrees + own, 1)
        self.graph, self.own = graph, own
        self.left, self.right = ((degrees**-power).astype(np.float32) if power else None for power in (left, right))

    def product(self, dense: Tensor, transpose: bool = False) -> Tensor:
        """This matrix (or its transpose) times a dense tensor, outside autograd."""
        scales = (self.right, self.left) if transpose else (self.left, self.right)
        return self._rows(np.arange(self.graph.num_nodes), dense, *scales)

    def rows(self, nodes: Tensor, dense: Tensor) -> Tensor:
        """The product's rows of these nodes; no other rows of `dense` are read than those of their neighbours."""
        return self._rows(nodes.numpy(), dense, self.left, self.right)

    def with_neighbours(self, nodes: Tensor) -> Tensor:
        """These nodes and all their neighbours, ascending."""
        reached = torch.zeros((self.graph.num_nodes, 1))
        reached[nodes] = 1.0
        return (reached + self.product(reached)).squeeze(1).nonzero().squeeze(1)

    def _rows(self, nodes: np.ndarray, dense: Tensor, left: np.ndarray | None, right: np.ndarray | None) -> Tensor:
        out = torch.empty((len(nodes), dense.shape[1]))
        source = dense.detach().contiguous() if right is None else dense.detach() * torch.from_numpy(right)[:, None]
        _row_sums(self.graph.indptr, self.graph.indices, self.own, nodes, source.numpy(), out.numpy())
        return out if left is None else out.mul_(torch.from_numpy(left[nodes])[:, None])


def plain_scaled_adjacency(graph: Graph, own: np.ndarray, left: float, right: float) -> sp.csr_array:
    """Compute the same as a stored matrix."""
    matrix = graph.adjacency() + sp.diags_array(own.astype(np.float32))
    degrees = np.maximum(matrix.sum(axis=1, dtype=np.float64), 1.0)
    return sp.csr_array(sp.diags_array(degrees**-left) @ matrix @ sp.diags_array(degrees**-right))


def nodes_without_loop(graph: Graph) -> np.ndarray:
    """A mask of the nodes that have no self-loop."""
    mask = np.ones(graph.num_nodes, dtype=np.bool_)
    _exclude_loops(graph.indptr, graph.indices, mask)
    return mask


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, operator: SparseOperator) -> Tensor:
        ctx.operator = operator
        return operator.product(dense)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.operator.product(gradient, transpose=True), None


def _with_data(matrix: sp.csr_array, data: np.ndarray) -> sp.csr_array:
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


# -- kernels ----------------------------------------------------------------------------------------------------------


@numba.njit(cache=True, parallel=True, nogil=True)
def scale_entries(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, scale: np.ndarray) -> None:
    """Multiply every entry (i, j) by scale[i] * scale[j], in place."""
    for row in numba.prange(len(indptr) - 1):
        for entry in range(indptr[row], indptr[row + 1]):
            data[entry] *= scale[row] * scale[indices[entry]]


@numba.njit(cache=True, nogil=True, fastmath={"contract"}, inline="never")
def add_row(columns: np.ndarray, weights: np.ndarray, dense: np.ndarray, out: np.ndarray) -> None:
    """out += sum over entries of weight * dense[column]; a separate function, so that the loops vectorise.

    Four entries at a time: `out` is then read and written a quarter as often, which is what the time goes into.
    """
    whole = len(columns) - len(columns) % 4
    for at in range(0, whole, 4):
        w0, w1, w2, w3 = weights[at], weights[at + 1], weights[at + 2], weights[at + 3]
        d0, d1 = dense[columns[at]], dense[columns[at + 1]]
        d2, d3 = dense[columns[at + 2]], dense[columns[at + 3]]
        for column in range(out.shape[0]):
            out[column] += (w0 * d0[column] + w1 * d1[column]) + (w2 * d2[column] + w3 * d3[column])
    for at in range(whole, len(columns)):
        weight, source = weights[at], dense[columns[at]]
        for column in range(out.shape[0]):
            out[column] += weight * source[column]


@numba.njit(cache=True, parallel=True, nogil=True)
def _product(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, dense: np.ndarray, out: np.ndarray) -> None:
    for row in numba.prange(len(indptr) - 1):
        first, last = indptr[row], indptr[row + 1]
        out[row] = 0.0
        add_row(indices[first:last], data[first:last], dense, out[row])


@numba.njit(cache=True, nogil=True, inline="never")
def _row_sum(columns: np.ndarray, dense: np.ndarray, out: np.ndarray) -> None:
    """out = sum of these rows, four at a time as in `add_row`."""
    out[:] = 0.0
    whole = len(columns) - len(columns) % 4
    for at in range(0, whole, 4):
        d0, d1 = dense[columns[at]], dense[columns[at + 1]]
        d2, d3 = dense[columns[at + 2]], dense[columns[at + 3]]
        for column in range(out.shape[0]):
            out[column] += (d0[column] + d1[column]) + (d2[column] + d3[column])
    for at in range(whole, len(columns)):
        source = dense[columns[at]]
        for column in range(out.shape[0]):
            out[column] += source[column]


@numba.njit(cache=True, parallel=True, nogil=True)
def _row_sums(
    indptr: np.ndarray, indices: np.ndarray, own: np.ndarray, nodes: np.ndarray, dense: np.ndarray, out: np.ndarray
) -> None:
    for at in numba.prange(len(nodes)):
        node = nodes[at]
        _row_sum(indices[indptr[node] : indptr[node + 1]], dense, out[at])
        if own[node]:
            out[at] += dense[node]


@numba.njit(cache=True, nogil=True)
def _exclude_loops(indptr: np.ndarray, indices: np.ndarray, mask: np.ndarray) -> None:
    for row in range(len(mask)):
        for entry in range(indptr[row], indptr[row + 1]):
            mask[row] &= indices[entry] != row
