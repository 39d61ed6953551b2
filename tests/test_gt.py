"""GT against a dense network in float64: forward, gradients, isolated nodes, signs of the encoding, loss, settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from graphs import (
    ISOLATED,
    ON_EDGES,
    dense_adjacency,
    dense_features,
    path_graph,
    random_graph,
    random_split,
    training_view,
)
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache
from bench.settings import resolve_settings
from bench.space import admits
from models.gt import GT, GTConfig
from models.kernels.positional import laplacian_eigenvectors

NODES = torch.arange(60)


def build(graph: Graph, seed: int = 0, **settings: Any) -> GT:
    config = GTConfig(**{"hidden": 16, "heads": 4, "layers": 2, **settings})
    torch.manual_seed(seed)
    return GT(graph, GT.prepare(graph, random_split(random_graph()), config, seed, PrepareCache()), config)


def with_random_weights(model: GT, scale: float = 0.4) -> GT:
    """Also the norms' parameters and statistics, which start at constants."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value.copy_(
                    torch.rand(value.shape) + 0.5 if "running_var" in name else torch.randn(value.shape) * scale
                )
    return model


def dense_logits(graph: Graph, model: GT, weights: dict[str, Tensor]) -> Tensor:
    """The whole network in evaluation, node pairs as N x N matrices; `weights` are float64."""
    c = model.config
    features = torch.from_numpy(dense_features(graph).astype(np.float64))
    if c.normalize_features:
        features = functional.normalize(features, p=1.0, dim=1)
    encoding = torch.from_numpy(laplacian_eigenvectors(graph, c.encoding_size, PrepareCache()).astype(np.float64))
    hidden = features @ weights["embed.weight"].T + weights["embed.bias"]
    if c.encoding_size:
        hidden = hidden + encoding @ weights["place.weight"].T + weights["place.bias"]
    mask = dense_adjacency(graph)
    mask = torch.from_numpy(np.maximum(mask, np.eye(len(mask))) if c.self_loops else mask)
    size = c.hidden // c.heads
    for at in range(c.layers):
        own = {name.removeprefix(f"layers.{at}."): value for name, value in weights.items()}
        attended = []
        for head in range(c.heads):
            rows = slice(head * size, (head + 1) * size)
            query, key, value = (hidden @ own[f"{part}.weight"][rows].T for part in ("query", "key", "value"))
            pairs = (query @ key.T / np.sqrt(size)).clamp(-5, 5).exp() * mask
            total = pairs.sum(dim=1, keepdim=True)
            attended.append((pairs / torch.where(total > 0, total, 1.0)) @ value)
        found = torch.cat(attended, dim=1) @ own["rest.output.weight"].T + own["rest.output.bias"]
        hidden = _normalised(hidden + found, own, "rest.attention_norm", c.norm)
        inner = (hidden @ own["rest.widen.weight"].T + own["rest.widen.bias"]).clamp(min=0)
        found = inner @ own["rest.narrow.weight"].T + own["rest.narrow.bias"]
        hidden = _normalised(hidden + found, own, "rest.feed_forward_norm", c.norm)
    for at in (0, 2, 4):
        hidden = (hidden.clamp(min=0) if at else hidden) @ weights[f"classify.{at}.weight"].T
        hidden = hidden + weights[f"classify.{at}.bias"]
    return hidden


