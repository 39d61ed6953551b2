"""APPNP against dense formulas: propagation, gradients, the dropout on the adjacency, and where weight decay acts."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch
from graphs import dense_adjacency, dense_features, dense_normalized, path_graph, random_graph, random_split
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from bench.data.graph import Graph
from bench.prepared import PrepareCache
from bench.settings import check_values, resolve_settings
from models.appnp import APPNP, APPNPConfig, DroppedAdjacency, PowerIteration
from models.kernels.propagation import SparseOperator, normalized_adjacency


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


def iterate(local: Tensor, matrices: list[Tensor], alpha: float) -> Tensor:
    spread = local
    for matrix in matrices:
        spread = (1 - alpha) * (matrix @ spread) + alpha * local
    return spread


def as_dense(step: DroppedAdjacency | SparseOperator, size: int) -> Tensor:
    return step.product(torch.eye(size)).double()


# -- the network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("steps", "alpha", "normalize"), [(1, 0.3, True), (10, 0.1, True), (4, 0.9, False)])
def test_forward_and_gradients_are_the_dense_formula(sparse: bool, steps: int, alpha: float, normalize: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = build(graph, steps=steps, alpha=alpha, dropout=0.0, adjacency_dropout=0.0, normalize_features=normalize)
    weights = [parameter.detach().double().requires_grad_() for parameter in (model.first.weight, model.second.weight)]
    nodes = torch.randperm(60)[:30]
    matrix = torch.from_numpy(dense_normalized(graph))
    expected = iterate(local_predictions(graph, model, *weights), [matrix] * steps, alpha)[nodes]
    for mode in (model.eval(), model.train()):
        torch.testing.assert_close(mode(nodes).double(), expected, rtol=1e-4, atol=1e-5)
    functional.cross_entropy(expected, model.labels[nodes]).backward()
    model.loss(nodes).backward()
    for ours, theirs in zip((model.first.weight, model.second.weight), weights, strict=True):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-3, atol=1e-6)


def test_one_step_on_a_path_by_hand() -> None:
    # degrees with loops are 2, 3, 2; a quarter of each node's own prediction stays
    steps = [SparseOperator(normalized_adjacency(path_graph()), symmetric=True)]
    result = PowerIteration.apply(torch.tensor([[1.0], [0.0], [2.0]]), steps, 0.25)
    edge = 0.75 / np.sqrt(6)
    np.testing.assert_allclose(result.ravel(), [0.375 + 0.25, 3 * edge, 0.75 + 0.5], rtol=1e-6)


def test_many_steps_reach_personalised_pagerank() -> None:
    graph = random_graph()
    local, alpha = torch.randn(60, 4), 0.2
    result = PowerIteration.apply(local, [SparseOperator(normalized_adjacency(graph), symmetric=True)] * 120, alpha)
    expected = alpha * np.linalg.solve(np.eye(60) - (1 - alpha) * dense_normalized(graph), local.double().numpy())
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-5)


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


@settings(max_examples=25)
@given(rate=st.floats(0.01, 0.95), seed=st.integers(0, 2**32 - 1))
def test_every_entry_is_dropped_or_scaled_and_the_transpose_agrees(rate: float, seed: int) -> None:
    graph = random_graph()
    step = DroppedAdjacency(normalized_adjacency(graph), rate, seed)
    matrix, whole = as_dense(step, 60), torch.from_numpy(dense_normalized(graph))
    kept = matrix != 0
    torch.testing.assert_close(matrix[kept], whole[kept] / (1 - rate), rtol=1e-5, atol=1e-7)
    assert torch.equal(step.product(torch.eye(60), transpose=True).double(), matrix.T)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_entries_are_dropped_independently(rate: float) -> None:
    graph = random_graph(num_nodes=83)
    seen = torch.from_numpy(dense_adjacency(graph)) > 0
    masks = torch.stack(
        [as_dense(DroppedAdjacency(normalized_adjacency(graph), rate, seed), 83) > 0 for seed in range(400)]
    ).double()
    deviation = (rate * (1 - rate)) ** 0.5
    shares = masks[:, seen].mean(dim=0)
    assert abs(shares.mean() - (1 - rate)) < 5 * deviation / (400 * len(shares)) ** 0.5
    assert shares.std() == pytest.approx(deviation / 400**0.5, rel=0.15)  # as for independent draws
    centred = masks - (1 - rate)
    off_diagonal = seen & ~torch.eye(83, dtype=torch.bool)
    products = (centred * centred.transpose(1, 2))[:, off_diagonal]  # an edge and its reverse
    assert abs(products.mean()) < 5 * deviation**2 / (products.numel() / 2) ** 0.5
    following = (centred[1:] * centred[:-1])[:, seen]  # neighbouring seeds
    assert abs(following.mean()) < 5 * deviation**2 / following.numel() ** 0.5


def test_every_step_has_a_mask_of_its_own() -> None:
    model = build(random_graph(), steps=5, adjacency_dropout=0.5).train()
    first, again = ([as_dense(step, 60) for step in model._steps()] for _ in range(2))
    matrices = first + again
    assert all(not torch.equal(a, b) for at, a in enumerate(matrices) for b in matrices[:at])
    assert all(torch.equal(as_dense(step, 60), as_dense(model.adjacency, 60)) for step in model.eval()._steps())


@pytest.mark.parametrize("fused", [False, True])
def test_dropped_propagation_and_its_gradient_are_dense(fused: bool) -> None:
    matrix = normalized_adjacency(random_graph())
    torch.manual_seed(1)
    steps: list[Any] = [
        DroppedAdjacency(matrix, 0.4, seed) if fused else SparseOperator(matrix).dropped(0.4) for seed in range(6)
    ]
    local, slope = torch.randn(60, 4, requires_grad=True), torch.randn(60, 4)
    twin = local.detach().double().requires_grad_()
    result, expected = PowerIteration.apply(local, steps, 0.1), iterate(twin, [as_dense(s, 60) for s in steps], 0.1)
    (result * slope).sum().backward()
    (expected * slope).sum().backward()
    assert local.grad is not None and twin.grad is not None
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(local.grad.double(), twin.grad, rtol=1e-4, atol=1e-5)


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


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS == 1, reason="needs a second thread")
def test_the_number_of_threads_changes_nothing() -> None:
    step = DroppedAdjacency(normalized_adjacency(random_graph()), 0.5, 3)
    before, results = numba.get_num_threads(), []
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        numba.set_num_threads(threads)
        results.append(as_dense(step, 60))
    numba.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


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
