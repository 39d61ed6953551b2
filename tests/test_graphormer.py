"""Graphormer against dense formulas: distances, biased attention with its gradients, encodings, the whole network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import dense_features, make_graph, random_graph, random_split
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import shortest_path
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache
from models.graphormer import Graphormer, GraphormerConfig
from models.kernels import biased_attention
from models.kernels.biased_attention import SpatialBias, chunked_attention, lean_attention
from models.kernels.distances import FARTHEST, UNREACHABLE, plain_distances, shortest_distances


def build(graph: Graph, seed: int = 0, **values: Any) -> Graphormer:
    config = GraphormerConfig(**values)
    torch.manual_seed(seed)
    return Graphormer(graph, Graphormer.prepare(graph, random_split(graph), config, seed, PrepareCache()), config)


def with_random_weights(model: Graphormer) -> Graphormer:
    """Large enough for every part to matter; also the biases and norms, which start at constants."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return model


def random_edges(num_nodes: int, edges: int, seed: int) -> Graph:
    random = np.random.default_rng(seed)
    return make_graph(num_nodes, [tuple(pair) for pair in random.integers(0, num_nodes, (edges, 2))])


def floyd_warshall(graph: Graph) -> np.ndarray:
    return shortest_path(graph.adjacency(), method="FW", unweighted=True)


# -- distances --------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(1, 70), st.integers(0, 120), st.integers(0, 2**31))
def test_distances_are_those_of_floyd_warshall(num_nodes: int, edges: int, seed: int) -> None:
    graph = random_edges(num_nodes, edges, seed)
    expected = floyd_warshall(graph)
    found = shortest_distances(graph, PrepareCache())
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, plain_distances(graph))
    np.testing.assert_array_equal(found == UNREACHABLE, np.isinf(expected))
    np.testing.assert_array_equal(found[np.isfinite(expected)], expected[np.isfinite(expected)])


def test_distances_where_several_searches_are_needed() -> None:
    graph = random_edges(600, 700, seed=1)  # 512 sources go at once
    expected = floyd_warshall(graph)
    assert np.isinf(expected).any() and expected[np.isfinite(expected)].max() > 10
    np.testing.assert_array_equal(
        shortest_distances(graph, PrepareCache()), np.where(np.isinf(expected), UNREACHABLE, expected)
    )


def test_far_away_is_not_unreachable() -> None:
    graph = make_graph(300, [(node, node + 1) for node in range(298)])  # a path of 299 nodes and a node by itself
    distances = shortest_distances(graph, PrepareCache())
    for other in (1, 2, 253, 254, 255, 298):
        assert distances[0, other] == distances[other, 0] == min(other, FARTHEST)
    np.testing.assert_array_equal(distances, plain_distances(graph))
    assert (distances[299, :299] == UNREACHABLE).all() and (distances[:299, 299] == UNREACHABLE).all()
    assert distances[299, 299] == 0
    assert FARTHEST != UNREACHABLE


def test_a_self_loop_is_no_distance() -> None:
    distances = shortest_distances(make_graph(3, [(0, 0), (0, 1)]), PrepareCache())
    np.testing.assert_array_equal(distances, [[0, 1, 255], [1, 0, 255], [255, 255, 0]])


def test_distances_are_computed_once_for_every_setting(tmp_path: Path) -> None:
    graph = random_graph()
    for hits, distances in enumerate((20, 5)):
        cache = PrepareCache(tmp_path)
        prepared = Graphormer.prepare(graph, random_split(graph), GraphormerConfig(distances=distances), hits, cache)
        assert cache.hits == hits
        expected = floyd_warshall(graph)
        np.testing.assert_array_equal(prepared.distances.numpy(), np.where(np.isinf(expected), 255, expected))


# -- attention --------------------------------------------------------------------------------------------------------


def attention_inputs(queries: int, keys: int, scale: float = 1.0) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """q, k, v and table; the distances; and which node each query belongs to, in no order and with repetitions."""
    torch.manual_seed(0)
    leaves = {
        "q": scale * torch.randn(3, queries, 5),
        "k": torch.randn(3, keys, 5),
        "v": torch.randn(3, keys, 5),
        "table": torch.randn(3, 256),
    }
    kinds = torch.tensor([0, 1, 2, 3, 7, 254, 255], dtype=torch.uint8)
    return leaves, kinds[torch.randint(7, (keys, keys))], torch.randint(keys, (queries,))


def dense_attention(leaves: dict[str, Tensor], distances: Tensor | None, rows: Tensor, keep: Tensor | None) -> Tensor:
    """softmax(q kᵀ / √5 + b) v with all weights at once; `keep` multiplies them."""
    scores = leaves["q"] @ leaves["k"].transpose(1, 2) / math.sqrt(5)
    if distances is not None:
        scores = scores + leaves["table"][:, distances[rows].long()]
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return (weights if keep is None else weights * keep) @ leaves["v"]


