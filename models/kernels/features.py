"""The features as the first layer of a full-batch model sees them: scaled as asked, stored as they multiply best."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from bench.graph import Graph
from bench.prepared import as_tensor
from models.kernels.dropout import dropped
from models.kernels.propagation import SparseOperator

_SAMPLE = 1024  # rows by which an estimate judges whether features will be stored as a dense matrix
DENSE_FROM = 1 / 8  # share of entries from which the dense product is the faster one, eight times as fast per entry


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
        """Where the model is; a sparse matrix goes there by itself with its first product."""
        if isinstance(self.matrix, Tensor):
            self.matrix = self.matrix.to(device)
        return self

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.matrix @ dense


def row_normalized(features: np.ndarray | sp.csr_array) -> np.ndarray | sp.csr_array:
    """Each row divided by the sum of its absolute values; empty rows stay empty."""
    sums = np.asarray(abs(features).sum(axis=1)).ravel()
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
