"""What GT and SAN share around their attention along edges: inputs, rest of a layer, classifier, loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.graph import Graph
from models.kernels.dropout import relu_dropped
from models.kernels.edges import Edges
from models.kernels.features import FeatureMatrix, copied_bytes


@dataclass(frozen=True)
class EncodedNodes:
    """The features, what the positional encoding is made of, and the edges, ready for products."""

    features: FeatureMatrix
    encoding: Tensor
    edges: Edges

    @classmethod
    def of(cls, graph: Graph, config: Any, encoding: Tensor, kind: type[Edges]) -> EncodedNodes:
        edges = kind.of(graph, config.self_loops)
        edges.operators(encoding.device)  # now, so that it counts as preprocessing
        return cls(FeatureMatrix.of(graph, config.normalize_features), encoding, edges)


Norm = Literal["batch", "layer"]


class PostNormLayer(nn.Module):
    """What follows the attention: output projection and feed-forward block, each added to its input, then a norm."""

    def __init__(self, hidden: int, dropout: float, norm: Norm) -> None:
        super().__init__()
        kind = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[norm]
        self.output = nn.Linear(hidden, hidden)
        self.attention_norm, self.feed_forward_norm = kind(hidden), kind(hidden)
        self.widen, self.narrow = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)
        self.dropout = dropout

    def forward(self, nodes: Tensor, attended: Tensor) -> Tensor:
        """`attended` is what the heads found, side by side."""
        rate = self.dropout if self.training else 0.0
        nodes = self.attention_norm(nodes + self.output(functional.dropout(attended, rate, rate > 0.0)))
        return self.feed_forward_norm(nodes + self.narrow(relu_dropped(self.widen(nodes), rate)))


def readout(hidden: int, classes: int) -> nn.Sequential:
    """The classifier of both models: h -> h/2 -> h/4 -> classes."""
    half, quarter = hidden // 2, hidden // 4
    return nn.Sequential(
        nn.Linear(hidden, half), nn.ReLU(), nn.Linear(half, quarter), nn.ReLU(), nn.Linear(quarter, classes)
    )


def classification_loss(scores: Tensor, labels: Tensor, class_weighted: bool) -> Tensor:
    """Cross-entropy on the scores' device; weighted, a class that holds the share s of these nodes counts 1 - s.

    Nodes of a single class would all have weight zero and the mean would not exist: then they count alike.
    """
    labels, weights = labels.to(scores.device), None
    if class_weighted:
        counts = torch.bincount(labels, minlength=scores.shape[1])
        if int((counts > 0).sum()) > 1:
            weights = (len(labels) - counts).to(scores.dtype) / len(labels)
    return functional.cross_entropy(scores, labels, weight=weights)


def estimate_memory(graph: Graph, config: Any) -> int:
    """Bytes at the peak of a training step of either model, without SAN's encoder and its pairs of all nodes."""
    nodes, hidden, layers = graph.num_nodes, config.hidden, config.layers
    activations = 4 * nodes * hidden * (19 * layers + 10)  # 14 are alive, the allocator cannot use all it has
    edges = graph.num_entries + (nodes if config.self_loops else 0)
    along_edges = edges * (24 + 4 * config.heads * (layers + 2))
    parameters = 24 * hidden * (graph.num_features + 10 * hidden * layers)  # gradients, two moments, copies
    features = copied_bytes(graph, config.normalize_features)
    return int(80e6 + features + activations + along_edges + parameters)  # 80 MB: DGL, threads, compiled kernels
