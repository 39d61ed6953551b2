"""GRAND+ against dense formulas: rows, DropNode, network, consistency loss, its warm-up, and inference on one scale."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graphs import ISOLATED, LOOP, dense_adjacency, dense_features, random_graph, random_split, training_view
from torch import Tensor, nn

from bench.graph import Graph
from bench.prepared import PrepareCache, list_entries
from bench.settings import resolve_settings
from bench.space import admits
from bench.train import train
from models.grandplus import GRANDPlus, GRANDPlusConfig, consistency
from models.kernels.mlp import BatchNorm
from models.kernels.propagation import ScaledAdjacency, nodes_without_loop
from models.kernels.random_propagation import draw_sample, drop_nodes, spread_columns, spread_lengths

EXACT: dict[str, Any] = {"rmax": 0.0, "top_k": 60}  # nothing is lost or cut off
NO_DROPOUT: dict[str, Any] = {"node_dropout": 0.0, "input_dropout": 0.0, "hidden_dropout": 0.0}
NORMS = [{"batch_norm": bn, "node_norm": node} for bn in (False, True) for node in (False, True)]


def build(graph: Graph, seed: int = 0, cache: PrepareCache | None = None, **settings: Any) -> GRANDPlus:
    config = GRANDPlusConfig(**settings)
    torch.manual_seed(seed)
    prepared = GRANDPlus.prepare(graph, random_split(graph), config, seed, cache or PrepareCache())
    return GRANDPlus(graph, prepared, config)


def with_random_statistics(model: GRANDPlus) -> GRANDPlus:
    """Batch normalisation that does something, and biases that are not small."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_()
                module.running_var.uniform_(0.2, 3.0)
                module.weight.normal_()
                module.bias.normal_()
            elif isinstance(module, nn.Linear):
                module.bias.normal_()
    return model


def dense_matrix(graph: Graph, mixture: np.ndarray) -> np.ndarray:
    """Σ w_n P^n in float64."""
    looped = np.maximum(dense_adjacency(graph), np.eye(graph.num_nodes))
    walk = looped / looped.sum(axis=1, keepdims=True)
    return np.sum([weight * np.linalg.matrix_power(walk, power) for power, weight in enumerate(mixture)], axis=0)


def dense_mlp(model: GRANDPlus, rows: Tensor, batch_statistics: bool = False) -> Tensor:
    """The network in float64, with the running statistics of batch normalisation or the batch's own."""
    c, state = model.config, {name: value.double() for name, value in model.mlp.state_dict().items()}
    for at in range(c.layers):
        rows = rows.clamp(min=0) if at else rows
        if c.node_norm:
            rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
        if c.batch_norm:
            mean, variance = state[f"norms.{at}.running_mean"], state[f"norms.{at}.running_var"]
            if batch_statistics:
                mean, variance = rows.mean(dim=0), rows.var(dim=0, unbiased=False)
            rows = (rows - mean) / (variance + 1e-5).sqrt() * state[f"norms.{at}.weight"] + state[f"norms.{at}.bias"]
        rows = rows @ state[f"linears.{at}.weight"].T + state[f"linears.{at}.bias"]
    return rows


def propagated(graph: Graph, model: GRANDPlus) -> Tensor:
    return torch.from_numpy(dense_matrix(graph, model.config.mixture) @ dense_features(graph).astype(np.float64))


# -- weights and rows -------------------------------------------------------------------------------------------------


def test_the_three_weightings_sum_to_one() -> None:
    ppr = GRANDPlusConfig(propagation="ppr", order=2, alpha=0.5).mixture
    np.testing.assert_allclose(ppr, np.array([4, 2, 1]) / 7)
    np.testing.assert_allclose(GRANDPlusConfig(propagation="avg", order=3).mixture, [0.25] * 4)
    np.testing.assert_array_equal(GRANDPlusConfig(propagation="single", order=3).mixture, [0, 0, 0, 1])
    for alpha in (0.05, 0.9, 1.0):
        assert GRANDPlusConfig(alpha=alpha, order=20).mixture.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("propagation", ["ppr", "avg", "single"])
