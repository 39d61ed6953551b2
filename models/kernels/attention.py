"""Self-attention among the few tokens of each node, fused.

Sequences here are short (K + 1 tokens) and many (a batch of nodes). Batched matrix products spend most of their time on
call overhead and on permuted copies at that size, so on the processor one numba kernel walks the packed q, k, v of each
node once. Elsewhere the textbook formula in torch runs; a test holds both to the same values and gradients.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def token_attention(packed: Tensor, heads: int, dropout: float) -> Tensor:
    """softmax(q kᵀ / √d) v within each sequence; `packed` is (batch, length, 3·h) with q, k and v side by side.

    Dropout acts on the attention weights; pass 0 outside training.
    """
    batch, length, _ = packed.shape
    keep = None
    if dropout > 0.0:
        keep = torch.rand((batch, heads, length, length), device=packed.device)
        keep.ge_(dropout).div_(1.0 - dropout)
    if packed.device.type == "cpu":
        fused: Tensor = _FusedAttention.apply(packed, heads, keep)
        return fused
    return plain_attention(packed, heads, keep)


def plain_attention(packed: Tensor, heads: int, keep: Tensor | None) -> Tensor:
    """The formula as one writes it down; `keep` multiplies the attention weights."""
    batch, length, width = packed.shape
    size = width // 3 // heads
    q, k, v = packed.view(batch, length, 3, heads, size).permute(2, 0, 3, 1, 4)
    weights = functional.softmax(q @ k.transpose(-1, -2) / math.sqrt(size), dim=-1)
    if keep is not None:
        weights = weights * keep
    return (weights @ v).transpose(1, 2).reshape(batch, length, heads * size)


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, heads: int, keep: Tensor | None) -> Tensor:
        batch, length, width = packed.shape
        packed = packed.detach().contiguous().view(batch, length, 3, heads, width // 3 // heads)
        weights = torch.empty((batch, heads, length, length))
        out = torch.empty((batch, length, width // 3))
        # Without dropout one all-ones mask serves every node and head: the kernels index it modulo its size.
        keep = torch.ones((1, 1, length, length)) if keep is None else keep
        _forward(packed.numpy(), keep.numpy(), weights.numpy(), out.view_as(packed[:, :, 0]).numpy())
        ctx.save_for_backward(packed, keep, weights)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        packed, keep, weights = ctx.saved_tensors
        result = torch.empty_like(packed)
        gradient = gradient.detach().contiguous().view_as(packed[:, :, 0])
        _backward(packed.numpy(), keep.numpy(), weights.numpy(), gradient.numpy(), result.numpy())
        return result.flatten(2), None, None


_FAST = {"contract", "reassoc", "nsz"}  # lets dot products vectorise; the order stays fixed, so bytes repeat


@numba.njit(cache=True, nogil=True, fastmath=_FAST)
def _dot(a: np.ndarray, b: np.ndarray) -> np.float32:
    total = np.float32(0.0)
    for x in range(a.shape[0]):
        total += a[x] * b[x]
    return total


@numba.njit(cache=True, nogil=True, fastmath=_FAST)
def _add(weight: np.float32, source: np.ndarray, out: np.ndarray) -> None:
    for x in range(out.shape[0]):
        out[x] += weight * source[x]


@numba.njit(cache=True, nogil=True, fastmath=_FAST)
def _softmax(row: np.ndarray) -> None:
    top, total = row.max(), np.float32(0.0)
    for j in range(row.shape[0]):
        row[j] = math.exp(row[j] - top)
        total += row[j]
    for j in range(row.shape[0]):
        row[j] /= total


@numba.njit(cache=True, nogil=True, fastmath=_FAST, inline="never")
def _attend(packed: np.ndarray, mask: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """One node: packed (length, 3, heads, size), mask, weights (heads, length, length), out (length, heads, size)."""
    length, heads, size = out.shape
    scale = np.float32(1.0 / math.sqrt(size))
    for head in range(heads):
        keep = mask[head % mask.shape[0]]
        for i in range(length):
            row, own = weights[head, i], out[i, head]
            for j in range(length):
                row[j] = _dot(packed[i, 0, head], packed[j, 1, head]) * scale
            _softmax(row)
            own[:] = 0.0
            for j in range(length):
                _add(row[j] * keep[i, j], packed[j, 2, head], own)


@numba.njit(cache=True, nogil=True, fastmath=_FAST, inline="never")
def _attend_backward(
    packed: np.ndarray, mask: np.ndarray, weights: np.ndarray, gradient: np.ndarray, result: np.ndarray
) -> None:
    """One node: from the output's gradient (length, heads, size) to that of the packed input."""
    length, heads, size = gradient.shape
    scale = np.float32(1.0 / math.sqrt(size))
    inner = np.empty(length, dtype=np.float32)
    result[:] = 0.0
    for head in range(heads):
        keep = mask[head % mask.shape[0]]
        for i in range(length):
            row, arrived, mean = weights[head, i], gradient[i, head], np.float32(0.0)
            for j in range(length):
                inner[j] = _dot(arrived, packed[j, 2, head]) * keep[i, j]
                mean += inner[j] * row[j]
                _add(row[j] * keep[i, j], arrived, result[j, 2, head])
            for j in range(length):
                slope = scale * row[j] * (inner[j] - mean)
                _add(slope, packed[j, 1, head], result[i, 0, head])
                _add(slope, packed[i, 0, head], result[j, 1, head])


@numba.njit(cache=True, parallel=True, nogil=True)
def _forward(packed: np.ndarray, mask: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    for node in numba.prange(len(packed)):
        _attend(packed[node], mask[node % len(mask)], weights[node], out[node])


@numba.njit(cache=True, parallel=True, nogil=True)
def _backward(
    packed: np.ndarray, mask: np.ndarray, weights: np.ndarray, gradient: np.ndarray, result: np.ndarray
) -> None:
    for node in numba.prange(len(packed)):
        _attend_backward(packed[node], mask[node % len(mask)], weights[node], gradient[node], result[node])
