"""A multilayer perceptron on each node's own row (PPRGo, GRAND+)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.graph import Graph
from models.kernels.dropout import dropped
from models.kernels.features import FeatureMatrix
from models.kernels.full_batch import linear

TINY = 1e-12  # sums and norms below it count as zero


class MLP(nn.Module):
    """Linear maps with ReLU in between; before each, where asked, rows of length 1, batch normalisation and dropout."""

    def __init__(
        self,
        widths: list[int],
        dropouts: tuple[float, float],
        bias: bool = True,
        batch_norm: bool = False,
        node_norm: bool = False,
    ) -> None:
        """`dropouts` are on the input and on hidden units."""
        super().__init__()
        self.dropouts = [dropouts[0]] + [dropouts[1]] * (len(widths) - 2)
        self.node_norm = node_norm
        self.linears: Any = nn.ModuleList([nn.Linear(a, b, bias=bias) for a, b in pairwise(widths)])
        self.norms: Any = nn.ModuleList([BatchNorm(a) if batch_norm else nn.Identity() for a in widths[:-1]])

    def forward(self, inputs: FeatureMatrix | Tensor) -> Tensor:
        if isinstance(inputs, FeatureMatrix):
            first = linear(inputs.dropped(self.dropouts[0] if self.training else 0.0), self.linears[0])
        else:
            first = self.linears[0](self._prepare(inputs, 0))
        return self.after_first(first)

    def after_first(self, hidden: Tensor) -> Tensor:
        """What follows the first linear map."""
        for at in range(1, len(self.linears)):
            hidden = self.linears[at](self._prepare(torch.relu(hidden), at))
        return hidden

    def _prepare(self, rows: Tensor, at: int) -> Tensor:
        if self.node_norm:
            rows = functional.normalize(rows, dim=1, eps=TINY)
        return dropped(self.norms[at](rows), self.dropouts[at] if self.training else 0.0)

    def first_as_affine(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the first linear map joined with the batch normalisation before it, as in evaluation."""
        layer, norm = self.linears[0], self.norms[0]
        if isinstance(norm, nn.Identity):
            return layer.weight, layer.bias
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        return layer.weight * scale, layer.bias + layer.weight @ (norm.bias - norm.running_mean * scale)


def mlp_widths(graph: Graph, config: Any) -> list[int]:
    """From the features to the classes by way of the hidden layers."""
    return [graph.num_features, *[config.hidden] * (config.layers - 1), graph.num_classes]


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation that takes the running statistics where a batch has a single row, and so no variance."""

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) > 1:
            return super().forward(rows)
        return functional.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
