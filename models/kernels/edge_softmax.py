"""GAT's attention: along every edge a softmax of additive scores, over the edges that a node reads.

On the processor it is a compiled kernel that stores nothing per edge, elsewhere plain torch; a test holds both equal.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.kernels.dropout import _hash
from models.kernels.edges import Edges

SLOPE = np.float32(0.2)  # of the scores' leaky ReLU below zero


def edge_attention(values: Tensor, reader: Tensor, read: Tensor, edges: Edges, dropout: float) -> Tensor:
    """At node i, Σ_j softmax_j(LeakyReLU(reader_i + read_j)) values_j over whom i reads, head by head.

    Values are N x (heads·size), scores N x heads. Dropout acts on the coefficients; pass 0 outside training.
    """
    if values.is_cpu:
        seed = int(torch.randint(2**32, ())) if dropout > 0.0 else 0
        fused: Tensor = FusedAttention.apply(values, reader, read, edges, dropout, seed)
        return fused
    keep = None
    if dropout > 0.0:
        keep = functional.dropout(values.new_ones((len(edges.indices), reader.shape[1])), dropout)
    return plain_attention(values, reader, read, edges, keep)


def plain_attention(values: Tensor, reader: Tensor, read: Tensor, edges: Edges, keep: Tensor | None) -> Tensor:
    """The formula as one writes it down; `keep` (edges x heads) multiplies the coefficients."""
    to, source = edges.ends(values.device)
    nodes, heads = reader.shape
    scores = functional.leaky_relu(reader[to] + read[source], float(SLOPE))
    places = to.unsqueeze(1).expand(-1, heads)
    highest = torch.full_like(reader, -math.inf).scatter_reduce(0, places, scores.detach(), "amax")
    weights = torch.exp(scores - highest[to])
    weights = weights / torch.zeros_like(reader).index_add(0, to, weights)[to]
    if keep is not None:
        weights = weights * keep
    messages = weights.unsqueeze(2) * values.view(nodes, heads, -1)[source]
    return torch.zeros_like(values).index_add(0, to, messages.flatten(1))


class FusedAttention(torch.autograd.Function):
    """The same on the processor, with nothing stored per edge: coefficients and masks are computed when needed.

    The leaky ReLU has two slopes, so besides the weighted sum over all edges the kernels return that over the edges
    with a positive score. Products of these sums with node vectors give the gradients of the scores: with o_i the
    output, s_i its part from positive scores, p_i the share of their coefficients, and g_i the output's gradient,
    d reader_i = (1 - slope) (<g_i, s_i> - <g_i, o_i> p_i), because coefficients sum to 1. The backward pass takes those
    that a node reads for those that read it: the edges must be symmetric.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, reader: Tensor, read: Tensor, edges: Edges, dropout: float, seed: int
    ) -> Tensor:
        values, reader, read = (part.detach().contiguous() for part in (values, reader, read))
        values = values.view(*reader.shape, -1)
        out, steep = torch.empty_like(values), torch.empty_like(values)
        share, log_sum = torch.empty_like(reader), torch.empty_like(reader)
        arrays = [part.numpy() for part in (values, reader, read, out, steep, share, log_sum)]
        _forward(edges.indptr, edges.indices, dropout, seed, *arrays)
        ctx.edges, ctx.dropout, ctx.seed = edges, dropout, seed
        ctx.save_for_backward(values, reader, read, out, steep, share, log_sum)
        return out.flatten(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, reader, read, out, steep, share, log_sum = ctx.saved_tensors
        gradient = gradient.contiguous().view_as(values)
        mean = (gradient * out).sum(dim=2)
        of_reader = ((gradient * steep).sum(dim=2) - mean * share) * float(1.0 - SLOPE)
        of_values, of_read = torch.empty_like(values), torch.empty_like(read)
        arrays = [part.numpy() for part in (values, reader, read, log_sum, mean, gradient, of_values, of_read)]
        _backward(ctx.edges.indptr, ctx.edges.indices, ctx.dropout, ctx.seed, *arrays)
        return of_values.flatten(1), of_reader, of_read, None, None, None


# -- kernels; an edge's fate under dropout is a hash of the seed, the reader, the read node and the head ---------------


@numba.njit(cache=True, nogil=True, fastmath={"contract"}, inline="never")
def _sum_weighted(
    columns: np.ndarray,
    weights: np.ndarray,
    steep: np.ndarray,
    source: np.ndarray,
    out: np.ndarray,
    steep_out: np.ndarray,
) -> None:
    """out = Σ weight · source[column], head by head; steep_out the same with the other weights; by fours of edges."""
    heads, size = out.shape
    out[:] = 0.0
    steep_out[:] = 0.0
    whole = len(columns) - len(columns) % 4
    for at in range(0, whole, 4):
        j0, j1, j2, j3 = columns[at], columns[at + 1], columns[at + 2], columns[at + 3]
        for head in range(heads):
            d0, d1, d2, d3 = source[j0, head], source[j1, head], source[j2, head], source[j3, head]
            w0, w1, w2, w3 = weights[at, head], weights[at + 1, head], weights[at + 2, head], weights[at + 3, head]
            s0, s1, s2, s3 = steep[at, head], steep[at + 1, head], steep[at + 2, head], steep[at + 3, head]
            row, steep_row = out[head], steep_out[head]
            for x in range(size):  # two loops: the compiler vectorises only those with few arrays
                row[x] += (w0 * d0[x] + w1 * d1[x]) + (w2 * d2[x] + w3 * d3[x])
            for x in range(size):
                steep_row[x] += (s0 * d0[x] + s1 * d1[x]) + (s2 * d2[x] + s3 * d3[x])
    for at in range(whole, len(columns)):
        for head in range(heads):
            d0, w0, s0 = source[columns[at], head], weights[at, head], steep[at, head]
            row, steep_row = out[head], steep_out[head]
            for x in range(size):
                row[x] += w0 * d0[x]
            for x in range(size):
                steep_row[x] += s0 * d0[x]


@numba.njit(cache=True, nogil=True, inline="never")
def _drop(
    row: np.uint32,
    columns: np.ndarray,
    row_reads: bool,
    rate: float,
    seed: np.uint32,
    weights: np.ndarray,
    steep: np.ndarray,
) -> None:
    """Dropout on one node's coefficients: those with which it reads others, or those with which they read it."""
    threshold, scale = np.uint32(rate * 2.0**32), np.float32(1.0 / (1.0 - rate))
    heads, of_row = weights.shape[1], _hash(row, seed)
    for at in range(len(columns)):
        column = np.uint32(columns[at])
        of_reader = of_row if row_reads else _hash(column, seed)
        first = np.uint32((column if row_reads else row) * heads)
        for head in range(heads):
            kept = _hash(np.uint32(first + head), of_reader) >= threshold
            factor = scale if kept else np.float32(0.0)
            weights[at, head] *= factor
            steep[at, head] *= factor


@numba.njit(cache=True, nogil=True)
def _leaky(score: np.float32) -> np.float32:
    return score if score > np.float32(0.0) else score * SLOPE


@numba.njit(cache=True, nogil=True, inline="never")
def _read(
    row: int,
    columns: np.ndarray,
    rate: float,
    seed: int,
    values: np.ndarray,
    reader: np.ndarray,
    read: np.ndarray,
    out: np.ndarray,
    steep_out: np.ndarray,
    share: np.ndarray,
    log_sum: np.ndarray,
) -> None:
    """One node reads: its output, the part of it from positive scores, their share, and the softmax's denominator."""
    heads, size = out.shape
    weights = np.empty((len(columns), heads), dtype=np.float32)
    steep, total = np.empty_like(weights), np.zeros(heads, dtype=np.float32)
    log_sum[:] = -np.inf  # the highest score, to begin with
    for at in range(len(columns)):
        other = read[columns[at]]
        for head in range(heads):
            weights[at, head] = _leaky(reader[head] + other[head])
            log_sum[head] = max(log_sum[head], weights[at, head])
    share[:] = 0.0
    for at in range(len(columns)):
        for head in range(heads):
            positive = weights[at, head] > np.float32(0.0)
            weights[at, head] = math.exp(weights[at, head] - log_sum[head])
            steep[at, head] = weights[at, head] if positive else np.float32(0.0)
            total[head] += weights[at, head]
            share[head] += steep[at, head]
    if rate > 0.0:
        _drop(np.uint32(row), columns, True, rate, np.uint32(seed), weights, steep)
    _sum_weighted(columns, weights, steep, values, out, steep_out)
    for head in range(heads):
        part = np.float32(1.0) / total[head]
        share[head] *= part
        log_sum[head] += math.log(total[head])
        for x in range(size):
            out[head, x] *= part
            steep_out[head, x] *= part


@numba.njit(cache=True, nogil=True, inline="never")
def _be_read(
    row: int,
    columns: np.ndarray,
    rate: float,
    seed: int,
    value: np.ndarray,
    reader: np.ndarray,
    read: np.ndarray,
    log_sum: np.ndarray,
    mean: np.ndarray,
    gradient: np.ndarray,
    of_value: np.ndarray,
    of_read: np.ndarray,
) -> None:
    """One node's gradients from all nodes that read it, which by symmetry are those that it reads."""
    heads, size = value.shape
    weights = np.empty((len(columns), heads), dtype=np.float32)
    steep, steep_value = np.empty_like(weights), np.empty_like(value)
    of_read[:] = 0.0
    for at in range(len(columns)):
        other = columns[at]
        for head in range(heads):
            score = _leaky(reader[other, head] + read[head])
            positive = score > np.float32(0.0)
            weights[at, head] = math.exp(score - log_sum[other, head])
            steep[at, head] = weights[at, head] if positive else np.float32(0.0)
            of_read[head] -= weights[at, head] * mean[other, head] * (np.float32(1.0) if positive else SLOPE)
    if rate > 0.0:
        _drop(np.uint32(row), columns, False, rate, np.uint32(seed), weights, steep)
    _sum_weighted(columns, weights, steep, gradient, of_value, steep_value)
    for head in range(heads):
        for x in range(size):
            slope = SLOPE * of_value[head, x] + (np.float32(1.0) - SLOPE) * steep_value[head, x]
            of_read[head] += value[head, x] * slope


@numba.njit(cache=True, parallel=True, nogil=True)
def _forward(
    indptr: np.ndarray,
    indices: np.ndarray,
    rate: float,
    seed: int,
    values: np.ndarray,
    reader: np.ndarray,
    read: np.ndarray,
    out: np.ndarray,
    steep: np.ndarray,
    share: np.ndarray,
    log_sum: np.ndarray,
) -> None:
    for row in numba.prange(len(indptr) - 1):
        columns = indices[indptr[row] : indptr[row + 1]]
        _read(row, columns, rate, seed, values, reader[row], read, out[row], steep[row], share[row], log_sum[row])


@numba.njit(cache=True, parallel=True, nogil=True)
def _backward(
    indptr: np.ndarray,
    indices: np.ndarray,
    rate: float,
    seed: int,
    values: np.ndarray,
    reader: np.ndarray,
    read: np.ndarray,
    log_sum: np.ndarray,
    mean: np.ndarray,
    gradient: np.ndarray,
    of_values: np.ndarray,
    of_read: np.ndarray,
) -> None:
    for row in numba.prange(len(indptr) - 1):
        columns = indices[indptr[row] : indptr[row + 1]]
        _be_read(
            row,
            columns,
            rate,
            seed,
            values[row],
            reader,
            read[row],
            log_sum,
            mean,
            gradient,
            of_values[row],
            of_read[row],
        )
