"""torch's Transformer encoder layer for very many short sequences, whose wide layer never exists as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from models.kernels.attention import token_attention
from models.kernels.dropout import add_dropped, keep_positive, through_kept

_WIDE_ENTRIES = 1 << 20  # numbers in the wide layer that exist at the same time: 4 MB


class EncoderLayer(nn.Module):
    """torch's TransformerEncoderLayer as it is by default (norms after the additions, ReLU), on fused kernels."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen = nn.Linear(width, feed_forward)
        self.narrow = nn.Linear(feed_forward, width)
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        nn.init.xavier_uniform_(self.query_key_value.weight)  # this and the zeros: as torch's attention starts
        nn.init.zeros_(self.query_key_value.bias)
        nn.init.zeros_(self.output.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        rate = self.dropout if self.training else 0.0
        attended = token_attention(self.query_key_value(tokens), self.heads, rate)
        tokens = self.attention_norm(add_dropped(tokens, self.output(attended), rate))
        wide = feed_forward(tokens.flatten(0, 1), self.widen, self.narrow, rate).view_as(tokens)
        return self.feed_forward_norm(add_dropped(tokens, wide, rate))


def feed_forward(x: Tensor, widen: nn.Linear, narrow: nn.Linear, rate: float) -> Tensor:
    """narrow(dropout(relu(widen(x)))), a block of rows at a time; pass rate 0 outside training.

    The wide rows (2048 numbers for each of a node's m pairs) would be far more than all else in this network, so no
    more than a block of them ever exists: the backward pass computes them again.
    """
    if not x.is_cpu:
        return plain_feed_forward(x, widen, narrow, rate)
    seed = int(torch.randint(2**32, ())) if rate > 0.0 else 0
    out: Tensor = _FeedForward.apply(x, widen.weight, widen.bias, narrow.weight, narrow.bias, rate, seed)
    return out


def plain_feed_forward(x: Tensor, widen: nn.Linear, narrow: nn.Linear, rate: float) -> Tensor:
    """The same with torch's own means."""

    def of_rows(rows: Tensor) -> Tensor:
        return narrow(functional.dropout(functional.relu(widen(rows)), rate))

    parts = x.split(max(1, _WIDE_ENTRIES // widen.out_features))
    return torch.cat([checkpoint(of_rows, part, use_reentrant=False) for part in parts])


class _FeedForward(torch.autograd.Function):
    """On the processor: blocks that stay in its cache, and dropout by a hash of the position (dropout.py)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        widen: Tensor,
        widen_bias: Tensor,
        narrow: Tensor,
        narrow_bias: Tensor,
        rate: float,
        seed: int,
    ) -> Tensor:
        ctx.rate, ctx.seed = rate, seed
        ctx.save_for_backward(x, widen, widen_bias, narrow)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        for rows, wide in _blocks(x, widen):
            _fill(wide, x[rows], widen, widen_bias, rate, seed + rows.start)
            torch.addmm(narrow_bias, wide, narrow.T, out=out[rows])
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, widen, widen_bias, narrow = ctx.saved_tensors
        of_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        of_widen, of_widen_bias, of_narrow = (torch.zeros_like(part) for part in (widen, widen_bias, narrow))
        slopes = torch.empty(0)
        for rows, wide in _blocks(x, widen):
            _fill(wide, x[rows], widen, widen_bias, ctx.rate, ctx.seed + rows.start)
            of_narrow.addmm_(gradient[rows].T, wide)
            slopes = torch.mm(gradient[rows], narrow, out=slopes.resize_(wide.shape))
            through_kept(wide.view(-1).numpy(), 1.0 / (1.0 - ctx.rate), slopes.view(-1).numpy())
            of_widen.addmm_(slopes.T, x[rows])
            of_widen_bias += slopes.sum(dim=0)
            torch.mm(slopes, widen, out=of_x[rows])
        return of_x, of_widen, of_widen_bias, of_narrow, gradient.sum(dim=0), None, None


def _blocks(x: Tensor, widen: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of x and room for their wide form, the same room every time."""
    size = max(1, _WIDE_ENTRIES // len(widen))
    room = x.new_empty((min(size, len(x)), len(widen)))
    for first in range(0, len(x), size):
        rows = slice(first, min(first + size, len(x)))
        yield rows, room[: rows.stop - rows.start]


def _fill(wide: Tensor, x: Tensor, widen: Tensor, bias: Tensor, rate: float, seed: int) -> None:
    torch.addmm(bias, x, widen.T, out=wide)
    if rate == 0.0:
        wide.relu_()
    else:
        keep_positive(wide.view(-1).numpy(), int(rate * 2.0**32), 1.0 / (1.0 - rate), seed % 2**32)
