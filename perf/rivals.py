"""The rows of the `kernels` case: for each kernel, ours and what a user would take instead (see kernels.py).

A row's function takes a graph, a side and whether results are to be compared (`exact`); it returns the tensors that
want gradients and what computes the result. Libraries and kernels are imported by the side that needs them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from bench.data.graph import Graph
from bench.prepared import PrepareCache, as_tensor

Build = Callable[[Graph, str, bool], tuple[list[Tensor], Callable[[], Any]]]
CSR, DGL, PYG, TORCH, SCIPY = "torch CSR", "dgl.ops", "torch_geometric", "torch", "scipy"
WHERE = {  # kernels by the module they are in, the only place to change when one moves
    "propagation": "SparseOperator normalized_adjacency",
    "features": "FeatureMatrix",
    "edge_softmax": "edge_attention",
    "edges": "Edges relu_dropped",
    "attention": "token_attention",
    "biased_attention": "SpatialBias lean_attention",
    "kernelized_attention": "kernel_attention plain_kernel_attention gumbel_weights mean_log_attention",
    "diffusion": "PowerIteration Polynomial DroppedAdjacency",
    "dropout": "add_dropped dropped",
    "relations": "squared plain_squared",
    "distances": "_all_distances plain_distances",
    "push": "ppr_rows gfpush_rows neighbour_sums",
    "tokens": "MaterialisedTokens ProjectedTokens",
    "positional": "laplacian_eigenvectors",
    "spectrum": "lowest_eigenpairs",
    "random_features": "softmax_features orthogonal_directions",
    "models.san": "feed_forward",
    "models.graphgps": "return_probabilities",
    "models.graphsaint": "Sampler GraphSAINTConfig count_subgraphs",
    "models.grandplus": "_mix_sparse",
}


class Comparison(NamedTuple):
    """One row: who uses the kernel, on which graph it is measured, against what."""

    used_by: str
    dataset: str
    rivals: tuple[str, ...]
    build: Build


ROWS: dict[str, Comparison] = {}


def row(name: str, used_by: str, dataset: str, *rivals: str) -> Callable[[Build], Build]:
    def add(build: Build) -> Build:
        ROWS[name] = Comparison(used_by, dataset, rivals, build)
        return build

    return add


def kernel(name: str) -> Any:
    """The kernel of this name, imported from where it is now."""
    [place] = [place for place, names in WHERE.items() if name in names.split()]
    return getattr(importlib.import_module(place if "." in place else f"models.kernels.{place}"), name)


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


def csr(matrix: sp.csr_array, values: Tensor | None = None) -> Tensor:
    indptr, indices, data = (as_tensor(part) for part in (matrix.indptr, matrix.indices, matrix.data))
    return torch.sparse_csr_tensor(indptr, indices, data if values is None else values, size=matrix.shape)


def dgl_graph(indptr: np.ndarray, indices: np.ndarray) -> tuple[Any, Any]:
    """dgl.ops and the graph with an edge per entry, in the entries' order."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    import dgl

    entries = (
        torch.from_numpy(np.array(indptr)),
        torch.from_numpy(np.array(indices)),
        torch.arange(len(indices)).int(),
    )
    graph = dgl.graph(("csc", entries), num_nodes=len(indptr) - 1, idtype=torch.int32)
    graph.create_formats_()
    return dgl.ops, graph


def edge_index(indptr: np.ndarray, indices: np.ndarray) -> Tensor:
    """Sources and targets of the edges."""
    targets = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return torch.from_numpy(np.stack([indices, targets]).astype(np.int64))


# -- sparse products ---------------------------------------------------------------------------------------------------


