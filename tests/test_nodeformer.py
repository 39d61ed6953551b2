"""NodeFormer against dense formulas: attention, Gumbel noise, relational bias, edge regularisation, randomness."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from graphs import dense_adjacency, dense_features, make_graph, random_graph, random_split
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache
from bench.space import admits
from models import nodeformer
from models.kernels import kernelized_attention
from models.kernels import relations as relation_kernels
from models.kernels.kernelized_attention import (
    gumbel_weights,
    kernel_attention,
    mean_log_attention,
    plain_kernel_attention,
    plain_log_pairs,
)
from models.kernels.random_features import EPSILON, orthogonal_directions, softmax_features
from models.kernels.relations import expected_entries, plain_squared, relations, squared
from models.nodeformer import NodeFormer, NodeFormerConfig


def build(graph: Graph, seed: int = 0, **settings: Any) -> NodeFormer:
    config = NodeFormerConfig(**{"hidden": 6, "heads": 2, "random_features": 9, "gumbel_samples": 3, **settings})
    torch.manual_seed(seed)
    return NodeFormer(graph, NodeFormer.prepare(graph, random_split(graph), config, seed, PrepareCache()), config)


def with_random_weights(model: NodeFormer) -> NodeFormer:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return model


def batch_of(model: NodeFormer, graph: Graph) -> Any:
    return next(iter(model.batches(torch.from_numpy(random_split(graph).train), training=True)))


def pattern(graph: Graph) -> np.ndarray:
    return ((dense_adjacency(graph) + np.eye(graph.num_nodes)) > 0).astype(np.float64)


def dense_relations(graph: Graph, orders: int) -> list[Tensor]:
    """D^-1/2 A_r D^-1/2 for A_1 = A with loops and A_(r+1) = the pattern of A_r squared."""
    found, current = [], pattern(graph)
    for _ in range(orders):
        roots = np.sqrt(current.sum(axis=1))
        found.append(torch.from_numpy(current / np.outer(roots, roots)))
        current = (current @ current > 0).astype(np.float64)
    return found


# -- attention --------------------------------------------------------------------------------------------------------


def test_with_many_features_attention_approaches_the_exact_softmax_with_its_temperature() -> None:
    torch.manual_seed(0)
    nodes, heads, width, temperature = 20, 2, 8, 0.25
    query, key, value = (torch.randn(nodes, heads, width) * scale for scale in (0.25, 0.25, 1.0))
    scores = torch.einsum("nhd,mhd->hnm", query, key) / (temperature * width**0.5)
    expected = torch.einsum("hnm,mhd->nhd", scores.softmax(dim=2), value)
    cold = torch.einsum("hnm,mhd->nhd", (scores * temperature).softmax(dim=2), value)  # without the temperature
    errors = []
    for count in (30, 24_000):
        directions = orthogonal_directions(count, width, torch.Generator().manual_seed(0))
        features = softmax_features(query / temperature**0.5, directions, epsilon=0.0)
        keys = softmax_features(key / temperature**0.5, directions, keys_along=0, epsilon=0.0)
        errors.append(float((kernel_attention(features, keys, value, None) - expected).abs().max()))
    assert errors[1] < 0.05 and errors[1] < errors[0] / 3
    assert float((cold - expected).abs().max()) > 4 * errors[1]


@pytest.mark.parametrize("attend", [kernel_attention, plain_kernel_attention])
@pytest.mark.parametrize("samples", [0, 1, 4])
def test_attention_and_its_gradients_are_the_dense_formula(
    attend: Any, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernelized_attention, "_BLOCK", 7)  # several blocks, the last one shorter
    torch.manual_seed(0)
    query, key = (torch.rand(25, 2, 5, dtype=torch.float64).requires_grad_() for _ in range(2))
    value = torch.randn(25, 2, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(25, 2, samples, dtype=torch.float64) if samples else None
    direction = torch.randn(25, 2, 3, dtype=torch.float64)
    found = attend(query, key, value, weights)
    of_found = torch.autograd.grad((found * direction).sum(), (query, key, value))
    kernel = torch.einsum("nhm,ohm->hno", query, key)
    results = []
    for sample in range(max(samples, 1)):
        noisy = kernel if weights is None else kernel * weights[:, :, sample].T.unsqueeze(1)
        results.append(torch.einsum("hno,ohd->nhd", noisy / noisy.sum(dim=2, keepdim=True), value))
    expected = torch.stack(results).mean(dim=0)
    of_expected = torch.autograd.grad((expected * direction).sum(), (query, key, value))
    torch.testing.assert_close(found, expected)
    for one, other in zip(of_found, of_expected, strict=True):
        torch.testing.assert_close(one, other)


def test_noise_is_gumbel_over_temperature() -> None:
    random = torch.Generator().manual_seed(0)
    weights = gumbel_weights((40_000, 1, 2), 0.25, random).double()
    assert float(weights.max()) == 1.0 and weights.isfinite().all()
    logs = 0.25 * weights.clamp(min=1e-38).log()
    logs = logs - logs.mean(dim=0)
    # a Gumbel variable has variance π²/6 and skewness 1.14
    assert float(logs.var()) == pytest.approx(np.pi**2 / 6, rel=0.05)
    assert float((logs**3).mean() / logs.var() ** 1.5) == pytest.approx(1.14, abs=0.2)


def test_noise_makes_attention_a_draw_from_the_softmax() -> None:
    # At a low temperature each noisy attention picks one key, with the softmax's probability (the Gumbel-max trick).
    # A key of kernel p^(1/temperature) has the logarithm of p as its score.
    random = torch.Generator().manual_seed(0)
    temperature, probabilities = 0.1, torch.tensor([0.6, 0.3, 0.1])
    draws = 4000
    weights = gumbel_weights((3, 1, draws), temperature, random)
    key = (probabilities ** (1 / temperature)).view(3, 1, 1)
    key = key.double() / float(key.max())
    value = torch.eye(3).unsqueeze(1).double()
    found = kernel_attention(torch.ones(3, 1, 1).double(), key, value, weights.double())[0, 0]
    torch.testing.assert_close(found, probabilities.double(), rtol=0, atol=5 * (0.25 / draws) ** 0.5)


# -- relations --------------------------------------------------------------------------------------------------------


def test_orders_are_squares_of_squares_as_normalised_patterns() -> None:
    graph = random_graph()
    found = relations(graph, 3, PrepareCache())
    assert len(found) == 3
    for operator, expected in zip(found, dense_relations(graph, 3), strict=True):
        np.testing.assert_allclose(operator.matrix.toarray(), expected.numpy(), rtol=1e-5, atol=1e-7)
        assert operator.matrix.has_sorted_indices
    third = np.linalg.matrix_power(pattern(graph), 4) > 0  # not the third power
    assert np.array_equal(found[2].matrix.toarray() > 0, third)
    assert not np.array_equal(third, np.linalg.matrix_power(pattern(graph), 3) > 0)


def test_a_path_squared_by_hand() -> None:
    # 0 - 1 - 2 - 3 with loops: two steps reach distance 2
    starts, columns = squared(np.array([0, 2, 5, 8, 10], dtype=np.int32), np.array([0, 1, 0, 1, 2, 1, 2, 3, 2, 3]))
    assert starts.tolist() == [0, 3, 7, 11, 14]
    assert columns.tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3]


def test_squares_are_scipys() -> None:
    matrix = relations(random_graph(), 1, PrepareCache())[0].matrix
    found, expected = (square(matrix.indptr, matrix.indices) for square in (squared, plain_squared))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_size_of_a_relation_is_known_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph()
    for order, relation in enumerate(relations(graph, 3, PrepareCache()), start=1):
        assert expected_entries(graph, order) == pytest.approx(relation.matrix.nnz)  # every node is in the sample
    monkeypatch.setattr(relation_kernels, "_SAMPLE", 30)
    assert expected_entries(graph, 2) == pytest.approx(relations(graph, 2, PrepareCache())[1].matrix.nnz, rel=0.3)
    monkeypatch.setattr(relation_kernels, "_MOST_LOOKS", 0)  # one node is looked at in any case
    assert expected_entries(graph, 2) >= 60


def test_higher_orders_are_kept(tmp_path: Any) -> None:
    graph, cache = random_graph(), PrepareCache(tmp_path)
    first = relations(graph, 3, cache)
    assert cache.hits == 0
    again = relations(graph, 3, cache)
    assert cache.hits == 4  # two orders, pattern and values each
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.matrix.toarray(), other.matrix.toarray())


def test_no_relation_is_built_where_none_is_used() -> None:
    assert relations(random_graph(), 0, PrepareCache()) == []
    for settings, count in [
        ({"relational_bias": False, "edge_weight": 0.0}, 0),
        ({"relational_bias": False, "edge_weight": 1.0}, 1),
        ({"relational_order": 3, "edge_weight": 0.0}, 3),
        ({"relational_order": 1, "edge_weight": 1.0}, 1),
    ]:
        assert len(build(random_graph(), **settings).prepared.relations) == count


# -- the whole network ------------------------------------------------------------------------------------------------


def dense_features_of_kernel(x: Tensor, directions: Tensor, over: Any) -> Tensor:
    x = x / x.shape[-1] ** 0.25
    exponents = x @ directions.T
    largest = exponents.amax(dim=over, keepdim=True).detach()
    halves = (x**2).sum(-1, keepdim=True) / 2
    return (torch.exp(exponents - halves - largest) + EPSILON) / len(directions) ** 0.5


def dense_run(graph: Graph, model: NodeFormer, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits in evaluation mode and the mean over layers of the edge term, from dense float64 attention matrices."""
    c = model.config
    count = graph.num_nodes
    features = torch.from_numpy(dense_features(graph).astype(np.float64))
    if c.normalize_features:
        features = functional.normalize(features, p=1.0, dim=1)

    def norm(hidden: Tensor, at: int) -> Tensor:
        if not c.layer_norm:
            return hidden
        return functional.layer_norm(hidden, (c.hidden,), weights[f"norms.{at}.weight"], weights[f"norms.{at}.bias"])

    hidden = functional.elu(norm(features @ weights["project.weight"].T + weights["project.bias"], 0))
    outputs, terms = [hidden], []
    for at in range(c.layers):
        prefix = f"layers.{at}."
        packed = hidden @ weights[prefix + "query_key_value.weight"].T + weights[prefix + "query_key_value.bias"]
        query, key, value = packed.view(count, 3, c.heads, c.hidden).unbind(1)
        directions = weights["fixed_directions"][at]
        query = dense_features_of_kernel(query / c.temperature**0.5, directions, 2)
        key = dense_features_of_kernel(key / c.temperature**0.5, directions, (0, 2))
        kernel = torch.einsum("nhm,ohm->hno", query, key)
        attention = kernel / kernel.sum(dim=2, keepdim=True)
        mixed = torch.einsum("hno,ohd->nhd", attention, value)
        if c.relational_bias:
            for order, relation in enumerate(dense_relations(graph, c.relational_order)):
                gate = weights[prefix + "bias"][order]
                gate = torch.sigmoid(gate) if c.relational_gate == "sigmoid" else gate
                mixed = mixed + gate.view(1, -1, 1) * torch.einsum("no,ohd->nhd", relation, value)
        edges = torch.from_numpy(pattern(graph))
        each = attention.log() * edges / edges.sum(dim=1, keepdim=True)  # a row is the attending node
        terms.append(each.sum() / (edges.sum() * c.heads))
        following = mixed.flatten(1) @ weights[prefix + "output.weight"].T + weights[prefix + "output.bias"]
        if c.residual:
            following = following + outputs[-1]
        following = norm(following, at + 1)
        hidden = functional.elu(following) if c.activation else following
        outputs.append(hidden)
    last = torch.cat(outputs, dim=1) if c.jumping else hidden
    logits = last @ weights["classifier.weight"].T + weights["classifier.bias"]
    return logits, torch.stack(terms).mean()


