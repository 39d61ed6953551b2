"""GraphSAINT: sampling frequencies against exact probabilities, weights against brute force, the network against dense
formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graphs import ISOLATED, dense_adjacency, dense_features, make_graph, random_graph, random_split
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph, Split
from bench.prepared import PrepareCache
from bench.space import admits
from models.graphsaint import GraphSAINT, GraphSAINTConfig
from models.kernels.subgraphs import Counts, Sampler, Subgraph, count_subgraphs, induced, plain_induced

SAMPLERS = ["node", "edge", "walk"]


def build(graph: Graph, split: Split | None = None, seed: int = 0, **settings: Any) -> GraphSAINT:
    config = GraphSAINTConfig(**{"draws": 12, "hidden": 6, **settings})
    torch.manual_seed(seed)
    prepared = GraphSAINT.prepare(graph, split or random_split(graph), config, seed, PrepareCache())
    return GraphSAINT(graph, prepared, config)


def sampler_of(graph: Graph, seed: int = 0, training: np.ndarray | None = None, **settings: Any) -> Sampler:
    training = np.arange(graph.num_nodes) if training is None else training
    return Sampler(graph, training, GraphSAINTConfig(**settings), seed)


def small_graph() -> Graph:
    """Seven nodes of degrees 4, 3, 2, 2, 2, 1, 0."""
    return make_graph(7, [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 5), (3, 4)])


def assert_frequencies(found: np.ndarray, probabilities: np.ndarray, draws: int) -> None:
    """Counts of independent events within five standard deviations of what their probabilities say."""
    deviation = np.sqrt(draws * probabilities * (1 - probabilities))
    assert (np.abs(found - draws * probabilities) <= 5 * deviation + 1e-9).all()


# -- probabilities ----------------------------------------------------------------------------------------------------


def test_nodes_are_drawn_in_proportion_to_their_degree() -> None:
    graph = small_graph()
    sampler = sampler_of(graph, sampler="node", draws=1)
    found = np.bincount(np.concatenate([sampler.nodes(number) for number in range(20000)]), minlength=7)
    assert found.sum() == 20000
    assert_frequencies(found, np.array([4, 3, 2, 2, 2, 1, 0]) / 14, 20000)


def test_edges_are_drawn_in_proportion_to_the_sum_of_reciprocal_degrees() -> None:
    graph = small_graph()
    sampler = sampler_of(graph, sampler="edge", draws=1)
    found = np.zeros((7, 7))
    for number in range(20000):
        first, second = sampler.nodes(number)
        found[first, second] += 1
    degrees = np.array([4, 3, 2, 2, 2, 1, 1])  # the last has no edge
    exact = np.triu(dense_adjacency(graph)) * (1 / degrees[:, None] + 1 / degrees[None, :])
    assert_frequencies(found, exact / exact.sum(), 20000)
    # the inverted rule (in proportion to the sum of degrees) would be far off
    inverted = np.triu(dense_adjacency(graph)) * (degrees[:, None] + degrees[None, :])
    with pytest.raises(AssertionError):
        assert_frequencies(found, inverted / inverted.sum(), 20000)


def test_a_node_is_in_a_subgraph_as_often_as_independent_draws_say() -> None:
    # 1 - (1 - p)^draws: with replacement, and repeated nodes count once
    graph = small_graph()
    draws, number = 3, 8000
    sampler = sampler_of(graph, sampler="node", draws=draws)
    found = np.bincount(np.concatenate([sampler.nodes(at) for at in range(number)]), minlength=7)
    assert_frequencies(found, 1 - (1 - np.array([4, 3, 2, 2, 2, 1, 0]) / 14) ** draws, number)


@pytest.mark.parametrize("roots", ["training", "all"])
def test_walks_start_uniformly_and_step_uniformly(roots: str) -> None:
    graph = small_graph()
    training = np.array([1, 5, 6])
    sampler = sampler_of(graph, training=training, sampler="walk", draws=1, walk_length=2, roots=roots)
    found = np.zeros((7, 7, 7))
    sets: dict[tuple[int, ...], int] = {}
    for number in range(20000):
        seen = tuple(int(node) for node in sampler.nodes(number))
        sets[seen] = sets.get(seen, 0) + 1
    starts = training if roots == "training" else np.arange(7)
    adjacency = dense_adjacency(graph)
    step = adjacency / np.maximum(adjacency.sum(axis=1, keepdims=True), 1)
    step[6, 6] = 1.0  # a walk stays at a node without neighbours
    exact: dict[tuple[int, ...], float] = {}
    for a in starts:
        for b in range(7):
            for c in range(7):
                found[a, b, c] = step[a, b] * step[b, c] / len(starts)
                if found[a, b, c] > 0:
                    nodes = {int(a), b, c}
                    if roots == "training" or nodes & set(training.tolist()):
                        exact[tuple(sorted(nodes))] = exact.get(tuple(sorted(nodes)), 0) + found[a, b, c]
                    else:  # no labelled node among them: one of the three is added
                        for extra in training.tolist():
                            key = tuple(sorted(nodes | {extra}))
                            exact[key] = exact.get(key, 0) + found[a, b, c] / 3
    assert math.isclose(sum(exact.values()), 1.0)
    assert sets.keys() <= exact.keys()
    keys = sorted(exact)
    counts = np.array([sets.get(key, 0) for key in keys])
    assert_frequencies(counts, np.array([exact[key] for key in keys]), 20000)


def test_every_subgraph_has_a_labelled_node() -> None:
    graph = random_graph()
    for kind in SAMPLERS:
        for training in (np.array([7]), np.array([ISOLATED[1]])):
            sampler = sampler_of(graph, training=training, sampler=kind, draws=2, walk_length=1, roots="all")
            for number in range(50):
                nodes = sampler.nodes(number)
                assert training[0] in nodes
                assert (np.diff(nodes) > 0).all()


def test_the_added_labelled_node_is_uniform() -> None:
    graph = make_graph(6, [(0, 1)])  # the labelled nodes 2 to 5 cannot be drawn by degree
    sampler = sampler_of(graph, training=np.arange(2, 6), sampler="node", draws=1)
    added = np.array([sampler.nodes(number)[-1] for number in range(8000)])
    assert_frequencies(np.bincount(added, minlength=6), np.array([0, 0, 1, 1, 1, 1]) / 4, 8000)


def test_a_graph_without_edges_is_sampled_uniformly() -> None:
    graph = make_graph(4, [])
    for kind in SAMPLERS:
        sampler = sampler_of(graph, sampler=kind, draws=1, roots="all")
        found = np.bincount(np.concatenate([sampler.nodes(number) for number in range(4000)]), minlength=4)
        assert_frequencies(found, np.full(4, 0.25), 4000)


def test_a_subgraph_is_a_function_of_seed_and_number() -> None:
    graph = random_graph()
    for kind in SAMPLERS:
        first, again, other = (sampler_of(graph, seed, sampler=kind, draws=8) for seed in (1, 1, 2))
        for number in (5, 0, 3):
            np.testing.assert_array_equal(first.nodes(number), again.nodes(number))
        assert any(not np.array_equal(first.nodes(number), other.nodes(number)) for number in range(5))
        assert any(not np.array_equal(first.nodes(0), first.nodes(number)) for number in range(1, 5))


# -- subgraphs and their weights --------------------------------------------------------------------------------------


def brute_counts(sampler: Sampler, subgraphs: int, adjacency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nodes, pairs = np.zeros(len(adjacency)), np.zeros_like(adjacency)
    for number in range(subgraphs):
        inside = np.zeros(len(adjacency))
        inside[sampler.nodes(number)] = 1
        nodes += inside
        pairs += np.outer(inside, inside) * adjacency
    return nodes, pairs


@pytest.mark.parametrize("kind", SAMPLERS)
def test_counts_are_those_of_brute_force(kind: str) -> None:
    graph = random_graph()
    sampler = sampler_of(graph, sampler=kind, draws=8, walk_length=2)
    counts = Counts(**count_subgraphs(sampler, coverage=2.0))
    assert counts.subgraphs == 200  # one lot: 200 subgraphs have more than 120 nodes
    nodes, pairs = brute_counts(sampler, 200, dense_adjacency(graph))
    np.testing.assert_array_equal(counts.of_nodes, nodes)
    rows = np.repeat(np.arange(60), graph.degrees)
    np.testing.assert_array_equal(counts.of_entries, pairs[rows, graph.indices])


def test_pre_sampling_goes_on_until_the_coverage_is_reached() -> None:
    graph = random_graph()
    sampler = sampler_of(graph, sampler="node", draws=8)
    counts = Counts(**count_subgraphs(sampler, coverage=50.0))
    sizes = [len(sampler.nodes(number)) for number in range(counts.subgraphs)]
    assert counts.subgraphs % 200 == 0
    assert sum(sizes) > 50 * 60 >= sum(sizes[:-200])


def test_pre_sampling_ends_where_subgraphs_cannot_grow() -> None:
    # all walks start at an isolated node: without an end, coverage 50 would take 50 subgraphs per node of the graph
    sampler = sampler_of(random_graph(), training=np.array([ISOLATED[0]]), sampler="walk", draws=100, walk_length=4)
    assert Counts(**count_subgraphs(sampler, coverage=50.0)).subgraphs == 200


def test_induced_entries_are_those_of_scipys_indexing() -> None:
    graph, place = random_graph(), np.full(60, -1, dtype=np.int32)
    for size in (0, 1, 20, 60):
        nodes = np.sort(np.random.default_rng(size).permutation(60)[:size])
        found = induced(graph.indptr, graph.indices, nodes, place)
        for ours, theirs in zip(found, plain_induced(graph.indptr, graph.indices, nodes), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert (place == -1).all()


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_subgraph_is_induced_and_weighted_by_the_formula(kind: str) -> None:
    graph = random_graph()
    training = random_split(graph).train
    sampler = sampler_of(graph, training=training, sampler=kind, draws=10, walk_length=2)
    counts = Counts(**count_subgraphs(sampler, coverage=1.0))
    adjacency = dense_adjacency(graph)
    of_nodes, of_pairs = brute_counts(sampler, counts.subgraphs, adjacency)
    for number in (0, 7, 10**6):  # the last was not counted: it may have edges that were never seen
        found = sampler.subgraph(number, counts)
        nodes = sampler.nodes(number)
        expected = np.zeros((len(nodes), len(nodes)))
        for i, v in enumerate(nodes):
            for j, u in enumerate(nodes):
                if adjacency[v, u]:
                    if of_pairs[v, u] == 0:
                        weight = 1e4 if of_nodes[v] else 0.1
                    else:
                        weight = min(of_nodes[v] / of_pairs[v, u], 1e4)
                    expected[i, j] = weight / adjacency[v].sum()
        np.testing.assert_array_equal(found.nodes, nodes)
        np.testing.assert_allclose(found.adjacency.matrix.toarray(), expected, rtol=1e-6)
        np.testing.assert_allclose(found.adjacency.transposed.toarray(), expected.T, rtol=1e-6)
        np.testing.assert_array_equal(nodes[found.labelled], np.intersect1d(nodes, training))
        seen = np.maximum(of_nodes[nodes[found.labelled]], 0.1)
        np.testing.assert_allclose(found.loss_weights, counts.subgraphs / seen / len(training), rtol=1e-6)


def test_without_normalisation_rows_are_means_within_the_subgraph() -> None:
    graph = random_graph()
    sampler = sampler_of(graph, training=random_split(graph).train, sampler="edge", draws=10)
    found = sampler.subgraph(3, None)
    part = dense_adjacency(graph)[np.ix_(found.nodes, found.nodes)]
    expected = part / np.maximum(part.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(found.adjacency.matrix.toarray(), expected, rtol=1e-6)
    np.testing.assert_allclose(found.adjacency.transposed.toarray(), expected.T, rtol=1e-6)
    np.testing.assert_allclose(found.loss_weights, np.full(len(found.labelled), 1 / len(found.labelled)))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_weighted_aggregation_is_the_full_mean_in_expectation(kind: str) -> None:
    # Over the counted subgraphs this is exact: each neighbour enters C_uv times with weight C_v / C_uv / degree.
    graph = small_graph()
    sampler = sampler_of(graph, sampler=kind, draws=4, walk_length=2, roots="all")
    counts = Counts(**count_subgraphs(sampler, coverage=300.0))
    signal = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    total, losses = np.zeros((7, 3)), np.zeros(7)
    for number in range(counts.subgraphs):
        part = sampler.subgraph(number, counts)
        total[part.nodes] += part.adjacency.product(torch.from_numpy(signal[part.nodes])).numpy()
        losses[part.nodes[part.labelled]] += part.loss_weights
    adjacency = dense_adjacency(graph)
    expected = adjacency @ signal / np.maximum(adjacency.sum(axis=1, keepdims=True), 1)
    drawn = counts.of_nodes > 0
    assert drawn[:6].all()
    np.testing.assert_allclose(total[drawn] / counts.of_nodes[drawn, None], expected[drawn], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(losses[drawn] / counts.subgraphs, 1 / 7, rtol=1e-4)  # a mean over all labelled nodes


@pytest.mark.parametrize("kind", SAMPLERS)
def test_new_subgraphs_agree_with_the_full_mean_within_their_noise(kind: str) -> None:
    graph = small_graph()
    settings: dict[str, Any] = {"sampler": kind, "draws": 4, "walk_length": 2, "roots": "all"}
    counts = Counts(**count_subgraphs(sampler_of(graph, seed=1, **settings), coverage=1000.0))
    fresh, signal = sampler_of(graph, seed=2, **settings), np.arange(1.0, 8.0, dtype=np.float32)[:, None] ** 2
    draws: list[list[float]] = [[] for _ in range(7)]
    for number in range(1200):
        part = fresh.subgraph(number, counts)
        for node, value in zip(part.nodes, part.adjacency.product(torch.from_numpy(signal[part.nodes])), strict=True):
            draws[node].append(float(value))
    adjacency = dense_adjacency(graph)
    expected = adjacency @ signal[:, 0] / np.maximum(adjacency.sum(axis=1), 1)
    for node in range(6):
        error = np.std(draws[node]) / np.sqrt(len(draws[node]))
        assert abs(np.mean(draws[node]) - expected[node]) < 5 * error + 0.02 * expected[node], node


# -- network ----------------------------------------------------------------------------------------------------------


def with_random_weights(model: GraphSAINT) -> GraphSAINT:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.7)
    return model


def dense_logits(model: GraphSAINT, weights: dict[str, Tensor], features: Tensor, mean: Tensor) -> Tensor:
    """The whole network without dropout, in dense float64 matrices."""
    c = model.config
    hidden = features
    for at, order in enumerate(c.orders):
        branches = []
        for branch, source in enumerate([hidden, mean @ hidden][: order + 1]):
            out = source @ weights[f"layers.{at}.linears.{branch}.weight"].T
            out = (out + weights[f"layers.{at}.linears.{branch}.bias"]).clamp(min=0)
            if c.branch_norm:
                centred = out - out.mean(dim=1, keepdim=True)
                out = centred / torch.sqrt((centred**2).mean(dim=1, keepdim=True) + 1e-9)
                out = out * weights[f"layers.{at}.norms.{branch}.weight"] + weights[f"layers.{at}.norms.{branch}.bias"]
            branches.append(out)
        hidden = torch.cat(branches, dim=1) if c.combine == "concat" else sum(branches[1:], start=branches[0])
    hidden = hidden / hidden.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return hidden @ weights["classifier.weight"].T + weights["classifier.bias"]


def full_mean(graph: Graph) -> Tensor:
    adjacency = dense_adjacency(graph)
    return torch.from_numpy(adjacency / np.maximum(adjacency.sum(axis=1, keepdims=True), 1))


VARIANTS: list[dict[str, Any]] = [
    {},
    {"combine": "add", "architecture": "1-1-0"},
    {"branch_norm": False, "architecture": "0-1-1"},
    {"architecture": "0-0"},
    {"evaluation_batch": 7},
    {"evaluation_batch": 0, "architecture": "1"},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("sparse", [False, True])
def test_inference_is_the_dense_formula(settings: dict[str, Any], sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = with_random_weights(build(graph, **settings)).eval()
    weights = {name: value.double() for name, value in model.state_dict().items()}
    features = torch.from_numpy(dense_features(graph)).double()
    nodes = torch.randperm(60)[:23]
    expected = dense_logits(model, weights, features, full_mean(graph))[nodes]
    torch.testing.assert_close(model.predict(nodes).double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("settings", VARIANTS[:3], ids=str)
def test_the_loss_and_its_gradients_are_dense_autograd(settings: dict[str, Any], sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = with_random_weights(build(graph, draws=15, dropout=0.0, **settings)).train()
    leaves = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    batch = next(iter(model.batches(torch.from_numpy(random_split(graph).train), training=True)))
    loss = model.loss(batch)
    mean = torch.from_numpy(batch.adjacency.matrix.toarray()).double()
    features = torch.from_numpy(dense_features(graph)[batch.nodes]).double()
    logits = dense_logits(model, leaves, features, mean)[batch.labelled]
    each = functional.cross_entropy(
        logits, torch.from_numpy(graph.labels[batch.nodes[batch.labelled]]), reduction="none"
    )
    expected = (each * torch.from_numpy(batch.loss_weights).double()).sum()
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-3, atol=1e-4)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), leaves[name].grad, rtol=5e-3, atol=1e-3, msg=name)


def test_widths_follow_the_architecture() -> None:
    model = build(random_graph(), hidden=6, architecture="1-0-1-0")
    shapes = [[tuple(linear.weight.shape) for linear in layer.linears] for layer in model.layers]  # type: ignore[union-attr]
    assert shapes == [[(6, 20), (6, 20)], [(6, 12)], [(6, 6), (6, 6)], [(6, 12)]]
    assert model.classifier.weight.shape == (4, 6)
    added = build(random_graph(), hidden=6, architecture="1-1", combine="add")
    assert added.classifier.weight.shape == (4, 6)


def test_weights_start_as_glorot_says_and_biases_at_zero() -> None:
    model = build(random_graph(), hidden=200)
    first = model.state_dict()["layers.0.linears.0.weight"]
    bound = math.sqrt(6 / (20 + 200))
    assert float(first.abs().max()) <= bound
    assert float(first.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert not model.state_dict()["layers.0.linears.1.bias"].any()


def test_dropout_acts_in_training_only() -> None:
    graph = random_graph()
    model = build(graph, dropout=0.5)
    batch = next(iter(model.batches(torch.from_numpy(random_split(graph).train), training=True)))
    model.train()
    assert not torch.equal(model.loss(batch), model.loss(batch))
    model.eval()
    nodes = torch.arange(60)
    assert torch.equal(model.predict(nodes), model.predict(nodes))
    without = build(graph, dropout=0.0).train()
    assert torch.equal(without.loss(batch), without.loss(batch))


@pytest.mark.parametrize("sparse", [False, True])
def test_standardised_features_have_mean_zero_and_deviation_one_over_all_nodes(sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    found = build(graph, standardize=True).features.of(torch.arange(60)) @ torch.eye(20)
    raw = dense_features(graph).astype(np.float64)
    np.testing.assert_allclose(found.numpy(), (raw - raw.mean(axis=0)) / raw.std(axis=0), atol=1e-5)


# -- epochs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        ({"sampler": "node", "draws": 25}, 3),
        ({"sampler": "edge", "draws": 25}, 2),
        ({"sampler": "walk", "draws": 5, "walk_length": 3}, 4),
        ({"sampler": "node", "draws": 500}, 1),
    ],
)
def test_an_epoch_has_as_many_updates_as_budgets_fit_into_the_graph(settings: dict[str, Any], updates: int) -> None:
    graph = random_graph()
    model = build(graph, **settings)
    batches = list(model.batches(torch.from_numpy(random_split(graph).train), training=True))
    assert len(batches) == updates
    assert all(isinstance(batch, Subgraph) for batch in batches)


def test_the_pre_sampled_subgraphs_are_used_once_each_and_then_again_in_another_order() -> None:
    model = build(random_graph(), coverage=1.0)
    assert model.subgraphs.counts is not None
    count = model.subgraphs.counts.subgraphs
    first, second = ([next(model.subgraphs.numbers) for _ in range(count)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(count))
    assert first != second
    assert model.choices() == {"sampler": "walk", "subgraphs": f"{count} pre-sampled"}


def test_without_normalisation_every_subgraph_is_new() -> None:
    model = build(random_graph(), normalization=False)
    assert model.subgraphs.counts is None
    assert [next(model.subgraphs.numbers) for _ in range(4)] == [0, 1, 2, 3]
    assert model.choices()["subgraphs"] == "drawn afresh"


def test_few_labels_among_many_nodes_train() -> None:
    random = np.random.default_rng(0)
    count = 3000
    edges = random.integers(0, count, (9000, 2))
    matrix = sp.coo_array((np.ones(9000), (edges[:, 0], edges[:, 1])), shape=(count, count)).tocsr()
    matrix = sp.csr_array(((matrix + matrix.T) > 0).astype(np.float32))
    features = random.random((count, 5)).astype(np.float32)
    labels = (features[:, 0] > 0.5).astype(np.int64)
    graph = Graph("few", matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), features, labels, 2, "few")
    split = Split(np.array([10, 20, 30, 40]), np.arange(50, 60), np.arange(60, count), "by hand", 0)
    for kind in SAMPLERS:
        model = build(graph, split, sampler=kind, draws=50, coverage=2.0, roots="all").train()
        for batch in model.batches(torch.from_numpy(split.train), training=True):
            assert len(batch.labelled) >= 1
            assert model.loss(batch).isfinite()


def test_the_counts_are_kept_per_split_seed_and_sampler(tmp_path: Any) -> None:
    graph, cache = random_graph(), PrepareCache(tmp_path)
    split, other = random_split(graph), random_split(graph, seed=1)
    base = GraphSAINTConfig(draws=5, coverage=1.0)
    variants = [
        (split, 0, base),
        (other, 0, base),
        (split, 1, base),
        (split, 0, GraphSAINTConfig(draws=6, coverage=1.0)),
        (split, 0, GraphSAINTConfig(draws=5, coverage=200.0)),
        (split, 0, GraphSAINTConfig(draws=5, coverage=1.0, walk_length=2)),
        (split, 0, GraphSAINTConfig(draws=5, coverage=1.0, roots="all")),
        (split, 0, GraphSAINTConfig(draws=5, coverage=1.0, sampler="edge")),
    ]
    for parts, seed, config in variants:
        GraphSAINT.prepare(graph, parts, config, seed, cache)
    assert cache.hits == 0
    GraphSAINT.prepare(graph, split, GraphSAINTConfig(draws=5, coverage=1.0, hidden=3, dropout=0.5), 0, cache)
    assert cache.hits == 1  # the network has no say in it


# -- settings ---------------------------------------------------------------------------------------------------------


def test_published_settings() -> None:
    assert GraphSAINT.settings.keys() == {"author", "ogb"}
    [(name, settings)] = GraphSAINT.settings["author"].items()
    c = GraphSAINTConfig(**settings)
    assert (name, c.architecture, c.hidden, c.dropout, c.learning_rate) == ("reddit", "1-0-1-0", 128, 0.1, 1e-2)
    assert (c.sampler, c.draws, c.walk_length, c.roots, c.coverage) == ("walk", 2000, 4, "training", 50.0)
    assert (c.combine, c.optimizer, c.weight_decay, c.clip_norm) == ("concat", "adam", 0.0, 5.0)
    assert (c.max_epochs, c.stop) == (30, "never")
    assert c.branch_norm and c.normalization and c.standardize
    assert Sampler(random_graph(), np.arange(3), c, 0).budget == 8000
    [(name, settings)] = GraphSAINT.settings["ogb"].items()
    c = GraphSAINTConfig(**settings)
    assert (name, c.architecture, c.hidden, c.dropout, c.learning_rate) == ("amazon2m", "1-1-1", 256, 0.5, 1e-2)
    assert (c.sampler, c.draws, c.walk_length, c.roots, c.max_epochs) == ("walk", 20000, 3, "all", 20)
    assert (c.combine, c.stop) == ("add", "never")
    assert not c.normalization and not c.branch_norm and not c.standardize


def test_the_search_space_admits_published_settings_and_defaults() -> None:
    for settings in ({}, *GraphSAINT.settings["author"].values(), *GraphSAINT.settings["ogb"].values()):
        config = GraphSAINTConfig(**settings)
        for name, domain in GraphSAINT.spaces["wide"].items():
            assert admits(domain, getattr(config, name)), name


@pytest.mark.parametrize(
    "settings", [{"architecture": ""}, {"architecture": "1-2"}, {"architecture": "1-"}, {"coverage": 0.0}]
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        GraphSAINTConfig(**settings)


def test_the_estimate_knows_what_grows() -> None:
    graph = random_graph()

    def estimate(**settings: Any) -> int:
        return GraphSAINT.estimate_memory(graph, GraphSAINTConfig(**settings))

    # one more order-0 layer of width h: h x h weights, and what training keeps of each node
    nodes = len(sampler_of(graph, sampler="walk").nodes(0))
    assert estimate(architecture="0-0-0", hidden=512) - estimate(architecture="0-0", hidden=512) == (
        20 * 512 * 512 + 28 * 512 * nodes
    )
    assert estimate(hidden=512, draws=5) < estimate(hidden=512, draws=500)
