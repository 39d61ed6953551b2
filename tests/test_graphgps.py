"""GraphGPS against dense formulas and PyG's layer: branches, norms, both attentions, encodings, the whole network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import dense_adjacency, dense_features, dense_normalized, make_graph, path_graph, random_graph, random_split
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE

from bench.graph import Graph
from bench.prepared import PrepareCache
from models.graphgps import GraphGPS, GraphGPSConfig, Layer
from models.kernels import biased_attention, global_attention
from models.kernels.global_attention import Attention, Performer
from models.kernels.propagation import SparseOperator, normalized_adjacency
from models.kernels.random_walks import return_probabilities


def build(graph: Graph, seed: int = 0, **values: Any) -> GraphGPS:
    config = GraphGPSConfig(**values)
    torch.manual_seed(seed)
    return GraphGPS(graph, GraphGPS.prepare(graph, random_split(graph), config, seed, PrepareCache()), config)


def with_random_weights(model: Any) -> Any:
    """Also the biases and norms, which start at constants."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return model


# -- the layer --------------------------------------------------------------------------------------------------------


def loopless() -> Graph:
    """A graph without self-loops: PyG would give an existing one another weight."""
    pairs = [tuple(pair) for pair in np.random.default_rng(0).integers(0, 30, (70, 2)) if pair[0] != pair[1]]
    return make_graph(31, pairs)


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("training", [True, False])
def test_the_layer_is_pyg_s_with_the_same_weights(norm: str, training: bool) -> None:
    from torch_geometric.nn import GCNConv, GPSConv

    graph = loopless()
    torch.manual_seed(0)
    ours = with_random_weights(
        Layer(GraphGPSConfig(hidden=12, heads=3, attention="transformer", dropout=0.0, norm=norm, encoding="none"))
    )
    theirs = GPSConv(12, GCNConv(12, 12), heads=3, act="gelu", norm="batch_norm" if norm == "batch" else None)
    pairs: list[tuple[Any, Any]] = [
        (theirs.conv.lin.weight, ours.convolution.weight),
        (theirs.conv.bias, ours.convolution.bias),
        (theirs.attn.in_proj_weight, ours.attention.query_key_value.weight),
        (theirs.attn.in_proj_bias, ours.attention.query_key_value.bias),
        (theirs.attn.out_proj.weight, ours.attention.output.weight),
        (theirs.attn.out_proj.bias, ours.attention.output.bias),
        (theirs.mlp[0].weight, ours.feed_forward[0].weight),
        (theirs.mlp[0].bias, ours.feed_forward[0].bias),
        (theirs.mlp[3].weight, ours.feed_forward[3].weight),
        (theirs.mlp[3].bias, ours.feed_forward[3].bias),
    ]
    if norm == "batch":
        norms = ((theirs.norm1, ours.local_norm), (theirs.norm2, ours.global_norm), (theirs.norm3, ours.norm))
        pairs += [(getattr(a.module, name), getattr(b, name)) for a, b in norms for name in ("weight", "bias")]
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)
    ours.train(training), theirs.train(training)
    x, direction = torch.randn(31, 12), torch.randn(31, 12)
    edges = torch.from_numpy(np.stack(dense_adjacency(graph).nonzero()))
    adjacency = SparseOperator(normalized_adjacency(graph), symmetric=True)
    found, expected = ours(x, adjacency), theirs(x, edges)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    for target, source in pairs:
        torch.testing.assert_close(source.grad, target.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("attention", ["transformer", "performer"])
def test_nodes_that_are_not_asked_for_change_nothing(attention: Any) -> None:
    graph = loopless()
    layer = with_random_weights(Layer(GraphGPSConfig(hidden=12, heads=3, attention=attention, encoding="none"))).eval()
    x, asked = torch.randn(31, 12), torch.tensor([7, 30, 2, 7])
    adjacency = SparseOperator(normalized_adjacency(graph), symmetric=True)
    torch.testing.assert_close(layer(x, adjacency, asked), layer(x, adjacency)[asked], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_every_node_counts_in_the_statistics_of_training(norm: Any) -> None:
    model = with_random_weights(build(random_graph(), norm=norm, dropout=0.0, encoding="none")).train()
    nodes = torch.tensor([4, 50, 9])
    torch.testing.assert_close(model(nodes), model(torch.arange(60))[nodes], rtol=1e-4, atol=1e-4)


# -- attention --------------------------------------------------------------------------------------------------------


def dense_attention(x: Tensor, packed: Tensor, bias: Tensor, heads: int, keep: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ / √width) v, head by head, before the output map; `keep` multiplies the weights."""
    q, k, v = (x @ packed.T + bias).chunk(3, dim=1)
    width = x.shape[1] // heads
    mixed = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        weights = torch.softmax(q[:, own] @ k[:, own].T / math.sqrt(width), dim=1)
        mixed.append((weights if keep is None else weights * keep[head]) @ v[:, own])
    return torch.cat(mixed, dim=1)


def test_attention_dropout_keeps_the_expectation_and_acts_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(biased_attention, "_QUERIES", 8)  # so that several tiles are needed
    monkeypatch.setattr(biased_attention, "_KEYS", 9)
    torch.manual_seed(0)
    config = GraphGPSConfig(hidden=12, heads=3, attention="transformer", attention_dropout=0.4, encoding="none")
    attention = with_random_weights(Attention(config))
    x = torch.randn(20, 12)
    quiet = attention.eval()(x, x).detach()
    packed, bias = attention.query_key_value.weight.double(), attention.query_key_value.bias.double()
    expected = dense_attention(x.double(), packed, bias, 3) @ attention.output.weight.double().T
    torch.testing.assert_close(quiet.double(), expected + attention.output.bias.double(), rtol=1e-4, atol=1e-4)
    attention.train()
    with torch.no_grad():
        draws = torch.stack([attention(x, x) for _ in range(200)])
    error = draws.std(dim=0) / math.sqrt(200)
    assert ((draws.mean(dim=0) - quiet).abs() <= 5 * error).all() and (error > 0).all()


def dense_performer(x: Tensor, performer: Performer, weights: dict[str, Tensor]) -> Tensor:
    """Features e^(w·x − |x|²/2), up to the stabilising factors, and attention from their products, in float64."""
    heads = []
    directions = performer.directions.double()
    for head in range(performer.heads):
        own = slice(head * directions.shape[1], (head + 1) * directions.shape[1])
        q, k, v = (x @ weights[f"{name}.weight"][own].T for name in ("query", "key", "value"))
        q, k = (part / directions.shape[1] ** 0.25 for part in (q, k))
        tops = [(q @ directions.T).amax(dim=1, keepdim=True), (k @ directions.T).amax()]
        features = [
            torch.exp(part @ directions.T - (part**2).sum(dim=1, keepdim=True) / 2 - top.detach()) + 1e-4
            for part, top in zip((q, k), tops, strict=True)
        ]
        products = features[0] @ features[1].T
        heads.append(products / products.sum(dim=1, keepdim=True) @ v)
    return torch.cat(heads, dim=1) @ weights["output.weight"].T + weights["output.bias"]


def test_performer_is_attention_with_random_features() -> None:
    torch.manual_seed(0)
    config = GraphGPSConfig(hidden=10, heads=3, head_width=8, directions=21, attention="performer", encoding="none")
    performer = with_random_weights(Performer(config))
    assert performer.directions.shape == (21, 8)
    x = torch.randn(25, 10)
    weights = {name: value.detach().double().requires_grad_() for name, value in performer.named_parameters()}
    found, expected = performer(x, x), dense_performer(x.double(), performer, weights)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    direction = torch.randn(25, 10)
    (found * direction).sum().backward()
    (expected * direction.double()).sum().backward()
    for name, parameter in performer.named_parameters():
        size = float(weights[name].grad.abs().max())  # type: ignore[union-attr]
        torch.testing.assert_close(parameter.grad.double(), weights[name].grad, rtol=1e-3, atol=1e-3 * size, msg=name)


def test_performer_approaches_softmax_attention_with_many_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_attention, "_EPSILON", 0.0)  # it pulls towards equal weights
    errors = []
    for directions in (16, 4096):
        torch.manual_seed(0)
        config = GraphGPSConfig(
            hidden=8, heads=2, head_width=4, directions=directions, attention="performer", encoding="none"
        )
        performer = with_random_weights(Performer(config))
        with torch.no_grad():
            performer.query.weight *= 0.5  # long vectors need many more directions
            performer.key.weight *= 0.5
            x = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
            packed = torch.cat([performer.query.weight, performer.key.weight, performer.value.weight])
            expected = dense_attention(x, packed, torch.zeros(24), 2)
            found = performer(x, x)
        expected = expected @ performer.output.weight.T + performer.output.bias
        errors.append(float((found - expected).detach().std() / expected.detach().std()))
    assert errors[1] < 0.2 * errors[0] and errors[1] < 0.1


def test_performer_s_directions_are_drawn_once_from_the_seed() -> None:
    models = [build(random_graph(), seed=seed, attention="performer") for seed in (1, 1, 2)]
    drawn = [model.encoder[0].attention.directions for model in models]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], models[0].encoder[1].attention.directions)
    before = drawn[0].clone()
    models[0].train().loss(torch.arange(20)).backward()
    assert torch.equal(models[0].encoder[0].attention.directions, before)
    assert "encoder.0.attention.directions" in models[0].state_dict()  # a restored state predicts as it did


# -- Laplacian encoding -----------------------------------------------------------------------------------------------


def test_pairs_are_encoded_one_by_one_and_summed() -> None:
    model = build(path_graph(), hidden=5, frequency_width=1).eval()
    encoder = model.frequency_encoder
    with torch.no_grad():  # relu(2 a + b), relu(3 b - 1), then their sum minus a half
        encoder[0].weight.copy_(torch.tensor([[2.0, 1.0], [0.0, 3.0]]))
        encoder[0].bias.copy_(torch.tensor([0.0, -1.0]))
        encoder[2].weight.copy_(torch.tensor([[1.0, 1.0]]))
        encoder[2].bias.copy_(torch.tensor([-0.5]))
    pairs = torch.tensor([[[0.5, 0.0], [-1.0, 1.0]], [[0.1, 0.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    # first node: relu(1 + 0 - 0.5) + relu(0 + 2 - 0.5); second: relu(0.2 - 0.5) = 0 and relu(3 + 2 - 0.5)
    model.frequencies = pairs
    torch.testing.assert_close(model._embed()[:, 4:], torch.tensor([[2.0], [4.5], [0.0]]))


def test_signs_of_whole_eigenvectors_flip_in_training_only() -> None:
    torch.manual_seed(0)
    model = build(path_graph(), frequencies=3)
    seen: list[Tensor] = []
    model.frequency_encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model.eval()(torch.arange(3))
    pairs = seen.pop()
    assert torch.equal(pairs, model.frequencies)
    flipped = [
        pairs * torch.tensor([[a, 1.0], [b, 1.0], [c, 1.0]])
        for a in (1.0, -1.0)
        for b in (1.0, -1.0)
        for c in (1.0, -1.0)
    ]
    model.train()
    for _ in range(200):
        model(torch.arange(3))
    matches = [[at for at, other in enumerate(flipped) if torch.equal(found, other)] for found in seen]
    assert all(len(found) == 1 for found in matches)
    assert (np.bincount([at for [at] in matches], minlength=8) > 5).all()  # 25 of each are expected


def test_pairs_hold_the_lowest_eigenvectors_of_the_plain_laplacian() -> None:
    graph = path_graph()
    split, config = random_split(random_graph()), GraphGPSConfig(frequencies=3)
    pairs = GraphGPS.prepare(graph, split, config, 0, PrepareCache()).frequencies
    assert pairs is not None
    np.testing.assert_allclose(pairs[:, :, 1], np.tile([0.0, 1.0, 3.0], (3, 1)), atol=1e-5)
    vectors = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]).T / np.sqrt([3, 2, 6])
    np.testing.assert_allclose(pairs[:, :, 0].abs(), np.abs(vectors), atol=1e-5)


def test_a_graph_with_fewer_eigenvectors_than_asked_for_runs() -> None:
    model = build(path_graph(), frequencies=10).eval()
    assert model.frequencies is not None and model.frequencies.shape == (3, 3, 2)
    assert model(torch.arange(3)).isfinite().all()


# -- random-walk encoding ---------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.integers(1, 80), st.integers(0, 150), st.integers(1, 7), st.integers(0, 2**31))
def test_return_probabilities_are_diagonals_of_dense_powers(num_nodes: int, edges: int, steps: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    graph = make_graph(num_nodes, [tuple(pair) for pair in random.integers(0, num_nodes, (edges, 2))])
    adjacency = dense_adjacency(graph)
    walk = adjacency / np.maximum(adjacency.sum(axis=1, keepdims=True), 1.0)
    expected = np.stack([np.diagonal(np.linalg.matrix_power(walk, k)) for k in range(1, steps + 1)], axis=1)
    found = return_probabilities(graph, steps, PrepareCache())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(2))
def test_return_probabilities_are_torch_geometrics(seed: int) -> None:
    graph = random_graph(seed)
    data = Data(edge_index=torch.from_numpy(np.stack(graph.adjacency().nonzero())).long(), num_nodes=60)
    expected = AddRandomWalkPE(9)(data).random_walk_pe
    np.testing.assert_allclose(return_probabilities(graph, 9, PrepareCache()), expected, rtol=1e-5, atol=1e-6)


def test_return_probabilities_by_hand() -> None:
    graph = make_graph(5, [(0, 1), (1, 2), (3, 3)])  # a path, a node with a loop, a node by itself
    expected = [[0, 0.5, 0, 0.5], [0, 1, 0, 1], [0, 0.5, 0, 0.5], [1, 1, 1, 1], [0, 0, 0, 0]]
    np.testing.assert_allclose(return_probabilities(graph, 4, PrepareCache()), expected, rtol=1e-6)


def test_return_probabilities_are_kept(tmp_path: Path) -> None:
    for hits in range(2):
        cache = PrepareCache(tmp_path)
        for steps in (3, 5):
            assert return_probabilities(random_graph(), steps, cache).shape == (60, steps)
        assert cache.hits == 2 * hits


# -- the network ------------------------------------------------------------------------------------------------------


def linear(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def dense_input(graph: Graph, model: GraphGPS, weights: dict[str, Tensor]) -> Tensor:
    """Projected features and encodings; fresh running statistics: mean 0, variance 1."""
    parts = [linear(torch.from_numpy(dense_features(graph).astype(np.float64)), weights, "project")]
    if model.frequencies is not None:
        inner = torch.relu(linear(model.frequencies.double(), weights, "frequency_encoder.0"))
        parts.append(torch.relu(linear(inner, weights, "frequency_encoder.2")).sum(dim=1))
    if model.walks is not None:
        normed = model.walks.double() / math.sqrt(1 + 1e-5)
        normed = normed * weights["walk_encoder.0.weight"] + weights["walk_encoder.0.bias"]
        parts.append(linear(normed, weights, "walk_encoder.1"))
    return torch.cat(parts, dim=1)


def dense_logits(graph: Graph, model: GraphGPS, weights: dict[str, Tensor]) -> Tensor:
    """The whole network without dropout and norms, in dense float64 matrices."""
    hidden, adjacency = dense_input(graph, model, weights), torch.from_numpy(dense_normalized(graph))
    for layer in range(model.config.layers):
        name = f"encoder.{layer}"
        packed, bias = (weights[f"{name}.attention.query_key_value.{part}"] for part in ("weight", "bias"))
        mixed = linear(dense_attention(hidden, packed, bias, model.config.heads), weights, f"{name}.attention.output")
        local = adjacency @ hidden @ weights[f"{name}.convolution.weight"].T + weights[f"{name}.convolution.bias"]
        hidden = (hidden + local) + (hidden + mixed)
        inner = functional.gelu(linear(hidden, weights, f"{name}.feed_forward.0"))
        hidden = hidden + linear(inner, weights, f"{name}.feed_forward.3")
    return linear(hidden, weights, "classifier")


SMALL: dict[str, Any] = {
    "attention": "transformer",
    "hidden": 12,
    "heads": 3,
    "frequency_width": 3,
    "walk_width": 2,
    "steps": 5,
}


def with_small_weights(model: GraphGPS) -> GraphGPS:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.15)
    return model


@pytest.mark.parametrize("encoding", ["none", "laplacian", "random-walk", "both"])
@pytest.mark.parametrize("sparse", [False, True])
def test_forward_is_the_dense_formula(encoding: Any, sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = with_small_weights(build(graph, encoding=encoding, **SMALL)).eval()
    weights = {name: value.double() for name, value in model.state_dict().items()}
    expected = dense_logits(graph, model, weights)
    nodes = torch.randperm(60)[:23]
    torch.testing.assert_close(model(nodes).double(), expected[nodes], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.predict(torch.arange(60)).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_are_dense_autograd(sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = with_small_weights(build(graph, encoding="both", **SMALL)).eval()  # eval: no flips, no batch statistics
    leaves = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    nodes = torch.randperm(60)[:30]
    loss = model.loss(nodes)
    expected = functional.cross_entropy(dense_logits(graph, model, leaves)[nodes], model.labels[nodes])
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), leaves[name].grad, rtol=1e-3, atol=2e-5, msg=name)


def test_walks_are_normalised_over_all_nodes() -> None:
    model = build(random_graph(), encoding="random-walk")
    assert model.walks is not None
    normed = model.walk_encoder[0].train()(model.walks).detach()
    varied = model.walks.std(dim=0) > 0.01
    np.testing.assert_allclose(normed[:, varied].mean(dim=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(normed[:, varied].var(dim=0, unbiased=False), 1.0, atol=0.05)


@pytest.mark.parametrize("attention", ["transformer", "performer"])
@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
def test_each_dropout_acts_in_training_only(attention: Any, name: str) -> None:
    nodes, rates = torch.arange(60), {"dropout": 0.0, "attention_dropout": 0.0}
    without = build(random_graph(), attention=attention, encoding="none", **rates)
    torch.testing.assert_close(without.train()(nodes), without.eval()(nodes))
    model = build(random_graph(), attention=attention, encoding="none", **{**rates, name: 0.5})
    model.load_state_dict(without.state_dict())
    torch.testing.assert_close(model.eval()(nodes), without.eval()(nodes))
    assert float((model.train()(nodes) - model(nodes)).detach().abs().max()) > 1e-3


# -- settings ---------------------------------------------------------------------------------------------------------


def test_defaults_are_the_authors_for_a_single_graph_but_for_learning_rate_and_attention() -> None:
    c = GraphGPSConfig()
    assert c.attention == "performer"
    assert (c.layers, c.heads, c.hidden, c.dropout, c.attention_dropout) == (2, 4, 64, 0.2, 0.0)
    assert (c.norm, c.frequencies, c.frequency_width, c.steps, c.walk_width) == ("none", 4, 4, 16, 16)
    assert (c.head_width, c.directions) == (64, int(64 * math.log(64)))
    assert (c.optimizer, c.learning_rate, c.weight_decay, c.clip_norm) == ("adamw", 5e-3, 1e-5, 1.0)
    assert (c.schedule, c.warmup_updates, c.decay_updates, c.max_epochs) == ("warmup-cosine", 10, 200, 200)
    assert not GraphGPS.settings


def test_choices_say_what_was_run() -> None:
    for attention in ("transformer", "performer"):
        for encoding in ("none", "laplacian", "random-walk", "both"):
            model = build(random_graph(), attention=attention, encoding=encoding)
            encoded = {"none": 0, "laplacian": 4, "random-walk": 16, "both": 20}[encoding]
            assert model.choices() == {"local": "gcn", "attention": attention, "encoding": encoding}
            assert model.project.weight.shape[0] == 64 - encoded


@pytest.mark.parametrize(
    "values, message",
    [
        ({"hidden": 10, "heads": 4, "attention": "transformer"}, "multiple of heads"),
        ({"hidden": 20, "encoding": "both"}, "must exceed"),
        ({"hidden": 16, "encoding": "random-walk"}, "must exceed"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphGPSConfig(**values)
    GraphGPSConfig(hidden=10, heads=4, attention="performer")  # its heads have a width of their own