def test_rows_without_a_threshold_are_the_dense_matrix(propagation: Any) -> None:
    graph = random_graph()
    model = build(graph, propagation=propagation, **EXACT)
    assert model.rows.nodes.tolist() == list(range(60))
    rows = np.zeros((60, 60))
    np.add.at(rows, (np.arange(60)[:, None], model.rows.columns), model.rows.weights)
    np.testing.assert_allclose(rows, dense_matrix(graph, model.config.mixture), atol=1e-6)
    assert rows[LOOP].sum() == pytest.approx(1.0, abs=1e-5)
    for node in ISOLATED:
        assert rows[node, node] == pytest.approx(1.0, abs=1e-6)


def test_rows_that_lost_something_sum_to_one_once_renormalised() -> None:
    model = build(random_graph(), rmax=0.01, top_k=6)
    _, weights = model.rows.of(torch.arange(60))
    sums = weights.sum(axis=1)
    assert (sums <= 1 + 1e-6).all() and sums.min() < 0.9
    renormalised = drop_nodes(torch.from_numpy(weights), 0.0)
    torch.testing.assert_close(renormalised.sum(dim=1), torch.ones(60))


def test_the_sample_is_of_test_nodes_only_and_drawn_from_the_seed() -> None:
    test = random_split(random_graph()).test
    assert draw_sample(test, 0, 0).tolist() == draw_sample(test, 1000, 0).tolist() == test.tolist()
    assert len(build(random_graph(), consistency=0.0).sample) == 0
    some = [draw_sample(test, 5, seed) for seed in (0, 0, 1)]
    assert some[0].tolist() == some[1].tolist() == sorted(set(some[0]) & set(test)) and len(some[0]) == 5
    assert some[0].tolist() != some[2].tolist()


def test_rows_are_there_for_training_validation_and_sampled_nodes() -> None:
    graph = random_graph()
    split = random_split(graph)
    model = build(graph, unlabelled=3)
    assert len(model.sample) == 3
    assert model.rows.nodes.tolist() == sorted([*split.train, *split.val, *model.sample.tolist()])
    model = build(graph, consistency=0.0)
    assert model.rows.nodes.tolist() == sorted([*split.train, *split.val])


def test_only_what_matters_makes_new_rows(tmp_path: Path) -> None:
    graph = random_graph()
    for settings in ({}, {"hidden": 8, "consistency": 0.5, "node_dropout": 0.2}):
        build(graph, cache=PrepareCache(tmp_path), **settings)
    assert len(list_entries(tmp_path)) == 1
    changes = ({"alpha": 0.3}, {"order": 3}, {"rmax": 1e-3}, {"top_k": 5}, {"propagation": "avg"}, {"unlabelled": 3})
    for settings in changes:
        build(graph, cache=PrepareCache(tmp_path), **settings)
    assert len(list_entries(tmp_path)) == 7


# -- DropNode ---------------------------------------------------------------------------------------------------------


def test_dropped_rows_are_divided_by_what_is_left() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.125], [0.1, 0.0, 0.0]]).repeat(500, 1)
    torch.manual_seed(0)
    dropped = drop_nodes(weights, 0.5)
    kept = dropped > 0
    survivors = (weights * kept).sum(dim=1, keepdim=True)
    torch.testing.assert_close(dropped, torch.where(survivors > 0, weights * kept / survivors, 0.0))
    empty = survivors.squeeze(1) == 0
    assert empty[0::2].any() and empty[1::2].any() and not empty.all()  # rows that lost everything are there
    assert (dropped[empty] == 0).all() and dropped.isfinite().all()
    torch.testing.assert_close(dropped[~empty].sum(dim=1), torch.ones(int((~empty).sum())))
    assert 0.45 < kept[0::2].float().mean() < 0.55


