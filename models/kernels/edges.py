"""Attention along the edges of a graph (GT, SAN), and optionally between all other pairs of nodes.

The weight of an edge is exp(clamp(<query of its target, key of its source> / sqrt(d), -5, 5)), per head. On the
processor the products and sums over edges are DGL's operators; on other devices, and where DGL is not installed, they
are plain torch; a test holds both to the same values. Either way one number per edge and head is all that is ever
stored per edge: an edge's vectors are formed and used up inside the operators.
"""

from __future__ import annotations

import importlib.util
import math
import os
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bench.graph import Graph
from bench.prepared import as_tensor

CLAMP = 5.0  # scores are kept within ± this before they are exponentiated
# A weight beyond these comes from a clamped score, which passes no gradient; the margin is for the rounding of exp.
_LEAST, _MOST = math.exp(-CLAMP) * (1 + 1e-6), math.exp(CLAMP) * (1 - 1e-6)
PAIRS_AT_ONCE = 1 << 24  # weights of pairs of nodes and heads that exist at the same time
_EDGES_AT_ONCE = 1 << 18  # plain operators: edges whose vectors exist at the same time


class Operators(Protocol):
    """What computes sums along edges on one kind of device."""

    name: str

    def sums(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """At every node the sum over its edges of exp(clamp(query · key)) value; all are N x heads x d."""


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
        """What computes there: DGL's kernels where it has some."""
        if device not in self._operators:
            by_dgl = device.type == "cpu" and has_dgl()
            self._operators[device] = DglOperators(self) if by_dgl else PlainOperators(self, device)
        return self._operators[device]

    def sums(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Σ w v and Σ w over each node's incoming edges, with w = exp(clamp(q · k / √d)); all are N x heads x d.

        The second has a last dimension of 1. A node without an edge has zeros in both.
        """
        sums = self.operators(query.device).sums(query * query.shape[-1] ** -0.5, key, _with_ones(value))
        return sums[..., :-1], sums[..., -1:]

    def complement_sums(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The same over all other pairs of different nodes; some targets at a time, computed again for gradients."""
        sums: Tensor = _ComplementSums.apply(self, query * query.shape[-1] ** -0.5, key, _with_ones(value))
        return sums[..., :-1], sums[..., -1:]


def has_dgl() -> bool:
    """Say whether DGL is installed: its last wheels are for Python 3.11."""
    return importlib.util.find_spec("dgl") is not None


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

    def sums(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights: Tensor = _ClampedExp.apply(self._ops.u_dot_v(self._graph, key, query))
        summed: Tensor = self._ops.u_mul_e_sum(self._graph, value, weights)
        return summed


class PlainOperators:
    """The same in torch, for devices and Pythons that DGL's wheels do not serve; a share of the edges at a time."""

    name = "torch"

    def __init__(self, edges: Edges, device: torch.device) -> None:
        self.target, self.source = edges.ends(device)

    def sums(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        total = torch.zeros_like(value)
        for ends in zip(self.target.split(_EDGES_AT_ONCE), self.source.split(_EDGES_AT_ONCE), strict=True):
            total = total + checkpoint(self._of_edges, *ends, query, key, value, use_reentrant=False)
        return total

    @staticmethod
    def _of_edges(target: Tensor, source: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = (query.index_select(0, target) * key.index_select(0, source)).sum(dim=-1, keepdim=True)
        messages = value.index_select(0, source) * scores.clamp(-CLAMP, CLAMP).exp()
        return torch.zeros_like(value).index_add(0, target, messages)


class _ClampedExp(torch.autograd.Function):
    """exp(clamp(scores)) in place of the scores: one number per edge and head is all that is kept."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = scores.clamp_(-CLAMP, CLAMP).exp_()
        ctx.mark_dirty(weights)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        [weights] = ctx.saved_tensors
        return _through_exp(gradient.clone(), weights)


def _through_exp(of_weights: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the scores from that of exp(clamp(scores)), in place."""
    return of_weights.mul_(weights).masked_fill_(weights <= _LEAST, 0.0).masked_fill_(weights >= _MOST, 0.0)


class _ComplementSums(torch.autograd.Function):
    """Heads go first inside, so that each is a product of matrices; nothing larger than heads x rows x N exists."""

    @staticmethod
    def forward(ctx: Any, edges: Edges, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(query, key, value)
        query, key, value = (x.transpose(0, 1).contiguous() for x in (query, key, value))
        parts = _row_parts(query)
        return torch.cat([_complement_weights(edges, query, key, part) @ value for part in parts], 1).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        query, key, value, gradient = (x.transpose(0, 1).contiguous() for x in (*ctx.saved_tensors, gradient))
        of_query, of_key, of_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for part in _row_parts(query):
            weights = _complement_weights(ctx.edges, query, key, part)
            of_value += weights.transpose(1, 2) @ gradient[:, part]
            of_score = _through_exp(gradient[:, part] @ value.transpose(1, 2), weights)
            of_query[:, part] = of_score @ key
            of_key += of_score.transpose(1, 2) @ query[:, part]
        return None, of_query.transpose(0, 1), of_key.transpose(0, 1), of_value.transpose(0, 1)


def _row_parts(query: Tensor) -> list[slice]:
    heads, nodes, _ = query.shape
    rows = max(1, PAIRS_AT_ONCE // (heads * nodes))
    return [slice(first, min(first + rows, nodes)) for first in range(0, nodes, rows)]


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


def _with_ones(value: Tensor) -> Tensor:
    """A column of ones beside the values: its weighted sum is the sum of the weights."""
    return torch.cat([value, value.new_ones(()).expand(*value.shape[:-1], 1)], dim=-1)
