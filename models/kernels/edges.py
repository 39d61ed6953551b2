"""Attention along the edges of a graph, and the Transformer layer around it: what GT and SAN have in common.

The weight of an edge is exp(clamp(<query of its target, key of its source> / sqrt(d), -5, 5)), per head. On the
processor the products and sums over edges are DGL's operators, elsewhere they are plain torch; a test holds both to the
same values. Either way one number per edge and head is all that is ever stored per edge: an edge's vectors are formed
and used up inside the operators.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numba
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import as_tensor
from models.kernels.dropout import _hash as position_hash

CLAMP = 5.0  # scores are kept within ± this before they are exponentiated
# A weight beyond these comes from a clamped score, which passes no gradient; the margin is for the rounding of exp.
_LEAST, _MOST = math.exp(-CLAMP) * (1 + 1e-6), math.exp(CLAMP) * (1 - 1e-6)
_CHUNK = 1 << 14  # entries that one thread takes at a time
_EDGES_AT_ONCE = 1 << 18  # plain operators: edges whose vectors exist at the same time


class Operators(Protocol):
    """Products and sums over edges; node tensors are N x heads x d, edge tensors E x heads."""

    name: str

    def dot(self, of_target: Tensor, of_source: Tensor) -> Tensor:
        """The inner product of both ends of every edge."""

    def sum_incoming(self, weights: Tensor, of_source: Tensor) -> Tensor:
        """At every node, the weighted sum over edges that end there."""

    def sum_outgoing(self, weights: Tensor, of_target: Tensor) -> Tensor:
        """At every node, the weighted sum over edges that start there."""


class Edges:
    """The stored entries of an adjacency matrix: entry (i, j) is an edge on which j, the source, is read by i."""

    def __init__(self, indptr: np.ndarray, indices: np.ndarray) -> None:
        self.indptr, self.indices = indptr, indices
        self._operators: dict[torch.device, Operators] = {}
        self._ends: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, graph: Graph, self_loops: bool = False) -> Edges:
        """The graph's own edges; with `self_loops`, each node also reads itself, once."""
        if not self_loops:
            return cls(graph.indptr, graph.indices)
        looped = sp.csr_array(graph.adjacency() + sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr"))
        looped.sort_indices()
        return cls(looped.indptr.astype(graph.indptr.dtype), looped.indices.astype(graph.indices.dtype))

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    def ends(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Of every edge its target, the node that reads, and its source, the node that is read."""
        if device not in self._ends:
            degrees = torch.from_numpy(np.diff(self.indptr).astype(np.int64))
            target, source = torch.repeat_interleave(degrees), as_tensor(self.indices).long()
            self._ends[device] = target.to(device), source.to(device)
        return self._ends[device]

    def operators(self, device: torch.device) -> Operators:
        """What computes there."""
        if device not in self._operators:
            self._operators[device] = DglOperators(self) if device.type == "cpu" else PlainOperators(self, device)
        return self._operators[device]

    def sums(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Σ w v and Σ w over each node's incoming edges, with w = exp(clamp(q · k / √d)); all are N x heads x d.

        The second has a last dimension of 1. A node without an edge has zeros in both.
        """
        sums: Tensor = _EdgeSums.apply(self, query * query.shape[-1] ** -0.5, key, _with_ones(value))
        return sums[..., :-1], sums[..., -1:]

    def complement_sums(self, query: Tensor, key: Tensor, value: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """The same over all other pairs of different nodes; `rows` targets at a time, computed again for gradients."""
        sums: Tensor = _ComplementSums.apply(self, query * query.shape[-1] ** -0.5, key, _with_ones(value), rows)
        return sums[..., :-1], sums[..., -1:]


class DglOperators:
    """DGL's kernels: every node's sum is one thread's, in the order of its edges, whatever the number of threads."""

    name = "dgl"

    def __init__(self, edges: Edges) -> None:
        os.environ.setdefault("DGLBACKEND", "pytorch")  # or it writes its guess into the home folder
        import dgl  # takes seconds: only where it is used

        self._ops = dgl.ops
        indptr, indices = as_tensor(edges.indptr), as_tensor(edges.indices)
        numbers = torch.arange(len(edges), dtype=indices.dtype)  # implied, but its kernel for d = 1 asks for them
        self._graph = dgl.graph(("csc", (indptr, indices, numbers)), num_nodes=edges.num_nodes, idtype=indices.dtype)
        self._graph.create_formats_()  # now, not within the first step
        self._reversed = dgl.reverse(self._graph)

    def dot(self, of_target: Tensor, of_source: Tensor) -> Tensor:
        return self._ops.u_dot_v(self._graph, of_source.contiguous(), of_target.contiguous()).squeeze(-1)

    def sum_incoming(self, weights: Tensor, of_source: Tensor) -> Tensor:
        return self._ops.u_mul_e_sum(self._graph, of_source.contiguous(), weights.unsqueeze(-1))

    def sum_outgoing(self, weights: Tensor, of_target: Tensor) -> Tensor:
        return self._ops.u_mul_e_sum(self._reversed, of_target.contiguous(), weights.unsqueeze(-1))


class PlainOperators:
    """The same in torch, for devices that DGL's wheel does not serve; a share of the edges at a time."""

    name = "torch"

    def __init__(self, edges: Edges, device: torch.device) -> None:
        self.target, self.source = edges.ends(device)

    def _parts(self) -> Iterator[slice]:
        for first in range(0, len(self.source), _EDGES_AT_ONCE):
            yield slice(first, first + _EDGES_AT_ONCE)

    def dot(self, of_target: Tensor, of_source: Tensor) -> Tensor:
        out = of_target.new_empty((len(self.source), of_target.shape[1]))
        for part in self._parts():
            target, source = of_target.index_select(0, self.target[part]), of_source.index_select(0, self.source[part])
            torch.sum(target.mul_(source), dim=-1, out=out[part])
        return out

    def sum_incoming(self, weights: Tensor, of_source: Tensor) -> Tensor:
        return self._sum(weights, of_source, self.source, self.target)

    def sum_outgoing(self, weights: Tensor, of_target: Tensor) -> Tensor:
        return self._sum(weights, of_target, self.target, self.source)

    def _sum(self, weights: Tensor, values: Tensor, read: Tensor, written: Tensor) -> Tensor:
        out = torch.zeros_like(values, memory_format=torch.contiguous_format)
        for part in self._parts():
            out.index_add_(0, written[part], values.index_select(0, read[part]).mul_(weights[part].unsqueeze(-1)))
        return out


# -- sums over neighbours ---------------------------------------------------------------------------------------------


def _with_ones(value: Tensor) -> Tensor:
    """A column of ones beside the values: its weighted sum is the sum of the weights."""
    return torch.cat([value, value.new_ones(()).expand(*value.shape[:-1], 1)], dim=-1)


class _EdgeSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edges: Edges, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        operators = edges.operators(query.device)
        weights = operators.dot(query, key).clamp_(-CLAMP, CLAMP).exp_()
        ctx.operators = operators
        ctx.save_for_backward(query, key, value, weights)
        return operators.sum_incoming(weights, value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        query, key, value, weights = ctx.saved_tensors
        of_value = ctx.operators.sum_outgoing(weights, gradient)
        of_score = _through_exp(ctx.operators.dot(gradient, value), weights)
        return None, ctx.operators.sum_incoming(of_score, key), ctx.operators.sum_outgoing(of_score, query), of_value


def _through_exp(of_weights: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the scores from that of exp(clamp(scores)), in place."""
    of_weights.mul_(weights)
    of_weights.masked_fill_(weights <= _LEAST, 0.0)
    return of_weights.masked_fill_(weights >= _MOST, 0.0)


class _ComplementSums(torch.autograd.Function):
    """Heads go first inside, so that each is a product of matrices; nothing larger than heads x rows x N exists."""

    @staticmethod
    def forward(ctx: Any, edges: Edges, query: Tensor, key: Tensor, value: Tensor, rows: int) -> Tensor:
        ctx.edges, ctx.rows = edges, rows
        ctx.save_for_backward(query, key, value)
        query, key, value = (x.transpose(0, 1).contiguous() for x in (query, key, value))
        out = torch.empty_like(value)
        for part in _row_parts(edges, rows):
            out[:, part] = _complement_weights(edges, query, key, part) @ value
        return out.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, Tensor, None]:
        query, key, value, gradient = (x.transpose(0, 1).contiguous() for x in (*ctx.saved_tensors, gradient))
        of_query, of_key, of_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for part in _row_parts(ctx.edges, ctx.rows):
            weights = _complement_weights(ctx.edges, query, key, part)
            of_value += weights.transpose(1, 2) @ gradient[:, part]
            of_score = _through_exp(gradient[:, part] @ value.transpose(1, 2), weights)
            of_query[:, part] = of_score @ key
            of_key += of_score.transpose(1, 2) @ query[:, part]
        return None, of_query.transpose(0, 1), of_key.transpose(0, 1), of_value.transpose(0, 1), None


def _row_parts(edges: Edges, rows: int) -> Iterator[slice]:
    for first in range(0, edges.num_nodes, rows):
        yield slice(first, min(first + rows, edges.num_nodes))


def _complement_weights(edges: Edges, query: Tensor, key: Tensor, part: slice) -> Tensor:
    """Weights of all pairs with these targets, heads x rows x N, zero for edges and for a node with itself."""
    weights = (query[:, part] @ key.transpose(1, 2)).clamp_(-CLAMP, CLAMP).exp_()
    pointers = edges.indptr[part.start : part.stop + 1].astype(np.int64)
    row = torch.repeat_interleave(torch.from_numpy(np.diff(pointers))).to(query.device)
    column = as_tensor(edges.indices[pointers[0] : pointers[-1]]).long().to(query.device)
    weights[:, row, column] = 0.0
    own = torch.arange(part.stop - part.start, device=query.device)
    weights[:, own, own + part.start] = 0.0
    return weights


# -- the layer around it ----------------------------------------------------------------------------------------------

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


def relu_dropped(x: Tensor, rate: float) -> Tensor:
    """dropout(relu(x)), in place, for an x that is no view; pass rate 0 outside training."""
    if rate == 0.0:
        return functional.relu(x, inplace=True)
    if not x.is_cpu:
        return functional.dropout(functional.relu(x, inplace=True), rate)
    fused: Tensor = _ReluDropped.apply(x, rate, int(torch.randint(2**32, ())))
    return fused


class _ReluDropped(torch.autograd.Function):
    """An element's fate is a hash of its position (models/kernels/dropout.py): nothing is kept but the result."""

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
        kept = position_hash(np.uint32(first + at), np.uint32(seed)) >= limit
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


def readout(hidden: int, classes: int) -> nn.Sequential:
    """The classifier of both models: h -> h/2 -> h/4 -> classes."""
    half, quarter = hidden // 2, hidden // 4
    return nn.Sequential(
        nn.Linear(hidden, half), nn.ReLU(), nn.Linear(half, quarter), nn.ReLU(), nn.Linear(quarter, classes)
    )


def classification_loss(scores: Tensor, labels: Tensor, class_weighted: bool) -> Tensor:
    """Cross-entropy; weighted, a class that holds the share s of these nodes counts 1 - s.

    Nodes of a single class would all have weight zero and the mean would not exist: then they count alike.
    """
    weights = None
    if class_weighted:
        counts = torch.bincount(labels, minlength=scores.shape[1])
        if int((counts > 0).sum()) > 1:
            weights = (len(labels) - counts).to(scores.dtype) / len(labels)
    return functional.cross_entropy(scores, labels, weight=weights)


def random_signs(count: int, device: torch.device) -> Tensor:
    """Plus or minus one, `count` times; drawn where torch's global generator is, the same on every device."""
    return (2.0 * torch.randint(2, (count,)) - 1.0).to(device)


def estimate_memory(graph: Graph, config: Any) -> int:
    """Bytes at the peak of a training step of either model, without SAN's encoder and its pairs of all nodes."""
    floor = 80e6  # DGL, threads, compiled kernels
    nodes, hidden, layers = graph.num_nodes, config.hidden, config.layers
    edges = graph.num_entries + (nodes if config.self_loops else 0)
    stored = graph.features.nnz if sp.issparse(graph.features) else 0
    dense = 8 * stored >= nodes * graph.num_features > 0  # as FeatureMatrix decides
    features = 4 * nodes * graph.num_features if dense else 28 * stored
    activations = 4 * nodes * hidden * (19 * layers + 10)  # 14 are alive, the allocator cannot use all it has
    along_edges = edges * (24 + 4 * config.heads * (layers + 2))
    parameters = 24 * hidden * (graph.num_features + 10 * hidden * layers)  # gradients, two moments, copies
    return int(floor + features + activations + along_edges + parameters)
