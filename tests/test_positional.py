"""Laplacian eigenvectors: the eigen-equation, the zero modes, the isolated nodes, and repeatability."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import ISOLATED, dense_adjacency, dense_laplacian, make_graph, path_graph, random_graph
from hypothesis import given
from hypothesis import strategies as st

from bench.graph import Graph
from bench.prepared import PrepareCache, list_entries
from models.kernels import positional
from models.kernels.positional import laplacian_eigenvectors, random_signs


def eigenvectors(graph: Graph, count: int) -> np.ndarray:
    return laplacian_eigenvectors(graph, count, PrepareCache())


def matching(pairs: int) -> Graph:
    return make_graph(2 * pairs, [(2 * pair, 2 * pair + 1) for pair in range(pairs)])


def triangles(count: int) -> Graph:
    corners = [(3 * at, 3 * at + 1, 3 * at + 2) for at in range(count)]
    return make_graph(3 * count, [edge for a, b, c in corners for edge in ((a, b), (b, c), (a, c))])


def zero_modes(graph: Graph) -> np.ndarray:
    """The null space of the Laplacian by a dense solver."""
    values, vectors = np.linalg.eigh(dense_laplacian(graph))
    return vectors[:, values < 1e-9]


def assert_positive_eigenvectors(graph: Graph, vectors: np.ndarray) -> np.ndarray:
    """Orthonormal solutions of L u = λ u, λ > 0 ascending, without any part in the null space; returns the λ."""
    laplacian, vectors = dense_laplacian(graph), vectors.astype(np.float64)
    values = (vectors * (laplacian @ vectors)).sum(axis=0)
    np.testing.assert_allclose(laplacian @ vectors, vectors * values, atol=2e-5)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(vectors.shape[1]), atol=1e-5)
    np.testing.assert_allclose(zero_modes(graph).T @ vectors, 0.0, atol=1e-5)
    assert (values > 1e-6).all()
    assert (np.diff(values) > -1e-6).all()
    return values


def test_a_path_of_three_nodes_by_hand() -> None:
    # L has the eigenvalues 0, 1, 2; that of 1 is (1, 0, -1) / √2, up to the sign, which a tie in size leaves open
    vectors = eigenvectors(path_graph(), 1)
    np.testing.assert_allclose(np.abs(vectors[:, 0]), [np.sqrt(0.5), 0.0, np.sqrt(0.5)], atol=1e-6)
    assert vectors[0, 0] * vectors[2, 0] < 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [10, 25], ids=["lanczos", "dense"])  # 60 nodes: on either side of the size limit
def test_smallest_positive_eigenpairs_of_a_random_graph(seed: int, count: int) -> None:
    graph = random_graph(seed)
    vectors = eigenvectors(graph, count)
    assert vectors.shape == (60, count) and vectors.dtype == np.float32
    values = assert_positive_eigenvectors(graph, vectors)
    expected = np.linalg.eigvalsh(dense_laplacian(graph))
    assert expected[1] < 1e-9 < expected[2]  # two components with edges: two zero modes
    np.testing.assert_allclose(values, expected[2 : 2 + count], atol=1e-5)


def test_vectors_agree_with_a_dense_solver() -> None:
    graph = random_graph()
    values, expected = np.linalg.eigh(dense_laplacian(graph))
    assert np.diff(values[1:9]).min() > 1e-3  # all simple, so that each vector is unique up to its sign
    overlap = np.abs((expected[:, 2:8] * eigenvectors(graph, 6)).sum(axis=0))
    np.testing.assert_allclose(overlap, 1.0, atol=1e-6)


def test_isolated_nodes_have_no_part_in_other_eigenvalues_than_one() -> None:
    graph = random_graph()
    vectors = eigenvectors(graph, 10)
    values = assert_positive_eigenvectors(graph, vectors)
    assert (values < 0.99).all()
    np.testing.assert_allclose(vectors[list(ISOLATED)], 0.0, atol=1e-5)


@pytest.mark.parametrize(
    ("graph", "count", "value"),
    [
        pytest.param(triangles(3), 4, 1.5, id="three triangles"),
        pytest.param(triangles(40), 5, 1.5, id="forty triangles"),
        pytest.param(matching(5), 3, 2.0, id="five pairs"),
        pytest.param(matching(40), 3, 2.0, id="forty pairs"),  # the largest eigenvalue there is
    ],
)
def test_many_small_components(graph: Graph, count: int, value: float) -> None:
    vectors = eigenvectors(graph, count)
    assert vectors.shape[1] == count
    np.testing.assert_allclose(assert_positive_eigenvectors(graph, vectors), value, atol=1e-5)


def test_a_self_loop_counts_as_an_edge() -> None:
    graph = make_graph(40, [(0, 1), (1, 2), (0, 0), *((node, node + 1) for node in range(3, 39))])
    assert dense_adjacency(graph)[0, 0] == 1.0
    assert_positive_eigenvectors(graph, eigenvectors(graph, 4))


@pytest.mark.parametrize("num_nodes", [5, 100])
def test_a_graph_without_edges(num_nodes: int) -> None:
    # every eigenvalue is 1: any orthonormal columns solve the equation
    graph = make_graph(num_nodes, [])
    vectors = eigenvectors(graph, 3)
    np.testing.assert_allclose(assert_positive_eigenvectors(graph, vectors), 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("graph", "positive"),
    [
        pytest.param(path_graph(), 2, id="path"),
        pytest.param(triangles(3), 6, id="three triangles"),
        pytest.param(matching(2), 2, id="two pairs"),
        pytest.param(make_graph(60, [(node, node) for node in range(60)]), 0, id="nothing but self-loops"),
        pytest.param(make_graph(1, []), 1, id="one node"),
    ],
)
def test_asking_for_more_than_there_is(graph: Graph, positive: int) -> None:
    vectors = eigenvectors(graph, 10)
    assert vectors.shape[0] == graph.num_nodes
    assert vectors.shape[1] <= positive  # no zero mode and no invented column
    assert_positive_eigenvectors(graph, vectors)


def test_nothing_asked_nothing_given() -> None:
    assert eigenvectors(random_graph(), 0).shape == (60, 0)


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        pytest.param(random_graph(), 10, id="lanczos"),
        pytest.param(random_graph(), 25, id="dense"),
        pytest.param(make_graph(100, [(0, leaf) for leaf in range(1, 100)]), 5, id="star"),  # one value, 98 times
        pytest.param(triangles(40), 5, id="forty triangles"),
    ],
)
def test_same_bytes_and_a_positive_largest_entry(graph: Graph, count: int) -> None:
    first, again = (eigenvectors(graph, count) for _ in range(2))
    assert_positive_eigenvectors(graph, first)
    assert first.tobytes() == again.tobytes()
    assert (first.max(axis=0) >= np.abs(first).max(axis=0) * (1 - 1e-6)).all()


def test_cached_and_uncached_are_equal(tmp_path: Path) -> None:
    graph, cache = random_graph(), PrepareCache(tmp_path)
    plain, stored, found = eigenvectors(graph, 6), *(laplacian_eigenvectors(graph, 6, cache) for _ in range(2))
    assert plain.tobytes() == stored.tobytes() == found.tobytes()
    assert cache.hits == 1
    laplacian_eigenvectors(graph, 7, cache)
    laplacian_eigenvectors(random_graph(1), 6, cache)
    assert len(list_entries(tmp_path)) == 3  # another count and another graph are other entries


def test_signs_are_plus_or_minus_one_and_come_from_the_global_generator() -> None:
    torch.manual_seed(0)
    signs = random_signs(1000, torch.device("cpu"))
    assert set(signs.tolist()) == {-1.0, 1.0} and abs(float(signs.mean())) < 0.15
    torch.manual_seed(0)
    assert torch.equal(random_signs(1000, torch.device("cpu")), signs)


# -- the solver of large graphs ---------------------------------------------------------------------------------------


def communities(nodes: int = 600, groups: int = 6) -> Graph:
    """Groups of nodes with many edges inside and few between, and a separate triangle at the end."""
    rng = np.random.default_rng(3)
    group = np.arange(nodes) % groups
    first, second = np.triu_indices(nodes, 1)
    chance = np.where(group[first] == group[second], 0.2, 0.005)
    chosen = rng.random(len(first)) < chance
    edges = list(zip(first[chosen].tolist(), second[chosen].tolist(), strict=True))
    return make_graph(nodes + 3, [*edges, (nodes, nodes + 1), (nodes + 1, nodes + 2), (nodes, nodes + 2)])


@pytest.mark.parametrize("count", [3, 10])
def test_the_solver_of_large_graphs_agrees_with_a_dense_one(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    graph = communities()
    expected = np.linalg.eigvalsh(dense_laplacian(graph))
    assert expected[1] < 1e-9 < expected[2]  # the communities' component and the triangle
    monkeypatch.setattr(positional, "_LARGE", 600)
    monkeypatch.setattr(positional, "_LARGE_TOLERANCE", 1e-5)
    monkeypatch.setattr(positional, "_lanczos", None)  # not asked
    vectors = eigenvectors(graph, count)
    values = assert_positive_eigenvectors(graph, vectors)
    np.testing.assert_allclose(values, expected[2 : 2 + count], atol=1e-5)
    np.testing.assert_array_equal(vectors, eigenvectors(graph, count))


def test_both_solvers_span_the_same_space(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = communities()
    exact = eigenvectors(graph, 5)  # six communities: five eigenvalues well apart from the rest
    monkeypatch.setattr(positional, "_LARGE", 600)
    overlap = np.linalg.svd(exact.T @ eigenvectors(graph, 5), compute_uv=False)
    np.testing.assert_allclose(overlap, 1.0, atol=1e-5)


def test_a_basis_that_starts_anew_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = communities()
    expected = np.linalg.eigvalsh(dense_laplacian(graph))[2:7]
    monkeypatch.setattr(positional, "_LARGE", 600)
    monkeypatch.setattr(positional, "_LARGE_TOLERANCE", 1e-5)
    monkeypatch.setattr(positional, "_WIDEST", 24)  # three blocks of eight: a restart every two steps
    np.testing.assert_allclose(assert_positive_eigenvectors(graph, eigenvectors(graph, 5)), expected, atol=1e-5)


@pytest.mark.parametrize("count", [5, 12])  # one block holds every copy that is asked for
@pytest.mark.parametrize("graph", [triangles(40), matching(60)], ids=["triangles", "pairs"])
def test_the_solver_of_large_graphs_finds_every_copy(monkeypatch: pytest.MonkeyPatch, graph: Graph, count: int) -> None:
    # after the first step there is nothing left to find: every eigenvalue is the same
    monkeypatch.setattr(positional, "_LARGE", graph.num_nodes)
    vectors = eigenvectors(graph, count)
    assert vectors.shape[1] == count
    values = assert_positive_eigenvectors(graph, vectors)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(dense_laplacian(graph))[-1], atol=1e-5)


@given(
    width=st.integers(1, 6),
    old=st.integers(0, 10),
    lost=st.integers(0, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_block_is_split_into_what_the_basis_has_and_the_rest(width: int, old: int, lost: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((40, old)))[0].T.astype(np.float32)
    block = rng.standard_normal((40, width)).astype(np.float32)
    lost = min(lost, width)
    block[:, :lost] = basis.T @ rng.standard_normal((old, lost)).astype(np.float32)  # nothing new in these
    left, overlap, rest = positional._orthogonalise(block, basis)
    assert left.shape == (40, width - lost)
    np.testing.assert_allclose(basis.T @ overlap + left @ rest, block, atol=2e-5)
    np.testing.assert_allclose(left.T @ left, np.eye(width - lost), atol=1e-5)
    np.testing.assert_allclose(basis @ left, 0.0, atol=1e-5)
