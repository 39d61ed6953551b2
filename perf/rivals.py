"""The rows of the `kernels` case: each kernel and what a user would take instead.

A row takes a graph and whether results are to be compared (`exact`: nothing is dropped then). It gives the tensors that
want gradients, and for each side what builds its structures and returns the function that is measured.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from bench.graph import Graph
from bench.prepared import PrepareCache, as_tensor
from models.kernels.edges import has_dgl

Sides = dict[str, Callable[[], Callable[[], Any]]]
Build = Callable[[Graph, bool], tuple[list[Tensor], Sides]]
CSR, DGL, PYG, TORCH, SDPA, SCIPY = "torch CSR", "dgl.ops", "torch_geometric", "torch", "torch SDPA", "scipy"
WHERE = {  # in which module of models/kernels (or elsewhere) a kernel is: the only place to change when one moves
    "propagation": "SparseOperator ScaledAdjacency normalized_adjacency",
    "features": "FeatureMatrix mixed_rows",
    "edge_softmax": "edge_attention",
    "edges": "Edges",
    "attention": "token_attention",
    "biased_attention": "SpatialBias lean_attention",
    "kernelized_attention": "kernel_attention plain_kernel_attention gumbel_weights mean_log_attention",
    "diffusion": "PowerIteration plain_power_iteration Polynomial plain_polynomial DroppedAdjacency",
    "dropout": "add_dropped dropped relu_dropped",
    "relations": "squared plain_squared",
    "distances": "_all_distances plain_distances",
    "push": "ppr_rows gfpush_rows",
    "tokens": "MaterialisedTokens ProjectedTokens",
    "positional": "laplacian_eigenvectors",
    "spectrum": "lowest_eigenpairs",
    "random_features": "softmax_features orthogonal_directions",
    "encoder_layer": "feed_forward",
    "random_walks": "return_probabilities",
    "subgraphs": "Sampler",
    "models.graphsaint": "GraphSAINTConfig",
}


class Comparison(NamedTuple):
    """Who uses a kernel, on which graph it is measured, against what."""

    used_by: str
    dataset: str
    rivals: tuple[str, ...]
    build: Build


ROWS: dict[str, Comparison] = {}


def row(name: str, used_by: str, dataset: str, *rivals: str) -> Callable[[Build], Build]:
    """Add a row to the table, unless what it is to be compared with is not installed."""
    installed = tuple(rival for rival in rivals if has_dgl() or not rival.startswith(DGL))

    def add(build: Build) -> Build:
        if installed:
            ROWS[name] = Comparison(used_by, dataset, installed, build)
        return build

    return add


def kernel(name: str) -> Any:
    """Import the kernel of this name from where it is now."""
    [place] = [place for place, names in WHERE.items() if name in names.split()]
    return getattr(importlib.import_module(place if "." in place else f"models.kernels.{place}"), name)


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


def positive(*shape: int) -> Tensor:
    return torch.rand(shape).add_(0.1).requires_grad_()


def normalised(graph: Graph) -> Any:
    return kernel("normalized_adjacency")(graph)


def operator(matrix: Any) -> Any:
    return kernel("SparseOperator")(matrix, symmetric=True)


def csr(matrix: Any) -> Tensor:
    indptr, indices, data = (as_tensor(part) for part in (matrix.indptr, matrix.indices, matrix.data))
    return torch.sparse_csr_tensor(indptr, indices, data, size=matrix.shape)


def dropped_csr(matrix: Tensor, rate: float) -> Tensor:
    """The same pattern with dropout on its values."""
    values = functional.dropout(matrix.values(), rate)
    return torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), values, size=matrix.shape)


def dgl_graph(edges: Any) -> tuple[Any, Any]:
    """dgl.ops, and a graph whose edges are the entries of a CSR matrix in their order."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    import dgl

    parts = as_tensor(edges.indptr), as_tensor(edges.indices), torch.arange(len(edges.indices)).int()
    graph = dgl.graph(("csc", parts), num_nodes=len(edges.indptr) - 1, idtype=torch.int32)
    graph.create_formats_()
    return dgl.ops, graph


