"""GAT's attention along edges, compiled and plain: values, gradients and dropout, against dense matrices."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numba
import numpy as np
import pytest
import torch
from graphs import ISOLATED, LOOP, dense_adjacency, dense_attention, make_graph, random_graph, read_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bench.graph import Graph
from models.kernels.edge_softmax import FusedAttention, edge_attention, plain_attention
from models.kernels.edges import Edges


def random_inputs(nodes: int, heads: int, size: int, seed: int = 0, spread: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(nodes, heads * size), (nodes, heads), (nodes, heads)]
    return [torch.randn(shape, generator=generator) * (spread if at else 1.0) for at, shape in enumerate(shapes)]


def results(attend: Any, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of all inputs, for a fixed gradient of the output."""
    leaves = [part.detach().clone().requires_grad_() for part in inputs]
    out = attend(*leaves)
    arrived = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    out.backward(arrived)
    return [out.detach(), *[leaf.grad for leaf in leaves if leaf.grad is not None]]


def assert_all_close(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-4) -> None:
    assert len(found) == len(expected) == 4
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("heads", "size"), [(1, 1), (1, 40), (3, 5), (8, 8)])
def test_both_paths_are_the_dense_masked_softmax(heads: int, size: int) -> None:
    graph = random_graph()
    edges, inputs = Edges.of(graph, self_loops=True), random_inputs(60, heads, size)
    expected = results(lambda *x: dense_attention(graph, *x), [part.double() for part in inputs])
    assert_all_close(results(lambda *x: edge_attention(*x, edges, 0.0), inputs), expected)
    assert_all_close(results(lambda *x: plain_attention(*x, edges, None), inputs), expected)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), heads=st.integers(1, 4), size=st.integers(1, 9), spread=st.floats(0.0, 30.0))
def test_both_paths_agree(seed: int, heads: int, size: int, spread: float) -> None:
    graph = random_graph(seed % 4)
    edges, inputs = Edges.of(graph, self_loops=True), random_inputs(60, heads, size, seed, spread)
    expected = results(lambda *x: plain_attention(*x, edges, None), [part.double() for part in inputs])
    assert_all_close(results(lambda *x: edge_attention(*x, edges, 0.0), inputs), expected, 1e-3)


def test_a_path_by_hand() -> None:
    # Node 1 of the path 0 - 1 - 2 has scores ln 2, ln 1 and 0.2 · (-5 ln 4): weights 2, 1 and 1/4.
    edges = Edges.of(make_graph(3, [(0, 1), (1, 2)]), self_loops=True)
    read = torch.tensor([[math.log(2)], [0.0], [-5 * math.log(4)]])
    out = edge_attention(torch.tensor([[13.0], [26.0], [52.0]]), torch.zeros(3, 1), read, edges, 0.0)
    assert float(out[1]) == pytest.approx((2 * 13 + 26 + 52 / 4) / 3.25)
    assert float(out[0]) == pytest.approx((2 * 13 + 26) / 3)


def test_a_node_without_neighbours_reads_itself_and_a_self_loop_counts_once() -> None:
    graph = random_graph()
    edges, (values, _, _) = Edges.of(graph, self_loops=True), random_inputs(60, 2, 3)
    out = edge_attention(values, torch.zeros(60, 2), torch.zeros(60, 2), edges, 0.0)
    torch.testing.assert_close(out[list(ISOLATED)], values[list(ISOLATED)])
    others = np.flatnonzero(dense_adjacency(graph)[LOOP])
    assert LOOP in others
    torch.testing.assert_close(out[LOOP], values[others].mean(dim=0))


def test_huge_scores_do_not_overflow() -> None:
    graph = random_graph()
    edges, inputs = Edges.of(graph, self_loops=True), random_inputs(60, 2, 3, spread=1e4)
    found = results(lambda *x: edge_attention(*x, edges, 0.0), inputs)
    assert all(part.isfinite().all() for part in found)
    expected = dense_attention(graph, *[part.double() for part in inputs])
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-3, atol=1e-3)