@row("adjacency product", "GCN, GraphGPS, GraphSAINT, NodeFormer", "physics", CSR, DGL)
def adjacency_product(graph: Graph, side: str, exact: bool) -> Any:
    matrix, dense = kernel("normalized_adjacency")(graph), leaf(graph.num_nodes, 64)
    if side == DGL:
        ops, edges = dgl_graph(matrix.indptr, matrix.indices)
        weights = torch.from_numpy(matrix.data)[:, None]
        return [dense], lambda: ops.u_mul_e_sum(edges, dense, weights)
    operator = kernel("SparseOperator")(matrix, symmetric=True) if side == "ours" else csr(matrix)
    return [dense], lambda: operator @ dense


def _feature_product(rate: float) -> Build:
    def build(graph: Graph, side: str, exact: bool) -> Any:
        weight, share = leaf(graph.num_features, 64), 0.0 if exact else rate
        if side == "ours":
            features = kernel("FeatureMatrix")(graph.features)
            return [weight], lambda: features.dropped(share) @ weight
        matrix = csr(graph.features)

        def product() -> Tensor:
            values = functional.dropout(matrix.values(), share)
            return csr_of(matrix, values) @ weight if share else matrix @ weight

        return [weight], product

    return build


def csr_of(matrix: Tensor, values: Tensor) -> Tensor:
    """The same pattern with other values."""
    return torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), values, size=matrix.shape)


row("feature product", "all with sparse features", "physics", CSR)(_feature_product(0.0))
row("feature product, dropout", "GCN, APPNP, GPRGNN, GAT", "physics", CSR)(_feature_product(0.5))


@row("GCN step", "GCN", "physics", CSR, f"{PYG}, dense")
def gcn_step(graph: Graph, side: str, exact: bool) -> Any:
    """Two layers of width 64 with dropout on the features; a step with gradients, without the optimiser."""
    first, last = leaf(64, graph.num_features), leaf(graph.num_classes, 64)
    rate, matrix = 0.0 if exact else 0.5, kernel("normalized_adjacency")(graph)
    if side == "ours":
        features, operator = kernel("FeatureMatrix")(graph.features), kernel("SparseOperator")(matrix, symmetric=True)

        def step() -> Tensor:
            hidden = (operator @ (features.dropped(rate) @ first.T.contiguous())).relu()
            return operator @ (functional.dropout(hidden, rate) @ last.T)

    elif side == CSR:
        sparse, adjacency = csr(graph.features), csr(matrix)

        def step() -> Tensor:
            entered = csr_of(sparse, functional.dropout(sparse.values(), rate))
            return adjacency @ (functional.dropout((adjacency @ (entered @ first.T)).relu(), rate) @ last.T)

    else:
        from torch_geometric.nn import GCNConv

        dense, edges = torch.from_numpy(graph.features.toarray()), edge_index(matrix.indptr, matrix.indices)
        values, layers = torch.from_numpy(matrix.data), []
        for weight in (first, last):
            layers.append(GCNConv(*weight.T.shape, bias=False, normalize=False))
            layers[-1].lin.weight = nn.Parameter(weight.detach().clone())
        weights = [layer.lin.weight for layer in layers]

        def step() -> Tensor:
            hidden = layers[0](functional.dropout(dense, rate), edges, values).relu()
            return layers[1](functional.dropout(hidden, rate), edges, values)

        return weights, step
    return [first, last], step


@row("neighbour_sums", "PPRGo, GRAND+", "physics", CSR)
def neighbour_sums(graph: Graph, side: str, exact: bool) -> Any:
    dense, own = torch.randn(graph.num_nodes, 64), np.zeros(graph.num_nodes, dtype=np.bool_)
    if side == "ours":
        sums, out = kernel("neighbour_sums"), torch.empty_like(dense)
        return [], lambda: (sums(graph, own, dense, out), out)[1]
    matrix = csr(graph.adjacency())
    return [], lambda: matrix @ dense


