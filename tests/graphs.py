"""Tiny graphs for the tests of models and training, and dense twins of the matrices that the models build sparsely."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import numba
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional

from bench.graph import UNKNOWN_LABEL, Graph, Split, graph_fingerprint
from models.kernels.edges import has_dgl

# Threads cost more than they give on graphs of this size, above all on a machine that is busy.
numba.set_num_threads(1)
torch.set_num_threads(1)

ISOLATED = (0, 17, 31, 59)  # nodes of `random_graph` that have no edge
LONELY = 5  # the one node of its class in `random_graph`
LOOP = 9  # a node of `random_graph` with a self-loop
ON_EDGES = "dgl" if has_dgl() else "torch"  # what computes sums along edges here


def make_graph(
    num_nodes: int,
    edges: Iterable[tuple[int, int]],
    features: np.ndarray | sp.csr_array | None = None,
    labels: np.ndarray | None = None,
    num_classes: int = 2,
) -> Graph:
    """A graph from undirected edges, a self-loop written as (i, i)."""
    dense = np.zeros((num_nodes, num_nodes), dtype=np.float32)
    for a, b in edges:
        dense[a, b] = dense[b, a] = 1.0
    matrix = sp.csr_array(dense)
    features = np.eye(num_nodes, 3, dtype=np.float32) if features is None else features
    labels = np.arange(num_nodes) % num_classes if labels is None else labels
    graph = Graph(
        "tiny",
        matrix.indptr.astype(np.int32),
        matrix.indices.astype(np.int32),
        features,
        labels.astype(np.int64),
        num_classes,
    )
    return replace(graph, fingerprint=graph_fingerprint(graph))


def path_graph() -> Graph:
    """Three nodes in a row, 0 - 1 - 2, with two features."""
    return make_graph(3, [(0, 1), (1, 2)], np.array([[1, 0], [0, 6], [2, 12]], dtype=np.float32))


@functools.cache
def random_graph(seed: int = 0, sparse: bool = False, num_nodes: int = 60, num_features: int = 20) -> Graph:
    """Two connected components of unequal size, isolated nodes, one self-loop, and a class with a single node.

    Labels 0 to 2 can be learnt from features and from neighbours; label 3 belongs to one node. Do not write into it.
    """
    random = np.random.default_rng(seed)
    linked = [node for node in range(num_nodes) if node not in ISOLATED]
    components = [linked[: 2 * len(linked) // 3], linked[2 * len(linked) // 3 :]]
    labels = random.integers(0, 3, num_nodes)
    edges = [(LOOP, LOOP)]
    for members in components:
        edges += list(itertools.pairwise(members))  # a spine keeps the component in one piece
        pairs = [(a, b) for a in members for b in members if a < b]
        edges += [(a, b) for a, b in pairs if random.random() < (0.2 if labels[a] == labels[b] else 0.03)]
    features = (random.random((num_nodes, num_features)) < 0.25) * random.random((num_nodes, num_features))
    features[np.arange(num_nodes), labels] += 1.0
    features[1] = 0.0  # a node without a single feature
    labels[LONELY] = 3
    features = features.astype(np.float32)
    return make_graph(num_nodes, edges, sp.csr_array(features) if sparse else features, labels, num_classes=4)


def random_split(graph: Graph, seed: int = 0) -> Split:
    """About half, a quarter and a quarter; the lonely class is trained on, isolated nodes are in every part."""
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    order = order[~np.isin(order, (*ISOLATED, LONELY))]
    parts = np.split(order, [len(order) // 2, 3 * len(order) // 4])
    parts = [np.append(part, node) for part, node in zip(parts, ISOLATED[:3], strict=True)]
    train, val, test = (np.sort(part) for part in (np.append(parts[0], LONELY), parts[1], np.append(parts[2], 59)))
    return Split(train, val, test, "by hand", seed)


def training_view(graph: Graph, split: Split) -> Graph:
    """What a model gets to see: the labels of the training nodes only."""
    labels = np.full(graph.num_nodes, UNKNOWN_LABEL, dtype=np.int64)
    labels[split.train] = graph.labels[split.train]
    return graph.with_labels(labels)


def relabelled(graph: Graph, order: np.ndarray) -> Graph:
    """The same graph with node `order[i]` now called `i`."""
    adjacency = sp.csr_array(graph.adjacency()[order][:, order])
    adjacency.sort_indices()
    features = graph.features[order]
    changed = replace(
        graph,
        indptr=adjacency.indptr.astype(np.int32),
        indices=adjacency.indices.astype(np.int32),
        features=features,
        labels=graph.labels[order],
    )
    return replace(changed, fingerprint=graph_fingerprint(changed))


def dense_features(graph: Graph) -> np.ndarray:
    return graph.features.toarray() if sp.issparse(graph.features) else graph.features


def dense_adjacency(graph: Graph) -> np.ndarray:
    """A in float64, written entry by entry from the CSR arrays."""
    dense = np.zeros((graph.num_nodes, graph.num_nodes))
    for row in range(graph.num_nodes):
        dense[row, graph.indices[graph.indptr[row] : graph.indptr[row + 1]]] = 1.0
    return dense


def dense_normalized(graph: Graph) -> np.ndarray:
    """D^-1/2 (A + I) D^-1/2 in float64."""
    looped = dense_adjacency(graph) + np.eye(graph.num_nodes)
    roots = np.sqrt(looped.sum(axis=1))
    return looped / np.outer(roots, roots)


def dense_laplacian(graph: Graph) -> np.ndarray:
    """I - D^-1/2 A D^-1/2 in float64, degrees at least 1."""
    adjacency = dense_adjacency(graph)
    roots = np.sqrt(np.maximum(adjacency.sum(axis=1), 1.0))
    return np.eye(graph.num_nodes) - adjacency / np.outer(roots, roots)


def read_mask(graph: Graph) -> Tensor:
    """Whom each node reads, as a mask: its neighbours and itself."""
    return torch.from_numpy(dense_adjacency(graph) + np.eye(graph.num_nodes)) > 0


def dense_attention(graph: Graph, values: Tensor, reader: Tensor, read: Tensor, keep: Tensor | None = None) -> Tensor:
    """GAT's Σ_j coefficient (times `keep`) · value_j, head by head, by a masked softmax over whole rows."""
    scores = functional.leaky_relu(reader.T.unsqueeze(2) + read.T.unsqueeze(1), 0.2)
    weights = torch.softmax(scores.masked_fill(~read_mask(graph), -math.inf), dim=2)
    weights = weights if keep is None else weights * keep
    by_head = values.view(len(values), reader.shape[1], -1).transpose(0, 1)
    return (weights @ by_head).transpose(0, 1).flatten(1)
