"""GCN against dense formulas: forward, gradients, dropout, feature normalisation, and where weight decay acts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from graphs import dense_features, dense_normalized, random_graph, random_split
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache
from bench.space import admits
from models.gcn import GCN, GCNConfig

AUTHORS: dict[str, Any] = {"normalize_features": True, "bias": False}


def build(graph: Graph, seed: int = 0, **settings: Any) -> GCN:
    config = GCNConfig(**settings)
    torch.manual_seed(seed)
    return GCN(graph, GCN.prepare(graph, random_split(graph), config, seed, PrepareCache()), config)


def with_random_weights(model: GCN) -> GCN:
    """Also the biases and the norms' parameters, which start at constants."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return model


def dense_logits(graph: Graph, model: GCN, weights: dict[str, Tensor]) -> Tensor:
    """The whole network without dropout, in dense float64 matrices."""
    c = model.config
    adjacency = torch.from_numpy(dense_normalized(graph))
    hidden = torch.from_numpy(dense_features(graph).astype(np.float64))
    if c.normalize_features:
        hidden = functional.normalize(hidden, p=1.0, dim=1)
    zero = torch.zeros(())
    for at in range(c.layers if c.linear_head else c.layers - 1):
        following = adjacency @ hidden @ weights[f"convolutions.{at}.weight"].T
        following = following + weights.get(f"convolutions.{at}.bias", zero)
        if c.residual:
            following = following + hidden @ weights[f"residuals.{at}.weight"].T + weights[f"residuals.{at}.bias"]
        if c.norm == "layer":
            following = following - following.mean(dim=1, keepdim=True)
            following = following / torch.sqrt((following**2).mean(dim=1, keepdim=True) + 1e-5)
        if c.norm == "batch":  # fresh running statistics: mean 0, variance 1
            following = following / np.sqrt(1 + 1e-5)
        if c.norm != "none":
            following = following * weights[f"norms.{at}.weight"] + weights[f"norms.{at}.bias"]
        hidden = following.clamp(min=0)
    logits = hidden @ weights["head.weight"].T
    return (logits if c.linear_head else adjacency @ logits) + weights.get("head.bias", zero)


VARIANTS = [
    pytest.param({"norm": norm, "residual": residual, "linear_head": head}, id=f"{norm}-{residual}-{head}")
    for norm, residual, head in itertools.product(["none", "layer", "batch"], [False, True], [False, True])
]


@pytest.mark.parametrize("settings", VARIANTS)
@pytest.mark.parametrize("sparse", [False, True])
def test_forward_is_the_dense_formula(settings: dict[str, Any], sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = with_random_weights(build(graph, hidden=9, layers=3, bias=sparse, **settings)).eval()
    weights = {name: value.double() for name, value in model.state_dict().items()}
    nodes = torch.randperm(60)[:23]
    expected = dense_logits(graph, model, weights)[nodes]
    torch.testing.assert_close(model(nodes).double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.predict(nodes).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("tuned", [False, True])
def test_gradients_are_dense_autograd(sparse: bool, tuned: bool) -> None:
    graph = random_graph(sparse=sparse)
    settings: dict[str, Any] = {"norm": "layer", "residual": True, "linear_head": True, "bias": True} if tuned else {}
    model = with_random_weights(build(graph, hidden=9, dropout=0.0, **settings))
    leaves = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    nodes = torch.randperm(60)[:30]
    loss = model.train().loss(nodes)
    expected = functional.cross_entropy(dense_logits(graph, model, leaves)[nodes], model.labels[nodes])
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), leaves[name].grad, rtol=1e-3, atol=1e-5, msg=name)


def test_one_layer_is_one_convolution() -> None:
    graph = random_graph()
    model = build(graph, layers=1, **AUTHORS).eval()
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == {"head.weight": (4, 20)}
    features = dense_features(graph)
    features = features / np.maximum(features.sum(axis=1, keepdims=True), 1e-30)
    expected = dense_normalized(graph) @ features @ model.head.weight.detach().double().numpy().T
    np.testing.assert_allclose(model(torch.arange(60)).detach().numpy(), expected, atol=1e-5)


def test_glorot_weights_and_no_bias_in_the_authors_network() -> None:
    model = build(random_graph(), hidden=200, **AUTHORS)
    assert set(model.state_dict()) == {"convolutions.0.weight", "head.weight"}
    bound = np.sqrt(6 / (20 + 200))
    first = model.state_dict()["convolutions.0.weight"]
    assert float(first.abs().max()) <= bound
    assert float(first.std()) == pytest.approx(bound / np.sqrt(3), rel=0.05)  # uniform between ± bound


# -- features ---------------------------------------------------------------------------------------------------------


