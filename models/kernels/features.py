"""The features as a first layer sees them, scaled as asked and stored as they multiply best: whole, or chosen rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from bench.graph import Graph
from bench.prepared import as_tensor
from models.kernels.dropout import dropped
from models.kernels.propagation import SparseOperator, sparse_dense

_SAMPLE = 1024  # rows by which an estimate judges whether features will be stored as a dense matrix
DENSE_FROM = 1 / 8  # share of entries from which the dense product is the faster one, eight times as fast per entry
_AT_A_TIME = 1024  # rows whose float64 copies are looked at together
_LEAST_VARIANCE = 1e-12  # relative to the squared mean: below it is rounding


class FeatureMatrix:
    """N x d features that multiply a d x h tensor; gradients go to that tensor, never to the features."""

    def __init__(self, features: np.ndarray | sp.csr_array) -> None:
        if sp.issparse(features) and features.nnz >= DENSE_FROM * np.prod(features.shape, dtype=float):
            features = features.toarray()
        self.shape: tuple[int, int] = features.shape
        self.matrix: SparseOperator | Tensor = (
            SparseOperator(features) if sp.issparse(features) else as_tensor(features)
        )

    @classmethod
    def of(cls, graph: Graph, row_normalize: bool = False) -> FeatureMatrix:
        """The graph's features; with `row_normalize`, each row sums to 1."""
        return cls(row_normalized(graph.features) if row_normalize else graph.features)

    @property
    def storage(self) -> str:
        """What it chose, for a model's `choices`."""
        return "dense" if isinstance(self.matrix, Tensor) else "sparse"

    def dropped(self, rate: float) -> FeatureMatrix:
        """With dropout on the stored entries; pass rate 0 outside training."""
        if rate == 0.0:
            return self
        other = object.__new__(FeatureMatrix)
        other.shape = self.shape
        if isinstance(self.matrix, SparseOperator):
            other.matrix = self.matrix.dropped(rate)
        else:
            other.matrix = dropped(self.matrix, rate)
        return other

    def to(self, device: torch.device) -> FeatureMatrix:
        """Where the model is; a sparse matrix goes there with its first product."""
        if isinstance(self.matrix, Tensor):
            self.matrix = self.matrix.to(device)
        return self

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.matrix @ dense


class FeatureRows:
    """Rows of the features on their way to the model, standardised where asked by the moments over all nodes.

    A feature that never varies keeps its scale. Where `centred` is False they are only scaled, and sparse rows stay
    sparse; with a mean to subtract they become dense, row by row.
    """

    def __init__(self, graph: Graph, standardize: bool = False, centred: bool = True) -> None:
        matrix = FeatureMatrix.of(graph).matrix
        self.stored = matrix.matrix if isinstance(matrix, SparseOperator) else matrix.numpy()
        self.mean, self.scale = None, None
        if standardize:
            mean, variance = column_moments(self.stored)
            varies = variance > _LEAST_VARIANCE * mean**2
            self.mean = mean.astype(np.float32) if centred else None
            self.scale = (1.0 / np.sqrt(np.where(varies, variance, 1.0))).astype(np.float32)

    def of(self, nodes: Tensor) -> FeatureMatrix:
        """Copy these nodes' rows."""
        rows: Any = self.stored[nodes.numpy()]
        if self.mean is not None:
            rows = rows if isinstance(rows, np.ndarray) else rows.toarray()
            rows -= self.mean
        if self.scale is not None and isinstance(rows, np.ndarray):
            rows *= self.scale
        elif self.scale is not None:
            rows.data *= self.scale[rows.indices]
        return FeatureMatrix(rows)

    @staticmethod
    def estimate_bytes(graph: Graph, centred: bool) -> tuple[float, float]:
        """Bytes of a dense copy of all features, where one is made, and of each row that is taken out."""
        features = graph.features
        if isinstance(features, np.ndarray):
            return 0.0, 4.0 * graph.num_features
        as_dense = isinstance(FeatureMatrix(features[:_SAMPLE]).matrix, Tensor)  # judged by the first rows
        copy = 4.0 * graph.num_nodes * graph.num_features if as_dense else 0.0
        return copy, 4.0 * graph.num_features if as_dense or centred else 24.0 * features.nnz / graph.num_nodes