def edge_index(edges: Any) -> Tensor:
    """Sources and targets, as torch_geometric wants them."""
    targets = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    return torch.from_numpy(np.stack([edges.indices, targets]).astype(np.int64))


def data_of(graph: Graph) -> Any:
    from torch_geometric.data import Data

    return Data(edge_index=edge_index(graph), num_nodes=graph.num_nodes)


def once(side: Callable[[], Any]) -> Callable[[], Callable[[], Any]]:
    """For a side that builds nothing before it is measured."""
    return lambda: side


# -- sparse products ---------------------------------------------------------------------------------------------------


@row("adjacency product", "GCN, GraphGPS, GraphSAINT, NodeFormer", "physics", CSR, DGL)
def adjacency_product(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    matrix, dense = normalised(graph), leaf(graph.num_nodes, 64)

    def of_dgl() -> Callable[[], Tensor]:
        (ops, edges), weights = dgl_graph(matrix), as_tensor(matrix.data)[:, None]
        return lambda: ops.u_mul_e_sum(edges, dense, weights)

    return [dense], {
        "ours": lambda: partial(operator(matrix).__matmul__, dense),
        CSR: lambda: partial(torch.matmul, csr(matrix), dense),
        DGL: of_dgl,
    }


def feature_product(rate: float, graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    weight, drop = leaf(graph.num_features, 64), 0.0 if exact else rate

    def ours() -> Callable[[], Tensor]:
        features = kernel("FeatureMatrix")(graph.features)
        return lambda: features.dropped(drop) @ weight

    def of_csr() -> Callable[[], Tensor]:
        features = csr(graph.features)
        return lambda: (dropped_csr(features, drop) if drop else features) @ weight

    return [weight], {"ours": ours, CSR: of_csr}


row("feature product", "all with sparse features", "physics", CSR)(partial(feature_product, 0.0))
row("feature product, dropout", "GCN, GAT, APPNP, GPRGNN", "physics", CSR)(partial(feature_product, 0.5))


@row("GCN step", "GCN", "physics", CSR, f"{PYG}, dense")
def gcn_step(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    """Two layers of width 64 with dropout: forward and backward."""
    first, last, matrix = leaf(64, graph.num_features), leaf(graph.num_classes, 64), normalised(graph)
    rate, entries = 0.0 if exact else 0.5, sp.csr_array(graph.features)

    def network(adjacency: Any, features: Callable[[], Any]) -> Callable[[], Tensor]:
        def step() -> Tensor:
            hidden = (adjacency @ (features() @ first.T.contiguous())).relu()
            return adjacency @ (functional.dropout(hidden, rate) @ last.T)

        return step

    def of_pyg() -> Callable[[], Tensor]:
        from torch_geometric.nn import GCNConv

        layers = [GCNConv(*weight.T.shape, bias=False, normalize=False) for weight in (first, last)]
        edges, values, features = edge_index(matrix), as_tensor(matrix.data), as_tensor(entries.toarray())
        for layer, weight in zip(layers, (first, last), strict=True):
            del layer.lin.weight
            layer.lin.weight = weight

        def step() -> Tensor:
            hidden = layers[0](functional.dropout(features, rate), edges, values).relu()
            return layers[1](functional.dropout(hidden, rate), edges, values)

        return step

    return [first, last], {
        "ours": lambda: network(operator(matrix), partial(kernel("FeatureMatrix")(graph.features).dropped, rate)),
        CSR: lambda: network(csr(matrix), partial(dropped_csr, csr(graph.features), rate)),
        f"{PYG}, dense": of_pyg,
    }


@row("unstored adjacency", "PPRGo, GRAND+, GraphSAINT", "physics", CSR)
def unstored_adjacency(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    dense, ours = torch.randn(graph.num_nodes, 64), kernel("ScaledAdjacency")(graph, None, 0.0, 0.0)
    return [], {
        "ours": once(partial(ours.product, dense)),
        CSR: lambda: partial(torch.matmul, csr(graph.adjacency()), dense),
    }


@row("mixed rows", "GRAND+", "physics", SCIPY)
def mixed_rows(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    features: Any = graph.features
    columns = torch.randint(graph.num_nodes, (300, 64)).int().numpy()
    weights = np.random.default_rng(0).random(columns.shape, dtype=np.float32)

    def of_scipy() -> np.ndarray:
        starts, shape = np.arange(0, columns.size + 1, columns.shape[1]), (len(columns), graph.num_nodes)
        return (sp.csr_array((weights.ravel(), columns.ravel(), starts), shape=shape) @ features).toarray()

    return [], {"ours": once(partial(kernel("mixed_rows"), features, columns, weights)), SCIPY: once(of_scipy)}


@row("power iteration, dropped adjacency", "APPNP", "computer", CSR)
def power_iteration(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    local, matrix, rate = leaf(graph.num_nodes, graph.num_classes), normalised(graph), 0.0 if exact else 0.5

    def ours() -> Tensor:
        steps = [kernel("DroppedAdjacency")(matrix, rate, seed) for seed in range(10)]
        return kernel("PowerIteration").apply(local, steps, 0.2)

    def of_csr() -> Callable[[], Tensor]:
        adjacency, spread = csr(matrix), kernel("plain_power_iteration")
        return lambda: spread(local, [dropped_csr(adjacency, rate) for _ in range(10)], 0.2)

    return [local], {"ours": once(ours), CSR: of_csr}


@row("polynomial", "GPRGNN", "computer", CSR)
def polynomial(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    local, gamma, matrix = leaf(graph.num_nodes, graph.num_classes), leaf(11), normalised(graph)
    return [local, gamma], {
        "ours": lambda: partial(kernel("Polynomial").apply, local, gamma, operator(matrix)),
        CSR: lambda: partial(kernel("plain_polynomial"), local, gamma, csr(matrix)),
    }


@row("hop tokens", "NAGphormer", "photo", CSR)
def hop_tokens(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    features: Any = graph.features
    nothing = np.zeros((graph.num_nodes, 0), dtype=np.float32)

    def of_csr() -> tuple[Tensor, ...]:
        adjacency, hops = csr(normalised(graph)), [as_tensor(features.toarray())]
        for _ in range(3):
            hops.append(adjacency @ hops[-1])
        return tuple(hops)

    build = kernel("MaterialisedTokens").build
    return [], {"ours": once(lambda: tuple(build(graph, nothing, 3, PrepareCache(), {}).hops)), CSR: once(of_csr)}


@row("projected tokens", "NAGphormer", "physics", CSR)
def projected_tokens(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    weight, nodes = (
        leaf(128, graph.num_features + 10),
        torch.arange(0, graph.num_nodes, max(1, graph.num_nodes // 2000)),
    )
    structure = np.random.default_rng(0).random((graph.num_nodes, 10), dtype=np.float32)

    def of_csr() -> Callable[[], Tensor]:
        features, beside, adjacency = csr(graph.features), as_tensor(structure), csr(normalised(graph))

        def project() -> Tensor:
            hops = [features @ weight[:, :-10].T + beside @ weight[:, -10:].T]
            for _ in range(5):
                hops.append(adjacency @ hops[-1])
            return torch.stack([hop[nodes] for hop in hops], dim=1)

        return project

    build = kernel("ProjectedTokens")
    return [weight], {"ours": lambda: partial(build(graph, structure, 5).project, nodes, weight), CSR: of_csr}


# -- attention along edges ---------------------------------------------------------------------------------------------


@row("edge_softmax", "GAT", "computer", DGL, PYG)
def edge_softmax(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    nodes, heads, rate = graph.num_nodes, 8, 0.0 if exact else 0.3
    values, reader, read = leaf(nodes, 256), leaf(nodes, heads), leaf(nodes, heads)
    edges = kernel("Edges").of(graph, self_loops=True)

    def of_dgl() -> Callable[[], Tensor]:
        ops, linked = dgl_graph(edges)

        def attend() -> Tensor:
            scores = functional.leaky_relu(ops.u_add_v(linked, read.unsqueeze(2), reader.unsqueeze(2)), 0.2)
            weights = functional.dropout(ops.edge_softmax(linked, scores), rate)
            return ops.u_mul_e_sum(linked, values.view(nodes, heads, -1), weights).flatten(1)

        return attend

    def of_pyg() -> Callable[[], Tensor]:
        from torch_geometric.utils import scatter, softmax

        source, target = edge_index(edges)

        def attend() -> Tensor:  # what GATConv does after its projection
            scores = functional.leaky_relu(read[source] + reader[target], 0.2)
            weights = functional.dropout(softmax(scores, target, num_nodes=nodes), rate)
            messages = values.view(nodes, heads, -1)[source] * weights.unsqueeze(2)
            return scatter(messages, target, dim_size=nodes).flatten(1)

        return attend

    ours = partial(kernel("edge_attention"), values, reader, read, edges, rate)
    return [values, reader, read], {"ours": once(ours), DGL: of_dgl, PYG: of_pyg}


@row("edge sums", "GT, SAN", "computer", DGL, PYG)
def edge_sums(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    query, key, value = leaves = [leaf(graph.num_nodes, 8, 8) for _ in range(3)]

    def ours() -> Callable[[], Tensor]:
        edges = kernel("Edges").of(graph)
        return lambda: torch.cat(edges.sums(query, key, value), dim=2)

    def of_dgl() -> Callable[[], Tensor]:
        ops, linked = dgl_graph(graph)

        def attend() -> Tensor:
            weights = (ops.u_dot_v(linked, key, query) * 8**-0.5).clamp(-5, 5).exp()
            return torch.cat([ops.u_mul_e_sum(linked, value, weights), ops.copy_e_sum(linked, weights)], dim=2)

        return attend

    def of_pyg() -> Callable[[], Tensor]:
        from torch_geometric.utils import scatter

        source, target = edge_index(graph)

        def attend() -> Tensor:  # as TransformerConv's messages are formed and summed
            weights = ((query[target] * key[source]).sum(2, keepdim=True) * 8**-0.5).clamp(-5, 5).exp()
            parts = (value[source] * weights, weights)
            return torch.cat([scatter(part, target, dim_size=graph.num_nodes) for part in parts], dim=2)

        return attend

    return leaves, {"ours": ours, DGL: of_dgl, PYG: of_pyg}


@row("complement sums", "SAN, full attention", "photo", f"{TORCH}, checkpointed")
def complement_sums(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    nodes, adjacency = graph.num_nodes, graph.adjacency()
    query, key, value = leaves = [leaf(nodes, 8, 8) for _ in range(3)]
    rows = max(1, (1 << 24) // (8 * nodes))

    def ours() -> Callable[[], Tensor]:
        edges = kernel("Edges").of(graph)
        return lambda: torch.cat(edges.complement_sums(query, key, value), dim=2)

    def of_rows(first: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        others = torch.from_numpy(1.0 - adjacency[first : first + q.shape[1]].toarray())
        others[torch.arange(q.shape[1]), torch.arange(first, first + q.shape[1])] = 0.0
        weights = (q @ k.transpose(1, 2) * 8**-0.5).clamp(-5, 5).exp() * others
        return torch.cat([weights @ v, weights.sum(2, keepdim=True)], dim=2)

    def of_torch() -> Tensor:
        q, k, v = (part.transpose(0, 1) for part in leaves)
        parts = enumerate(q.split(rows, 1))
        sums = [checkpoint(of_rows, at * rows, part, k, v, use_reentrant=False) for at, part in parts]
        return torch.cat(sums, dim=1).transpose(0, 1)

    return leaves, {"ours": ours, f"{TORCH}, checkpointed": once(of_torch)}


@row("mean log attention", "NodeFormer", "photo", DGL)
def mean_log_attention(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    query, key, pattern = positive(graph.num_nodes, 4, 30), positive(graph.num_nodes, 4, 30), normalised(graph)

    def of_dgl() -> Callable[[], Tensor]:
        (ops, edges), degrees = dgl_graph(pattern), as_tensor(np.diff(pattern.indptr))
        shares = (1.0 / degrees).repeat_interleave(degrees)

        def mean() -> Tensor:
            on_pairs = (ops.u_dot_v(edges, key, query).squeeze(2).log().sum(1) * shares).sum()
            everything = torch.einsum("nhm,hm->nh", query, key.sum(dim=0)).log().sum()
            return (on_pairs - everything) / (pattern.nnz * 4)

        return mean

    return [query, key], {"ours": once(partial(kernel("mean_log_attention"), query, key, pattern)), DGL: of_dgl}


# -- attention among tokens and among all nodes ------------------------------------------------------------------------


def token_attention(
    batch: int, length: int, width: int, heads: int, graph: Graph, exact: bool
) -> tuple[list[Tensor], Sides]:
    packed, rate = leaf(min(batch, graph.num_nodes), length, 3 * width), 0.0 if exact else 0.1

    def of_torch() -> Tensor:
        q, k, v = packed.view(len(packed), length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=rate).transpose(1, 2).flatten(2)

    return [packed], {"ours": once(partial(kernel("token_attention"), packed, heads, rate)), SDPA: once(of_torch)}


row("token attention, 4 x 512", "NAGphormer", "computer", SDPA)(partial(token_attention, 2000, 4, 512, 8))
row("token attention, 10 x 16", "SAN's encoder", "photo", SDPA)(partial(token_attention, 100_000, 10, 16, 4))


@row("biased attention", "Graphormer", "photo", SDPA)
def biased_attention(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    q, k, v, table = leaves = [*(leaf(4, graph.num_nodes, 16) for _ in range(3)), leaf(4, 256)]
    distances, sdpa = as_tensor(kernel("_all_distances")(graph)), functional.scaled_dot_product_attention

    def ours() -> Callable[[], Tensor]:
        bias = kernel("SpatialBias")(table, distances, torch.arange(graph.num_nodes))
        return partial(kernel("lean_attention"), q, k, v, 0.0, bias)

    def of_torch() -> Callable[[], Tensor]:
        kinds = distances.int()
        return lambda: sdpa(q[None], k[None], v[None], attn_mask=table[:, kinds][None])[0]

    return leaves, {"ours": ours, SDPA: of_torch}


@row("attention with dropout", "GraphGPS, transformer", "photo", SDPA)
def dropped_attention(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    q, k, v = leaves = [leaf(4, graph.num_nodes, 16) for _ in range(3)]
    rate, sdpa = 0.0 if exact else 0.5, functional.scaled_dot_product_attention
    return leaves, {
        "ours": once(partial(kernel("lean_attention"), q, k, v, rate)),
        SDPA: once(lambda: sdpa(q[None], k[None], v[None], dropout_p=rate)[0]),
    }


@row("kernel attention", "NodeFormer", "photo", TORCH)
def kernel_attention(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    leaves = [positive(graph.num_nodes, 4, width) for width in (30, 30, 64)]
    noise = kernel("gumbel_weights")((graph.num_nodes, 4, 10), 0.25, torch.Generator().manual_seed(0))
    ours, plain = kernel("kernel_attention"), kernel("plain_kernel_attention")
    return leaves, {"ours": once(partial(ours, *leaves, noise)), TORCH: once(partial(plain, *leaves, noise))}


@row("random features", "GraphGPS, NodeFormer", "photo", TORCH)
def random_features(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    x, directions = leaf(4, graph.num_nodes, 64), kernel("orthogonal_directions")(266, 64, torch.default_generator)

    def plain() -> Tensor:
        scaled = x * 64**-0.25
        products = scaled @ directions.T
        exponent = products - scaled.square().sum(-1, keepdim=True) / 2 - products.detach().amax((1, 2), keepdim=True)
        return (exponent.exp() + 1e-6) * 266**-0.5

    return [x], {"ours": once(partial(kernel("softmax_features"), x, directions, 1)), TORCH: once(plain)}


# -- element by element ------------------------------------------------------------------------------------------------


@row("add_dropped", "transformers", "computer", TORCH)
def add_dropped(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    count, rate = min(2000, graph.num_nodes), 0.0 if exact else 0.1
    residual, branch = leaf(count, 4, 512), leaf(count, 4, 512)
    return [residual, branch], {
        "ours": once(partial(kernel("add_dropped"), residual, branch, rate)),
        TORCH: once(lambda: residual + functional.dropout(branch, rate)),
    }


@row("dropped", "GAT, GRAND+, PPRGo", "computer", TORCH)
def dropped(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    values, rate = leaf(graph.num_nodes, 256), 0.0 if exact else 0.3
    ours, torchs = partial(kernel("dropped"), values, rate), partial(functional.dropout, values, rate)
    return [values], {"ours": once(ours), TORCH: once(torchs)}


@row("relu_dropped", "GT, SAN", "computer", TORCH)
def relu_dropped(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    x, rate = leaf(graph.num_nodes, 128), 0.0 if exact else 0.5
    ours = kernel("relu_dropped")  # works in place, hence the product
    return [x], {
        "ours": once(lambda: ours(x * 1.0, rate)),
        TORCH: once(lambda: functional.dropout((x * 1.0).relu(), rate)),
    }


@row("feed_forward", "SAN's encoder", "photo", TORCH)
def feed_forward(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    x, widen, narrow = leaf(10 * graph.num_nodes, 16), nn.Linear(16, 2048), nn.Linear(2048, 16)
    rate = 0.0 if exact else 0.1
    return [x, *widen.parameters(), *narrow.parameters()], {
        "ours": once(partial(kernel("feed_forward"), x, widen, narrow, rate)),
        TORCH: once(lambda: narrow(functional.dropout(widen(x).relu(), rate))),
    }


# -- before training ---------------------------------------------------------------------------------------------------


@row("normalised adjacency", "many", "computer", SCIPY)
def normalised_adjacency(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    def of_scipy() -> np.ndarray:
        matrix: Any = graph.adjacency() + sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr")
        scale: Any = sp.diags_array((1.0 / np.sqrt(matrix.sum(axis=1))).astype(np.float32))
        return (scale @ matrix @ scale).tocsr().data

    return [], {"ours": once(lambda: normalised(graph).data), SCIPY: once(of_scipy)}


@row("squared pattern", "NodeFormer", "computer", SCIPY)
def squared(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    ours, plain = kernel("squared"), kernel("plain_squared")
    return [], {
        "ours": once(partial(ours, graph.indptr, graph.indices)),
        SCIPY: once(partial(plain, graph.indptr, graph.indices)),
    }


@row("distances", "Graphormer", "photo", SCIPY)
def distances(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    return [], {
        "ours": once(partial(kernel("_all_distances"), graph)),
        SCIPY: once(partial(kernel("plain_distances"), graph)),
    }


def largest(rows: np.ndarray, top: int) -> np.ndarray:
    return -np.sort(-rows, axis=1)[:, :top]


@row("PageRank push", "PPRGo", "computer", PYG)
def pagerank(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    """Two pushes stop at different places: they are compared where both have almost converged."""
    seeds, epsilon = np.flatnonzero(graph.degrees)[: 5 if exact else 1000], 1e-8 if exact else 1e-4

    def of_pyg() -> Callable[[], np.ndarray]:
        from torch_geometric.utils import get_ppr

        edges, size = edge_index(graph).flip(0), graph.num_nodes

        def push() -> np.ndarray:
            (found, columns), values = get_ppr(edges, 0.25, epsilon, as_tensor(seeds), size)
            if not exact:
                return values.numpy()
            table = sp.csr_array((values, (found, columns)), shape=(size, size))
            return largest(table[seeds].toarray(), 32)

        return push

    push = kernel("ppr_rows")
    return [], {"ours": once(lambda: largest(push(graph, seeds, 0.25, epsilon, 32)["weights"], 32)), PYG: of_pyg}


@row("generalised push", "GRAND+", "computer", SCIPY)
def generalised_push(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    seeds, mixture = np.flatnonzero(graph.degrees)[:1000], 0.4 * 0.6 ** np.arange(7)

    def ours() -> np.ndarray:
        return largest(kernel("gfpush_rows")(graph, seeds, mixture, 0.0 if exact else 1e-5, 64)["weights"], 64)

    def of_scipy() -> np.ndarray:
        looped: Any = graph.adjacency() + sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr")
        looped.data[:] = 1.0  # also where there was a loop
        step: Any = (sp.diags_array(1.0 / looped.sum(axis=1)) @ looped).astype(np.float32).tocsr()
        power: Any = sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr")[seeds]
        total = mixture[0] * power
        for weight in mixture[1:]:
            power = power @ step
            total = total + weight * power
        return largest(total.toarray().astype(np.float32), 64) if exact else total.data

    return [], {"ours": once(ours), SCIPY: once(of_scipy)}


@row("return probabilities", "GraphGPS", "photo", PYG)
def return_probabilities(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    def of_pyg() -> Callable[[], Tensor]:
        from torch_geometric.transforms import AddRandomWalkPE

        data, walk = data_of(graph), AddRandomWalkPE(4, "walk")  # 16, the default, takes minutes
        return lambda: walk(data.clone()).walk

    walk = kernel("return_probabilities")
    return [], {"ours": once(lambda: walk(graph, 4, PrepareCache())), PYG: of_pyg}


def energies(graph: Graph, vectors: np.ndarray) -> np.ndarray:
    """Rayleigh quotients of I - D^-1/2 A D^-1/2, by which eigenvectors of either sign are compared."""
    scaled = vectors / np.sqrt(np.maximum(graph.degrees, 1.0))[:, None]
    return np.sort(1.0 - (scaled * (graph.adjacency() @ scaled)).sum(0) / (vectors.astype(np.float64) ** 2).sum(0))


def laplacian(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    def of_pyg() -> Callable[[], np.ndarray]:
        from torch_geometric.transforms import AddLaplacianEigenvectorPE

        data, find = data_of(graph), AddLaplacianEigenvectorPE(10, "vectors", is_undirected=True)
        return lambda: energies(graph, find(data.clone()).vectors.numpy())

    solve = kernel("laplacian_eigenvectors")
    return [], {"ours": once(lambda: energies(graph, solve(graph, 10, PrepareCache()))), PYG: of_pyg}


row("Laplacian eigenvectors", "NAGphormer, GT, SAN", "physics", PYG)(laplacian)
row("Laplacian eigenvectors, blocks", "the same, from 100,000 nodes", "aminer-twin", PYG)(laplacian)


@row("spectrum of D - A", "GraphGPS", "cs", f"{SCIPY}, shift-invert")
def spectrum(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    def of_scipy() -> np.ndarray:
        matrix = (sp.diags_array(graph.degrees.astype(np.float64)) - graph.adjacency()).tocsc()
        eigsh = importlib.import_module("scipy.sparse.linalg").eigsh
        return np.maximum(eigsh(matrix, 4, sigma=-1e-3, which="LM")[0], 0.0)

    find = kernel("lowest_eigenpairs")
    ours = once(lambda: find(graph, 4, False, PrepareCache())[0])
    return [], {"ours": ours, f"{SCIPY}, shift-invert": once(of_scipy)}


@row("subgraph sampler", "GraphSAINT", "computer", f"{DGL} and {SCIPY}")
def subgraph_sampler(graph: Graph, exact: bool) -> tuple[list[Tensor], Sides]:
    """Random walks, the nodes they see, the means over neighbours among them, and their transpose."""
    config = kernel("GraphSAINTConfig")(normalization=False, roots="all")
    sampler = kernel("Sampler")(graph, np.arange(graph.num_nodes), config, 0)

    def result(forth: Any, back: Any) -> tuple[np.ndarray, ...]:  # sizes differ by chance
        return (forth.toarray(), back.toarray()) if exact else (np.zeros(1),)

    def ours() -> tuple[np.ndarray, ...]:
        adjacency = sampler.subgraph(0, None).adjacency
        return result(adjacency.matrix, adjacency.transposed)

    def of_dgl() -> Callable[[], tuple[np.ndarray, ...]]:
        linked, matrix = dgl_graph(graph)[1], graph.adjacency()
        walk = importlib.import_module("dgl").sampling.random_walk

        def sample() -> tuple[np.ndarray, ...]:
            roots = torch.randint(graph.num_nodes, (config.draws,), dtype=torch.int32)
            seen = walk(linked, roots, length=config.walk_length)[0].unique().numpy()
            nodes = sampler.nodes(0) if exact else seen[seen >= 0]
            part = matrix[nodes][:, nodes]
            part = (sp.diags_array(1.0 / np.maximum(part.sum(axis=1), 1)) @ part).tocsr()
            return result(part, part.T.tocsr())

        return sample

    return [], {"ours": once(ours), f"{DGL} and {SCIPY}": of_dgl}
