"""The lowest eigenpairs: known spectra, the eigen-equation, the rule for zero modes, relabelling, and repeatability."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import ISOLATED, dense_adjacency, dense_laplacian, make_graph, path_graph, random_graph, relabelled
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.graph import Graph
from bench.prepared import PrepareCache, list_entries
from models.kernels import spectrum
from models.kernels.spectrum import lowest_eigenpairs

both_laplacians = pytest.mark.parametrize("normalized", [True, False], ids=["normalised", "plain"])


def eigenpairs(graph: Graph, count: int, normalized: bool) -> tuple[np.ndarray, np.ndarray]:
    return lowest_eigenpairs(graph, count, normalized, PrepareCache())


def laplacian_of(graph: Graph, normalized: bool) -> np.ndarray:
    """Either Laplacian as a dense matrix."""
    if normalized:
        return dense_laplacian(graph)
    adjacency = dense_adjacency(graph)
    return np.diag(adjacency.sum(axis=1)) - adjacency


def assert_eigenpairs(graph: Graph, values: np.ndarray, vectors: np.ndarray, normalized: bool) -> None:
    """Orthonormal, ascending, and the equation L u = λ u; the first alone has λ = 0."""
    laplacian, vectors = laplacian_of(graph, normalized), vectors.astype(np.float64)
    scale = max(1.0, np.abs(laplacian).max())
    np.testing.assert_allclose(laplacian @ vectors, vectors * values, atol=5e-6 * scale)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(vectors.shape[1]), atol=1e-5)
    assert (np.diff(values) > -1e-6 * scale).all()
    assert values[0] == 0.0 and (values[1:] > 1e-6).all()


def row_of(size: int) -> Graph:
    return make_graph(size, [(node, node + 1) for node in range(size - 1)])


# -- spectra that are known -------------------------------------------------------------------------------------------


def test_a_path_of_three_nodes_by_hand() -> None:
    values, vectors = eigenpairs(path_graph(), 3, normalized=True)
    np.testing.assert_allclose(values, [0, 1, 2], atol=1e-6)
    np.testing.assert_allclose(vectors[:, 0], [0.5, np.sqrt(0.5), 0.5], atol=1e-6)  # roots of the degrees
    np.testing.assert_allclose(np.abs(vectors[:, 1]), [np.sqrt(0.5), 0, np.sqrt(0.5)], atol=1e-6)
    np.testing.assert_allclose(vectors[:, 2], [-0.5, np.sqrt(0.5), -0.5], atol=1e-6)
    values, vectors = eigenpairs(path_graph(), 3, normalized=False)
    np.testing.assert_allclose(values, [0, 1, 3], atol=1e-6)
    np.testing.assert_allclose(vectors[:, 0], np.full(3, 1 / np.sqrt(3)), atol=1e-6)
    np.testing.assert_allclose(np.abs(vectors[:, 1]), [np.sqrt(0.5), 0, np.sqrt(0.5)], atol=1e-6)
    np.testing.assert_allclose(vectors[:, 2], np.array([-1, 2, -1]) / np.sqrt(6), atol=1e-6)


def test_a_long_path_has_the_textbook_values() -> None:
    # D - A of a path of n nodes: 2 - 2 cos(πk/n), all different, crowded towards zero
    values, vectors = eigenpairs(row_of(200), 8, normalized=False)
    np.testing.assert_allclose(values, 2 - 2 * np.cos(np.pi * np.arange(8) / 200), rtol=1e-5, atol=1e-9)
    waves = np.cos(np.pi * np.outer(np.arange(200) + 0.5, np.arange(8)) / 200)
    waves /= np.linalg.norm(waves, axis=0)
    np.testing.assert_allclose(np.abs((waves * vectors).sum(axis=0)), 1.0, atol=1e-6)


def test_a_long_path_normalised() -> None:
    # I - D^-1/2 A D^-1/2 of a path of n nodes: 1 - cos(πk/(n - 1))
    values, vectors = eigenpairs(row_of(100), 6, normalized=True)
    np.testing.assert_allclose(values, 1 - np.cos(np.pi * np.arange(6) / 99), atol=1e-6)
    assert_eigenpairs(row_of(100), values, vectors, normalized=True)


def test_a_hub_does_not_hide_the_low_end() -> None:
    # a path whose first node also has 3000 leaves: the largest eigenvalue exceeds 3001, those wanted are near 0.001
    edges = [(node, node + 1) for node in range(60)] + [(0, leaf) for leaf in range(61, 3061)]
    dense = np.zeros((61, 61))  # leaves of one hub act as one node of weight 3000 in every low mode
    for a, b in edges[:60]:
        dense[a, b] = dense[b, a] = -1
    mass = np.ones(62)
    mass[61] = 3000
    merged = np.zeros((62, 62))
    merged[:61, :61] = dense
    merged[0, 61] = merged[61, 0] = -3000
    merged -= np.diag(merged.sum(axis=1))
    expected = np.linalg.eigvalsh(merged / np.sqrt(np.outer(mass, mass)))[:6]
    graph = _sparse_graph(3061, edges)
    values, _ = eigenpairs(graph, 6, normalized=False)
    np.testing.assert_allclose(values, expected, atol=1e-6)


def _sparse_graph(num_nodes: int, edges: list[tuple[int, int]]) -> Graph:
    """As `make_graph`, without a dense matrix on the way."""
    import scipy.sparse as sp

    a, b = np.array(edges).T
    matrix = sp.csr_array((np.ones(2 * len(a)), (np.append(a, b), np.append(b, a))), shape=(num_nodes, num_nodes))
    matrix.sort_indices()
    features = np.zeros((num_nodes, 1), dtype=np.float32)
    labels = np.zeros(num_nodes, dtype=np.int64)
    return Graph("hub", matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), features, labels, 1, "hub")


# -- any graph --------------------------------------------------------------------------------------------------------


@both_laplacians
@pytest.mark.parametrize("count", [1, 2, 10, 30])
def test_the_lowest_of_a_random_graph(normalized: bool, count: int) -> None:
    graph = random_graph()
    values, vectors = eigenpairs(graph, count, normalized)
    assert vectors.shape == (60, count) and vectors.dtype == values.dtype == np.float32
    assert_eigenpairs(graph, values, vectors, normalized)
    expected = np.linalg.eigvalsh(laplacian_of(graph, normalized))
    expected = np.append(0.0, expected[expected > 1e-9])  # all zero modes count as one
    np.testing.assert_allclose(values, expected[:count], atol=1e-4)


@both_laplacians
@settings(max_examples=15)
@given(data=st.data())
def test_whatever_the_graph_the_equation_holds(normalized: bool, data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 40))
    node = st.integers(0, size - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=2 * size))
    graph = make_graph(size, [(0, 1), *edges])
    count = data.draw(st.integers(1, 12))
    values, vectors = eigenpairs(graph, count, normalized)
    assert_eigenpairs(graph, values, vectors, normalized)
    positive = int((np.linalg.eigvalsh(laplacian_of(graph, normalized)) > 1e-9).sum())
    assert len(values) == vectors.shape[1] == min(count, 1 + positive)


@both_laplacians
def test_the_first_is_the_trivial_vector_of_the_whole_graph(normalized: bool) -> None:
    graph = random_graph()
    _, vectors = eigenpairs(graph, 4, normalized)
    expected = np.sqrt(graph.degrees) if normalized else np.ones(60)
    np.testing.assert_allclose(vectors[:, 0], expected / np.linalg.norm(expected), atol=1e-6)
    # no further zero mode: what follows has no part in the indicator of either component, nor in isolated nodes
    linked = np.setdiff1d(np.arange(60), ISOLATED)
    for component in (linked[:37], linked[37:]):
        mode = np.zeros(60)
        mode[component] = expected[component]
        np.testing.assert_allclose(laplacian_of(graph, normalized) @ mode, 0.0, atol=1e-9)
        np.testing.assert_allclose(mode @ vectors[:, 1:], 0.0, atol=1e-4)
    assert not vectors[list(ISOLATED), 1:].any()  # not even rounding: SAN scales each node's entries to length 1


@both_laplacians
def test_relabelling_the_nodes_relabels_the_vectors(normalized: bool) -> None:
    graph, order = random_graph(), np.random.default_rng(5).permutation(60)
    values, vectors = eigenpairs(graph, 8, normalized)
    moved_values, moved = eigenpairs(relabelled(graph, order), 8, normalized)
    np.testing.assert_allclose(moved_values, values, atol=1e-5)
    np.testing.assert_allclose(moved, vectors[order], atol=2e-4)


# -- edges of what can be asked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "normalised", "plain"),
    [
        pytest.param(path_graph(), 3, 3, id="path"),
        pytest.param(make_graph(1, []), 1, 1, id="one node"),  # normalised: the eigenvalue is 1
        pytest.param(make_graph(70, []), 10, 1, id="no edge"),
        pytest.param(make_graph(4, [(0, 0), (1, 1), (2, 2), (3, 3)]), 1, 1, id="nothing but self-loops"),
        pytest.param(make_graph(80, [(0, 1)]), 10, 2, id="one edge"),
        pytest.param(make_graph(80, [(2 * at, 2 * at + 1) for at in range(40)]), 10, 10, id="forty pairs"),
    ],
)
def test_asking_for_more_than_there_is(graph: Graph, normalised: int, plain: int) -> None:
    for normalized, expected in ((True, normalised), (False, plain)):
        values, vectors = eigenpairs(graph, 10, normalized)
        assert len(values) == vectors.shape[1] == expected and vectors.shape[0] == graph.num_nodes
        laplacian = laplacian_of(graph, normalized)
        np.testing.assert_allclose(laplacian @ vectors, vectors * values, atol=1e-5)


@both_laplacians
def test_nothing_asked_nothing_given(normalized: bool) -> None:
    values, vectors = eigenpairs(random_graph(), 0, normalized)
    assert values.shape == (0,) and vectors.shape == (60, 0)


@both_laplacians
@pytest.mark.parametrize("count", [8, 25], ids=["lanczos", "dense"])
def test_same_bytes_and_a_positive_largest_entry(normalized: bool, count: int) -> None:
    (values, vectors), (again, same) = (eigenpairs(random_graph(), count, normalized) for _ in range(2))
    assert values.tobytes() == again.tobytes() and vectors.tobytes() == same.tobytes()
    assert (vectors.max(axis=0) >= np.abs(vectors).max(axis=0) * (1 - 1e-6)).all()


@both_laplacians
def test_cached_and_uncached_are_equal(tmp_path: Path, normalized: bool) -> None:
    graph, cache = random_graph(), PrepareCache(tmp_path)
    results = [eigenpairs(graph, 6, normalized), *(lowest_eigenpairs(graph, 6, normalized, cache) for _ in range(2))]
    assert len({values.tobytes() + vectors.tobytes() for values, vectors in results}) == 1
    assert cache.hits == 1
    lowest_eigenpairs(graph, 7, normalized, cache)
    lowest_eigenpairs(random_graph(1), 6, normalized, cache)
    lowest_eigenpairs(graph, 6, not normalized, cache)
    assert len(list_entries(tmp_path)) == 4  # another count, another graph, the other Laplacian


def test_a_linear_system_that_is_not_solved_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "_MOST_STEPS", 3)
    with pytest.raises(RuntimeError, match="not solved after 3 steps"):
        eigenpairs(random_graph(), 3, normalized=False)