def test_features_are_used_as_they_are_where_asked() -> None:
    graph = random_graph()
    raw, normalised = (build(graph, layers=1, bias=False, normalize_features=flag).eval() for flag in (False, True))
    expected = dense_normalized(graph) @ graph.features @ raw.head.weight.detach().double().numpy().T
    np.testing.assert_allclose(raw(torch.arange(60)).detach().numpy(), expected, atol=1e-5)
    assert not torch.allclose(raw(torch.arange(60)), normalised(torch.arange(60)), atol=1e-2)


# -- dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_input_dropout_keeps_the_expectation(sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = build(graph, layers=1, dropout=0.5)
    nodes = torch.arange(60)
    quiet = model.eval()(nodes).detach()
    model.train()
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([model(nodes) for _ in range(800)])
    error = draws.std(dim=0) / np.sqrt(800)
    assert ((draws.mean(dim=0) - quiet).abs() <= 5 * error + 1e-6).all()
    assert (draws.std(dim=0) > 0).any()


@pytest.mark.parametrize("sparse", [False, True])
def test_input_dropout_can_be_switched_off(sparse: bool) -> None:
    nodes = torch.arange(60)
    model = build(random_graph(sparse=sparse), layers=1, dropout=0.9, input_dropout=False)
    assert torch.equal(model.train()(nodes), model.eval()(nodes))
    model = build(random_graph(sparse=sparse), layers=1, dropout=0.9)
    assert not torch.equal(model.train()(nodes), model.eval()(nodes))


def test_hidden_dropout_acts_in_training_only() -> None:
    nodes = torch.arange(60)
    model = build(random_graph(), layers=2, dropout=0.5, input_dropout=False)
    assert not torch.equal(model.train()(nodes), model(nodes))
    assert torch.equal(model.eval()(nodes), model(nodes))


# -- recipe -----------------------------------------------------------------------------------------------------------


def test_weight_decay_acts_on_the_first_layer_only() -> None:
    model = build(random_graph(), **GCN.settings["author"]["pubmed"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.param_groups(), lr=1.0, weight_decay=model.config.weight_decay)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # nothing but the decay is left to act
    optimizer.step()
    torch.testing.assert_close(model.convolutions[0].weight, before["convolutions.0.weight"] * (1 - 5e-4))
    assert torch.equal(model.head.weight, before["head.weight"])


def test_every_parameter_is_in_one_group() -> None:
    for settings in ({}, {"layers": 1}, {"decay_first_only": False}, GCN.settings["tunedgnn"]["photo"]):
        model = build(random_graph(), **settings)
        grouped = [parameter for group in model.param_groups() for parameter in group["params"]]
        assert sorted(map(id, grouped)) == sorted(map(id, model.parameters()))


def test_published_settings() -> None:
    [(name, settings)] = GCN.settings["author"].items()
    c = GCNConfig(**settings)
    assert (name, c.hidden, c.layers, c.dropout, c.learning_rate, c.weight_decay) == ("pubmed", 16, 2, 0.5, 1e-2, 5e-4)
    assert (c.optimizer, c.max_epochs, c.stop, c.patience) == ("adam", 200, "window", 10)
    assert c.input_dropout and c.normalize_features and c.decay_first_only and not c.bias
    tuned = {  # hidden, layers, dropout, learning rate, weight decay, norm, residual
        "pubmed": (256, 2, 0.7, 5e-3, 5e-4, "none", False),
        "computer": (512, 3, 0.5, 1e-3, 5e-5, "layer", False),
        "photo": (256, 6, 0.5, 1e-3, 5e-5, "layer", True),
        "cs": (512, 2, 0.3, 1e-3, 5e-4, "layer", True),
        "physics": (64, 2, 0.3, 1e-3, 5e-4, "layer", True),
    }
    assert GCN.settings["tunedgnn"].keys() == tuned.keys()
    for name, settings in GCN.settings["tunedgnn"].items():
        c = GCNConfig(**settings)
        found = (c.hidden, c.layers, c.dropout, c.learning_rate, c.weight_decay, c.norm, c.residual)
        assert found == tuned[name], name
        assert c.linear_head and c.bias and not c.decay_first_only and not c.input_dropout
        assert c.max_epochs == {"pubmed": 500, "cs": 1500, "physics": 1500}.get(name, 1000)
        assert c.normalize_features == (name != "pubmed")  # there torch_geometric's NormalizeFeatures is switched off


def test_the_search_space_holds_the_tuned_settings() -> None:
    for chosen in GCN.settings["tunedgnn"].values():
        config = GCNConfig(**chosen)
        assert all(admits(domain, getattr(config, name)) for name, domain in GCN.spaces["wide"].items())


def test_inference_is_one_pass_whatever_the_evaluation_batch() -> None:
    model, passes = build(random_graph(), evaluation_batch=7).eval(), []
    model.register_forward_hook(lambda *_: passes.append(1))
    model.predict(torch.arange(60))
    assert len(passes) == 1