def column_moments(features: np.ndarray | sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of each column in float64; sparse columns count their zeros."""
    count, width = features.shape
    if not isinstance(features, np.ndarray):
        entries = features.data.astype(np.float64)
        mean = np.bincount(features.indices, entries, width) / count
        centred = np.bincount(features.indices, (entries - mean[features.indices]) ** 2, width)
        zeros = count - np.bincount(features.indices, minlength=width)
        return mean, (centred + zeros * mean**2) / count
    chunks = [features[start : start + _AT_A_TIME] for start in range(0, count, _AT_A_TIME)]
    mean = sum(chunk.sum(axis=0, dtype=np.float64) for chunk in chunks) / count
    return mean, sum(((chunk - mean) ** 2).sum(axis=0) for chunk in chunks) / count


def mixed_rows(features: np.ndarray | sp.csr_array, columns: np.ndarray, weights: np.ndarray) -> Tensor:
    """For each row of `columns` the weighted sum of these nodes' features, in main memory."""
    if isinstance(features, np.ndarray):
        return torch.from_numpy(sparse_dense(_as_matrix(features, columns, weights), features))
    out = np.zeros((len(columns), features.shape[1]), dtype=np.float32)
    _mix_sparse(columns, weights, features.indptr, features.indices, features.data, out)
    return torch.from_numpy(out)


def plain_mixed_rows(features: np.ndarray | sp.csr_array, columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the same by scipy, which builds a sparse product before the dense one."""
    product = _as_matrix(features, columns, weights) @ features
    return product if isinstance(product, np.ndarray) else product.toarray()


def _as_matrix(features: np.ndarray | sp.csr_array, columns: np.ndarray, weights: np.ndarray) -> sp.csr_array:
    starts = np.arange(0, columns.size + 1, columns.shape[1])
    return sp.csr_array((weights.ravel(), columns.ravel(), starts), shape=(len(columns), features.shape[0]))


def fill_rows(count: int, places: Tensor, size: int, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a tensor of `count` rows in main memory, of which those at `places` are compute(places).

    They are computed `size` at a time (0: together); other rows are left as they are, and must not be read.
    """
    out = None
    for chunk in places.split(size or max(len(places), 1)):
        rows = compute(chunk)
        out = torch.empty((count, rows.shape[1])) if out is None else out
        out[chunk] = rows.cpu()
    assert out is not None
    return out


def row_normalized(features: np.ndarray | sp.csr_array) -> np.ndarray | sp.csr_array:
    """Each row divided by the sum of its absolute values; empty rows stay empty."""
    magnitudes: Any = abs(features)
    sums = np.asarray(magnitudes.sum(axis=1)).ravel()
    scale = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0).astype(np.float32)
    if sp.issparse(features):
        return sp.csr_array(
            (features.data * np.repeat(scale, np.diff(features.indptr)), features.indices, features.indptr),
            shape=features.shape,
        )
    return features * scale[:, None]


def copied_bytes(graph: Graph, row_normalize: bool) -> int:
    """Estimate the bytes of a FeatureMatrix beside what is mapped from a file: copies, a sparse matrix's transpose."""
    features = graph.features
    if isinstance(features, np.ndarray):
        return features.nbytes if row_normalize else 0
    if isinstance(FeatureMatrix(features[:_SAMPLE]).matrix, Tensor):
        return 4 * features.shape[0] * features.shape[1]
    return 32 * features.nnz


# -- kernels ----------------------------------------------------------------------------------------------------------


@numba.njit(cache=True, parallel=True, nogil=True)
def _mix_sparse(
    columns: np.ndarray,
    weights: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    out: np.ndarray,
) -> None:
    for row in numba.prange(len(columns)):
        for at in range(columns.shape[1]):
            weight, node = weights[row, at], columns[row, at]
            if weight != 0.0:
                for entry in range(indptr[node], indptr[node + 1]):
                    out[row, indices[entry]] += weight * data[entry]