def assert_like_dense(
    found: Tensor, leaves: dict[str, Tensor], distances: Tensor | None, rows: Tensor, keep: Tensor | None, rtol: float
) -> None:
    """Values and the gradients of all inputs against float64 autograd."""
    twins = {name: value.detach().double().requires_grad_() for name, value in leaves.items()}
    expected = dense_attention(twins, distances, rows, keep)
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=rtol)
    direction = torch.randn(found.shape)
    (found * direction).sum().backward()
    (expected * direction.double()).sum().backward()
    for name, value in leaves.items():
        if name != "table" or distances is not None:
            assert value.grad is not None and twins[name].grad is not None
            size = max(float(twins[name].grad.abs().max()), 0.1)
            torch.testing.assert_close(value.grad.double(), twins[name].grad, rtol=rtol, atol=rtol * size, msg=name)


SHAPES = [(1, 1), (7, 30), (29, 30), (64, 33)]  # with tiles of 10 x 7: none is filled evenly


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(biased_attention, "_QUERIES", 10)
    monkeypatch.setattr(biased_attention, "_KEYS", 7)
    monkeypatch.setattr(biased_attention, "_CHUNK", 400)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("queries, keys", SHAPES)
@pytest.mark.parametrize("kernel", ["tiles", "torch"])
def test_attention_and_its_gradients_are_the_dense_formula(
    biased: bool, queries: int, keys: int, kernel: str, small_tiles: None
) -> None:
    leaves, distances, rows = attention_inputs(queries, keys)
    leaves = {name: value.requires_grad_() for name, value in leaves.items()}
    q, k, v = leaves["q"], leaves["k"], leaves["v"]
    bias = SpatialBias(leaves["table"], distances, rows) if biased else None
    found = (
        lean_attention(q, k, v, 0.0, bias)
        if kernel == "tiles"
        else chunked_attention(q / math.sqrt(5), k, v, 0.0, bias)
    )
    assert_like_dense(found, leaves, distances if biased else None, rows, None, rtol=1e-5)


@pytest.mark.parametrize("scale", [30.0, 1000.0])
def test_large_scores_neither_overflow_nor_vanish(scale: float, small_tiles: None) -> None:
    leaves, distances, rows = attention_inputs(29, 30, scale)
    leaves = {name: value.requires_grad_() for name, value in leaves.items()}
    scores = (leaves["q"] @ leaves["k"].transpose(1, 2) / math.sqrt(5)).detach()
    assert float(scores.max()) > 80 and float(scores.min()) < -80  # e^80 and e^-80: the limits of float32 are near
    found = lean_attention(leaves["q"], leaves["k"], leaves["v"], 0.0, SpatialBias(leaves["table"], distances, rows))
    assert_like_dense(found, leaves, distances, rows, None, rtol=2e-4 * scale / 30)


def test_a_table_with_large_entries() -> None:
    leaves, distances, rows = attention_inputs(29, 30)
    leaves["table"] *= 60.0
    leaves = {name: value.requires_grad_() for name, value in leaves.items()}
    found = lean_attention(leaves["q"], leaves["k"], leaves["v"], 0.0, SpatialBias(leaves["table"], distances, rows))
    assert_like_dense(found, leaves, distances, rows, None, rtol=1e-4)


def dropped_weights(leaves: dict[str, Tensor], bias: SpatialBias | None, rate: float, seed: int) -> Tensor:
    """The weights after dropout, seen through values that are the identity."""
    keys = leaves["k"].shape[1]
    torch.manual_seed(seed)
    return lean_attention(leaves["q"], leaves["k"], torch.eye(keys).expand(3, keys, keys).contiguous(), rate, bias)


@pytest.mark.parametrize("biased", [True, False])
def test_the_backward_pass_drops_the_same_weights(biased: bool, small_tiles: None) -> None:
    leaves, distances, rows = attention_inputs(29, 30)
    bias = SpatialBias(leaves["table"], distances, rows) if biased else None
    keep = (dropped_weights(leaves, bias, 0.4, seed=5) > 0).double() / 0.6
    leaves = {name: value.requires_grad_() for name, value in leaves.items()}
    bias = SpatialBias(leaves["table"], distances, rows) if biased else None
    torch.manual_seed(5)
    found = lean_attention(leaves["q"], leaves["k"], leaves["v"], 0.4, bias)
    assert_like_dense(found, leaves, distances if biased else None, rows, keep, rtol=1e-5)


