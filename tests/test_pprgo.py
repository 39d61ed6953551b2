"""PPRGo against dense formulas: the weighting, forward, gradients and power iteration; standardisation; its batches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import ISOLATED, dense_adjacency, dense_features, make_graph, random_graph, random_split, training_view
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache, list_entries
from bench.settings import resolve_settings
from bench.space import admits
from bench.train import train
from models.pprgo import PPRGo, PPRGoConfig

FINE: dict[str, Any] = {"epsilon": 1e-8, "top_k": 60}  # nothing is cut off


def build(graph: Graph, seed: int = 0, cache: PrepareCache | None = None, **settings: Any) -> PPRGo:
    config = PPRGoConfig(**settings)
    torch.manual_seed(seed)
    return PPRGo(graph, PPRGo.prepare(graph, random_split(graph), config, seed, cache or PrepareCache()), config)


def dense_operator(graph: Graph, normalization: str) -> np.ndarray:
    """S of the power iteration; an isolated node is its own neighbour."""
    adjacency = dense_adjacency(graph)
    adjacency[np.diag_indices_from(adjacency)] += adjacency.sum(axis=1) == 0
    degrees = adjacency.sum(axis=1)
    if normalization == "sym":
        return adjacency / np.sqrt(np.outer(degrees, degrees))
    return adjacency / (degrees[:, None] if normalization == "row" else degrees)


def dense_rows(graph: Graph, alpha: float, normalization: str) -> np.ndarray:
    return alpha * np.linalg.inv(np.eye(graph.num_nodes) - (1 - alpha) * dense_operator(graph, normalization))


def dense_mlp(features: np.ndarray, weights: list[Tensor]) -> Tensor:
    hidden = torch.from_numpy(features.astype(np.float64)) @ weights[0].T
    for weight in weights[1:]:
        hidden = hidden.clamp(min=0) @ weight.T
    return hidden


def weights_of(model: PPRGo) -> list[Tensor]:
    return [linear.weight.detach().double() for linear in model.mlp.linears]


def labelled(graph: Graph) -> Tensor:
    split = random_split(graph)
    return torch.from_numpy(np.union1d(split.train, split.val))


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalization", ["sym", "row", "col"])
def test_weights_are_the_normalised_pagerank(normalization: str) -> None:
    graph = random_graph()
    rows = build(graph, normalization=normalization, alpha=0.3, **FINE).rows
    dense = np.zeros((len(rows.nodes), 60))
    np.add.at(dense, (np.arange(len(dense))[:, None], rows.columns), rows.weights)
    np.testing.assert_allclose(dense, dense_rows(graph, 0.3, normalization)[rows.nodes], atol=1e-5)
    # the same by the definition: D^1/2 Π D^-1/2, Π, D Π D^-1 for the random walk's Π
    roots = np.sqrt(np.maximum(graph.degrees, 1)) ** {"sym": 1, "row": 0, "col": 2}[normalization]
    walk = dense_rows(graph, 0.3, "row")
    np.testing.assert_allclose(dense, (roots[:, None] * walk / roots)[rows.nodes], atol=1e-5)


def test_rows_are_there_for_training_and_validation_nodes_only() -> None:
    graph = random_graph()
    split, model = random_split(graph), build(graph)
    assert model.rows.nodes.tolist() == sorted([*split.train, *split.val])
    with pytest.raises(ValueError, match="other nodes"):
        model.validate(torch.from_numpy(split.test))


def test_the_largest_are_chosen_before_the_weights_are_normalised() -> None:
    # from the end of a path into a hub: by the walk the hub is worth more than the end of another arm
    graph = make_graph(8, [(0, 1), (1, 2), (2, 3), (2, 4), (2, 5), (2, 6), (2, 7)])
    walk = dense_rows(graph, 0.2, "row")
    for node in range(8):
        config = PPRGoConfig(alpha=0.2, epsilon=1e-8, top_k=2)
        split = dataclasses.replace(random_split(random_graph()), train=np.array([node]), val=np.array([], dtype=int))
        rows = PPRGo.prepare(graph, split, config, 0, PrepareCache()).rows
        assert set(rows.columns[0]) == set(np.argsort(-walk[node])[:2])


def test_only_what_matters_makes_new_rows(tmp_path: Path) -> None:
    graph = random_graph()
    for settings in ({}, {"normalization": "row", "hidden": 8, "standardize": True}):
        build(graph, cache=PrepareCache(tmp_path), **settings)
    assert len(list_entries(tmp_path)) == 1
    for settings in ({"alpha": 0.3}, {"epsilon": 1e-3}, {"top_k": 5}):
        build(graph, cache=PrepareCache(tmp_path), **settings)
    assert len(list_entries(tmp_path)) == 4


# -- network ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_forward_and_gradients_are_the_dense_formula(sparse: bool, layers: int) -> None:
    graph = random_graph(sparse=sparse)
    model = build(graph, layers=layers, hidden=7, dropout=0.0, **FINE)
    leaves = [weight.requires_grad_() for weight in weights_of(model)]
    nodes = torch.from_numpy(random_split(graph).train)
    rows = torch.from_numpy(dense_rows(graph, 0.25, "sym"))
    expected = (rows @ dense_mlp(dense_features(graph), leaves))[nodes]
    torch.testing.assert_close(model(nodes).double(), expected, rtol=1e-4, atol=1e-5)
    loss = model.train().loss(nodes)
    dense_loss = functional.cross_entropy(expected, torch.from_numpy(graph.labels)[nodes])
    torch.testing.assert_close(loss.double(), dense_loss, rtol=1e-4, atol=1e-5)
    loss.backward()
    dense_loss.backward()
    for linear, leaf in zip(model.mlp.linears, leaves, strict=True):
        torch.testing.assert_close(linear.weight.grad.double(), leaf.grad, rtol=1e-3, atol=1e-6)


def test_no_linear_map_has_a_bias() -> None:
    state = build(random_graph(), hidden=7, layers=3).state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    assert shapes == {f"mlp.linears.{at}.weight": shape for at, shape in enumerate([(7, 20), (7, 7), (4, 7)])}


@pytest.mark.parametrize("sparse", [False, True])
def test_dropout_keeps_the_expectation_of_a_linear_model_and_rests_in_evaluation(sparse: bool) -> None:
    model = build(random_graph(sparse=sparse), layers=1, dropout=0.5)
    nodes = labelled(random_graph())
    quiet = model.eval()(nodes).detach()
    assert torch.equal(quiet, model(nodes))
    model.train()
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([model(nodes) for _ in range(500)])
    assert ((draws.mean(dim=0) - quiet).abs() <= 5 * draws.std(dim=0) / np.sqrt(500) + 1e-5).all()
    assert (draws.std(dim=0) > 0).any()


@torch.no_grad()
def test_validation_uses_the_rows_and_no_chunk_matters() -> None:
    graph = random_graph()
    model = build(graph, top_k=5).eval()
    nodes = torch.from_numpy(random_split(graph).val)
    expected = model(nodes)
    for batch in (0, 1, 7):
        model.config = dataclasses.replace(model.config, evaluation_batch=batch)
        torch.testing.assert_close(model.validate(nodes), expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model.predict(nodes), expected, atol=1e-3)


def test_batches_are_shuffled_and_cover_the_training_nodes() -> None:
    graph = random_graph()
    split, model = random_split(graph), build(graph, batch_size=10)
    torch.manual_seed(0)
    epochs = [list(model.batches(torch.from_numpy(split.train), training=True)) for _ in range(2)]
    for epoch in epochs:
        assert sorted(torch.cat(epoch).tolist()) == split.train.tolist()
        assert [len(batch) for batch in epoch[:-1]] == [10] * (len(epoch) - 1)
    assert torch.cat(epochs[0]).tolist() != torch.cat(epochs[1]).tolist()


# -- inference --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("normalization", ["sym", "row", "col"])
def test_prediction_is_power_iteration_on_all_logits(normalization: str, sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = build(graph, normalization=normalization, alpha=0.3, propagation_steps=3).eval()
    local = dense_mlp(dense_features(graph), weights_of(model)).numpy()
    operator, expected = dense_operator(graph, normalization), local
    for _ in range(3):
        expected = 0.7 * operator @ expected + 0.3 * local
    with torch.no_grad():
        scores = model.predict(torch.tensor([3, 59, 0, 17, 9]))
    np.testing.assert_allclose(scores.numpy(), expected[[3, 59, 0, 17, 9]], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores[3].numpy(), local[ISOLATED[1]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalization", ["sym", "row", "col"])
@torch.no_grad()
def test_many_steps_of_inference_are_what_training_sees(normalization: str) -> None:
    graph = random_graph()
    model = build(graph, normalization=normalization, propagation_steps=80, **FINE).eval()
    nodes = labelled(graph)
    torch.testing.assert_close(model.predict(nodes), model(nodes), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_standardised_attributes_are_centred_only_if_dense(sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    attributes = build(graph, standardize=True).attributes
    expected = StandardScaler(with_mean=not sparse).fit_transform(dense_features(graph).astype(np.float64))
    nodes = torch.tensor([4, 0, 59, 4])
    np.testing.assert_allclose(attributes.of(nodes) @ torch.eye(20), expected[nodes], rtol=1e-4, atol=1e-5)


# -- recipe -----------------------------------------------------------------------------------------------------------


def test_it_learns() -> None:
    graph = random_graph()
    split = random_split(graph)
    torch.manual_seed(0)
    config = PPRGoConfig(max_epochs=60, learning_rate=1e-2)
    seen = training_view(graph, split)
    model = PPRGo(seen, PPRGo.prepare(seen, split, config, 0, PrepareCache()), config)
    result = train(model, split, torch.from_numpy(graph.labels), config)
    assert max(accuracy for _, _, accuracy in result.curve) >= 0.8


def test_published_settings() -> None:
    expected = {"reddit": 0.5, "pubmed": 0.25, "corafull": 0.25}
    assert PPRGo.settings["author"].keys() == expected.keys()
    for dataset, alpha in expected.items():
        c: Any = resolve_settings(PPRGo, dataset).config
        assert (c.alpha, c.epsilon, c.top_k, c.normalization) == (alpha, 1e-4, 32, "sym")
        assert (c.hidden, c.layers, c.dropout, c.propagation_steps) == (32, 2, 0.1, 2)
        assert (c.optimizer, c.learning_rate, c.weight_decay) == ("adam", 5e-3, 1e-4)
        assert (c.max_epochs, c.batch_size, c.stop, c.standardize) == (200, 512, "never", False)


def test_the_search_space_admits_published_settings_and_defaults() -> None:
    for dataset in (*PPRGo.settings["author"], "photo"):
        config = resolve_settings(PPRGo, dataset).config
        for name, domain in PPRGo.spaces["wide"].items():
            assert admits(domain, getattr(config, name)), (dataset, name)


@pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"alpha": 1.5}, {"epsilon": 0.0}])
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        PPRGoConfig(**settings)  # type: ignore[arg-type]


def test_the_estimate_grows_with_what_it_counts() -> None:
    graph = random_graph()
    estimate = PPRGo.estimate_memory(graph, PPRGoConfig())
    for settings in ({"hidden": 4096}, {"top_k": 60, "batch_size": 0, "hidden": 512}):
        assert PPRGo.estimate_memory(graph, PPRGoConfig(**settings)) > estimate  # type: ignore[arg-type]
    assert PPRGo.estimate_memory(random_graph(num_nodes=300), PPRGoConfig()) > estimate
