"""APPNP against dense formulas: propagation, gradients, the dropout on the adjacency, and where weight decay acts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import dense_features, dense_normalized, random_graph, random_split
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache
from bench.settings import check_values, resolve_settings
from models.appnp import APPNP, APPNPConfig
from models.kernels.diffusion import PowerIteration, plain_power_iteration


def build(graph: Graph, seed: int = 0, **chosen: Any) -> APPNP:
    config = APPNPConfig(**chosen)
    torch.manual_seed(seed)
    return APPNP(graph, APPNP.prepare(graph, random_split(graph), config, seed, PrepareCache()), config)


def local_predictions(graph: Graph, model: APPNP, first: Tensor, second: Tensor) -> Tensor:
    """The network before the propagation, without dropout, in dense float64."""
    features = torch.from_numpy(dense_features(graph).astype(np.float64))
    if model.config.normalize_features:
        features = functional.normalize(features, p=1.0, dim=1)
    return (features @ first.T).clamp(min=0) @ second.T


# -- the network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("steps", "alpha", "normalize"), [(1, 0.3, True), (10, 0.1, True), (4, 0.9, False)])
def test_forward_and_gradients_are_the_dense_formula(sparse: bool, steps: int, alpha: float, normalize: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = build(graph, steps=steps, alpha=alpha, dropout=0.0, adjacency_dropout=0.0, normalize_features=normalize)
    weights = [parameter.detach().double().requires_grad_() for parameter in (model.first.weight, model.second.weight)]
    nodes = torch.randperm(60)[:30]
    matrix = torch.from_numpy(dense_normalized(graph))
    expected = plain_power_iteration(local_predictions(graph, model, *weights), [matrix] * steps, alpha)[nodes]
    for mode in (model.eval(), model.train()):
        torch.testing.assert_close(mode(nodes).double(), expected, rtol=1e-4, atol=1e-5)
    functional.cross_entropy(expected, model.labels[nodes]).backward()
    model.loss(nodes).backward()
    for ours, theirs in zip((model.first.weight, model.second.weight), weights, strict=True):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-3, atol=1e-6)


def test_alpha_one_leaves_the_network_alone() -> None:
    graph = random_graph()
    model = build(graph, alpha=1.0).eval()
    weights = model.first.weight.detach().double(), model.second.weight.detach().double()
    expected = local_predictions(graph, model, *weights)
    torch.testing.assert_close(model(torch.arange(60)).double(), expected, rtol=1e-5, atol=1e-6)


def test_glorot_weights_and_no_biases() -> None:
    state = build(random_graph(), hidden=200).state_dict()
    assert set(state) == {"first.weight", "second.weight"}
    bound = np.sqrt(6 / (20 + 200))
    assert 0.95 * bound < float(state["first.weight"].abs().max()) <= bound


# -- dropout on the adjacency -----------------------------------------------------------------------------------------


def test_every_step_has_a_mask_of_its_own() -> None:
    model = build(random_graph(), steps=5, adjacency_dropout=0.5).train()
    first, again = ([step.product(torch.eye(60)) for step in model._steps()] for _ in range(2))
    matrices = first + again
    assert all(not torch.equal(a, b) for at, a in enumerate(matrices) for b in matrices[:at])
    assert all(
        torch.equal(step.product(torch.eye(60)), model.adjacency.product(torch.eye(60)))
        for step in model.eval()._steps()
    )


def test_training_and_evaluation_agree_in_expectation() -> None:
    # PyG's compounding dropout makes a thousand of what should be one at this rate and depth
    graph = random_graph()
    model = build(graph, dropout=0.0, adjacency_dropout=0.5, steps=10, alpha=0.1)
    ones = torch.ones(60, 1)
    expected = PowerIteration.apply(ones, model.eval()._steps(), 0.1)
    model.train()
    torch.manual_seed(0)
    draws = torch.stack([PowerIteration.apply(ones, model._steps(), 0.1) for _ in range(3000)])
    error = draws.std(dim=0) / np.sqrt(len(draws))
    assert ((draws.mean(dim=0) - expected).abs() <= 5 * error).all()
    assert float(draws.mean()) == pytest.approx(float(expected.mean()), rel=0.05)


# -- the other dropouts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_dropout_acts_in_training_only(sparse: bool) -> None:
    nodes = torch.arange(60)
    for chosen in ({"dropout": 0.5, "adjacency_dropout": 0.0}, {"dropout": 0.0, "adjacency_dropout": 0.5}):
        model = build(random_graph(sparse=sparse), **chosen)
        assert not torch.equal(model.train()(nodes), model(nodes))
        assert torch.equal(model.eval()(nodes), model(nodes))


def test_features_and_hidden_layer_are_dropped() -> None:
    graph = random_graph()
    model = build(graph, dropout=0.5, adjacency_dropout=0.0, alpha=1.0, hidden=1, normalize_features=True)
    with torch.no_grad():
        model.first.weight.fill_(1.0)  # the hidden unit is the sum of what is left of a row that sums to 1
        model.second.weight.fill_(1.0)
    torch.manual_seed(0)
    draws = torch.stack([model.train()(torch.arange(60))[:, 0].detach() for _ in range(2000)])
    full = dense_features(graph).sum(axis=1) > 0
    mean, share = draws.mean(dim=0)[full], (draws == 0).double().mean(dim=0)[full]
    np.testing.assert_allclose(mean, 1.0, atol=0.15)
    assert (share >= 0.45).all()  # the hidden unit itself is dropped half of the time
    assert len(draws[:, 3].unique()) > 3  # what is left of it varies with the features that were dropped


# -- recipe -----------------------------------------------------------------------------------------------------------


def test_weight_decay_acts_on_the_first_layer_only() -> None:
    model = build(random_graph(), **APPNP.settings["author"]["pubmed"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.param_groups(), lr=1.0, weight_decay=model.config.weight_decay)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # nothing but the decay is left to act
    optimizer.step()
    torch.testing.assert_close(model.first.weight.detach(), before["first.weight"] * (1 - 5e-3))
    assert torch.equal(model.second.weight, before["second.weight"])
    everywhere = build(random_graph(), decay_first_only=False).param_groups()
    assert len(everywhere) == 1 and "weight_decay" not in everywhere[0]


def test_published_settings() -> None:
    assert {name: resolve_settings(APPNP, name).config.alpha for name in APPNP.settings["author"]} == {
        "pubmed": 0.1,
        "cs": 0.2,
    }
    for name in APPNP.settings["author"]:
        c: Any = resolve_settings(APPNP, name).config
        assert (c.hidden, c.steps, c.dropout, c.adjacency_dropout) == (64, 10, 0.5, 0.5)
        assert (c.optimizer, c.learning_rate, c.weight_decay, c.decay_first_only) == ("adam", 0.01, 5e-3, True)
        assert (c.max_epochs, c.stop, c.patience, c.normalize_features) == (10_000, "ranked", 100, True)


@pytest.mark.parametrize("alpha", [-0.1, 1.5])
def test_alpha_must_be_a_share(alpha: float) -> None:
    check_values(APPNPConfig, {"alpha": alpha})
    with pytest.raises(ValueError, match="alpha must lie between 0 and 1"):
        APPNPConfig(alpha=alpha)