def test_dropout_keeps_its_share_and_is_new_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves, distances, rows = attention_inputs(90, 80)
    bias = SpatialBias(leaves["table"], distances, rows)
    kept = dropped_weights(leaves, bias, 0.25, seed=1) > 0
    share = kept.double().mean()
    assert float(share) == pytest.approx(0.75, abs=4 * math.sqrt(0.25 * 0.75 / kept.numel()))
    for a, b in ((kept[0], kept[1]), (kept[0, :45], kept[0, 45:]), (kept[0], kept[0].roll(1, dims=1))):
        assert float((a == b).double().mean()) == pytest.approx(0.625, abs=0.03)  # as independent masks agree
    again, other = (dropped_weights(leaves, bias, 0.25, seed) > 0 for seed in (1, 2))
    assert torch.equal(kept, again) and not torch.equal(kept, other)
    monkeypatch.setattr(biased_attention, "_KEYS", 11)
    monkeypatch.setattr(biased_attention, "_QUERIES", 6)
    assert torch.equal(kept, dropped_weights(leaves, bias, 0.25, seed=1) > 0)  # whatever the tiles


def test_no_tile_exceeds_its_buffer_and_none_is_missed() -> None:
    for count, step in ((0, 5), (1, 5), (5, 5), (23, 5)):
        ranges = biased_attention._ranges(count, step)
        assert [node for first, last in ranges for node in range(first, last)] == list(range(count))
        assert all(0 < last - first <= step for first, last in ranges)


# -- encodings --------------------------------------------------------------------------------------------------------


def test_every_distance_has_its_bias() -> None:
    model = build(random_graph(), distances=4)
    kinds = model.kind.tolist()
    assert kinds[:6] == [0, 1, 2, 3, 3, 3] and set(kinds[3:255]) == {3} and kinds[255] == 4
    assert model.spatial.weight.shape == (5, 4)
    assert build(random_graph()).spatial.weight.shape == (21, 4)  # 0 to 18, from 19 on, and unreachable


def test_degrees_above_the_table_share_its_last_row() -> None:
    edges = [(0, node) for node in range(1, 9)] + [(1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 3)]
    graph = make_graph(10, edges, np.eye(10, 3, dtype=np.float32))
    assert graph.degrees.tolist() == [8, 6, 3, 3, 2, 2, 2, 1, 1, 0]
    model = build(graph, degrees=4)
    assert model.centrality.tolist() == [3, 3, 3, 3, 2, 2, 2, 1, 1, 0]
    assert build(graph).centrality.tolist() == graph.degrees.tolist()


def test_degrees_and_distances_are_all_that_tells_nodes_of_equal_features_apart() -> None:
    graph = make_graph(7, [(0, 1), (1, 2), (3, 4), (4, 5)], np.ones((7, 3), dtype=np.float32))  # two paths, a node
    scores = with_random_weights(build(graph)).eval()(torch.arange(7)).detach()
    torch.testing.assert_close(scores[[0, 1, 2]], scores[[3, 4, 5]])
    torch.testing.assert_close(scores[0], scores[2])
    for a, b in ((0, 1), (0, 6), (1, 6)):
        assert float((scores[a] - scores[b]).abs().max()) > 1e-3


# -- the network ------------------------------------------------------------------------------------------------------


