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


def cheaper_strategy(graph: Graph, extra: int, hops: int, batch: int) -> str:
    """Which strategy needs less time per training step; a pure function of shapes (both scale alike with h)."""
    features = graph.num_features
    materialised = min(batch or graph.num_nodes, graph.num_nodes) * (hops + 1) * (features + extra) * _DENSE_COST
    if sp.issparse(graph.features):
        project = graph.features.nnz * _SPARSE_COST
    else:
        project = graph.num_nodes * features * _DENSE_COST
    propagate = hops * (graph.num_entries + graph.num_nodes) * _SPARSE_COST
    projected = project + graph.num_nodes * extra * _DENSE_COST + propagate
    return "projected" if projected < materialised else "materialised"


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
        """Each hop is a cache entry of its own, so a longer sequence serves every shorter one; `key` names U.

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

    def __init__(
        self,
        features: SparseOperator | Tensor,
        structure: Tensor,
        adjacency: SparseOperator,
        hops: int,
        place: Tensor | None = None,
    ) -> None:
        self.features, self.structure, self.adjacency, self.hops = features, structure, adjacency, hops
        self.place = torch.arange(len(structure)) if place is None else place  # of each node, in that order
        inner = features.matrix.shape[1] if isinstance(features, SparseOperator) else features.shape[1]
        self.inner, self.width = inner, inner + structure.shape[1]

    @classmethod
    def build(cls, graph: Graph, structure: np.ndarray, hops: int) -> ProjectedTokens:
        matrix = normalized_adjacency(graph)
        order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
        features: SparseOperator | Tensor
        if sp.issparse(graph.features):
            features = SparseOperator(sp.csr_array(graph.features[order]))
            features.transposed  # noqa: B018  built now, so that it counts as preprocessing
        else:
            features = torch.from_numpy(graph.features[order])
        adjacency = SparseOperator(sp.csr_array(matrix[order][:, order]), symmetric=True)
        place = torch.empty(graph.num_nodes, dtype=torch.int64)
        place[torch.from_numpy(order.astype(np.int64))] = torch.arange(graph.num_nodes)
        return cls(features, torch.from_numpy(structure[order]), adjacency, hops, place)

    def project(self, nodes: Tensor, weight: Tensor) -> Tensor:
        """Projected tokens of these nodes, without bias: (len(nodes), K + 1, h)."""
        rows = self.place[nodes]
        if weight.device.type == "cpu":
            fused: Tensor = _ProjectOnProcessor.apply(weight, self, rows)
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

    def features_gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of E, (h, d + s), from that of [X ‖ U] E."""
        if isinstance(self.features, SparseOperator):
            of_features = self.features.product(gradient, transpose=True)
        else:
            of_features = self.features.T @ gradient
        return torch.cat([of_features, self.structure.T @ gradient]).T.contiguous()


class _ProjectOnProcessor(torch.autograd.Function):
    """The batch's rows of every hop, computing at each hop only the rows that a later one or the batch will read.

    The map from E to the tokens is linear, so nothing is saved but the batch; the gradient walks the hops backwards:
    G <- Â G + g_k, which is Horner's rule for the sum of Â^k g_k.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: ProjectedTokens, nodes: Tensor) -> Tensor:
        matrix = tokens.adjacency.matrix
        needed = _needed_rows(matrix, nodes.numpy(), tokens.hops)
        ctx.tokens, ctx.nodes, ctx.needed = tokens, nodes, needed
        hidden = tokens.project_features(weight.detach())
        out = torch.empty((len(nodes), tokens.hops + 1, weight.shape[0]))
        out[:, 0] = hidden[nodes]
        for hop in range(1, tokens.hops + 1):
            following = torch.empty_like(hidden)
            _masked_product(
                matrix.indptr,
                matrix.indices,
                matrix.data,
                hidden.numpy(),
                needed[hop],
                needed[hop - 1],
                following.numpy(),
            )
            hidden = following
            out[:, hop] = hidden[nodes]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        tokens, nodes, needed = ctx.tokens, ctx.nodes, ctx.needed
        matrix = tokens.adjacency.matrix
        total = torch.zeros((matrix.shape[0], gradient.shape[2]))
        total.index_add_(0, nodes, gradient[:, tokens.hops])
        for hop in range(tokens.hops, 0, -1):
            earlier = torch.empty_like(total)
            _masked_product(
                matrix.indptr, matrix.indices, matrix.data, total.numpy(), needed[hop - 1], needed[hop], earlier.numpy()
            )
            total = earlier.index_add_(0, nodes, gradient[:, hop - 1])
        total[torch.from_numpy(~needed[0])] = 0.0  # rows that were never written
        return tokens.features_gradient(total), None, None


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
