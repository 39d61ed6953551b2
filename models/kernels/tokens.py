"""Hop2Token: each node becomes the sequence of its neighbourhoods, Â^k [X ‖ U] for k = 0..K, projected by a matrix E.

Two exact ways to the projected tokens of a batch, chosen from the shapes of graph and configuration alone:
  materialised  Â^k [X ‖ U] is stored once per hop, gathered per batch and multiplied by E;
  projected     (Â^k [X ‖ U]) E = Â^k ([X ‖ U] E): project once per step, then propagate h columns instead of d.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache, as_tensor
from models.kernels.propagation import SparseOperator, add_row, normalized_adjacency, sparse_dense

_VERSION = 1
_DENSE_COST, _SPARSE_COST = 1 / 80, 1 / 10  # relative time of one multiply-add in a dense and in a sparse product


def build_tokens(graph: Graph, structure: np.ndarray, config: Any, cache: PrepareCache, key: dict[str, Any]) -> Tokens:
    """Prepare the tokens as NAGphormer's settings ask for; `key` names `structure`, the encoding U."""
    if choose_strategy(graph, config, structure.shape[1]) == "projected":
        return ProjectedTokens(graph, structure, config.hops)
    return MaterialisedTokens.build(graph, structure, config.hops, cache, key, config.token_storage)


def choose_strategy(graph: Graph, config: Any, extra: int) -> str:
    """Return the strategy that the settings name, or the cheaper one with `extra` columns of encoding."""
    if config.tokens != "auto":
        return str(config.tokens)
    return cheaper_strategy(graph, extra, config.hops, config.batch_size)


def cheaper_strategy(graph: Graph, extra: int, hops: int, batch: int) -> str:
    """Which strategy needs less time per training step; a pure function of shapes (both scale alike with h)."""
    nodes, features = graph.num_nodes, graph.num_features
    materialised = min(batch or nodes, nodes) * (hops + 1) * (features + extra) * _DENSE_COST
    project = graph.features.nnz * _SPARSE_COST if sp.issparse(graph.features) else nodes * features * _DENSE_COST
    projected = project + nodes * extra * _DENSE_COST + hops * (graph.num_entries + nodes) * _SPARSE_COST
    return "projected" if projected < materialised else "materialised"


def cached_bytes(graph: Graph, config: Any) -> int:
    """Estimate the bytes on disk: the encoding and, where tokens are materialised, a table per hop."""
    nodes, extra = graph.num_nodes, config.encoding_columns
    materialised = choose_strategy(graph, config, extra) == "materialised"
    per_entry = (2 if config.token_storage == "float16" else 4) if materialised else 0
    return 4 * nodes * extra + per_entry * (config.hops + 1) * nodes * (graph.num_features + extra)


def peak_bytes(graph: Graph, config: Any, step: int) -> int:
    """Estimate the memory of a training step, which needs `step` without its tokens, and of an inference."""
    nodes, length, extra = graph.num_nodes, config.hops + 1, config.encoding_columns
    if choose_strategy(graph, config, extra) == "materialised":  # a batch's rows; the tables are maps of files
        return step + 6 * min(config.batch_size or nodes, nodes) * length * (graph.num_features + extra)
    features = 16 * graph.features.nnz if sp.issparse(graph.features) else 4 * nodes * graph.num_features
    propagated = max(step + 12 * nodes * config.hidden, 4 * nodes * config.hidden * length)
    return 8 * (graph.num_entries + nodes) + features + propagated


