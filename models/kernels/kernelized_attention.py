"""Kernelised attention among all nodes in linear time: noisy keys, and how much of it falls on edges (NodeFormer).

Queries and keys are positive random features (random_features.py), nodes x heads x M. The autograd functions here keep
nothing per sample or per edge; each has its twin in plain torch beside it, and a test holds both to the same values and
gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bench.prepared import as_tensor

_BLOCK = 4096  # nodes whose noisy keys exist at the same time
_EDGES = 1 << 16  # edges whose attention exists at the same time in plain torch


def gumbel_weights(shape: tuple[int, int, int], temperature: float, random: torch.Generator) -> Tensor:
    """exp(g / temperature) for Gumbel noise g, nodes x heads x samples.

    Each head and sample is divided by its largest weight, so that none overflows; attention is a ratio and does not see
    a common factor.
    """
    noise = -torch.empty(shape).exponential_(generator=random).clamp_(min=1e-30).log_()
    return ((noise - noise.amax(dim=0)) / temperature).exp_()


def kernel_attention(query: Tensor, key: Tensor, value: Tensor, weights: Tensor | None) -> Tensor:
    """Softmax attention from random features: nodes x heads x width, in one pass over keys and one over queries.

    query and key are features (nodes x heads x M), value is nodes x heads x width. With weights (nodes x heads x K),
    the keys are multiplied by each of the K samples and the K results averaged. Memory hardly grows with K.
    """
    result: Tensor = _KernelAttention.apply(query, key, value, weights)
    return result


def plain_kernel_attention(query: Tensor, key: Tensor, value: Tensor, weights: Tensor | None) -> Tensor:
    """Compute the same with every sample's keys at once."""
    if weights is None:
        weights = torch.ones_like(query[:, :, :1])
    sums = torch.einsum("nhs,nhm->hsm", weights, key)
    mixed = torch.einsum("nhs,nhm,nhd->hsmd", weights, key, value)
    of_samples = torch.einsum("nhm,hsmd->nhsd", query, mixed)
    return (of_samples / torch.einsum("nhm,hsm->nhs", query, sums).unsqueeze(3)).mean(dim=2)


def attention_bytes(config: Any, nodes: int) -> tuple[int, int]:
    """Estimate the bytes of NodeFormer's layers in an update and in a prediction for so many nodes."""
    c = config
    inner, kernel = c.heads * c.hidden, c.heads * c.random_features
    bias = c.relational_order if c.relational_bias else 0
    # What a layer keeps of each node for its gradients: q, k, v, scaled q and k, their features, noise, results.
    kept = (6 + bias) * inner + (2 + (c.edge_weight > 0)) * kernel + c.heads * c.gumbel_samples + 6 * c.hidden
    update = 4 * min(c.batch_size or nodes, nodes) * (c.layers + 1) * kept  # one layer's worth again while going back
    return update, 4 * nodes * (6 * inner + 2 * kernel + (c.layers + 1) * c.hidden)


class _KernelAttention(torch.autograd.Function):
    """With keys k_m w_s and queries q_m / (K d_s), one column per feature m and sample s, this is (query keyᵀ) value.

    d_s, the denominator, is the query times the sum of that sample's keys. The wide columns exist for a block of nodes
    at a time.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, weights: Tensor | None) -> Tensor:
        if weights is None:
            weights = query.new_ones(()).expand(len(query), query.shape[1], 1)
        out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        kept = []
        for head in range(query.shape[1]):
            q, k, v, w = query[:, head], key[:, head], value[:, head], weights[:, head]
            sums = w.T @ k  # samples x features
            mixed = v.new_zeros(sums.numel(), v.shape[1])
            for at in _blocks(len(k)):
                mixed.addmm_(_spread(w[at], k[at]).T, v[at])
            for at in _blocks(len(q)):
                out[at, head] = _spread(_shares(q[at], sums), q[at]) @ mixed
            kept += [sums, mixed]
        ctx.save_for_backward(query, key, value, weights, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, weights, *kept = ctx.saved_tensors
        of_query, of_key = torch.empty_like(query), torch.empty_like(key)
        of_value = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        for head in range(query.shape[1]):
            q, k, v, w = query[:, head], key[:, head], value[:, head], weights[:, head]
            sums, mixed = kept[2 * head : 2 * head + 2]
            of_sums, of_mixed = torch.zeros_like(sums), torch.zeros_like(mixed)
            for at in _blocks(len(q)):
                shares, g = _shares(q[at], sums), gradient[at, head]
                of_mixed.addmm_(_spread(shares, q[at]).T, g)
                of_spread = (g @ mixed.T).view(len(g), *sums.shape)
                of_shares = (of_spread * q[at].unsqueeze(1)).sum(dim=2)
                of_denominator = of_shares * shares.square() * -len(sums)  # a share is 1 / (K denominator)
                of_query[at, head] = of_spread.mul_(shares.unsqueeze(2)).sum(dim=1).addmm_(of_denominator, sums)
                of_sums.addmm_(of_denominator.T, q[at])
            for at in _blocks(len(k)):
                of_value[at, head] = _spread(w[at], k[at]) @ of_mixed
                of_spread = (v[at] @ of_mixed.T).view(-1, *sums.shape)
                of_key[at, head] = of_spread.mul_(w[at].unsqueeze(2)).sum(dim=1).addmm_(w[at], of_sums)
        return of_query, of_key, of_value, None


def _blocks(count: int) -> Iterator[slice]:
    for first in range(0, count, _BLOCK):
        yield slice(first, first + _BLOCK)


def _shares(query: Tensor, sums: Tensor) -> Tensor:
    """nodes x samples: 1 / (K denominator)."""
    return (query @ sums.T).mul_(len(sums)).reciprocal_()


def _spread(weights: Tensor, features: Tensor) -> Tensor:
    """nodes x (samples · features): the features times each sample's weight."""
    return (weights.unsqueeze(2) * features.unsqueeze(1)).flatten(1)


