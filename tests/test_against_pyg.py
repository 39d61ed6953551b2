"""GCN, GAT and APPNP with the weights copied into torch_geometric's own layers give the same scores.

The other tests compare with formulas that we wrote down; here the other side is somebody else's. Without self-loops:
an existing one has weight 2 in our A + I and 1 in torch_geometric's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import dense_features, make_graph, random_graph, random_split
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

from bench.graph import Graph
from bench.model import Model
from bench.prepared import PrepareCache
from models.appnp import APPNP
from models.gat import GAT
from models.gcn import GCN

TOLERANCE = 1e-6  # ours computes in single precision, theirs in double


def loopless_graph(sparse: bool) -> Graph:
    """`random_graph` without its self-loop; isolated nodes stay."""
    graph = random_graph(sparse=sparse)
    pairs = zip(*graph.adjacency().nonzero(), strict=True)
    edges = [(int(a), int(b)) for a, b in pairs if a < b]
    return make_graph(graph.num_nodes, edges, graph.features, graph.labels, graph.num_classes)


def build(kind: type[Model], graph: Graph, **chosen: Any) -> Any:
    """With random weights, also where training starts from zeros; small, so that single precision suffices."""
    config = kind.Config(**chosen)
    model = kind(graph, kind.prepare(graph, random_split(graph), config, 0, PrepareCache()), config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def their_input(graph: Graph) -> tuple[Tensor, Tensor]:
    """The features and both directions of every edge."""
    features = torch.from_numpy(dense_features(graph).astype(np.float64))
    return features, torch.from_numpy(np.stack(graph.adjacency().nonzero())).long()


def copied(layer: nn.Module, **weights: Tensor | None) -> Any:
    """Their layer in double precision with our weights; those that are not named must not exist."""
    layer.double().eval()
    own = dict(layer.named_parameters())
    assert own.keys() == {name for name, value in weights.items() if value is not None}
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name].reshape(parameter.shape))  # type: ignore[union-attr]
    return layer


def assert_same(model: Model, expected: Tensor) -> None:
    nodes = torch.arange(len(expected))
    assert float(expected.detach().std()) > 0.01  # or agreement would say little
    torch.testing.assert_close(model(nodes).double(), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gcn(sparse: bool, bias: bool) -> None:
    graph = loopless_graph(sparse)
    model = build(GCN, graph, hidden=9, layers=3, bias=bias)
    hidden, edges = their_input(graph)
    for ours in (*model.convolutions, model.head):
        theirs = copied(pyg.GCNConv(*ours.weight.T.shape, bias=bias), **{"lin.weight": ours.weight, "bias": ours.bias})
        hidden = theirs(hidden if ours is model.convolutions[0] else torch.relu(hidden), edges)
    assert_same(model, hidden)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gat(sparse: bool, bias: bool) -> None:
    graph = loopless_graph(sparse)
    model = build(GAT, graph, hidden=12, heads=3, output_heads=2, layers=3, bias=bias)
    hidden, edges = their_input(graph)
    for ours in (*model.attentions, model.head):
        if bias:
            ours.score_bias.data.zero_()  # torch_geometric's scores have none
        theirs = copied(
            pyg.GATConv(ours.weight.shape[1], ours.size, ours.heads, concat=not ours.average, bias=bias),
            **{"lin.weight": ours.weight, "att_dst": ours.of_reader, "att_src": ours.of_read, "bias": ours.bias},
        )
        hidden = theirs(hidden if ours is model.attentions[0] else functional.elu(hidden), edges)
    assert_same(model, hidden)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("steps", "alpha"), [(1, 0.5), (10, 0.1)])
def test_appnp(sparse: bool, steps: int, alpha: float) -> None:
    graph = loopless_graph(sparse)
    model = build(APPNP, graph, steps=steps, alpha=alpha)
    features, edges = their_input(graph)
    local = torch.relu(features @ model.first.weight.double().T) @ model.second.weight.double().T
    assert_same(model, pyg.APPNP(steps, alpha).eval()(local, edges))