# -- network and inference --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("sparse", [False, True])
@torch.no_grad()
def test_inference_is_the_dense_formula_and_on_the_scale_of_training(
    sparse: bool, layers: int, norms: dict[str, bool]
) -> None:
    graph = random_graph(sparse=sparse)
    model = build(graph, layers=layers, hidden=9, alpha=0.05, **norms, **EXACT)
    model = with_random_statistics(model).eval()
    nodes = torch.tensor([3, 59, 0, 17, 9, 1])
    expected = dense_mlp(model, propagated(graph, model))[nodes]
    torch.testing.assert_close(model.predict(nodes).double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.validate(nodes).double(), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_inference_does_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = torch.randperm(60)
    for sparse in (False, True):
        model = with_random_statistics(build(random_graph(sparse=sparse), batch_norm=True, node_norm=True)).eval()
        expected = model.predict(nodes)
        for batch, block in ((0, 3), (1, 64), (7, 19)):
            monkeypatch.setattr("models.kernels.random_propagation._BLOCK", block)
            model.config = dataclasses.replace(model.config, evaluation_batch=batch)
            torch.testing.assert_close(model.predict(nodes), expected, rtol=1e-4, atol=1e-5)


def test_exact_propagation() -> None:
    graph = random_graph(sparse=True)
    mixture = GRANDPlusConfig(order=4).mixture
    expected = dense_matrix(graph, mixture) @ dense_features(graph)
    walk, gamma = ScaledAdjacency(graph, nodes_without_loop(graph), 1.0, 0.0), torch.from_numpy(mixture)
    dense = torch.from_numpy(dense_features(graph))
    np.testing.assert_allclose(spread_columns(dense, gamma, walk), expected, atol=1e-5)
    np.testing.assert_array_equal(dense, dense_features(graph))  # its argument is as it was
    assert sp.issparse(graph.features)
    lengths = spread_lengths(graph.features, gamma, walk)
    np.testing.assert_allclose(lengths, np.linalg.norm(expected, axis=1), atol=1e-5)


def test_a_row_of_one_is_normalised_by_running_statistics() -> None:
    norm = BatchNorm(3).train()
    norm(torch.randn(50, 3) * 2 + 1)
    row = torch.randn(1, 3)
    expected = (row - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    before = norm.running_mean.clone()
    torch.testing.assert_close(norm(row), expected)
    assert torch.equal(norm.running_mean, before)


def test_a_network_without_normalisation_and_one_layer_as_logistic_regression() -> None:
    plain: dict[str, Any] = {"batch_norm": False, "node_norm": False}
    assert set(build(random_graph(), **plain).state_dict()) == {
        "mlp.linears.0.weight",
        "mlp.linears.0.bias",
        "mlp.linears.1.weight",
        "mlp.linears.1.bias",
    }
    state = build(random_graph(), layers=1, **plain).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "mlp.linears.0.weight": (4, 20),
        "mlp.linears.0.bias": (4,),
    }


# -- loss -------------------------------------------------------------------------------------------------------------


def log(*rows: list[float]) -> Tensor:
    return torch.tensor(rows).log()


def test_consistency_by_hand() -> None:
    # three classes, so a node counts if its mean tops 2/3; the second node's does not
    views = torch.stack([log([0.8, 0.1, 0.1], [0.4, 0.3, 0.3]), log([0.6, 0.3, 0.1], [0.2, 0.5, 0.3])])
    target = np.array([0.49, 0.04, 0.01]) / 0.54  # of the mean 0.7, 0.2, 0.1, sharpened with T = 1/2
    config = GRANDPlusConfig(temperature=0.5)
    expected = np.mean([np.sum((np.array(p) - target) ** 2) for p in ([0.8, 0.1, 0.1], [0.6, 0.3, 0.1])])
    assert float(consistency(views, config)) == pytest.approx(expected, rel=1e-5)
    config = dataclasses.replace(config, consistency_loss="kl")
    expected = np.mean([-np.sum(target * np.log(p)) for p in ([0.8, 0.1, 0.1], [0.6, 0.3, 0.1])])
    assert float(consistency(views, config)) == pytest.approx(expected, rel=1e-5)


def test_the_confident_are_averaged_and_others_get_no_gradient() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 40, 5) * 3
    logits[:, ::3] *= 0.01
    logits.requires_grad_()
    views = logits.log_softmax(dim=2)
    config = GRANDPlusConfig()
    loss = consistency(views, config)
    mean = views.exp().mean(dim=0).detach()
    confident = mean.max(dim=1).values > 0.4
    assert 0 < confident.sum() < 40
    alone = consistency(views[:, confident], config)
    torch.testing.assert_close(loss, alone)
    loss.backward()
    assert (logits.grad[:, ~confident] == 0).all() and (logits.grad[:, confident] != 0).any()


@pytest.mark.parametrize("kind", ["l2", "kl"])
def test_where_nobody_is_confident_the_loss_is_zero_and_so_is_its_gradient(kind: Any) -> None:
    logits = torch.zeros(2, 6, 4, requires_grad=True)
    loss = consistency(logits.log_softmax(dim=2), GRANDPlusConfig(consistency_loss=kind))
    loss.backward()
    assert float(loss.detach()) == 0.0 and (logits.grad == 0).all()
    two_classes = torch.tensor([[0.0, -200.0]]).log_softmax(dim=1).expand(2, 1, 2)  # the threshold is then 1
    assert float(consistency(two_classes, GRANDPlusConfig(consistency_loss=kind))) == 0.0


