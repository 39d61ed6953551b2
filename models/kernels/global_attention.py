"""What each node takes from all nodes, for some nodes that ask: exactly, or in linear time by random features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.kernels.biased_attention import lean_attention, split_heads
from models.kernels.random_features import orthogonal_directions, softmax_features

_EPSILON = 1e-4  # of the Performer's features, as in the library that GraphGPS's official code uses


class Attention(nn.Module):
    """softmax(q kᵀ / √width) v among all nodes."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, self.heads, self.dropout = config.hidden, config.heads, config.attention_dropout
        self.query_key_value, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        nn.init.xavier_uniform_(self.query_key_value.weight)  # these three as torch's own attention has it
        nn.init.zeros_(self.query_key_value.bias)
        nn.init.zeros_(self.output.bias)

    def forward(self, asking: Tensor, hidden: Tensor) -> Tensor:
        """For each node that asks, what it takes from all nodes."""
        width = hidden.shape[1]
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        q = split_heads(functional.linear(asking, weight[:width], bias[:width]), self.heads)
        k, v = functional.linear(hidden, weight[width:], bias[width:]).chunk(2, dim=1)
        k, v = split_heads(k, self.heads), split_heads(v, self.heads)
        if self.training and self.dropout > 0.0:
            mixed = lean_attention(q, k, v, self.dropout)
        else:
            mixed = functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        return self.output(mixed.transpose(0, 1).flatten(1))


class Performer(nn.Module):
    """The same in linear time: e^(q k / √width) is the product of positive random features of q and of k."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, self.heads, self.dropout = config.hidden, config.heads, config.attention_dropout
        inner = config.heads * config.head_width
        self.query, self.key, self.value = (nn.Linear(hidden, inner, bias=False) for _ in range(3))
        self.output = nn.Linear(inner, hidden)
        self.directions = nn.Buffer(
            orthogonal_directions(config.directions, config.head_width, torch.default_generator)
        )

    def forward(self, asking: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = (
            split_heads(linear(nodes), self.heads)
            for linear, nodes in ((self.query, asking), (self.key, hidden), (self.value, hidden))
        )
        q, k = softmax_features(q, self.directions, epsilon=_EPSILON), softmax_features(k, self.directions, 1, _EPSILON)
        summed = k.sum(dim=1).unsqueeze(-1)  # heads x directions x 1
        mixed = (q @ (k.transpose(1, 2) @ v)) / (q @ summed)
        return functional.dropout(self.output(mixed.transpose(0, 1).flatten(1)), self.dropout, self.training)
