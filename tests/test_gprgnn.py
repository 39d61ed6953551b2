"""GPR-GNN against dense formulas: the polynomial and its gradients, what γ starts from, and where weight decay acts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import ISOLATED, dense_features, dense_normalized, random_graph, random_split
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache
from bench.settings import resolve_settings
from bench.train import train
from models.appnp import APPNP, APPNPConfig
from models.gprgnn import GPRGNN, GPRGNNConfig, initial_gamma


def build(graph: Graph, seed: int = 0, **chosen: Any) -> GPRGNN:
    config = GPRGNNConfig(**chosen)
    torch.manual_seed(seed)
    return GPRGNN(graph, GPRGNN.prepare(graph, random_split(graph), config, seed, PrepareCache()), config)


def dense_logits(graph: Graph, model: GPRGNN, weights: dict[str, Tensor]) -> Tensor:
    """The whole network without dropout, in dense float64 matrices."""
    features = torch.from_numpy(dense_features(graph).astype(np.float64))
    if model.config.normalize_features:
        features = functional.normalize(features, p=1.0, dim=1)
    hidden = (features @ weights["first.weight"].T + weights["first.bias"]).clamp(min=0)
    local = hidden @ weights["second.weight"].T + weights["second.bias"]
    matrix = torch.from_numpy(dense_normalized(graph))
    powers = [torch.linalg.matrix_power(matrix, k) @ local for k in range(model.config.steps + 1)]
    return sum((weight * power for weight, power in zip(weights["gamma"], powers, strict=True)), torch.zeros(()))


# -- the network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("steps", "normalize"), [(1, True), (10, True), (4, False)])
def test_forward_and_gradients_are_the_dense_formula(sparse: bool, steps: int, normalize: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = build(graph, steps=steps, dropout=0.0, propagation_dropout=0.0, normalize_features=normalize)
    with torch.no_grad():
        model.gamma.copy_(torch.randn(steps + 1))  # of both signs
    leaves = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    nodes = torch.randperm(60)[:30]
    expected = dense_logits(graph, model, leaves)[nodes]
    for mode in (model.eval(), model.train()):
        torch.testing.assert_close(mode(nodes).double(), expected, rtol=1e-4, atol=1e-5)
    functional.cross_entropy(expected, model.labels[nodes]).backward()
    model.loss(nodes).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), leaves[name].grad, rtol=1e-3, atol=1e-5, msg=name)


# -- γ ----------------------------------------------------------------------------------------------------------------


def test_what_gamma_starts_from() -> None:
    ppr = initial_gamma(GPRGNNConfig(steps=3, alpha=0.2))
    np.testing.assert_allclose(ppr, [0.2, 0.16, 0.128, 0.512], rtol=1e-6)
    nppr = initial_gamma(GPRGNNConfig(steps=2, alpha=0.5, initialisation="NPPR"))
    np.testing.assert_allclose(nppr, [4 / 7, 2 / 7, 1 / 7], rtol=1e-6)
    sgc = initial_gamma(GPRGNNConfig(steps=3, initialisation="SGC", initial_step=2))
    assert sgc.tolist() == [0, 0, 1, 0]
    default = initial_gamma(GPRGNNConfig())
    assert len(default) == 11 and float(default[-1]) == pytest.approx(0.3486784401)
    assert default.dtype == torch.float32


@given(alpha=st.floats(0.0, 1.0), steps=st.integers(1, 20))
def test_pagerank_weights_sum_to_one(alpha: float, steps: int) -> None:
    for initialisation in ("PPR", "NPPR"):
        gamma = initial_gamma(GPRGNNConfig(steps=steps, alpha=alpha, initialisation=initialisation))
        assert float(gamma.sum()) == pytest.approx(1.0, abs=1e-5) and bool((gamma >= 0).all())


def test_random_weights_have_both_signs_and_follow_the_seed() -> None:
    draws = [build(random_graph(), seed, initialisation="Random").gamma.detach() for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    for draw in draws:
        assert float(draw.abs().sum()) == pytest.approx(1.0, abs=1e-5)
        assert (draw > 0).any() and (draw < 0).any()


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_frozen_pagerank_weights_make_it_appnp(alpha: float) -> None:
    graph, quiet = random_graph(), {"dropout": 0.0, "stop": "never", "max_epochs": 12, "weight_decay": 0.0}
    split = random_split(graph)
    ours = build(graph, alpha=alpha, propagation_dropout=0.0, **quiet)
    config = APPNPConfig(alpha=alpha, adjacency_dropout=0.0, **quiet)
    appnp = APPNP(graph, APPNP.prepare(graph, split, config, 0, PrepareCache()), config)
    ours.gamma.requires_grad_(False)
    with torch.no_grad():
        for layer, twin in ((ours.first, appnp.first), (ours.second, appnp.second)):
            layer.weight.copy_(twin.weight)
            layer.bias.zero_().requires_grad_(False)  # APPNP has no biases
    nodes, labels = torch.arange(60), torch.from_numpy(graph.labels)
    torch.testing.assert_close(ours.eval()(nodes), appnp.eval()(nodes), rtol=1e-4, atol=1e-5)
    for model in (ours, appnp):
        train(model, split, labels, model.config)
    torch.testing.assert_close(ours(nodes), appnp(nodes), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(ours(nodes), build(graph, alpha=alpha).eval()(nodes), atol=0.05)  # they did move


def test_gamma_is_learnt_at_the_common_rate_without_weight_decay() -> None:
    model = build(random_graph(), **GPRGNN.settings["author"]["pubmed"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.param_groups(), lr=1.0, weight_decay=model.config.weight_decay)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # nothing but the decay is left to act
    optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name] * (1.0 if name == "gamma" else 1 - 5e-4), msg=name)
    assert {group["lr"] for group in optimizer.param_groups} == {1.0}
    model.loss(torch.arange(30)).backward()
    assert model.gamma.grad is not None and (model.gamma.grad != 0).all()


# -- dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_dropout_acts_in_training_only(sparse: bool) -> None:
    nodes = torch.arange(60)
    for chosen in ({"dropout": 0.5, "propagation_dropout": 0.0}, {"dropout": 0.0, "propagation_dropout": 0.5}):
        model = build(random_graph(sparse=sparse), **chosen)
        assert not torch.equal(model.train()(nodes), model(nodes))
        assert torch.equal(model.eval()(nodes), model(nodes))


def test_propagation_dropout_acts_on_predictions_before_they_spread() -> None:
    # a node without neighbours keeps γ_0 + ... + γ_K times its prediction: all of it scaled up, or nothing
    model = build(random_graph(), dropout=0.0, propagation_dropout=0.75)
    nodes = torch.tensor(ISOLATED)
    quiet = model.eval()(nodes).detach()
    torch.manual_seed(0)
    draws = torch.stack([model.train()(nodes).detach() for _ in range(400)])
    dropped = draws == 0
    torch.testing.assert_close(draws[~dropped], (4 * quiet).expand_as(draws)[~dropped], rtol=1e-4, atol=1e-5)
    assert float(dropped.double().mean()) == pytest.approx(0.75, abs=0.03)


# -- recipe -----------------------------------------------------------------------------------------------------------


def test_published_settings() -> None:
    published = {"pubmed": (0.05, 0.2, 5e-4), "computer": (0.05, 0.5, 0.0), "photo": (0.01, 0.5, 0.0)}
    assert GPRGNN.settings["author"].keys() == published.keys()
    for name, expected in published.items():
        c: Any = resolve_settings(GPRGNN, name).config
        assert (c.learning_rate, c.alpha, c.weight_decay) == expected, name
        assert (c.hidden, c.steps, c.initialisation, c.optimizer) == (64, 10, "PPR", "adam")
        assert (c.dropout, c.propagation_dropout, c.normalize_features) == (0.5, 0.5, True)
        assert (c.max_epochs, c.stop, c.patience) == (1000, "window", 200)


def test_impossible_starts_are_refused() -> None:
    with pytest.raises(ValueError, match="alpha must lie between 0 and 1"):
        GPRGNNConfig(alpha=1.01)
    with pytest.raises(ValueError, match=r"initial_step must be at most steps \(3\), not 4"):
        GPRGNNConfig(steps=3, initial_step=4)