@row("mixed rows", "GRAND+", "physics", SCIPY)
def mixed_rows(graph: Graph, side: str, exact: bool) -> Any:
    columns = torch.randint(graph.num_nodes, (300, 64)).int().numpy()
    weights, features = np.random.default_rng(0).random(columns.shape, dtype=np.float32), graph.features
    if side == "ours":
        mix = kernel("_mix_sparse")

        def mixed() -> np.ndarray:
            out = np.zeros((len(columns), features.shape[1]), dtype=np.float32)
            mix(columns, weights, features.indptr, features.indices, features.data, out)
            return out

        return [], mixed
    starts = np.arange(0, columns.size + 1, columns.shape[1])
    shape = len(columns), graph.num_nodes
    return [], lambda: (sp.csr_array((weights.ravel(), columns.ravel(), starts), shape=shape) @ features).toarray()


@row("power iteration, dropped adjacency", "APPNP", "computer", CSR, PYG)
def power_iteration(graph: Graph, side: str, exact: bool) -> Any:
    local, matrix, rate = leaf(graph.num_nodes, graph.num_classes), kernel("normalized_adjacency")(graph), 0.5
    rate = 0.0 if exact else rate
    if side == "ours":
        spread, dropped = kernel("PowerIteration"), kernel("DroppedAdjacency")
        return [local], lambda: spread.apply(local, [dropped(matrix, rate, seed) for seed in range(10)], 0.2)
    if side == PYG:
        from torch_geometric.nn import APPNP

        steps = APPNP(10, 0.2, dropout=rate, add_self_loops=False, normalize=False)
        edges, values = edge_index(matrix.indptr, matrix.indices), torch.from_numpy(matrix.data)
        return [local], lambda: steps(local, edges, values)
    adjacency = csr(matrix)

    def power() -> Tensor:
        spread = local
        for _ in range(10):
            spread = 0.8 * (csr_of(adjacency, functional.dropout(adjacency.values(), rate)) @ spread) + 0.2 * local
        return spread

    return [local], power


@row("polynomial", "GPRGNN", "computer", CSR)
def polynomial(graph: Graph, side: str, exact: bool) -> Any:
    local, gamma = leaf(graph.num_nodes, graph.num_classes), leaf(11)
    matrix = kernel("normalized_adjacency")(graph)
    if side == "ours":
        operator, spread = kernel("SparseOperator")(matrix, symmetric=True), kernel("Polynomial")
        return [local, gamma], lambda: spread.apply(local, gamma, operator)
    adjacency = csr(matrix)

    def powers() -> Tensor:
        total, power = gamma[0] * local, local
        for weight in gamma[1:]:
            power = adjacency @ power
            total = total + weight * power
        return total

    return [local, gamma], powers


@row("hop tokens", "NAGphormer", "photo", CSR)
def hop_tokens(graph: Graph, side: str, exact: bool) -> Any:
    if side == "ours":
        build, nothing = kernel("MaterialisedTokens").build, np.zeros((graph.num_nodes, 0), dtype=np.float32)
        return [], lambda: tuple(build(graph, nothing, 3, PrepareCache(), {}).hops)

    def hops() -> tuple[Tensor, ...]:
        adjacency, found = csr(kernel("normalized_adjacency")(graph)), [torch.from_numpy(_dense(graph.features))]
        for _ in range(3):
            found.append(adjacency @ found[-1])
        return tuple(found)

    return [], hops


def _dense(features: Any) -> np.ndarray:
    return features.toarray() if sp.issparse(features) else np.array(features)


