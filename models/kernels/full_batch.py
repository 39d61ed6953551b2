"""What full-batch models share: their prepared inputs, the parts of their layers, and their need of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import scipy.sparse as sp
from torch import Tensor, nn

from bench.graph import Graph
from models.kernels.features import DENSE_FROM, FeatureMatrix
from models.kernels.propagation import SparseOperator, normalized_adjacency

Norm = Literal["none", "layer", "batch"]
_FLOOR = 60_000_000  # bytes: threads, allocator, compiled code


@dataclass(frozen=True)
class FeaturesAndAdjacency:
    """The feature matrix and D^-1/2 (A + I) D^-1/2, ready for products."""

    features: FeatureMatrix
    adjacency: SparseOperator

    @classmethod
    def of(cls, graph: Graph, row_normalize: bool) -> FeaturesAndAdjacency:
        """With `row_normalize`, each row of the features sums to 1."""
        adjacency = SparseOperator(normalized_adjacency(graph), symmetric=True)
        return cls(FeatureMatrix.of(graph, row_normalize), adjacency)


def times(hidden: FeatureMatrix | Tensor, weight: Tensor) -> Tensor:
    """Multiply hidden units, or the features, by the transpose of a layer's weight."""
    return hidden @ weight.T.contiguous()


def linear(hidden: FeatureMatrix | Tensor, layer: Any) -> Tensor:
    """Apply an nn.Linear to hidden units or to the features."""
    product = times(hidden, layer.weight)
    return product if layer.bias is None else product + layer.bias


def glorot(layer: nn.Linear) -> nn.Linear:
    """Draw a layer's weight as Glorot and Bengio do, and set its bias to zero."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def make_norm(kind: Norm, width: int) -> nn.Module:
    """Make the norm of this kind; "none" leaves its input alone."""
    return {"none": nn.Identity, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}[kind](width)


def estimate_memory(graph: Graph, hidden: int, per_node: int) -> int:
    """Bytes at the peak of a training step, with `per_node` activations and gradients of each node."""
    nodes, width = graph.num_nodes, graph.num_features
    stored = graph.features.nnz if sp.issparse(graph.features) else nodes * width
    sparse = stored < DENSE_FROM * nodes * width
    features = 50 * stored if sparse else 8 * nodes * width  # as they are and with dropout; if sparse, transposed
    weights = 32 * hidden * (width + graph.num_classes)  # with gradients, moments and the best state
    return _FLOOR + features + 24 * (graph.num_entries + nodes) + 4 * nodes * per_node + weights
