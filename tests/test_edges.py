"""Attention along edges: both kinds of operators against dense formulas, the clamp, memory, threads, and the layer."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from graphs import ISOLATED, LOOP, ON_EDGES, dense_adjacency, make_graph, path_graph, random_graph, random_split
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.graph import Graph
from bench.model import Model
from bench.prepared import PrepareCache
from models.kernels import edges as module
from models.kernels.dropout import relu_dropped
from models.kernels.edge_layers import PostNormLayer, classification_loss, readout
from models.kernels.edges import CLAMP, Edges, PlainOperators, has_dgl
from perf.edges import MaterialisedEdges, MaterialisedGT, MaterialisedSAN

CPU = torch.device("cpu")
HEADS, WIDTH = 3, 5

needs_dgl = pytest.mark.skipif(not has_dgl(), reason="DGL has no wheel for this Python")
both_operators = pytest.mark.parametrize(
    "plain", [pytest.param(False, marks=needs_dgl, id="dgl"), pytest.param(True, id="torch")]
)


def edges_of(graph: Graph, plain: bool = False, self_loops: bool = False) -> Edges:
    edges = Edges.of(graph, self_loops)
    if plain:
        edges._operators[CPU] = PlainOperators(edges, CPU)
    assert edges.operators(CPU).name == ("torch" if plain else "dgl")
    return edges


def node_tensors(num_nodes: int, scale: float = 1.0, seed: int = 0) -> list[Tensor]:
    """Random queries, keys and values; with a scale of 3, about half of the scores are clamped."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(num_nodes, HEADS, WIDTH, generator=generator) for _ in range(3)]
    return [tensors[0] * scale, tensors[1] * scale, tensors[2]]


