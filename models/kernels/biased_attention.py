"""Attention among all nodes with a bias per pair, in memory that does not grow with the number of pairs.

On the processor, tiles of attention weights stay in its cache; elsewhere chunks of queries run in plain torch. A test
holds both to the same values and gradients. Without a bias GraphGPS uses it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from models.kernels.distances import KINDS
from models.kernels.dropout import _hash

_CHUNK = 1 << 24  # attention weights at a time where torch computes them


@dataclass(frozen=True)
class SpatialBias:
    """What is added to the score of a query and a key: table[head, distances[rows[query], key]]."""

    table: Tensor  # heads x KINDS
    distances: Tensor  # N x N, uint8
    rows: Tensor  # which node each query belongs to


def split_heads(packed: Tensor, heads: int) -> Tensor:
    """(count, heads * width) becomes (heads, count, width)."""
    return packed.view(len(packed), heads, -1).transpose(0, 1).contiguous()


def lean_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float, bias: SpatialBias | None = None) -> Tensor:
    """softmax(q kᵀ / √width + bias) v for each head; q is (heads, queries, width), k and v are (heads, N, width).

    Only a few of the attention weights exist at any time; the backward pass computes them again. Dropout acts on the
    weights; pass 0 outside training.
    """
    q = q * q.shape[-1] ** -0.5
    if not q.is_cpu:
        return chunked_attention(q, k, v, dropout, bias)
    seed = int(torch.randint(2**32, ())) if dropout > 0.0 else 0
    parts = (None, None, None) if bias is None else (bias.table, bias.distances, bias.rows)
    fused: Tensor = _TiledAttention.apply(q, k, v, *parts, dropout, seed)
    return fused


def chunked_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float, bias: SpatialBias | None) -> Tensor:
    """The same from torch's own operations, for scaled q: chunks of queries that the backward pass computes again."""

    def attend(first: int, last: int) -> Tensor:
        scores = q[:, first:last] @ k.transpose(1, 2)
        if bias is not None:
            scores = scores + bias.table[:, bias.distances[bias.rows[first:last]].long()]
        return functional.dropout(scores.softmax(dim=-1), dropout) @ v

    chunks = _ranges(q.shape[1], max(1, _CHUNK // (len(k) * k.shape[1])))
    return torch.cat([checkpoint(attend, *chunk, use_reentrant=False) for chunk in chunks], dim=1)


def _ranges(count: int, step: int) -> list[tuple[int, int]]:
    return [(first, min(first + step, count)) for first in range(0, count, step)]


class _TiledAttention(torch.autograd.Function):
    """Products by BLAS, and what is between two products by a kernel, on tiles that stay in the processor's cache."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor | None,
        distances: Tensor | None,
        rows: Tensor | None,
        dropout: float,
        seed: int,
    ) -> Tensor:
        tiles = _Tiles(q, k, table, distances, rows, dropout, seed)
        out, normalizers = q.new_zeros(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])
        for head, first, last in tiles.query_blocks(_QUERIES):
            shifts, totals = tiles.shifts(head, first, last), torch.zeros(last - first)
            mixed = out[head, first:last]
            for start, end in tiles.key_ranges:
                weights = tiles.scores(head, first, last, start, end)
                _weigh(weights.numpy(), *tiles.facts(head, first, last, start), shifts.numpy(), totals.numpy())
                mixed.addmm_(weights, v[head, start:end])
            mixed.div_(totals[:, None])
            normalizers[head, first:last] = shifts + totals.log()
        ctx.save_for_backward(q, k, v, out, normalizers, table)
        ctx.others = distances, rows, dropout, seed
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, normalizers, table = ctx.saved_tensors
        tiles, gradient = _Tiles(q, k, table, *ctx.others), gradient.contiguous()
        means = (gradient * out).sum(dim=-1)  # of the weights' gradients, under the weights
        of_q, of_k, of_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        of_table = torch.zeros(len(q), KINDS, dtype=torch.float64)
        for head, first, last in tiles.query_blocks(_QUERIES // 2):  # there are two buffers now
            own, arrived = q[head, first:last], gradient[head, first:last]
            levels, centres = normalizers[head, first:last].numpy(), means[head, first:last].numpy()
            sums = np.zeros(((last - first + _BLOCK - 1) // _BLOCK, 4, KINDS), dtype=np.float32)
            for start, end in tiles.key_ranges:
                weights = tiles.scores(head, first, last, start, end)
                slopes = tiles.product(1, arrived, v[head, start:end])
                facts = tiles.facts(head, first, last, start)
                _weigh_backward(weights.numpy(), slopes.numpy(), *facts, levels, centres, sums)
                of_v[head, start:end].addmm_(weights.T, arrived)
                of_k[head, start:end].addmm_(slopes.T, own)
                of_q[head, first:last].addmm_(slopes, k[head, start:end])
            of_table[head] += torch.from_numpy(sums.sum(axis=(0, 1), dtype=np.float64))
        return of_q, of_k, of_v, None if table is None else of_table.float(), None, None, None, None


# of a tile: table, distances and rows of the bias (or None); threshold, scale and seed of dropout; first query and key
TileFacts = tuple[Any, Any, Any, np.uint32, np.float32, np.uint32, int, int]


class _Tiles:
    """The scores of all pairs, some queries and some keys at a time."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        table: Tensor | None,
        distances: Tensor | None,
        rows: Tensor | None,
        dropout: float,
        seed: int,
    ) -> None:
        self.q, self.k, self.dropout, self.seed = q, k, dropout, seed
        self.table = self.distances = self.rows = None
        if table is not None and distances is not None and rows is not None:
            self.table, self.distances, self.rows = table.numpy(), distances.numpy(), rows.numpy()
            self.distances.flags.writeable = False  # a map is read-only anyway; one compiled kernel serves both
        self.key_ranges = _ranges(k.shape[1], _KEYS)
        self.buffers = torch.empty(2, _QUERIES * _KEYS)
        self.longest = k.norm(dim=2).amax(dim=1) if k.shape[1] else k.new_zeros(len(k))

    def query_blocks(self, step: int) -> Iterator[tuple[int, int, int]]:
        for head in range(len(self.q)):
            for first, last in _ranges(self.q.shape[1], step):
                yield head, first, last

    def product(self, buffer: int, left: Tensor, right: Tensor) -> Tensor:
        """left rightᵀ, in one of the buffers."""
        shape = len(left), len(right)
        return torch.mm(left, right.T, out=self.buffers[buffer, : shape[0] * shape[1]].view(shape))

    def scores(self, head: int, first: int, last: int, start: int, end: int) -> Tensor:
        """Without the bias."""
        return self.product(0, self.q[head, first:last], self.k[head, start:end])

    def facts(self, head: int, first: int, last: int, start: int) -> TileFacts:
        """What the kernels need to know about a tile beside its scores."""
        seed = np.uint32((self.seed + head) % 2**32)
        drop = np.uint32(self.dropout * 2.0**32), np.float32(1.0 / (1.0 - self.dropout)), seed, first, start
        if self.table is None or self.distances is None or self.rows is None:
            return None, None, None, *drop
        return self.table[head], self.distances, self.rows[first:last], *drop

    def shifts(self, head: int, first: int, last: int) -> Tensor:
        """What to take from each query's scores against overflow: their largest, or a bound where that does as well."""
        bound = self.q[head, first:last].norm(dim=1) * self.longest[head]  # of a score's size, without the bias
        high, low = (0.0, 0.0) if self.table is None else (self.table[head].max(), self.table[head].min())
        if 2.0 * float(bound.max()) + float(high - low) < _SAFE:
            return bound + high
        largest = torch.full_like(bound, -torch.inf)
        for start, end in self.key_ranges:
            scores = self.scores(head, first, last, start, end)
            _add_biases(scores.numpy(), *self.facts(head, first, last, start))
            largest = torch.maximum(largest, scores.amax(dim=1))
        return largest


_QUERIES = 256  # of a tile, or half as many where there are two buffers
_KEYS = 1024  # of a tile
_BLOCK = 8  # queries whose gradients of the table are summed together
_SAFE = 80.0  # e^-80 is still an ordinary float32
_FAST = {"contract", "reassoc", "nsz", "nnan"}  # lets the loops vectorise; the order stays fixed, so bytes repeat


@numba.njit(cache=True, nogil=True, fastmath=_FAST, inline="always")
def _exp(x: np.float32) -> np.float32:
    """e^x for x up to about 0, to a few units in the last place; unlike the library's it vectorises."""
    x = max(x, np.float32(-87.0))
    power = np.int32(x * np.float32(1.44269504) - np.float32(0.5))
    whole = np.float32(power)
    rest = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    series = np.float32(1.0 / 720)
    series = series * rest + np.float32(1.0 / 120)
    series = series * rest + np.float32(1.0 / 24)
    series = series * rest + np.float32(1.0 / 6)
    series = series * rest + np.float32(0.5)
    series = series * rest + np.float32(1.0)
    series = series * rest + np.float32(1.0)
    return series * np.int32((power + np.int32(127)) << np.int32(23)).view(np.float32)


@numba.njit(cache=True, nogil=True, fastmath=_FAST, inline="never")
def _add_bias(scores: np.ndarray, table: np.ndarray, kinds: np.ndarray) -> None:
    for at in range(scores.shape[0]):
        scores[at] += table[kinds[at]]


@numba.njit(cache=True, nogil=True, fastmath=_FAST, inline="never")
def _exponentiate(scores: np.ndarray, shift: np.float32) -> np.float32:
    total = np.float32(0.0)
    for at in range(scores.shape[0]):
        scores[at] = _exp(scores[at] - shift)
        total += scores[at]
    return total


@numba.njit(cache=True, nogil=True, inline="never")
def _drop(weights: np.ndarray, start: int, threshold: np.uint32, scale: np.float32, seed: np.uint32) -> None:
    """Dropout; a weight's fate is a hash of its query and its key, and needs no memory."""
    for at in range(weights.shape[0]):
        weights[at] *= scale if _hash(np.uint32(start + at), seed) >= threshold else np.float32(0.0)


@numba.njit(cache=True, nogil=True, fastmath=_FAST, inline="never")
def _to_slopes(weights: np.ndarray, slopes: np.ndarray, mean: np.float32) -> None:
    for at in range(weights.shape[0]):
        slopes[at] = weights[at] * (slopes[at] - mean)


@numba.njit(cache=True, nogil=True, inline="never")
def _sum_by_kind(values: np.ndarray, kinds: np.ndarray, sums: np.ndarray) -> None:
    """Four sums for each kind: most values are of a few kinds and would have to wait for each other in one sum."""
    whole = len(values) - len(values) % 4
    for at in range(0, whole, 4):
        sums[0, kinds[at]] += values[at]
        sums[1, kinds[at + 1]] += values[at + 1]
        sums[2, kinds[at + 2]] += values[at + 2]
        sums[3, kinds[at + 3]] += values[at + 3]
    for at in range(whole, len(values)):
        sums[0, kinds[at]] += values[at]


@numba.njit(cache=True, parallel=True, nogil=True)
def _add_biases(
    scores: np.ndarray,
    table: Any,
    distances: Any,
    rows: Any,
    threshold: np.uint32,
    scale: np.float32,
    seed: np.uint32,
    first: int,
    start: int,
) -> None:
    end = start + scores.shape[1]
    for query in numba.prange(scores.shape[0]):
        if table is not None:
            _add_bias(scores[query], table, distances[rows[query], start:end])


@numba.njit(cache=True, parallel=True, nogil=True)
def _weigh(
    scores: np.ndarray,
    table: Any,
    distances: Any,
    rows: Any,
    threshold: np.uint32,
    scale: np.float32,
    seed: np.uint32,
    first: int,
    start: int,
    shifts: np.ndarray,
    totals: np.ndarray,
) -> None:
    """Scores become weights that still lack the division by their totals, which are summed before dropout."""
    end = start + scores.shape[1]
    for query in numba.prange(scores.shape[0]):
        own = scores[query]
        if table is not None:
            _add_bias(own, table, distances[rows[query], start:end])
        totals[query] = totals[query] + _exponentiate(own, shifts[query])
        if threshold > 0:
            _drop(own, start, threshold, scale, _hash(np.uint32(first + query), seed))


@numba.njit(cache=True, parallel=True, nogil=True)
def _weigh_backward(
    weights: np.ndarray,
    slopes: np.ndarray,
    table: Any,
    distances: Any,
    rows: Any,
    threshold: np.uint32,
    scale: np.float32,
    seed: np.uint32,
    first: int,
    start: int,
    normalizers: np.ndarray,
    means: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Scores become weights, and the gradients of the weights become those of the scores, summed by kind as well."""
    queries, end = weights.shape[0], start + weights.shape[1]
    for block in numba.prange(sums.shape[0]):
        for query in range(block * _BLOCK, min((block + 1) * _BLOCK, queries)):
            own, slope = weights[query], slopes[query]
            if table is not None:
                _add_bias(own, table, distances[rows[query], start:end])
            _exponentiate(own, normalizers[query])
            if threshold > 0:
                row_seed = _hash(np.uint32(first + query), seed)
                _drop(slope, start, threshold, scale, row_seed)
                _to_slopes(own, slope, means[query])
                _drop(own, start, threshold, scale, row_seed)
            else:
                _to_slopes(own, slope, means[query])
            if table is not None:
                _sum_by_kind(slope, distances[rows[query], start:end], sums[block])