def _normalised(x: Tensor, own: dict[str, Tensor], name: str, norm: str) -> Tensor:
    if norm == "layer":
        x = x - x.mean(dim=1, keepdim=True)
        x = x / (x.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    else:
        x = (x - own[f"{name}.running_mean"]) / (own[f"{name}.running_var"] + 1e-5).sqrt()
    return x * own[f"{name}.weight"] + own[f"{name}.bias"]


VARIANTS = [
    pytest.param({}, id="default"),
    pytest.param({"norm": "layer"}, id="layer norm"),
    pytest.param({"self_loops": True, "normalize_features": True}, id="loops"),
    pytest.param({"encoding_size": 0, "heads": 1, "layers": 1}, id="no encoding"),
]


@pytest.mark.parametrize("settings", VARIANTS)
@pytest.mark.parametrize("sparse", [False, True])
def test_forward_is_the_dense_formula(settings: dict[str, Any], sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = with_random_weights(build(graph, **settings)).eval()
    weights = {name: value.double() for name, value in model.state_dict().items()}
    nodes = torch.randperm(60)[:23]
    expected = dense_logits(graph, model, weights)[nodes]
    assert float(expected.std()) > 0.05
    torch.testing.assert_close(model(nodes).double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.predict(nodes).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_gradients_are_dense_autograd(norm: str) -> None:
    graph = random_graph(sparse=True)
    model = with_random_weights(build(graph, norm=norm)).eval()  # evaluation: no flips, no dropout, fixed statistics
    leaves = {name: value.detach().double() for name, value in model.state_dict().items()}
    for name, _ in model.named_parameters():
        leaves[name].requires_grad_()
    loss = functional.cross_entropy(model(NODES), torch.from_numpy(graph.labels))
    expected = functional.cross_entropy(dense_logits(graph, model, leaves), torch.from_numpy(graph.labels))
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), leaves[name].grad, rtol=2e-3, atol=2e-5, msg=name)


def test_the_number_of_parameters_by_hand() -> None:
    # d = 20, C = 4, s = 10, h = 16: embedding, encoding, two layers (q, k, v; output; feed-forward; norms), classifier
    layer = 3 * 16 * 16 + (16 * 16 + 16) + (16 * 32 + 32) + (32 * 16 + 16) + 2 * (16 + 16)
    expected = (20 * 16 + 16) + (10 * 16 + 16) + 2 * layer + (16 * 8 + 8) + (8 * 4 + 4) + (4 * 4 + 4)
    assert sum(parameter.numel() for parameter in build(random_graph()).parameters()) == expected


# -- isolated nodes ---------------------------------------------------------------------------------------------------


def test_isolated_nodes_keep_what_their_residual_carries() -> None:
    graph = random_graph()
    model = build(graph, layers=1, norm="layer", encoding_size=0).eval()
    hidden = model.embed(torch.from_numpy(dense_features(graph)))
    layer = model.layers[0]
    alone = layer.rest(hidden, torch.zeros_like(hidden))  # as if nobody had attended to anything
    found = layer(hidden, model.edges)
    assert found.isfinite().all()
    torch.testing.assert_close(found[list(ISOLATED)], alone[list(ISOLATED)], rtol=0, atol=0)
    others = np.setdiff1d(np.arange(60), ISOLATED)
    assert ((found - alone)[others].abs().amax(dim=1) > 1e-4).all()


def test_a_path_of_three_nodes_by_hand() -> None:
    # identity projections: each end reads the middle alone, whatever the score; the middle reads both by theirs
    model = build(path_graph(), hidden=4, heads=1, layers=1, encoding_size=0)
    layer = model.layers[0]
    with torch.no_grad():
        for part in (layer.query, layer.key, layer.value):
            part.weight.copy_(torch.eye(4))
    hidden = torch.tensor([[1.0, 0, 0, 0], [2.0, 0, 0, 0], [0, 4.0, 0, 0]])
    seen: list[Tensor] = []
    layer.rest.forward = lambda nodes, attended: seen.append(attended) or attended
    layer(hidden, model.edges)
    weights = np.exp([1.0, 0.0])  # 2 · 1 / √4 towards node 0, nothing in common with node 2
    share = weights / weights.sum()
    expected = [[2, 0, 0, 0], [share[0], 4 * share[1], 0, 0], [2, 0, 0, 0]]
    np.testing.assert_allclose(seen[0].detach(), expected, rtol=1e-6)


# -- training ---------------------------------------------------------------------------------------------------------


def test_signs_are_flipped_per_update_and_never_in_evaluation() -> None:
    model = build(random_graph(), dropout=0.0)
    seen: list[Tensor] = []
    assert model.place is not None
    model.place.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model.train()
    for _ in range(6):
        model(NODES)
    original = torch.from_numpy(laplacian_eigenvectors(random_graph(), 10, PrepareCache()))
    signs = []
    for encoding in seen:
        ratio = (encoding * original).sum(dim=0)  # columns have length 1
        np.testing.assert_allclose(ratio.abs(), 1.0, atol=1e-5)
        torch.testing.assert_close(encoding, original * ratio.sign(), rtol=0, atol=0)
        signs.append(tuple(ratio.sign().tolist()))
    assert len(set(signs)) > 1
    seen.clear()
    model.eval()(NODES)
    assert torch.equal(seen[0], original)
    still = build(random_graph(), dropout=0.0, sign_flips=False, norm="layer").train()
    assert torch.equal(still(NODES), still(NODES))


@pytest.mark.parametrize("setting", ["dropout", "input_dropout"])
def test_dropout_acts_in_training_only(setting: str) -> None:
    rates = {"dropout": 0.0, "input_dropout": 0.0, setting: 0.5}
    model = build(random_graph(), sign_flips=False, norm="layer", **rates)
    assert not torch.equal(model.train()(NODES), model(NODES))
    assert torch.equal(model.eval()(NODES), model(NODES))


def test_the_loss_can_be_weighted_by_class() -> None:
    graph = random_graph()
    split = random_split(graph)
    train = torch.from_numpy(split.train)
    model = build(training_view(graph, split), dropout=0.0, sign_flips=False, norm="layer").train()
    scores, labels = model(train), torch.from_numpy(graph.labels)[train]
    shares = torch.bincount(labels, minlength=4) / len(labels)
    losses = functional.cross_entropy(scores, labels, reduction="none")
    weights = (1 - shares)[labels]
    torch.testing.assert_close(model.loss(train), losses.mean())
    model.config = dataclasses.replace(model.config, class_weighted=True)
    torch.testing.assert_close(model.loss(train), (weights * losses).sum() / weights.sum())


# -- declarations -----------------------------------------------------------------------------------------------------


def test_the_recipe_is_the_authors_and_no_dataset_has_settings() -> None:
    assert GT.settings == {}
    c = GTConfig()
    assert (c.optimizer, c.schedule, c.final_learning_rate, c.max_epochs) == ("adam", "plateau", 1e-6, 1000)
    assert (c.plateau_factor, c.plateau_patience, c.batch_size) == (0.5, 10, 0)
    assert (c.heads, c.norm, c.sign_flips) == (8, "batch", True)


def test_the_search_space_holds_the_defaults_and_every_point_of_it_is_a_configuration() -> None:
    space = GT.spaces["wide"]
    defaults = dataclasses.asdict(GTConfig())
    assert all(admits(domain, defaults[name]) for name, domain in space.items())
    assert all(hidden % heads == 0 for hidden in space["hidden"] for heads in space["heads"])  # type: ignore[union-attr]


@pytest.mark.parametrize("settings", [{"hidden": 20, "heads": 8}, {"hidden": 2, "heads": 1}])
def test_impossible_configurations_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="hidden"):
        GTConfig(**settings)


def test_the_record_says_what_computed_the_edges() -> None:
    assert build(random_graph()).choices() == {"edges": ON_EDGES}


def test_the_estimate_grows_with_what_costs_memory() -> None:
    graph = random_graph(num_nodes=300)
    few = resolve_settings(GT, "photo").config
    for change in ({"layers": 4}, {"hidden": 256}):
        more = dataclasses.replace(few, **change)
        assert GT.estimate_memory(graph, more) > GT.estimate_memory(graph, few)