def dense_sums(mask: np.ndarray, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The same in one N x N x heads tensor; `mask` says which pairs (target, source) count."""
    scores = torch.einsum("ihd,jhd->ijh", query, key) / np.sqrt(WIDTH)
    weights = scores.clamp(-5.0, 5.0).exp() * torch.from_numpy(mask)[:, :, None]
    return torch.einsum("ijh,jhd->ihd", weights, value), weights.sum(dim=1)[..., None]


def assert_sums_and_gradients(ours: Any, mask: np.ndarray, tensors: list[Tensor]) -> None:
    """Values, and gradients of a random linear function of both sums."""
    mine = [x.clone().requires_grad_() for x in tensors]
    twins = [x.double().requires_grad_() for x in tensors]
    found, expected = ours(*mine), dense_sums(mask, *twins)
    generator = torch.Generator().manual_seed(1)
    slopes = [torch.randn(x.shape, generator=generator) for x in found]
    sum((x * slope).sum() for x, slope in zip(found, slopes, strict=True)).backward()
    sum((x * slope).sum() for x, slope in zip(expected, slopes, strict=True)).backward()
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-4)
    for x, y in zip(mine, twins, strict=True):
        assert x.grad is not None and y.grad is not None and y.grad.abs().max() > 1e-2
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-4, atol=2e-3)


# -- sums over edges --------------------------------------------------------------------------------------------------


@both_operators
def test_a_path_of_three_nodes_by_hand(plain: bool) -> None:
    query, key, value = (torch.tensor(x).view(3, 1, 1) for x in ([1.0, 2.0, 0.0], [0.5, 3.0, -1.0], [1.0, 10.0, 100.0]))
    weighted, total = edges_of(path_graph(), plain).sums(query, key, value)
    # node 1 reads 0 with exp(2 · 0.5) and 2 with exp(2 · -1); node 0 reads 1 with exp(3); node 2 reads it with exp(0)
    e = np.exp
    np.testing.assert_allclose(total.flatten(), [e(3), e(1) + e(-2), 1], rtol=1e-6)
    np.testing.assert_allclose(weighted.flatten(), [10 * e(3), e(1) + 100 * e(-2), 10], rtol=1e-6)


@both_operators
@pytest.mark.parametrize("scale", [1.0, 3.0], ids=["free", "clamped"])
@pytest.mark.parametrize("self_loops", [False, True])
def test_values_and_gradients_are_those_of_the_dense_formula(plain: bool, scale: float, self_loops: bool) -> None:
    graph = random_graph()
    mask = dense_adjacency(graph)
    if self_loops:
        mask = np.maximum(mask, np.eye(60))
    tensors = node_tensors(60, scale)
    scores = (torch.einsum("ihd,jhd->ijh", *tensors[:2]) / np.sqrt(WIDTH))[torch.from_numpy(mask) > 0]
    assert (float((scores.abs() > CLAMP).float().mean()) > 0.2) == (scale > 1)
    assert_sums_and_gradients(edges_of(graph, plain, self_loops).sums, mask, tensors)


@needs_dgl
def test_both_operators_agree() -> None:
    graph, results = random_graph(), []
    for plain in (False, True):
        tensors = [x.requires_grad_() for x in node_tensors(60, 2.0)]
        weighted, total = edges_of(graph, plain).sums(*tensors)
        (weighted / (total + 1e-6)).square().sum().backward()
        results.append([weighted, total, *(x.grad for x in tensors)])
    for dgls, torchs in zip(*results, strict=True):
        torch.testing.assert_close(dgls, torchs, rtol=1e-5, atol=1e-5)


def test_without_dgl_its_twin_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Edges.of(path_graph()).operators(CPU).name == ON_EDGES
    monkeypatch.setitem(sys.modules, "dgl", None)  # as if it were not installed
    assert Edges.of(path_graph()).operators(CPU).name == "torch"


def test_plain_operators_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph()
    monkeypatch.setattr(module, "_EDGES_AT_ONCE", 7)
    assert_sums_and_gradients(edges_of(graph, plain=True).sums, dense_adjacency(graph), node_tensors(60))


@both_operators
def test_scores_are_clamped_at_five_and_then_pass_no_gradient(plain: bool) -> None:
    edges = edges_of(make_graph(4, [(0, 1), (2, 3)]), plain)
    query = torch.tensor([100.0, -100.0, 1.0, 1.0]).view(4, 1, 1).requires_grad_()
    key = torch.ones(4, 1, 1).requires_grad_()
    _, total = edges.sums(query, key, torch.ones(4, 1, 1))
    np.testing.assert_allclose(total.detach().flatten(), np.exp([5, -5, 1, 1]), rtol=1e-6)
    total.sum().backward()
    assert query.grad is not None and key.grad is not None
    np.testing.assert_allclose(query.grad.flatten(), [0, 0, np.e, np.e], rtol=1e-6)
    np.testing.assert_allclose(key.grad.flatten(), [0, 0, np.e, np.e], rtol=1e-6)


@both_operators
def test_nodes_without_edges_have_zeros(plain: bool) -> None:
    weighted, total = edges_of(random_graph(), plain).sums(*node_tensors(60))
    assert not weighted[list(ISOLATED)].any() and not total[list(ISOLATED)].any()
    assert (total.flatten(1)[np.setdiff1d(np.arange(60), ISOLATED)] > 0).all()


@both_operators
def test_a_graph_without_any_edge(plain: bool) -> None:
    tensors = [x.requires_grad_() for x in node_tensors(6)]
    weighted, total = edges_of(make_graph(6, []), plain).sums(*tensors)
    (weighted.sum() + total.sum()).backward()
    assert not weighted.any() and not total.any() and all(not x.grad.any() for x in tensors)


def test_self_loops_are_added_once() -> None:
    graph = random_graph()
    edges = Edges.of(graph, self_loops=True)
    assert len(Edges.of(graph)) == graph.num_entries and len(edges) == graph.num_entries + 59  # one has its own
    for node in range(60):
        own = edges.indices[edges.indptr[node] : edges.indptr[node + 1]]
        assert (own == node).sum() == 1 and (np.diff(own) > 0).all()
    assert LOOP in graph.indices[graph.indptr[LOOP] : graph.indptr[LOOP + 1]]


# -- cost -------------------------------------------------------------------------------------------------------------


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned."""

    entries = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(item, Tensor):
                self.entries = max(self.entries, item.numel())
        return result


@pytest.fixture
def crowded() -> Graph:
    """Every node linked to every other: far more edges than nodes."""
    return make_graph(50, [(a, b) for a in range(50) for b in range(a)])


@needs_dgl
def test_nothing_of_edges_times_width_exists(crowded: Graph) -> None:
    edges = edges_of(crowded)
    tensors = [x.requires_grad_() for x in node_tensors(50)]
    with LargestTensor() as seen:
        weighted, total = edges.sums(*tensors)
        (weighted.sum() + total.sum()).backward()
    assert seen.entries == len(edges) * HEADS
    assert len(edges) * HEADS > 50 * HEADS * (WIDTH + 1)  # or the line above would prove nothing


@pytest.fixture
def many_threads() -> Iterator[Any]:
    pools = [torch, *([importlib.import_module("dgl").utils] if has_dgl() else [])]
    before = [pool.get_num_threads() for pool in pools]
    yield lambda count: [pool.set_num_threads(count) for pool in pools]
    for pool, count in zip(pools, before, strict=True):
        pool.set_num_threads(count)


@both_operators
def test_the_same_bytes_for_any_number_of_threads(plain: bool, many_threads: Any) -> None:
    random = np.random.default_rng(0)
    graph = make_graph(400, [tuple(pair) for pair in random.integers(0, 400, (6000, 2))])
    results = []
    for threads in (1, 4, 4):
        many_threads(threads)
        tensors = [x.requires_grad_() for x in node_tensors(400)]
        weighted, total = edges_of(graph, plain).sums(*tensors)
        (weighted / (total + 1e-6)).square().sum().backward()
        results.append(b"".join(x.detach().numpy().tobytes() for x in (weighted, total, *(x.grad for x in tensors))))
    assert results[0] == results[1] == results[2]


# -- sums over all other pairs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 60, 1000])
@pytest.mark.parametrize("scale", [1.0, 3.0], ids=["free", "clamped"])
def test_the_complement_is_all_that_is_no_edge_and_no_loop(
    rows: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", rows * HEADS * 60)
    graph = random_graph()
    mask = (1.0 - dense_adjacency(graph)) * (1.0 - np.eye(60))
    assert_sums_and_gradients(Edges.of(graph).complement_sums, mask, node_tensors(60, scale))


def test_the_complement_keeps_to_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", HEADS * 8 * 60)
    edges = Edges.of(random_graph())
    tensors = [x.requires_grad_() for x in node_tensors(60)]
    with LargestTensor() as seen:
        weighted, _ = edges.complement_sums(*tensors)
        weighted.sum().backward()
    assert seen.entries == HEADS * 8 * 60
    assert HEADS * 8 * 60 > 60 * HEADS * (WIDTH + 1)


# -- what the benchmark compares with ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 3.0], ids=["free", "clamped"])
def test_the_materialising_reference_computes_the_same(scale: float) -> None:
    graph = random_graph()
    assert_sums_and_gradients(MaterialisedEdges.of(graph).sums, dense_adjacency(graph), node_tensors(60, scale))


def test_the_reference_does_hold_vectors_of_edges(crowded: Graph) -> None:
    tensors = [x.requires_grad_() for x in node_tensors(50)]
    with LargestTensor() as seen:
        MaterialisedEdges.of(crowded).sums(*tensors)
    assert seen.entries == crowded.num_entries * HEADS * WIDTH


@pytest.mark.parametrize("reference", [MaterialisedGT, MaterialisedSAN])
def test_reference_models_differ_in_nothing_but_their_edges(reference: type[Model]) -> None:
    graph = random_graph()
    scores = []
    for model_class in (reference, reference.__mro__[1]):
        config = model_class.Config()
        prepared = model_class.prepare(graph, random_split(graph), config, 0, PrepareCache())
        torch.manual_seed(0)
        model = model_class(graph, prepared, config)
        with torch.no_grad():
            scores.append(model.eval().predict(torch.arange(60)))
        scores.append(model.choices()["edges"])
    assert scores[1] == "torch" and scores[3] == ON_EDGES
    torch.testing.assert_close(scores[0], scores[2], rtol=1e-4, atol=1e-5)


# -- the layer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_the_layer_adds_then_normalises(norm: Any) -> None:
    torch.manual_seed(0)
    layer = PostNormLayer(6, 0.0, norm)
    nodes, attended = torch.randn(9, 6), torch.randn(9, 6)
    weights = {name: value.double() for name, value in layer.state_dict().items()}

    def normalised(x: Tensor) -> Tensor:
        over = 0 if norm == "batch" else 1
        return (x - x.mean(over, keepdim=True)) / (x.var(over, unbiased=False, keepdim=True) + 1e-5).sqrt()

    first = normalised(nodes.double() + attended.double() @ weights["output.weight"].T + weights["output.bias"])
    inner = (first @ weights["widen.weight"].T + weights["widen.bias"]).clamp(min=0)
    assert inner.shape == (9, 12)
    expected = normalised(first + inner @ weights["narrow.weight"].T + weights["narrow.bias"])
    torch.testing.assert_close(layer(nodes, attended).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_dropped_relu_passes_what_it_kept(rate: float) -> None:
    torch.manual_seed(0)
    values = torch.randn(300, 40)
    x = values.clone().requires_grad_()
    out = relu_dropped(x * 1.0, rate)
    kept = (out > 0).double()
    positive = (values > 0).double()
    assert not (kept > positive).any()
    assert float(kept.sum() / positive.sum()) == pytest.approx(1 - rate, abs=0.02)
    torch.testing.assert_close(out.double(), values.double() * kept / (1 - rate))
    slope = torch.randn(300, 40)
    (out * slope).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.double(), slope.double() * kept / (1 - rate))
    again = relu_dropped(values.clone(), rate)
    assert torch.equal(again > 0, out > 0) == (rate == 0.0)


def test_the_classifier_halves_twice() -> None:
    shapes = [tuple(parameter.shape) for parameter in readout(80, 7).parameters()]
    assert shapes == [(40, 80), (40,), (20, 40), (20,), (7, 20), (7,)]


def test_the_weighted_loss_by_hand() -> None:
    scores = torch.zeros(4, 3)
    scores[3, 2] = np.log(2.0)
    labels = torch.tensor([0, 0, 0, 2])
    # classes 0 and 2 hold 3/4 and 1/4 of the nodes and weigh 1/4 and 3/4; nodes 0 to 2 lose log 3, node 3 log 2
    expected = (3 * 0.25 * np.log(3) + 0.75 * np.log(2)) / (3 * 0.25 + 0.75)
    assert float(classification_loss(scores, labels, True)) == pytest.approx(expected)
    assert float(classification_loss(scores, labels, False)) == pytest.approx((3 * np.log(3) + np.log(2)) / 4)
    alone = classification_loss(scores[:3], labels[:3], True)  # a single class: every weight would be zero
    assert float(alone) == pytest.approx(np.log(3))
