"""Pushes against dense inverses and powers, hand-worked rows, a plain twin, and torch_geometric's own push."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import ISOLATED, dense_adjacency, make_graph, path_graph, random_graph
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch_geometric.utils import get_ppr
from torch_geometric.utils import ppr as their_push

from bench.graph import Graph
from bench.prepared import PrepareCache, list_entries
from models.kernels.propagation import nodes_without_loop
from models.kernels.push import (
    TopRows,
    _gfpush,
    _keep_largest,
    _ppr,
    gfpush_rows,
    ppr_rows,
)
from perf.measure import Failed
from perf.push import check_agreement

EVERY_NODE = np.arange(60)


def spread_out(arrays: dict[str, np.ndarray], num_nodes: int) -> np.ndarray:
    """The rows as a dense matrix; the zeros that fill them up must not hide an entry."""
    dense = np.zeros((len(arrays["columns"]), num_nodes))
    np.add.at(dense, (np.arange(len(dense))[:, None], arrays["columns"]), arrays["weights"])
    return dense


def dense_pagerank(graph: Graph, alpha: float) -> np.ndarray:
    """α (I - (1 - α) D^-1 A)^-1, where an isolated node stays where it is."""
    adjacency = dense_adjacency(graph)
    adjacency[np.diag_indices_from(adjacency)] += adjacency.sum(axis=1) == 0
    walk = adjacency / adjacency.sum(axis=1, keepdims=True)
    return alpha * np.linalg.inv(np.eye(len(walk)) - (1.0 - alpha) * walk)


def dense_walk(graph: Graph) -> np.ndarray:
    """The row-stochastic adjacency with a loop at every node."""
    looped = np.maximum(dense_adjacency(graph), np.eye(graph.num_nodes))
    return looped / looped.sum(axis=1, keepdims=True)


# -- personalised PageRank --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_a_fine_push_is_the_dense_inverse(alpha: float) -> None:
    graph = random_graph()
    rows = spread_out(ppr_rows(graph, EVERY_NODE, alpha, 1e-8, 60), 60)
    np.testing.assert_allclose(rows, dense_pagerank(graph, alpha), atol=2e-6)
    for node in ISOLATED:
        assert rows[node, node] == 1.0 and rows[node].sum() == 1.0


def test_a_path_by_hand() -> None:
    # α ε degree is 0.1, 0.2, 0.1: node 0 keeps 0.5 and sends 0.25; node 1 keeps it and sends 0.0625 to either side
    rows = ppr_rows(path_graph(), np.array([0]), 0.5, 0.2, 3)
    np.testing.assert_array_equal(spread_out(rows, 3), [[0.5, 0.25, 0.0]])
    # 0.0625, 0.125, 0.0625: reaching the limit is enough, so both ends push once more and node 1 is left with 0.0625
    rows = ppr_rows(path_graph(), np.array([0]), 0.5, 0.125, 3)
    np.testing.assert_array_equal(spread_out(rows, 3), [[0.5625, 0.25, 0.0625]])


@settings(max_examples=15)
@given(st.integers(0, 50), st.floats(0.05, 0.9), st.sampled_from([1e-1, 1e-2, 1e-3, 1e-4]))
def test_what_is_left_behind_is_bounded_by_degrees(seed: int, alpha: float, epsilon: float) -> None:
    graph = random_graph(seed)
    missing = dense_pagerank(graph, alpha) - spread_out(ppr_rows(graph, EVERY_NODE, alpha, epsilon, 60), 60)
    assert (missing >= -1e-6).all()
    assert (missing <= epsilon * np.maximum(graph.degrees, 1) + 1e-6).all()


def test_it_agrees_with_another_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(their_push, "_get_ppr_numba", their_push._get_ppr)  # slow, but compiling is slower still
    graph, epsilon = random_graph(), 1e-3
    seeds = np.array([node for node in range(60) if node not in ISOLATED])
    edges = np.stack([np.repeat(np.arange(60), graph.degrees), graph.indices]).astype(np.int64)
    places, values = get_ppr(torch.from_numpy(edges), 0.25, epsilon, torch.from_numpy(seeds), 60)
    theirs = np.zeros((60, 60))
    theirs[places[0].numpy(), places[1].numpy()] = values.numpy()
    ours = spread_out(ppr_rows(graph, seeds, 0.25, epsilon, 60), 60)
    assert (np.abs(ours - theirs[seeds]) <= epsilon * graph.degrees + 1e-6).all()
    assert np.abs(ours - theirs[seeds]).max() < 0.1 * np.abs(ours).max()


def test_a_hub_beyond_the_first_limit_is_still_pushed() -> None:
    star = make_graph(30, [(0, leaf) for leaf in range(1, 30)])
    rows = spread_out(ppr_rows(star, np.array([0]), 0.25, 1.0, 30), 30)  # α is below α ε degree from the start
    np.testing.assert_allclose(rows[0], [0.25] + [0.0] * 29)


def test_the_benchmark_notices_when_two_pushes_disagree() -> None:
    graph, seeds, epsilon = random_graph(), np.array([7, 3]), 1e-3
    ours = ppr_rows(graph, seeds, 0.25, epsilon, 5)
    sources, targets = torch.from_numpy(np.repeat(seeds, 5)), torch.from_numpy(ours["columns"].ravel()).long()
    theirs = torch.stack([sources, targets]), torch.from_numpy(ours["weights"].ravel().copy())
    check_agreement(graph, seeds, epsilon, theirs, ours)
    largest = int(ours["weights"][1].argmax())
    ours["weights"][1, largest] += 2 * epsilon * graph.degrees[ours["columns"][1, largest]]
    with pytest.raises(Failed, match="node 3"):
        check_agreement(graph, seeds, epsilon, theirs, ours)


# -- generalised forward push -----------------------------------------------------------------------------------------

MIXTURES = {
    "ppr": np.array([0.4, 0.3, 0.2, 0.1]),
    "avg": np.full(5, 0.2),
    "single": np.array([0.0, 0.0, 0.0, 1.0]),
    "node": np.array([1.0]),
}


@pytest.mark.parametrize("mixture", list(MIXTURES.values()), ids=list(MIXTURES))
def test_with_no_threshold_it_is_the_dense_sum_of_powers(mixture: np.ndarray) -> None:
    graph = random_graph()
    rows = spread_out(gfpush_rows(graph, EVERY_NODE, mixture, 0.0, 60), 60)
    walk = dense_walk(graph)
    expected = sum(weight * np.linalg.matrix_power(walk, power) for power, weight in enumerate(mixture))
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, atol=1e-5)


def test_a_lost_residual_by_hand() -> None:
    # loops included, degrees are 2, 3, 2. Node 0 sends 0.5 to itself and to node 1; there 0.5 < 0.2 * 3 is lost.
    graph, mixture = path_graph(), np.array([0.5, 0.25, 0.25])
    rows = spread_out(gfpush_rows(graph, np.array([0]), mixture, 0.2, 3), 3)
    np.testing.assert_array_equal(rows, [[0.5 + 0.25 * 0.5 + 0.25 * 0.25, 0.25 * 0.5 + 0.25 * 0.25, 0.0]])
    # with equality it is passed on: 1 >= 0.5 * 2
    rows = spread_out(gfpush_rows(graph, np.array([0]), mixture[:2], 0.5, 3), 3)
    np.testing.assert_array_equal(rows, [[0.5 + 0.25 * 0.5, 0.25 * 0.5, 0.0]])


def plain_gfpush(graph: Graph, seed: int, mixture: np.ndarray, rmax: float) -> np.ndarray:
    """The same rule in dense float64."""
    walk = dense_walk(graph)
    degrees = (walk > 0).sum(axis=1)
    residual, reserve = np.eye(graph.num_nodes)[seed], np.zeros(graph.num_nodes)
    for weight in mixture:
        reserve += weight * residual
        assume(not np.isclose(residual, rmax * degrees, rtol=1e-5, atol=0).any())  # single precision may differ there
        residual = np.where(residual >= rmax * degrees, residual, 0.0) @ walk
    return reserve


@settings(max_examples=15)
@given(st.integers(0, 50), st.sampled_from(list(MIXTURES)), st.floats(1e-4, 0.2))
def test_it_is_its_plain_twin(seed: int, kind: str, rmax: float) -> None:
    graph, mixture = random_graph(seed), MIXTURES[kind]
    rows = spread_out(gfpush_rows(graph, EVERY_NODE, mixture, rmax, 60), 60)
    np.testing.assert_allclose(rows, [plain_gfpush(graph, node, mixture, rmax) for node in range(60)], atol=1e-6)


# -- rows -------------------------------------------------------------------------------------------------------------


def both_pushes(graph: Graph, seeds: np.ndarray, top_k: int, chunks: int = 1) -> list[dict[str, np.ndarray]]:
    """Rows by either push, the work cut into this many chunks as it would be for this many threads."""
    results = []
    for kind in ("ppr", "gfpush"):
        columns = np.full((len(seeds), top_k), -7, dtype=np.int32)
        weights = np.full((len(seeds), top_k), np.nan, dtype=np.float32)
        if kind == "ppr":
            _ppr(graph.indptr, graph.indices, seeds, 0.25, 1e-3, chunks, columns, weights)
        else:
            own, mixture = nodes_without_loop(graph), MIXTURES["ppr"].astype(np.float32)
            _gfpush(graph.indptr, graph.indices, own, seeds, mixture, 1e-3, chunks, columns, weights)
        results.append({"columns": columns, "weights": weights})
    return results


@pytest.mark.parametrize("chunks", [2, 3, 64, 100])
def test_the_number_of_threads_changes_nothing(chunks: int) -> None:
    graph = random_graph()
    for one, many in zip(both_pushes(graph, EVERY_NODE, 9), both_pushes(graph, EVERY_NODE, 9, chunks), strict=True):
        assert one["columns"].tobytes() == many["columns"].tobytes()
        assert one["weights"].tobytes() == many["weights"].tobytes()


def test_a_row_leaves_no_trace_for_the_next() -> None:
    graph = random_graph()
    there = both_pushes(graph, EVERY_NODE, 60)
    back = both_pushes(graph, EVERY_NODE[::-1].copy(), 60)
    for first, second in zip(there, back, strict=True):
        np.testing.assert_array_equal(first["weights"], second["weights"][::-1])
        np.testing.assert_array_equal(first["columns"], second["columns"][::-1])


@pytest.mark.parametrize("top_k", [1, 5, 17])
def test_the_largest_entries_are_kept(top_k: int) -> None:
    graph = random_graph()
    for whole, kept in zip(both_pushes(graph, EVERY_NODE, 60), both_pushes(graph, EVERY_NODE, top_k), strict=True):
        for row, dense in enumerate(spread_out(whole, 60)):
            best = np.lexsort((np.arange(60), -dense))[:top_k]
            expected = np.sort(best[dense[best] > 0])
            count = len(expected)
            np.testing.assert_array_equal(kept["columns"][row, :count], expected)
            np.testing.assert_array_equal(kept["weights"][row, :count], dense[expected].astype(np.float32))
            assert (kept["columns"][row, count:] == row).all() and (kept["weights"][row, count:] == 0).all()


@settings(max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=40), st.integers(1, 45), st.integers(0, 999))
def test_ties_go_to_the_lower_node_in_whatever_order_they_come(values: list[int], top_k: int, seed: int) -> None:
    reserve = np.array(values, dtype=np.float32)
    order = np.random.default_rng(seed).permutation(len(values)).astype(np.int32)
    columns, weights = np.full(top_k, -7, dtype=np.int32), np.full(top_k, np.nan, dtype=np.float32)
    _keep_largest(order, reserve, 3, columns, weights)
    expected = np.sort(np.lexsort((np.arange(len(values)), -reserve))[:top_k])
    np.testing.assert_array_equal(columns[: len(expected)], expected)
    np.testing.assert_array_equal(weights[: len(expected)], reserve[expected])
    assert (columns[len(expected) :] == 3).all() and (weights[len(expected) :] == 0).all()


def test_no_row_is_wider_than_the_graph() -> None:
    rows = ppr_rows(path_graph(), np.array([0, 2]), 0.5, 1e-3, 100)
    assert rows["columns"].shape == rows["weights"].shape == (2, 3)
    assert rows["columns"].dtype == np.int32 and rows["weights"].dtype == np.float32


def test_rows_are_found_by_node() -> None:
    rows = TopRows(np.array([2, 5, 9]), np.arange(6, dtype=np.int32).reshape(3, 2), np.eye(3, 2, dtype=np.float32))
    columns, weights = rows.of(torch.tensor([9, 2, 9]))
    np.testing.assert_array_equal(columns, [[4, 5], [0, 1], [4, 5]])
    np.testing.assert_array_equal(weights, [[0, 0], [1, 0], [0, 0]])
    assert rows.of(torch.tensor([], dtype=torch.int64))[0].shape == (0, 2)
    for other in (0, 4, 10):
        with pytest.raises(ValueError, match="other nodes"):
            rows.of(torch.tensor([2, other]))


def test_cached_rows_are_told_apart(tmp_path: Path) -> None:
    graph, calls = random_graph(), itertools.count()

    def get(nodes: list[int], setting: int) -> TopRows:
        def compute() -> dict[str, np.ndarray]:
            next(calls)
            return ppr_rows(graph, np.array(nodes), 0.25, 1e-3, 4)

        return TopRows.cached("rows", graph, np.array(nodes), {"setting": setting}, PrepareCache(tmp_path), compute)

    first, again = get([3, 4], 1), get([3, 4], 1)
    np.testing.assert_array_equal(first.columns, again.columns)
    assert first.nodes.tolist() == [3, 4] and next(calls) == 1
    get([3, 5], 1)
    get([3, 4], 2)
    assert next(calls) == 4 and len(list_entries(tmp_path)) == 3