def test_a_low_temperature_does_not_underflow() -> None:
    views = torch.randn(30, 70).log_softmax(dim=1).expand(2, 30, 70)
    assert consistency(views, GRANDPlusConfig(temperature=1e-3)).isfinite()


def dense_loss(graph: Graph, model: GRANDPlus, labelled: Tensor, unlabelled: Tensor, weight: float) -> Tensor:
    """Without any dropout all augmentations are one."""
    inputs = propagated(graph, model)[torch.cat([labelled, unlabelled])]
    logs = dense_mlp(model, inputs, batch_statistics=True).log_softmax(dim=1)
    count = len(labelled)
    supervised = -logs[torch.arange(count), torch.from_numpy(graph.labels)[labelled]].mean()
    p = logs[count:].exp()
    target = p**10 / (p**10).sum(dim=1, keepdim=True)
    confident = p.max(dim=1).values > 2 / graph.num_classes
    assert 0 < confident.sum() < len(unlabelled)
    return supervised + weight * ((p - target) ** 2).sum(dim=1)[confident].mean()


@pytest.mark.parametrize("sparse", [False, True])
def test_the_loss_and_its_warm_up(sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    settings = {"consistency": 0.8, "consistency_warmup": 4, "batch_norm": True, "node_norm": True}
    model = build(graph, hidden=9, **settings, **NO_DROPOUT, **EXACT)
    with torch.no_grad():
        model.mlp.linears[-1].weight *= 6  # so that some are confident
    split = random_split(graph)
    batch = torch.from_numpy(split.train), torch.from_numpy(split.test)
    for weight in (0.0, 0.2, 0.4, 0.6, 0.8, 0.8):
        expected = dense_loss(graph, model, *batch, weight)
        torch.testing.assert_close(model.train().loss(batch).double(), expected, rtol=1e-4, atol=1e-5)


def test_augmentations_differ_and_their_losses_are_averaged() -> None:
    graph = random_graph()
    batch = torch.from_numpy(random_split(graph).train), torch.empty(0, dtype=torch.int64)
    one, many = (build(graph, augmentations=count, consistency=0.0) for count in (1, 400))
    with torch.no_grad():
        torch.manual_seed(0)
        draws = torch.stack([one.train().loss(batch) for _ in range(400)])
        torch.manual_seed(0)
        torch.testing.assert_close(many.train().loss(batch), draws.mean())
    assert draws.std() > 0


def test_without_consistency_nothing_is_done_for_unlabelled_nodes() -> None:
    graph = random_graph()
    split, model = random_split(graph), build(graph, consistency=0.0)
    batches = list(model.batches(torch.from_numpy(split.train), training=True))
    assert all(len(unlabelled) == 0 for _, unlabelled in batches)
    assert model.train().loss(batches[0]).isfinite()


# -- batches and recipe -----------------------------------------------------------------------------------------------


def test_an_epoch_is_ten_updates_and_passes_go_on_across_epochs() -> None:
    graph = random_graph()
    split, model = random_split(graph), build(graph, batch_size=7, unlabelled_batch=5)
    train_nodes, test_nodes = split.train.tolist(), set(split.test.tolist())
    epochs = [list(model.batches(torch.from_numpy(split.train), training=True)) for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [10, 10, 10]
    batches = [batch for epoch in epochs for batch in epoch]
    per_pass = -(-len(train_nodes) // 7)
    for start in range(0, 30 - per_pass + 1, per_pass):
        seen = torch.cat([labelled for labelled, _ in batches[start : start + per_pass]]).tolist()
        assert sorted(seen) == train_nodes
    for _, unlabelled in batches:
        assert len(set(unlabelled.tolist()) & test_nodes) == 5
    assert len({tuple(unlabelled.tolist()) for _, unlabelled in batches}) > 1
    whole = build(graph, batch_size=0)
    assert all(
        sorted(labelled.tolist()) == train_nodes
        for labelled, _ in whole.batches(torch.from_numpy(split.train), training=True)
    )


@pytest.mark.parametrize("settings", [{}, {"consistency": 0.0}, {"batch_norm": False, "node_norm": False}])
def test_it_learns(settings: dict[str, Any]) -> None:
    graph = random_graph()
    split = random_split(graph)
    config = GRANDPlusConfig(max_epochs=20, learning_rate=1e-2, hidden_dropout=0.2, **settings)
    seen = training_view(graph, split)
    torch.manual_seed(0)
    model = GRANDPlus(seen, GRANDPlus.prepare(seen, split, config, 0, PrepareCache()), config)
    result = train(model, split, torch.from_numpy(graph.labels), config)
    assert max(accuracy for _, _, accuracy in result.curve) >= 0.8
    assert result.updates == 10 * result.epochs


def test_published_settings() -> None:
    expected = {  # learning rate, weight decay, layers, BN, node norm, input and hidden dropout, λ, loss, warm-up,
        # labelled and unlabelled batch, U', top-k, rmax, order, α, clip, stop, patience
        "pubmed": (1e-2, 1e-2, 1, True, True, 0.2, 0.2, 1, "l2", 100, 5, 100, 0, 16, 1e-5, 6, 0.5, 0.1, "both", 50),
        "aminer": (
            *(1e-2, 1e-2, 1, True, False, 0, 0, 1.5, "kl", 100, 20, 100, 10_000),
            *(64, 1e-5, 6, 0.1, 0, "accuracy", 10),
        ),
        "reddit": (
            *(1e-4, 0, 2, True, True, 0, 0, 1.5, "kl", 500, 50, 200, 10_000),
            *(64, 1e-5, 6, 0.05, 0.1, "accuracy", 20),
        ),
        "amazon2m": (
            *(1e-3, 1e-5, 2, True, True, 0, 0, 0.8, "kl", 500, 50, 200, 10_000),
            *(64, 1e-6, 6, 0.2, 0, "accuracy", 30),
        ),
    }
    assert GRANDPlus.settings["author"].keys() == expected.keys()
    for dataset, values in expected.items():
        c: Any = resolve_settings(GRANDPlus, dataset).config
        found = (
            *(c.learning_rate, c.weight_decay, c.layers, c.batch_norm, c.node_norm, c.input_dropout),
            *(c.hidden_dropout, c.consistency, c.consistency_loss, c.consistency_warmup, c.batch_size),
            *(c.unlabelled_batch, c.unlabelled, c.top_k, c.rmax, c.order, c.alpha, c.clip_norm, c.stop, c.patience),
        )
        assert found == values, dataset
        assert (c.propagation, c.optimizer) == ("ppr", "adam")
        assert (c.node_dropout, c.augmentations, c.temperature) == (0.5, 2, 0.1)
    assert resolve_settings(GRANDPlus, "reddit").config.hidden == 512  # type: ignore[attr-defined]
    assert resolve_settings(GRANDPlus, "amazon2m").config.hidden == 1024  # type: ignore[attr-defined]


@pytest.mark.parametrize(("dataset", "scale"), [("pubmed", 0.992), ("aminer", 0.522), ("reddit", 0.302)])
def test_the_official_scale_that_inference_does_not_have(dataset: str, scale: float) -> None:
    c: Any = resolve_settings(GRANDPlus, dataset).config
    assert 1 - (1 - c.alpha) ** (c.order + 1) == pytest.approx(scale, abs=5e-4)
    np.testing.assert_allclose(c.mixture, c.alpha * (1 - c.alpha) ** np.arange(c.order + 1) / scale, rtol=2e-3)


def test_the_search_space_admits_published_settings_and_defaults() -> None:
    for dataset in (*GRANDPlus.settings["author"], "photo"):
        config = resolve_settings(GRANDPlus, dataset).config
        for name, domain in GRANDPlus.spaces["wide"].items():
            assert admits(domain, getattr(config, name)), (dataset, name)


@pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"rmax": -1.0}, {"consistency": -0.5}, {"temperature": 0.0}])
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        GRANDPlusConfig(**settings)  # type: ignore[arg-type]


def test_the_estimate_grows_with_what_it_counts() -> None:
    graph = random_graph()
    estimate = GRANDPlus.estimate_memory(graph, GRANDPlusConfig())
    for settings in ({"hidden": 4096}, {"augmentations": 50}, {"unlabelled_batch": 1000, "augmentations": 9}):
        assert GRANDPlus.estimate_memory(graph, GRANDPlusConfig(**settings)) > estimate  # type: ignore[arg-type]
    for sparse in (False, True):
        larger = random_graph(num_nodes=300, sparse=sparse)
        assert GRANDPlus.estimate_memory(larger, GRANDPlusConfig()) > estimate