def layer_norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(dim=1, keepdim=True)
    centred = centred / torch.sqrt((centred**2).mean(dim=1, keepdim=True) + 1e-5)
    return centred * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def dense_logits(graph: Graph, config: GraphormerConfig, weights: dict[str, Tensor]) -> Tensor:
    """The whole network without dropout, for all nodes, in dense float64 matrices."""
    distances = floyd_warshall(graph)
    shared = np.minimum(distances, config.distances - 1)
    kind = torch.from_numpy(np.where(np.isinf(distances), config.distances, shared))
    bias = weights["spatial.weight"][kind.long()].permute(2, 0, 1)
    degrees = torch.from_numpy(np.minimum(np.diff(graph.indptr), config.degrees - 1).astype(np.int64))
    hidden = linear(torch.from_numpy(dense_features(graph).astype(np.float64)), weights, "project")
    hidden = hidden + weights["degree.weight"][degrees]
    width = config.hidden // config.heads
    for layer in range(config.layers):
        name = f"encoder.{layer}"
        normed = layer_norm(hidden, weights, f"{name}.attention_norm")
        query, key_value = linear(normed, weights, f"{name}.query"), linear(normed, weights, f"{name}.key_value")
        mixed = []
        for head in range(config.heads):
            columns = slice(head * width, (head + 1) * width)
            key, value = key_value[:, : config.hidden][:, columns], key_value[:, config.hidden :][:, columns]
            mixed.append(torch.softmax(query[:, columns] @ key.T / math.sqrt(width) + bias[head], dim=1) @ value)
        hidden = hidden + linear(torch.cat(mixed, dim=1), weights, f"{name}.output")
        inner = layer_norm(hidden, weights, f"{name}.feed_forward.0")
        inner = functional.gelu(linear(inner, weights, f"{name}.feed_forward.1"))
        hidden = hidden + linear(inner, weights, f"{name}.feed_forward.4")
    return linear(hidden, weights, "classifier")


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layers, heads", [(1, 1), (2, 4), (3, 2)])
def test_forward_is_the_dense_formula(sparse: bool, layers: int, heads: int) -> None:
    graph = random_graph(sparse=sparse)
    model = with_random_weights(build(graph, hidden=12, layers=layers, heads=heads, distances=5, degrees=6)).eval()
    weights = {name: value.double() for name, value in model.state_dict().items()}
    expected = dense_logits(graph, model.config, weights)
    nodes = torch.randperm(60)[:23]
    torch.testing.assert_close(model(nodes).double(), expected[nodes], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.predict(torch.arange(60)).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_are_dense_autograd(sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = with_random_weights(build(graph, hidden=12, dropout=0.0, mlp_dropout=0.0, distances=5)).train()
    leaves = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    nodes = torch.randperm(60)[:30]
    loss = model.loss(nodes)
    expected = functional.cross_entropy(dense_logits(graph, model.config, leaves)[nodes], model.labels[nodes])
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), leaves[name].grad, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("name", ["dropout", "mlp_dropout", "attention_dropout"])
def test_each_dropout_acts_in_training_only(name: str) -> None:
    rates = {"dropout": 0.0, "mlp_dropout": 0.0, "attention_dropout": 0.0}
    nodes = torch.arange(60)
    without = with_random_weights(build(random_graph(), **rates))
    assert torch.equal(without.train()(nodes), without.eval()(nodes))
    model = build(random_graph(), **{**rates, name: 0.5})
    model.load_state_dict(without.state_dict())
    assert torch.equal(model.eval()(nodes), without.eval()(nodes))
    assert float((model.train()(nodes) - model(nodes)).detach().abs().max()) > 1e-3


def test_initialisation() -> None:
    model = build(random_graph(), hidden=128, layers=2)
    for name, value in model.state_dict().items():
        if "norm" in name or "feed_forward.0" in name:
            assert (value == (1.0 if name.endswith("weight") else 0.0)).all(), name
        elif name.endswith("bias"):
            assert (value == 0.0).all(), name
        elif value.numel() > 1000:
            assert float(value.std()) == pytest.approx(0.02, rel=0.1), name
            assert abs(float(value.mean())) < 0.002, name


def test_the_spatial_table_starts_small_and_near_start_lifts_the_nearest_distances() -> None:
    tables = []
    for lift in (0.0, 5.0):
        torch.manual_seed(0)
        tables.append(build(random_graph(), distances=250, near_start=lift).spatial.weight.detach())
    assert float(tables[0].std()) == pytest.approx(0.02, rel=0.1)  # 251 x 4 numbers
    lifted = tables[1] - tables[0]
    assert torch.allclose(lifted[:2], torch.full((2, 4), 5.0)) and (lifted[2:] == 0.0).all()


def test_number_of_parameters() -> None:
    # 20 features, 4 classes; per layer two norms, q, k, v and output, and two maps in the feed-forward block
    layer = 2 * 2 * 64 + 4 * (64 * 64 + 64) + 2 * (64 * 64 + 64)
    expected = (20 * 64 + 64) + 512 * 64 + 21 * 4 + 2 * layer + (64 * 4 + 4)
    assert sum(parameter.numel() for parameter in build(random_graph()).parameters()) == expected


# -- settings ---------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_port_but_for_learning_rate_and_dropout() -> None:
    c = GraphormerConfig()
    assert (c.layers, c.heads, c.hidden, c.distances) == (2, 4, 64, 20)
    assert (c.dropout, c.mlp_dropout, c.attention_dropout) == (0.5, 0.5, 0.0)
    assert (c.optimizer, c.learning_rate, c.weight_decay, c.clip_norm) == ("adamw", 5e-3, 1e-5, 5.0)
    assert (c.schedule, c.warmup_updates, c.decay_updates, c.max_epochs) == ("warmup-cosine", 10, 200, 200)
    assert c.batch_size == 0 and not Graphormer.settings


@pytest.mark.parametrize(
    "values, message", [({"hidden": 10, "heads": 4}, "multiple of heads"), ({"distances": 256}, "at most 255")]
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphormerConfig(**values)