@row("projected tokens", "NAGphormer", "physics", CSR)
def projected_tokens(graph: Graph, side: str, exact: bool) -> Any:
    weight, nodes = (
        leaf(128, graph.num_features + 10),
        torch.arange(0, graph.num_nodes, max(1, graph.num_nodes // 2000)),
    )
    structure = np.random.default_rng(0).random((graph.num_nodes, 10), dtype=np.float32)
    if side == "ours":
        tokens = kernel("ProjectedTokens").build(graph, structure, 5)
        return [weight], lambda: tokens.project(nodes, weight)
    features, beside = csr(graph.features), torch.from_numpy(structure)
    adjacency = csr(kernel("normalized_adjacency")(graph))

    def project() -> Tensor:
        hops = [features @ weight[:, :-10].T + beside @ weight[:, -10:].T]
        for _ in range(5):
            hops.append(adjacency @ hops[-1])
        return torch.stack([hop[nodes] for hop in hops], dim=1)

    return [weight], project


# -- attention along edges ---------------------------------------------------------------------------------------------


@row("edge_softmax", "GAT", "computer", DGL, PYG)
def edge_softmax(graph: Graph, side: str, exact: bool) -> Any:
    nodes, heads, rate = graph.num_nodes, 8, 0.0 if exact else 0.3
    leaves = values, reader, read = leaf(nodes, 256), leaf(nodes, heads), leaf(nodes, heads)
    edges = kernel("Edges").of(graph, self_loops=True)
    if side == "ours":
        attend = kernel("edge_attention")
        return [*leaves], lambda: attend(values, reader, read, edges, rate)
    if side == DGL:
        ops, of_dgl = dgl_graph(edges.indptr, edges.indices)

        def attend_dgl() -> Tensor:
            scores = functional.leaky_relu(ops.u_add_v(of_dgl, read.unsqueeze(2), reader.unsqueeze(2)), 0.2)
            weights = functional.dropout(ops.edge_softmax(of_dgl, scores), rate)
            return ops.u_mul_e_sum(of_dgl, values.view(nodes, heads, -1), weights).flatten(1)

        return [*leaves], attend_dgl
    from torch_geometric.utils import scatter, softmax

    source, target = edge_index(edges.indptr, edges.indices)

    def attend_pyg() -> Tensor:
        """What GATConv does after its projection."""
        scores = functional.leaky_relu(read[source] + reader[target], 0.2)
        weights = functional.dropout(softmax(scores, target, num_nodes=nodes), rate)
        messages = values.view(nodes, heads, -1)[source] * weights.unsqueeze(2)
        return scatter(messages, target, dim_size=nodes).flatten(1)

    return [*leaves], attend_pyg


@row("edge sums", "GT, SAN", "computer", DGL, PYG)
def edge_sums(graph: Graph, side: str, exact: bool) -> Any:
    nodes = graph.num_nodes
    leaves = query, key, value = leaf(nodes, 8, 8), leaf(nodes, 8, 8), leaf(nodes, 8, 8)
    if side == "ours":
        edges = kernel("Edges").of(graph)

        def attend() -> Tensor:
            weighted, total = edges.sums(query, key, value)
            return weighted / (total + 1e-6)

    elif side == DGL:
        ops, of_dgl = dgl_graph(graph.indptr, graph.indices)

        def attend() -> Tensor:
            weights = (ops.u_dot_v(of_dgl, key, query) * 8**-0.5).clamp(-5, 5).exp()
            return ops.u_mul_e_sum(of_dgl, value, weights) / (ops.copy_e_sum(of_dgl, weights) + 1e-6)

    else:
        from torch_geometric.utils import scatter

        source, target = edge_index(graph.indptr, graph.indices)

        def attend() -> Tensor:
            """As TransformerConv's messages are formed and summed."""
            weights = ((query[target] * key[source]).sum(2, keepdim=True) * 8**-0.5).clamp(-5, 5).exp()
            total = scatter(weights, target, dim_size=nodes)
            return scatter(value[source] * weights, target, dim_size=nodes) / (total + 1e-6)

    return [*leaves], attend


@row("complement sums", "SAN, full attention", "photo", f"{TORCH}, checkpointed")
def complement_sums(graph: Graph, side: str, exact: bool) -> Any:
    nodes = graph.num_nodes
    leaves = query, key, value = leaf(nodes, 8, 8), leaf(nodes, 8, 8), leaf(nodes, 8, 8)
    edges, rows = kernel("Edges").of(graph), max(1, (1 << 24) // (8 * nodes))
    if side == "ours":
        return [*leaves], lambda: torch.cat(edges.complement_sums(query, key, value, rows), dim=2)
    adjacency = graph.adjacency()

    def of_rows(first: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        part = adjacency[first : first + q.shape[1]].tocoo()
        weights = (q @ k.transpose(1, 2) * 8**-0.5).clamp(-5, 5).exp()
        others = torch.ones(q.shape[1], nodes)
        others[torch.from_numpy(part.row), torch.from_numpy(part.col)] = 0.0
        others[torch.arange(q.shape[1]), torch.arange(first, first + q.shape[1])] = 0.0
        weights = weights * others
        return torch.cat([weights @ v, weights.sum(2, keepdim=True)], dim=2)

    def attend() -> Tensor:
        q, k, v = (part.transpose(0, 1) for part in (query, key, value))
        parts = [
            checkpoint(of_rows, at * rows, part, k, v, use_reentrant=False) for at, part in enumerate(q.split(rows, 1))
        ]
        return torch.cat(parts, dim=1).transpose(0, 1)

    return [*leaves], attend


@row("mean log attention", "NodeFormer", "photo", DGL)
def mean_log_attention(graph: Graph, side: str, exact: bool) -> Any:
    nodes, pattern = graph.num_nodes, kernel("normalized_adjacency")(graph)
    query, key = (torch.rand(nodes, 4, 30).add_(0.1).requires_grad_() for _ in range(2))
    if side == "ours":
        mean = kernel("mean_log_attention")
        return [query, key], lambda: mean(query, key, pattern)
    ops, edges = dgl_graph(pattern.indptr, pattern.indices)
    share = torch.from_numpy(1.0 / np.repeat(np.diff(pattern.indptr), np.diff(pattern.indptr))).float()

    def mean_log() -> Tensor:
        on_pairs = (ops.u_dot_v(edges, key, query).squeeze(2).log().sum(1) * share).sum()
        everything = torch.einsum("nhm,hm->nh", query, key.sum(dim=0)).log().sum()
        return (on_pairs - everything) / (pattern.nnz * 4)

    return [query, key], mean_log


# -- attention among tokens and among all nodes ------------------------------------------------------------------------


def _token_attention(batch: int, length: int, width: int, heads: int) -> Build:
    def build(graph: Graph, side: str, exact: bool) -> Any:
        count, rate = min(batch, graph.num_nodes), 0.0 if exact else 0.1
        packed = leaf(count, length, 3 * width)
        if side == "ours":
            attend = kernel("token_attention")
            return [packed], lambda: attend(packed, heads, rate)

        def attend_torch() -> Tensor:
            q, k, v = packed.view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            return functional.scaled_dot_product_attention(q, k, v, dropout_p=rate).transpose(1, 2).flatten(2)

        return [packed], attend_torch

    return build


row("token attention, 4 x 512", "NAGphormer", "computer", f"{TORCH} SDPA")(_token_attention(2000, 4, 512, 8))
row("token attention, 10 x 16", "SAN's encoder", "photo", f"{TORCH} SDPA")(_token_attention(10**9, 10, 16, 4))


@row("biased attention", "Graphormer", "photo", f"{TORCH} SDPA")
def biased_attention(graph: Graph, side: str, exact: bool) -> Any:
    nodes = graph.num_nodes
    leaves = q, k, v, table = leaf(4, nodes, 16), leaf(4, nodes, 16), leaf(4, nodes, 16), leaf(4, 256)
    distances = torch.from_numpy(kernel("_all_distances")(graph))
    if side == "ours":
        attend, bias = kernel("lean_attention"), kernel("SpatialBias")
        return [*leaves], lambda: attend(q, k, v, 0.0, bias(table, distances, torch.arange(nodes)))
    kinds = distances.int()
    sdpa = functional.scaled_dot_product_attention
    return [*leaves], lambda: sdpa(q[None], k[None], v[None], attn_mask=table[:, kinds][None])[0]


@row("attention with dropout", "GraphGPS, transformer", "photo", f"{TORCH} SDPA")
def dropped_attention(graph: Graph, side: str, exact: bool) -> Any:
    q, k, v = leaves = [leaf(4, graph.num_nodes, 16) for _ in range(3)]
    rate = 0.0 if exact else 0.5
    if side == "ours":
        attend = kernel("lean_attention")
        return leaves, lambda: attend(q, k, v, rate)
    sdpa = functional.scaled_dot_product_attention
    return leaves, lambda: sdpa(q[None], k[None], v[None], dropout_p=rate)[0]


@row("kernel attention", "NodeFormer", "photo", TORCH)
def kernel_attention(graph: Graph, side: str, exact: bool) -> Any:
    nodes = graph.num_nodes
    leaves = [torch.rand(nodes, 4, width).add_(0.1).requires_grad_() for width in (30, 30, 64)]
    noise = kernel("gumbel_weights")((nodes, 4, 10), 0.25, torch.Generator().manual_seed(0))
    attend = kernel("kernel_attention" if side == "ours" else "plain_kernel_attention")
    return leaves, lambda: attend(*leaves, noise)


@row("random features", "GraphGPS, NodeFormer", "photo", TORCH)
def random_features(graph: Graph, side: str, exact: bool) -> Any:
    x = leaf(4, graph.num_nodes, 64)
    directions = kernel("orthogonal_directions")(266, 64, torch.default_generator)
    if side == "ours":
        features = kernel("softmax_features")
        return [x], lambda: features(x, directions, 1)

    def plain() -> Tensor:
        scaled = x * 64**-0.25
        exponent = scaled @ directions.T
        exponent = exponent - scaled.square().sum(-1, keepdim=True) / 2 - exponent.detach().amax((1, 2), keepdim=True)
        return (exponent.exp() + 1e-6) * 266**-0.5

    return [x], plain


# -- element by element ------------------------------------------------------------------------------------------------


@row("add_dropped", "transformers", "computer", TORCH)
def add_dropped(graph: Graph, side: str, exact: bool) -> Any:
    residual, branch, rate = leaf(2000, 4, 512), leaf(2000, 4, 512), 0.0 if exact else 0.1
    add = kernel("add_dropped")
    if side == "ours":
        return [residual, branch], lambda: add(residual, branch, rate)
    return [residual, branch], lambda: residual + functional.dropout(branch, rate)


@row("dropped", "GAT, dense features", "computer", TORCH)
def dropped(graph: Graph, side: str, exact: bool) -> Any:
    values, rate = leaf(graph.num_nodes, 256), 0.0 if exact else 0.3
    drop = kernel("dropped") if side == "ours" else functional.dropout
    return [values], lambda: drop(values, rate)


@row("relu_dropped", "GT, SAN", "computer", TORCH)
def relu_dropped(graph: Graph, side: str, exact: bool) -> Any:
    values, rate = leaf(graph.num_nodes, 128), 0.0 if exact else 0.5
    if side == "ours":
        drop = kernel("relu_dropped")
        return [values], lambda: drop(values * 1.0, rate)
    return [values], lambda: functional.dropout((values * 1.0).relu(), rate)


@row("feed_forward", "SAN's encoder", "photo", TORCH)
def feed_forward(graph: Graph, side: str, exact: bool) -> Any:
    x, widen, narrow, rate = leaf(10 * graph.num_nodes, 16), nn.Linear(16, 2048), nn.Linear(2048, 16), 0.1
    leaves, rate = [x, *widen.parameters(), *narrow.parameters()], 0.0 if exact else rate
    if side == "ours":
        forward = kernel("feed_forward")
        return leaves, lambda: forward(x, widen, narrow, rate)
    return leaves, lambda: narrow(functional.dropout(widen(x).relu(), rate))


# -- before training ---------------------------------------------------------------------------------------------------


@row("normalised adjacency", "many", "computer", SCIPY)
def normalised_adjacency(graph: Graph, side: str, exact: bool) -> Any:
    if side == "ours":
        normalise = kernel("normalized_adjacency")
        return [], lambda: normalise(graph).data

    def product() -> np.ndarray:
        matrix = graph.adjacency() + sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr")
        scale = sp.diags_array((1.0 / np.sqrt(matrix.sum(axis=1))).astype(np.float32))
        return (scale @ matrix @ scale).tocsr().data

    return [], product


@row("squared pattern", "NodeFormer", "computer", SCIPY)
def squared(graph: Graph, side: str, exact: bool) -> Any:
    square = kernel("squared" if side == "ours" else "plain_squared")
    return [], lambda: square(graph.indptr, graph.indices)


@row("distances", "Graphormer", "photo", SCIPY)
def distances(graph: Graph, side: str, exact: bool) -> Any:
    find = kernel("_all_distances" if side == "ours" else "plain_distances")
    return [], lambda: find(graph)


def _largest(rows: np.ndarray, top: int) -> np.ndarray:
    return -np.sort(-rows, axis=1)[:, :top]


@row("PageRank push", "PPRGo", "computer", PYG)
def pagerank(graph: Graph, side: str, exact: bool) -> Any:
    """Two pushes stop at different places: they are compared where both have almost converged."""
    seeds, epsilon = np.arange(min(20 if exact else 1000, graph.num_nodes)), 1e-8 if exact else 1e-4
    if side == "ours":
        push = kernel("ppr_rows")
        return [], lambda: _largest(push(graph, seeds, 0.25, epsilon, 32)["weights"], 32)
    from torch_geometric.utils import get_ppr

    edges, targets = edge_index(graph.indptr, graph.indices).flip(0), torch.from_numpy(seeds)

    def push_pyg() -> np.ndarray:
        (found, columns), values = (part.numpy() for part in get_ppr(edges, 0.25, epsilon, targets, graph.num_nodes))
        table = sp.csr_array((values, (found, columns)), shape=(graph.num_nodes, graph.num_nodes))
        return np.concatenate([_largest(table[[seed]].toarray(), 32) for seed in seeds])

    return [], push_pyg


@row("generalised push", "GRAND+", "computer", SCIPY)
def generalised_push(graph: Graph, side: str, exact: bool) -> Any:
    seeds, mixture = np.arange(min(1000, graph.num_nodes)), 0.4 * 0.6 ** np.arange(7)
    if side == "ours":
        push, own = kernel("gfpush_rows"), np.zeros(graph.num_nodes, dtype=np.bool_)
        rmax = 0.0 if exact else 1e-5
        return [], lambda: _largest(push(graph, own, seeds, mixture, rmax, 64)["weights"], 64)
    step = (sp.diags_array(1.0 / np.maximum(graph.degrees, 1)) @ graph.adjacency()).astype(np.float32).tocsr()

    def powers() -> np.ndarray:
        power = step[seeds] * 0 + sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr")[seeds]
        total = mixture[0] * power
        for weight in mixture[1:]:
            power = power @ step
            total = total + weight * power
        return _largest(total.toarray().astype(np.float32), 64)

    return [], powers


@row("return probabilities", "GraphGPS", "photo", PYG)
def return_probabilities(graph: Graph, side: str, exact: bool) -> Any:
    if side == "ours":
        walk = kernel("return_probabilities")
        return [], lambda: walk(graph, 16, PrepareCache())
    from torch_geometric.data import Data
    from torch_geometric.transforms import AddRandomWalkPE

    data = Data(edge_index=edge_index(graph.indptr, graph.indices).flip(0), num_nodes=graph.num_nodes)
    return [], lambda: AddRandomWalkPE(16, "walk")(data.clone()).walk


def _energies(graph: Graph, vectors: np.ndarray, normalised: bool) -> np.ndarray:
    """Rayleigh quotients, by which eigenvectors of either sign are compared."""
    adjacency, scale = graph.adjacency().astype(np.float64), np.sqrt(np.maximum(graph.degrees, 1.0))[:, None]
    columns = vectors / scale if normalised else vectors.astype(np.float64)
    squares = ((scale * columns) ** 2).sum(0) if normalised else (columns**2).sum(0)
    return np.sort(((scale * columns) ** 2 - columns * (adjacency @ columns)).sum(0) / squares)


def _laplacian(large: bool) -> Build:
    def build(graph: Graph, side: str, exact: bool) -> Any:
        if side == "ours":
            module = importlib.import_module("models.kernels.positional")
            module._LARGE = 0 if large else module._LARGE  # type: ignore[attr-defined]
            return [], lambda: _energies(graph, module.laplacian_eigenvectors(graph, 10, PrepareCache()), True)
        from torch_geometric.data import Data
        from torch_geometric.transforms import AddLaplacianEigenvectorPE

        data = Data(edge_index=edge_index(graph.indptr, graph.indices), num_nodes=graph.num_nodes)
        find = AddLaplacianEigenvectorPE(10, "vectors", is_undirected=True)
        return [], lambda: _energies(graph, find(data.clone()).vectors.numpy(), True)

    return build


row("Laplacian eigenvectors", "NAGphormer, GT, SAN", "physics", PYG)(_laplacian(large=False))
row("Laplacian eigenvectors, block solver", "the same, from 100,000 nodes", "physics", PYG)(_laplacian(large=True))


@row("spectrum of D - A", "GraphGPS", "cs", f"{SCIPY} shift-invert")
def spectrum(graph: Graph, side: str, exact: bool) -> Any:
    if side == "ours":
        find = kernel("lowest_eigenpairs")
        return [], lambda: find(graph, 4, False, PrepareCache())[0]
    laplacian = (sp.diags_array(graph.degrees.astype(np.float64)) - graph.adjacency()).tocsc()
    eigsh = importlib.import_module("scipy.sparse.linalg").eigsh
    return [], lambda: np.maximum(eigsh(laplacian, 4, sigma=-1e-3, which="LM")[0], 0.0)


@row("subgraph sampler", "GraphSAINT", "computer", f"{DGL} and {SCIPY}")
def subgraph_sampler(graph: Graph, side: str, exact: bool) -> Any:
    """Random walks, the nodes they see and the means over neighbours among them, with the transpose."""
    config = kernel("GraphSAINTConfig")(normalization=False, roots="all")
    sampler = kernel("Sampler")(graph, np.arange(graph.num_nodes), config, 0)
    if side == "ours":

        def sample() -> Any:
            adjacency = sampler.subgraph(0, None).adjacency
            return adjacency.matrix.toarray() if exact else adjacency

        return [], (lambda: sample()) if exact else (lambda: (sample(), np.zeros(1))[1])
    _, walks = dgl_graph(graph.indptr, graph.indices)
    dgl, matrix = importlib.import_module("dgl"), graph.adjacency()

    def sample_dgl() -> Any:
        if exact:
            nodes = sampler.nodes(0)
        else:
            roots = torch.randint(graph.num_nodes, (config.draws,), dtype=torch.int32)
            seen = dgl.sampling.random_walk(walks, roots, length=config.walk_length)[0]
            nodes = seen.unique().numpy()[1 if int(seen.min()) < 0 else 0 :]
        part = matrix[nodes][:, nodes]
        part = (sp.diags_array(1.0 / np.maximum(part.sum(axis=1), 1)) @ part).tocsr()
        transposed = part.T.tocsr()
        return part.toarray() if exact else (transposed, np.zeros(1))[1]

    return [], sample_dgl