def probed_mask(graph: Graph, heads: int, rate: float, seed: int) -> Tensor:
    """What the fused kernel multiplies each coefficient by: (heads, N, N), read off from one-hot values."""
    edges, nodes = Edges.of(graph, self_loops=True), graph.num_nodes
    values, scores = torch.eye(nodes).repeat(1, heads), torch.zeros(nodes, heads)
    out = FusedAttention.apply(values, scores, scores, edges, rate, seed).view(nodes, heads, nodes).transpose(0, 1)
    return (out * read_mask(graph).sum(dim=1).view(1, -1, 1)).double()


def as_edges(graph: Graph, mask: Tensor) -> Tensor:
    """From (heads, N, N) to edges x heads, in the order of the CSR arrays."""
    to, source = Edges.of(graph, self_loops=True).ends(torch.device(mask.device))
    return mask[:, to, source].T


@pytest.mark.parametrize("rate", [0.25, 0.6])
def test_dropout_uses_one_mask_forward_and_backward(rate: float) -> None:
    graph, heads, seed = random_graph(), 3, 1234
    edges, inputs = Edges.of(graph, self_loops=True), random_inputs(60, heads, 5)
    mask = probed_mask(graph, heads, rate, seed)
    doubles = [part.double() for part in inputs]
    expected = results(lambda *x: dense_attention(graph, *x, mask), doubles)
    assert_all_close(results(lambda *x: FusedAttention.apply(*x, edges, rate, seed), inputs), expected)
    keep = as_edges(graph, mask)
    assert_all_close(results(lambda *x: plain_attention(*x, edges, keep), doubles), expected)


@pytest.mark.parametrize("rate", [0.25, 0.6])
def test_coefficients_are_dropped_or_scaled_independently(rate: float) -> None:
    graph, heads = random_graph(), 4
    masks = torch.stack([as_edges(graph, probed_mask(graph, heads, rate, seed)) for seed in range(200)])
    kept = masks > 0
    torch.testing.assert_close(masks[kept], torch.full_like(masks[kept], 1 / (1 - rate)), rtol=1e-5, atol=0)
    deviation = (rate * (1 - rate)) ** 0.5
    shares = kept.double().mean(dim=0)
    assert abs(shares.mean() - (1 - rate)) < 5 * deviation / kept.numel() ** 0.5
    assert shares.std() == pytest.approx(deviation / 200**0.5, rel=0.15)  # as for independent draws
    centred = kept.double() - (1 - rate)
    bound = 5 * deviation**2 / (kept.numel() / 2) ** 0.5
    assert abs((centred[:, :, 1:] * centred[:, :, :-1]).mean()) < bound  # two heads
    assert abs((centred[1:] * centred[:-1]).mean()) < bound  # two seeds
    to, source = Edges.of(graph, self_loops=True).ends(torch.device("cpu"))
    places = {(int(a), int(b)): at for at, (a, b) in enumerate(zip(to, source, strict=True))}
    back = torch.tensor([places[b, a] for a, b in places])
    products = (centred * centred[:, back])[:, to != source]  # an edge and its reverse
    assert abs(products.mean()) < 2 * bound


def test_the_generator_drives_the_dropout() -> None:
    edges, inputs = Edges.of(random_graph(), self_loops=True), random_inputs(60, 2, 3)
    torch.manual_seed(5)
    first, second = (edge_attention(*inputs, edges, 0.5) for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(edge_attention(*inputs, edges, 0.5), first) and not torch.equal(first, second)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS == 1, reason="needs a second thread")
def test_the_number_of_threads_changes_nothing() -> None:
    edges, inputs = Edges.of(random_graph(), self_loops=True), random_inputs(60, 2, 3)
    before, found = numba.get_num_threads(), []
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        numba.set_num_threads(threads)
        found.append(results(lambda *x: FusedAttention.apply(*x, edges, 0.5, 7), inputs))
    numba.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found for a, b in zip(other, found[0], strict=True))


def test_nothing_is_kept_per_edge() -> None:
    nodes, heads, size = 50, 4, 2
    graph = make_graph(nodes, itertools.combinations(range(nodes), 2))
    inputs = [part.requires_grad_() for part in random_inputs(nodes, heads, size)]
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part.numel()) or part, lambda part: part):
        edge_attention(*inputs, Edges.of(graph, self_loops=True), 0.5)
    assert kept and max(kept) <= nodes * heads * size  # 2,500 edges, 10,000 coefficients