VARIANTS: list[dict[str, Any]] = [
    {},
    {"relational_order": 3, "relational_gate": "identity"},
    {"relational_bias": False, "residual": False, "layer_norm": False},
    {"activation": True, "jumping": True, "layers": 3, "heads": 1, "relational_order": 1},
    {"normalize_features": False, "temperature": 1.0, "layers": 1},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("sparse", [False, True])
def test_prediction_is_the_dense_formula(settings: dict[str, Any], sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = with_random_weights(build(graph, **settings)).eval()
    weights = {name: value.double() for name, value in model.state_dict().items()}
    nodes = torch.randperm(60)[:23]
    with torch.no_grad():
        found = model.predict(nodes)
    torch.testing.assert_close(found.double(), dense_run(graph, model, weights)[0][nodes], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_the_loss_and_its_gradients_are_dense_autograd(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph()
    model = with_random_weights(build(graph, gumbel=False, edge_weight=0.7, **settings)).train()
    turn = itertools.cycle(range(model.config.layers))
    monkeypatch.setattr(model, "_draw_directions", lambda: model.fixed_directions[next(turn)])
    leaves = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    batch = batch_of(model, graph)
    loss = model.loss(batch)
    logits, term = dense_run(graph, model, {**leaves, "fixed_directions": model.fixed_directions.double()})
    train = torch.from_numpy(random_split(graph).train)
    # the sign: attention on edges is rewarded
    expected = functional.cross_entropy(logits[train], torch.from_numpy(graph.labels)[train]) - 0.7 * term
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-4)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), leaves[name].grad, rtol=1e-2, atol=2e-3, msg=name)


# -- edge regularisation ----------------------------------------------------------------------------------------------


def exact_mean_log(query: Tensor, key: Tensor, edges: np.ndarray) -> Tensor:
    kernel = torch.einsum("nhm,ohm->hno", query, key)
    attention = kernel / kernel.sum(dim=2, keepdim=True)
    mask = torch.from_numpy(edges)
    return (attention.log() * mask / mask.sum(dim=1, keepdim=True)).sum() / (mask.sum() * query.shape[1])


@pytest.mark.parametrize("path", ["processor", "torch"])
def test_log_attention_on_edges_and_its_gradients(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph()
    matrix = relations(graph, 1, PrepareCache())[0].matrix
    torch.manual_seed(0)
    query, key = (torch.rand(60, 2, 5).add_(0.01).requires_grad_() for _ in range(2))
    if path == "torch":  # what a GPU would run, in small chunks
        monkeypatch.setattr(kernelized_attention, "_EDGES", 50)
        monkeypatch.setattr(kernelized_attention._LogPairs, "apply", plain_log_pairs)
    found = mean_log_attention(query, key, matrix)
    of_found = torch.autograd.grad(found, (query, key))
    exact = [tensor.detach().double().requires_grad_() for tensor in (query, key)]
    expected = exact_mean_log(*exact, pattern(graph))
    of_expected = torch.autograd.grad(expected, exact)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(of_found, of_expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6)


def test_two_nodes_by_hand() -> None:
    # One edge and both loops; q·k is 3 on the edge from 0 to 1, 1 elsewhere: log attention is log 3/4, log 1/4, log 1/2
    graph = make_graph(2, [(0, 1)])
    query = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    key = torch.tensor([[[1.0, 1.0]], [[3.0, 1.0]]])
    found = mean_log_attention(query, key, relations(graph, 1, PrepareCache())[0].matrix)
    rows = (np.log(0.25) + np.log(0.75)) / 2, np.log(0.5)  # each row divided by its degree, 2
    assert float(found) == pytest.approx(sum(rows) / 4, rel=1e-6)


def test_the_total_loss_falls_when_attention_on_edges_rises() -> None:
    graph = random_graph()
    model = build(graph, edge_weight=1.0, gumbel=False, layers=1).train()
    batch = batch_of(model, graph)
    plain = build(graph, edge_weight=0.0, gumbel=False, layers=1).train()
    state = model._random.get_state()
    values = {}
    for scale in (0.0, 1.0):
        # queries and keys that say which component a node is in: with a larger scale, nodes attend to their own one
        component = torch.zeros(60, 1, 6)
        component[:40, :, 0], component[40:, :, 1] = scale, scale
        directions = model.fixed_directions[0]
        query = softmax_features(component * 2, directions)
        key = softmax_features(component * 2, directions, keys_along=0)
        values[scale] = float(mean_log_attention(query, key, model.prepared.relations[0].matrix))
    assert values[1.0] > values[0.0]
    plain.load_state_dict(model.state_dict())
    plain._random.set_state(state)
    model._random.set_state(state)
    _, terms = model._run(batch.part)
    model._random.set_state(state)
    difference = float((model.loss(batch) - plain.loss(batch)).detach())
    assert difference == pytest.approx(-terms[0].item(), rel=1e-4)
    assert terms[0].item() < 0 < difference


def test_training_on_the_edge_term_alone_raises_attention_on_edges() -> None:
    graph = random_graph()
    model = build(graph, edge_weight=1.0, gumbel=False, relational_bias=False).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batch = batch_of(model, graph)
    seen = []
    for _ in range(40):
        _, terms = model._run(batch.part)
        term = torch.stack(terms).mean()
        seen.append(term.item())
        optimizer.zero_grad()
        (-model.config.edge_weight * term).backward()
        optimizer.step()
    assert np.mean(seen[-5:]) > seen[0] + 0.015


def test_weight_zero_does_no_work_on_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Tensor:
        raise AssertionError("edges were looked at")

    monkeypatch.setattr(nodeformer, "mean_log_attention", refuse)
    graph = random_graph()
    model = build(graph, edge_weight=0.0).train()
    assert model.loss(batch_of(model, graph)).isfinite()
    weighted = build(graph, edge_weight=0.1)
    with pytest.raises(AssertionError, match="edges"):
        weighted.train().loss(batch_of(weighted, graph))
    assert weighted.eval().predict(torch.arange(3)).isfinite().all()  # nor does a prediction


# -- randomness -------------------------------------------------------------------------------------------------------


def test_a_step_and_a_prediction_leave_the_global_generator_alone() -> None:
    graph = random_graph()
    model = build(graph)
    batch = batch_of(model, graph)
    before = torch.random.get_rng_state()
    model.train().loss(batch).backward()
    model.eval().predict(torch.arange(60))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_steps_draw_anew_and_predictions_do_not() -> None:
    graph = random_graph()
    model = with_random_weights(build(graph))
    batch = batch_of(model, graph)
    model.train()
    assert model.loss(batch).item() != model.loss(batch).item()
    model.eval()
    first = model.predict(torch.arange(60))
    model.train().loss(batch)
    assert torch.equal(model.eval().predict(torch.arange(60)), first)


def test_the_seed_decides_about_directions_and_noise() -> None:
    graph = random_graph()
    losses = []
    for seed in (1, 1, 2):
        model = build(graph, seed=seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        losses.append((model.train().loss(batch_of(model, graph)).item(), model.fixed_directions))
    assert losses[0][0] == losses[1][0] and torch.equal(losses[0][1], losses[1][1])
    assert not torch.equal(losses[0][1], losses[2][1])


def test_gumbel_noise_can_be_switched_off() -> None:
    graph = random_graph()
    for gumbel in (True, False):
        model = with_random_weights(build(graph, gumbel=gumbel, edge_weight=0.0)).train()
        model._draw_directions = lambda model=model: model.fixed_directions[0]  # type: ignore[method-assign]
        batch = batch_of(model, graph)
        assert (model.loss(batch).item() == model.loss(batch).item()) is not gumbel


# -- parts of the graph -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_an_epoch_of_parts_sees_every_node_once(sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    split = random_split(graph)
    model = build(graph, batch_size=13, relational_order=2)
    torch.manual_seed(3)
    parts = list(model.batches(torch.from_numpy(split.train), training=True))
    assert len(parts) == 5  # 60 / 13, rounded up; all have a labelled node here
    rows = torch.cat([batch.part.features @ torch.eye(20) for batch in parts])
    assert len(rows) == 60
    labelled = torch.cat([batch.labelled for batch in parts])
    assert torch.equal(labelled.sort().values, torch.from_numpy(split.train).sort().values)
    features = torch.from_numpy(dense_features(graph))
    for batch in parts:
        own = (batch.part.features @ torch.eye(20))[batch.places]
        torch.testing.assert_close(own, features[batch.labelled])


def test_a_part_has_the_edges_among_its_nodes_normalised_by_what_is_left() -> None:
    graph = random_graph()
    model = build(graph, relational_order=2, normalize_features=True)
    nodes = np.array([1, 2, 3, 9, 17, 40, 41, 42])
    part = model.prepared.induced(nodes)
    current = pattern(graph)
    for relation in part.relations:
        among = current[np.ix_(nodes, nodes)]
        roots = np.sqrt(among.sum(axis=1))
        np.testing.assert_allclose(relation.matrix.toarray(), among / np.outer(roots, roots), rtol=1e-5, atol=1e-7)
        current = (current @ current > 0).astype(np.float64)
    features = graph.features[nodes]
    expected = features / np.maximum(features.sum(axis=1, keepdims=True), 1e-30)
    np.testing.assert_allclose((part.features @ torch.eye(20)).numpy(), expected, rtol=1e-5)


def test_a_part_never_reads_the_whole_feature_matrix_as_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = build(random_graph(), batch_size=13), Tensor.numpy

    def numpy(tensor: Tensor, *args: Any, **options: Any) -> np.ndarray:
        assert tensor is not model.prepared.features.matrix, "it would be on another device after the first evaluation"
        return read(tensor, *args, **options)

    monkeypatch.setattr(Tensor, "numpy", numpy)
    part = model.prepared.induced(np.array([3, 40]))
    monkeypatch.undo()
    assert torch.equal(part.features.matrix, model.prepared.features.matrix[[3, 40]])


def test_parts_without_a_labelled_node_are_left_out() -> None:
    graph = random_graph()
    model = build(graph, batch_size=5)
    parts = list(model.batches(torch.tensor([7, 8]), training=True))
    assert 1 <= len(parts) <= 2
    assert sum(len(part.labelled) for part in parts) == 2


def test_a_part_as_large_as_the_graph_is_the_graph() -> None:
    graph = random_graph()
    for size in (0, 60, 100):
        model = build(graph, batch_size=size)
        [part] = model.batches(torch.from_numpy(random_split(graph).train), training=True)
        assert part.part is model.prepared
        assert model.choices()["updates"] == "whole graph"
    assert build(graph, batch_size=59).choices()["updates"] == "random parts"


def test_training_in_parts_learns() -> None:
    graph = random_graph()
    train = torch.from_numpy(random_split(graph).train)
    model = build(graph, batch_size=20, learning_rate=1e-2).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    labels = torch.from_numpy(graph.labels)[train]
    before = functional.cross_entropy(model.eval().predict(train), labels).item()
    for _ in range(20):
        model.train()
        for part in model.batches(train, training=True):
            optimizer.zero_grad()
            model.loss(part).backward()
            optimizer.step()
    assert functional.cross_entropy(model.eval().predict(train), labels).item() < 0.8 * before


# -- settings ---------------------------------------------------------------------------------------------------------


def test_every_head_has_the_full_width() -> None:
    model = build(random_graph(), hidden=6, heads=3, relational_order=2)
    shapes = {name: tuple(value.shape) for name, value in model.layers[0].named_parameters()}
    assert shapes == {
        "bias": (2, 3),
        "query_key_value.weight": (54, 6),
        "query_key_value.bias": (54,),
        "output.weight": (6, 18),
        "output.bias": (6,),
    }
    assert (model.layers[0].bias == 0.1).all()  # type: ignore[union-attr]
    assert (build(random_graph(), relational_gate="identity").layers[0].bias == 1.0).all()  # type: ignore[union-attr]


def test_published_settings() -> None:
    assert NodeFormer.settings.keys() == {"author"}
    expected = {  # hidden, layers, heads, dropout, M, K, order, gate, edge weight, rate, decay, batch, act, jk, every
        "pubmed": (32, 2, 4, 0.3, 30, 10, 3, "sigmoid", 1.0, 1e-3, 5e-4, 0, False, False, 1),
        "amazon2m": (64, 3, 1, 0.0, 50, 5, 1, "identity", 0.01, 1e-2, 0.0, 100_000, True, True, 9),
    }
    assert NodeFormer.settings["author"].keys() == expected.keys()
    for name, settings in NodeFormer.settings["author"].items():
        c = NodeFormerConfig(**settings)
        found = (c.hidden, c.layers, c.heads, c.dropout, c.random_features, c.gumbel_samples, c.relational_order)
        found += (c.relational_gate, c.edge_weight, c.learning_rate, c.weight_decay, c.batch_size, c.activation)  # type: ignore[assignment]
        assert (*found, c.jumping, c.evaluate_every) == expected[name], name
        assert c.relational_bias and c.gumbel and c.layer_norm and c.residual
        assert (c.temperature, c.optimizer, c.max_epochs, c.stop) == (0.25, "adam", 1000, "never")
        assert c.normalize_features is (name == "pubmed")


def test_the_search_space_admits_published_settings_and_defaults() -> None:
    for settings in ({}, *NodeFormer.settings["author"].values()):
        config = NodeFormerConfig(**settings)
        for name, domain in NodeFormer.spaces["wide"].items():
            assert admits(domain, getattr(config, name)), name


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"edge_weight": -0.1}, {"relational_order": 5}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        NodeFormerConfig(**settings)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_the_estimate_knows_what_grows() -> None:
    graph = random_graph()

    def estimate(**settings: Any) -> int:
        return NodeFormer.estimate_memory(graph, NodeFormerConfig(**settings))

    # per node and layer: a further order of the bias keeps heads · hidden floats, a further sample one float per head
    wide, wider = (estimate(hidden=512, layers=1, edge_weight=0.0, relational_order=order) for order in (1, 2))
    assert wider - wide == 4 * 60 * 2 * (4 * 512)
    few, many = (estimate(hidden=512, layers=1, gumbel_samples=samples) for samples in (10, 11))
    assert many - few == 4 * 60 * 2 * 4
    assert estimate(hidden=512, layers=6) > estimate(hidden=512, layers=6, batch_size=20)