# -- attention on edges -----------------------------------------------------------------------------------------------


def mean_log_attention(query: Tensor, key: Tensor, pattern: sp.csr_array) -> Tensor:
    """The mean over edges and heads of log π / degree; π is the row node's attention, without noise, on the column's.

    `pattern` is symmetric with all self-loops.
    """
    on_pairs = _LogPairs.apply(query, key, pattern) if query.is_cpu else plain_log_pairs(query, key, pattern)
    everything = torch.einsum("nhm,hm->nh", query, key.sum(dim=0))
    return (on_pairs - everything.log().sum()) / (pattern.nnz * query.shape[1])


def plain_log_pairs(query: Tensor, key: Tensor, pattern: sp.csr_array) -> Tensor:
    """Sum over rows v of 1/degree · Σ over neighbours u and heads of log(q_v · k_u), some edges at a time."""

    def add_up(row: Tensor, column: Tensor, share: Tensor) -> Tensor:
        products = (query.index_select(0, row) * key.index_select(0, column)).sum(dim=2)
        return (products.log().sum(dim=1) * share).double().sum()

    lengths = torch.from_numpy(np.diff(pattern.indptr).astype(np.int64)).to(query.device)
    rows = torch.repeat_interleave(lengths)
    columns = as_tensor(pattern.indices).to(query.device).long()
    parts = zip(rows.split(_EDGES), columns.split(_EDGES), strict=True)
    sums = [checkpoint(add_up, row, column, 1.0 / lengths[row], use_reentrant=False) for row, column in parts]
    return torch.stack(sums).sum().to(query.dtype)


class _LogPairs(torch.autograd.Function):
    """The same by kernels that hold one row at a time; nothing per edge is kept.

    The gradient of the queries falls off with the sum itself. That of the keys needs a second look at the edges, from
    the other end.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, pattern: sp.csr_array) -> Tensor:
        query, key = query.detach().contiguous(), key.detach().contiguous()
        rows, of_query = np.empty(len(query)), torch.empty_like(query)
        _log_rows(pattern.indptr, pattern.indices, query.numpy(), key.numpy(), rows, of_query.numpy())
        ctx.save_for_backward(query, key, of_query)
        ctx.pattern = pattern
        return query.new_tensor(rows.sum())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        query, key, of_query = ctx.saved_tensors
        of_key = torch.empty_like(key)
        _key_rows(ctx.pattern.indptr, ctx.pattern.indices, query.numpy(), key.numpy(), of_key.numpy())
        return of_query * gradient, of_key * gradient, None


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, inline="never")
def _log_row(columns: np.ndarray, query: np.ndarray, key: np.ndarray, of_query: np.ndarray) -> np.floating:
    total, share = 0.0, np.float32(1.0 / len(columns))
    of_query[:] = 0.0
    for column in columns:
        for head in range(query.shape[0]):
            product = np.float32(0.0)
            for at in range(query.shape[1]):
                product += query[head, at] * key[column, head, at]
            total += np.log(product)
            weight = share / product
            for at in range(query.shape[1]):
                of_query[head, at] += weight * key[column, head, at]
    return total * share


@numba.njit(cache=True, parallel=True, nogil=True)
def _log_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    out: np.ndarray,
    of_query: np.ndarray,
) -> None:
    """Per row the mean over neighbours of log(query · key), summed over heads, and its gradient in the query."""
    for row in numba.prange(len(out)):
        out[row] = _log_row(indices[indptr[row] : indptr[row + 1]], query[row], key, of_query[row])


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, inline="never")
def _key_row(rows: np.ndarray, indptr: np.ndarray, query: np.ndarray, key: np.ndarray, of_key: np.ndarray) -> None:
    of_key[:] = 0.0
    for row in rows:
        share = np.float32(1.0 / (indptr[row + 1] - indptr[row]))
        for head in range(key.shape[0]):
            product = np.float32(0.0)
            for at in range(key.shape[1]):
                product += query[row, head, at] * key[head, at]
            weight = share / product
            for at in range(key.shape[1]):
                of_key[head, at] += weight * query[row, head, at]


@numba.njit(cache=True, parallel=True, nogil=True)
def _key_rows(indptr: np.ndarray, indices: np.ndarray, query: np.ndarray, key: np.ndarray, of_key: np.ndarray) -> None:
    """The gradient in the keys: of each node from the rows that have it as a neighbour, the pattern being symmetric."""
    for node in numba.prange(len(of_key)):
        _key_row(indices[indptr[node] : indptr[node + 1]], indptr, query, key[node], of_key[node])
