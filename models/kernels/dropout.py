"""Dropout fused with what stands beside it: with the addition of a residual branch, or with a ReLU before it.

torch draws its masks one number after the other; at the sizes of a token batch that is a visible share of a step. Here
an element's fate is a hash of its position and of one seed per call, so the kernel runs in parallel and vectorised,
gives the same bytes for every number of threads, and the backward pass repeats the hash instead of storing a mask.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

_CHUNK = 1 << 14


def add_dropped(residual: Tensor, branch: Tensor, rate: float) -> Tensor:
    """residual + dropout(branch); pass rate 0 outside training."""
    if rate == 0.0:
        return residual + branch
    if rate >= 1.0:
        return residual  # nothing of the branch is left, and no scale could make up for it
    if branch.device.type != "cpu":
        return residual + functional.dropout(branch, rate)
    fused: Tensor = _AddDropped.apply(residual, branch, rate, int(torch.randint(2**32, ())))
    return fused


def dropped(values: Tensor, rate: float) -> Tensor:
    """Dropout whose backward pass needs no stored mask; pass rate 0 outside training."""
    return values if rate == 0.0 else add_dropped(values.new_zeros(()).expand_as(values), values, rate)


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, branch: Tensor, rate: float, seed: int) -> Tensor:
        ctx.rate, ctx.seed = rate, seed
        out = residual.detach().clone(memory_format=torch.contiguous_format)
        _add_kept(branch.detach().contiguous().view(-1).numpy(), rate, seed, out.view(-1).numpy())
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gradient = gradient.contiguous()
        of_branch = torch.zeros_like(gradient)
        _add_kept(gradient.view(-1).numpy(), ctx.rate, ctx.seed, of_branch.view(-1).numpy())
        return gradient, of_branch, None, None


@numba.njit(cache=True, nogil=True)
def _hash(position: np.uint32, seed: np.uint32) -> np.uint32:
    """A 32-bit mix with good avalanche, applied twice so that neighbouring seeds have nothing in common."""
    value = np.uint32(position ^ seed)
    for _ in range(2):
        value = np.uint32((value ^ (value >> np.uint32(16))) * np.uint32(0x7FEB352D))
        value = np.uint32((value ^ (value >> np.uint32(15))) * np.uint32(0x846CA68B))
        value = np.uint32((value ^ (value >> np.uint32(16))) + seed)
    return value


@numba.njit(cache=True, nogil=True, inline="never")
def _add_kept_chunk(
    source: np.ndarray, first: int, threshold: np.uint32, scale: np.float32, seed: np.uint32, out: np.ndarray
) -> None:
    for at in range(source.shape[0]):
        kept = _hash(np.uint32(first + at), seed) >= threshold
        out[at] += source[at] * scale if kept else np.float32(0.0)


@numba.njit(cache=True, parallel=True, nogil=True)
def _add_kept(source: np.ndarray, rate: float, seed: int, out: np.ndarray) -> None:
    """out += source where an element is kept, scaled up by 1 / (1 - rate)."""
    threshold, scale = np.uint32(rate * 2.0**32), np.float32(1.0 / (1.0 - rate))
    for chunk in numba.prange((source.shape[0] + _CHUNK - 1) // _CHUNK):
        first = chunk * _CHUNK
        last = min(first + _CHUNK, source.shape[0])
        _add_kept_chunk(source[first:last], first, threshold, scale, np.uint32(seed), out[first:last])


# -- with the ReLU before it ------------------------------------------------------------------------------------------


def relu_dropped(x: Tensor, rate: float) -> Tensor:
    """dropout(relu(x)), in place, for an x that is no view; pass rate 0 outside training."""
    if rate == 0.0:
        return functional.relu(x, inplace=True)
    if not x.is_cpu:
        return functional.dropout(functional.relu(x, inplace=True), rate)
    fused: Tensor = _ReluDropped.apply(x, rate, int(torch.randint(2**32, ())))
    return fused


class _ReluDropped(torch.autograd.Function):
    """An element's fate is a hash of its position: nothing is kept but the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, seed: int) -> Tensor:
        ctx.scale = 1.0 / (1.0 - rate)
        keep_positive(x.detach().view(-1).numpy(), int(rate * 2.0**32), ctx.scale, seed)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        [kept] = ctx.saved_tensors
        result = gradient.clone(memory_format=torch.contiguous_format)
        through_kept(kept.view(-1).numpy(), ctx.scale, result.view(-1).numpy())
        return result, None, None


@numba.njit(cache=True, nogil=True, inline="never")
def _keep_positive_chunk(values: np.ndarray, first: int, threshold: int, scale: float, seed: int) -> None:
    limit, factor, zero = np.uint32(threshold), np.float32(scale), np.float32(0.0)
    for at in range(values.shape[0]):
        kept = _hash(np.uint32(first + at), np.uint32(seed)) >= limit
        values[at] = values[at] * factor if kept and values[at] > zero else zero


@numba.njit(cache=True, parallel=True, nogil=True)
def keep_positive(values: np.ndarray, threshold: int, scale: float, seed: int) -> None:
    """dropout(relu(values)), in place."""
    for chunk in numba.prange((values.shape[0] + _CHUNK - 1) // _CHUNK):
        first, last = chunk * _CHUNK, min((chunk + 1) * _CHUNK, values.shape[0])
        _keep_positive_chunk(values[first:last], first, threshold, scale, seed)


@numba.njit(cache=True, nogil=True, inline="never")
def _through_kept_chunk(values: np.ndarray, scale: float, gradient: np.ndarray) -> None:
    factor, zero = np.float32(scale), np.float32(0.0)
    for at in range(values.shape[0]):
        gradient[at] = gradient[at] * factor if values[at] > zero else zero


@numba.njit(cache=True, parallel=True, nogil=True)
def through_kept(values: np.ndarray, scale: float, gradient: np.ndarray) -> None:
    """The gradient of what `keep_positive` made `values` of, in place: what was kept is what is above zero."""
    for chunk in numba.prange((values.shape[0] + _CHUNK - 1) // _CHUNK):
        first, last = chunk * _CHUNK, min((chunk + 1) * _CHUNK, values.shape[0])
        _through_kept_chunk(values[first:last], scale, gradient[first:last])