class MaterialisedTokens:
    """The tokens of all nodes, one memory-mapped N x (d + s) array per hop."""

    def __init__(self, hops: list[Tensor]) -> None:
        self.hops = hops
        self.width = hops[0].shape[1]

    @classmethod
    def build(
        cls,
        graph: Graph,
        structure: np.ndarray,
        hops: int,
        cache: PrepareCache,
        key: dict[str, Any],
        storage: str = "float32",
    ) -> MaterialisedTokens:
        """Each hop is one cache entry, so a longer sequence serves every shorter one; `key` names U.

        In float16 every hop is rounded once more than the one before it; sums are in float32 all the same.
        """
        adjacency: sp.csr_array | None = None
        current = np.empty((0, 0), dtype=np.float32)

        def compute(hop: int) -> dict[str, np.ndarray]:
            nonlocal adjacency
            if hop == 0:
                dense = graph.features.toarray() if sp.issparse(graph.features) else graph.features
                table = np.concatenate([dense, structure], axis=1, dtype=np.float32)
            else:
                if adjacency is None:
                    adjacency = normalized_adjacency(graph)
                table = sparse_dense(adjacency, current.astype(np.float32, copy=False))
            return {"tokens": table.astype(storage, copy=False)}

        tables = []
        for hop in range(hops + 1):
            depends_on = {"graph": graph.fingerprint, **key, "hop": hop, "storage": storage, "version": _VERSION}
            current = cache.get("hop", depends_on, lambda hop=hop: compute(hop))["tokens"]  # type: ignore[misc]
            tables.append(as_tensor(current))
        return cls(tables)

    def project(self, nodes: Tensor, weight: Tensor) -> Tensor:
        """Projected tokens of these nodes, without bias: (len(nodes), K + 1, h)."""
        rows = torch.stack([table[nodes] for table in self.hops], dim=1)
        return functional.linear(rows.to(weight.device, weight.dtype), weight)

    def projector(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """What maps nodes to their projected tokens while the weight stays as it is."""
        return lambda nodes: self.project(nodes, weight)


class ProjectedTokens:
    """X, U and Â, with the nodes in an order that keeps neighbours close; the tokens never exist at full width."""

    def __init__(self, graph: Graph, structure: np.ndarray, hops: int) -> None:
        matrix = normalized_adjacency(graph)
        order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
        self.features: SparseOperator | Tensor
        if sp.issparse(graph.features):
            self.features = SparseOperator(sp.csr_array(graph.features[order]))
            self.features.transposed  # noqa: B018  built now, so that it counts as preprocessing
        else:
            self.features = torch.from_numpy(graph.features[order])
        self.structure, self.hops = torch.from_numpy(structure[order]), hops
        self.adjacency = SparseOperator(sp.csr_array(matrix[order][:, order]), symmetric=True)
        self.inner, self.width = graph.num_features, graph.num_features + structure.shape[1]
        self.place = torch.from_numpy(order.astype(np.int64)).argsort()  # of each node, in that order

    def project(self, nodes: Tensor, weight: Tensor) -> Tensor:
        """Projected tokens of these nodes, without bias: (len(nodes), K + 1, h)."""
        rows = self.place[nodes]
        if weight.device.type == "cpu":
            hidden = self.project_features(weight)
            fused: Tensor = _NeededHops.apply(hidden, self.adjacency.matrix, rows, self.hops)
            return fused
        return torch.stack([hop[rows] for hop in self._propagate(weight)], dim=1)

    def projector(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """What maps nodes to their projected tokens while the weight stays as it is: propagated once for all."""
        hops = self._propagate(weight)
        return lambda nodes: torch.stack([hop[self.place[nodes]] for hop in hops], dim=1)

    def _propagate(self, weight: Tensor) -> list[Tensor]:
        """The projected tokens of all nodes, hop by hop."""
        hops = [self.project_features(weight)]
        for _ in range(self.hops):
            hops.append(self.adjacency @ hops[-1])
        return hops

    def project_features(self, weight: Tensor) -> Tensor:
        """[X ‖ U] E for all nodes."""
        features = self.features if isinstance(self.features, SparseOperator) else self.features.to(weight.device)
        hidden = features @ weight[:, : self.inner].T.contiguous()
        return hidden + self.structure.to(weight.device) @ weight[:, self.inner :].T


Tokens = MaterialisedTokens | ProjectedTokens


class _NeededHops(torch.autograd.Function):
    """The batch's rows of every hop, computing at each hop only the rows that a later one or the batch will read.

    The hops are linear in the projected features, so nothing is saved but the batch; the gradient walks them backwards:
    G <- Â G + g_k, which is Horner's rule for the sum of Â^k g_k.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, matrix: sp.csr_array, nodes: Tensor, hops: int) -> Tensor:
        ctx.matrix, ctx.nodes, ctx.needed = matrix, nodes, _needed_rows(matrix, nodes.numpy(), hops)
        out = hidden.new_empty((len(nodes), hops + 1, hidden.shape[1]))
        out[:, 0] = hidden[nodes]
        for hop in range(1, hops + 1):
            hidden = _rows_of_product(matrix, hidden.detach(), ctx.needed[hop], ctx.needed[hop - 1])
            out[:, hop] = hidden[nodes]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        nodes, needed, hops = ctx.nodes, ctx.needed, gradient.shape[1] - 1
        total = gradient.new_zeros((ctx.matrix.shape[0], gradient.shape[2]))
        total.index_add_(0, nodes, gradient[:, hops])
        for hop in range(hops, 0, -1):
            total = _rows_of_product(ctx.matrix, total, needed[hop - 1], needed[hop])
            total.index_add_(0, nodes, gradient[:, hop - 1])
        total[torch.from_numpy(~needed[0])] = 0.0  # rows that were never written
        return total, None, None, None


def _rows_of_product(matrix: sp.csr_array, dense: Tensor, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    """The chosen rows of matrix @ dense, of which only the chosen rows are read; other rows are not written."""
    out = torch.empty_like(dense)
    _masked_product(matrix.indptr, matrix.indices, matrix.data, dense.numpy(), rows, columns, out.numpy())
    return out


def _needed_rows(matrix: sp.csr_array, nodes: np.ndarray, hops: int) -> list[np.ndarray]:
    """For each hop k = 0..K a mask of the rows of Â^k that the batch's tokens depend on."""
    mask = np.zeros(matrix.shape[0], dtype=np.bool_)
    mask[nodes] = True
    needed = [mask]
    for _ in range(hops):  # Â has every self-loop, so a neighbourhood contains the nodes themselves
        mask = mask if mask.all() else _neighbourhood(matrix.indptr, matrix.indices, mask)
        needed.append(mask)
    return needed[::-1]


@numba.njit(cache=True, nogil=True)
def _neighbourhood(indptr: np.ndarray, indices: np.ndarray, mask: np.ndarray) -> np.ndarray:
    reached = np.zeros_like(mask)
    for row in range(len(mask)):
        if mask[row]:
            for entry in range(indptr[row], indptr[row + 1]):
                reached[indices[entry]] = True
    return reached


@numba.njit(cache=True, nogil=True, fastmath={"contract"}, inline="never")
def _add_masked_row(
    columns: np.ndarray, weights: np.ndarray, dense: np.ndarray, mask: np.ndarray, out: np.ndarray
) -> None:
    for entry in range(len(columns)):
        if mask[columns[entry]]:
            weight = weights[entry]
            source = dense[columns[entry]]
            for column in range(out.shape[0]):
                out[column] += weight * source[column]


@numba.njit(cache=True, parallel=True, nogil=True)
def _masked_product(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    out: np.ndarray,
) -> None:
    """The chosen rows of matrix @ dense, reading only the chosen rows of `dense`; other rows of `out` stay."""
    everything = columns.all()
    for row in numba.prange(len(rows)):
        if rows[row]:
            first, last = indptr[row], indptr[row + 1]
            out[row] = 0.0
            if everything:
                add_row(indices[first:last], data[first:last], dense, out[row])
            else:
                _add_masked_row(indices[first:last], data[first:last], dense, columns, out[row])
