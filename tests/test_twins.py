from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.datasets.twin_specs import Falling, Words
from bench.datasets.twins import TWINS, TwinSpec, build_twin, generate_twin
from bench.errors import UserError
from bench.graph import Graph, graph_fingerprint


def miniature(**changes: Any) -> TwinSpec:
    shape: dict[str, Any] = {
        "name": "mini-twin",
        "nodes": 200,
        "undirected_edges": 600,
        "self_loops": 4,
        "isolated": 7,
        "features": 30,
        "max_degree": 40,
        "homophily": 0.7,
        "classes": (90, 70, 39, 1),
        "words": Words("count", per_row=6.0, spread=0.5, skew=0.8),
    }
    return TwinSpec(**{**shape, **changes})


def neighbours(graph: Graph) -> list[list[int]]:
    return [graph.indices[a:b].tolist() for a, b in zip(graph.indptr[:-1], graph.indptr[1:], strict=True)]


def words_of(graph: Graph) -> sp.csr_array:
    assert isinstance(graph.features, sp.csr_array)
    return graph.features


def homophily(graph: Graph) -> float:
    rows = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    edges = rows != graph.indices
    return float(np.mean(graph.labels[rows[edges]] == graph.labels[graph.indices[edges]]))


def assert_canonical(graph: Graph) -> None:
    assert graph.indptr.dtype == graph.indices.dtype == np.int32
    adjacency = graph.adjacency()
    assert abs(adjacency - adjacency.T).sum() == 0
    row_ends = graph.indptr[1:-1]
    ascends = np.diff(graph.indices) > 0
    ascends[row_ends[(row_ends > 0) & (row_ends < graph.num_entries)] - 1] = True  # from one row to the next
    assert ascends.all()


@functools.cache
def twin(name: str) -> Graph:
    return generate_twin(name)


@pytest.mark.parametrize(
    ("name", "nodes", "entries", "loops", "isolated", "features", "classes", "max_degree", "homophilous"),
    [
        ("photo-twin", 7650, 238_163, 1, 115, 745, 8, 1434, 0.827),
        ("pubmed-twin", 19_717, 88_651, 3, 0, 500, 3, 171, 0.802),
    ],
)
def test_shape_of_real_dataset(
    name: str,
    nodes: int,
    entries: int,
    loops: int,
    isolated: int,
    features: int,
    classes: int,
    max_degree: int,
    homophilous: float,
) -> None:
    graph = twin(name)
    assert graph.name == name
    assert graph.fingerprint == ""
    assert (graph.num_nodes, graph.num_entries) == (nodes, entries)
    assert graph.features.shape == (nodes, features)
    assert graph.features.dtype == np.float32
    assert graph.num_classes == classes
    assert_canonical(graph)
    assert graph.adjacency().diagonal().sum() == loops
    assert np.sum(graph.degrees == 0) == isolated
    assert homophily(graph) == pytest.approx(homophilous, abs=0.03)
    assert 0.7 * max_degree < graph.degrees.max() < 1.4 * max_degree


def test_known_class_sizes_are_kept() -> None:
    counts = np.bincount(twin("photo-twin").labels)
    assert counts.tolist() == [369, 1686, 703, 915, 882, 823, 1941, 331]


def test_same_bytes_at_every_call() -> None:
    assert graph_fingerprint(generate_twin("photo-twin")) == graph_fingerprint(twin("photo-twin"))


def test_names_lead_to_different_graphs() -> None:
    assert graph_fingerprint(build_twin(miniature())) != graph_fingerprint(build_twin(miniature(name="other-twin")))


def test_miniature_by_brute_force() -> None:
    graph = build_twin(miniature())
    rows = neighbours(graph)
    assert all(row == sorted(set(row)) for row in rows)
    pairs = {(u, v) for u, row in enumerate(rows) for v in row}
    assert pairs == {(v, u) for u, v in pairs}
    edges = {(u, v) for u, v in pairs if u < v}
    assert len(edges) == 600
    assert sum(u == v for u, v in pairs) == 4
    assert sum(not row for row in rows) == 7
    assert sum(graph.labels[u] == graph.labels[v] for u, v in edges) == 420  # 0.7 of 600
    assert np.bincount(graph.labels).tolist() == [90, 70, 39, 1]


def test_word_rows_hold_different_words_and_whole_numbers() -> None:
    matrix = words_of(build_twin(miniature()))
    rows = [matrix.indices[a:b].tolist() for a, b in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)]
    assert all(row == sorted(set(row)) and 1 <= len(row) <= 30 for row in rows)
    assert np.mean([len(row) for row in rows]) == pytest.approx(6.0, rel=0.05)
    assert set(np.unique(matrix.data)) <= set(range(1, 101))
    assert np.max(matrix.data) > 2


def test_rows_may_hold_every_word() -> None:
    matrix = words_of(build_twin(miniature(words=Words("binary", per_row=25.0, spread=0.8, skew=0.3))))
    assert set(matrix.data) == {1.0}
    assert np.diff(matrix.indptr).max() == 30
    assert matrix.nnz / 200 == pytest.approx(25.0, rel=0.02)


def test_weights_sum_to_one_per_row() -> None:
    matrix = words_of(build_twin(miniature(words=Words("weight", per_row=6.0, spread=0.3, skew=0.9))))
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=1e-5)
    assert np.min(matrix.data) > 0


@pytest.mark.parametrize("words", [None, Words("binary", per_row=20.0, spread=0.5, skew=0.5)])
def test_features_tell_the_class(words: Words | None) -> None:
    """Nearest class mean, learnt on one half: better than guessing, yet not trivial."""
    graph = build_twin(
        miniature(nodes=4000, undirected_edges=9000, features=100, classes=Falling(10, ratio=2.0), words=words)
    )
    features = np.asarray(graph.features if words is None else words_of(graph).toarray())
    known, asked = np.arange(2000), np.arange(2000, 4000)
    means = np.stack([features[known][graph.labels[known] == c].mean(axis=0) for c in range(10)])
    distance = ((features[asked, None] - means) ** 2).sum(axis=2)
    accuracy = np.mean(distance.argmin(axis=1) == graph.labels[asked])
    assert 0.3 < accuracy < 0.95


def test_dense_features_are_float32_of_unit_noise() -> None:
    graph = build_twin(
        miniature(nodes=3000, undirected_edges=9000, features=50, classes=Falling(3, ratio=1.0), words=None)
    )
    assert graph.features.dtype == np.float32
    assert graph.features.shape == (3000, 50)
    within = graph.features[graph.labels == 0].std(axis=0)
    np.testing.assert_allclose(within, 1.0, atol=0.1)


@settings(max_examples=25)
@given(
    nodes=st.integers(300, 500),
    mean_degree=st.floats(4.0, 12.0),
    share=st.floats(0.4, 0.9),
    isolated=st.integers(0, 20),
    loops=st.integers(0, 5),
    classes=st.integers(2, 6),
)
def test_counts_are_exact_for_any_shape(
    nodes: int, mean_degree: float, share: float, isolated: int, loops: int, classes: int
) -> None:
    edges = int(nodes * mean_degree / 2)
    spec = miniature(
        nodes=nodes,
        undirected_edges=edges,
        isolated=isolated,
        self_loops=loops,
        homophily=share,
        classes=Falling(classes, ratio=3.0),
        max_degree=30 + nodes // 4,
    )
    graph = build_twin(spec)
    assert_canonical(graph)
    assert graph.num_entries == 2 * edges + loops
    assert np.sum(graph.degrees == 0) == isolated
    assert graph.adjacency().diagonal().sum() == loops
    sizes = np.bincount(graph.labels, minlength=classes)
    assert sizes.sum() == nodes
    assert sizes.min() >= 1
    assert homophily(graph) == pytest.approx(share, abs=1 / edges)


def test_geometric_class_sizes() -> None:
    sizes = miniature(nodes=7003, classes=Falling(3, ratio=4.0)).class_sizes  # shares 4 : 2 : 1 beyond one node each
    assert sizes.tolist() == [4001, 2001, 1001]


def test_too_few_edges_for_all_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        build_twin(
            miniature(undirected_edges=110, homophily=0.5, max_degree=3, isolated=0, classes=Falling(2, ratio=1.0))
        )


def test_more_edges_than_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="too many"):
        build_twin(miniature(undirected_edges=9000))


def test_nine_twins_with_the_published_counts() -> None:
    counts = {name: (s.nodes, s.undirected_edges, s.features, s.num_classes) for name, s in TWINS.items()}
    assert counts == {
        "pubmed-twin": (19_717, 44_324, 500, 3),
        "corafull-twin": (19_793, 63_421, 8_710, 70),
        "computer-twin": (13_752, 245_861, 767, 10),
        "photo-twin": (7_650, 119_081, 745, 8),
        "cs-twin": (18_333, 81_894, 6_805, 15),
        "physics-twin": (34_493, 247_962, 8_415, 5),
        "aminer-twin": (593_486, 6_217_004, 100, 18),
        "reddit-twin": (232_965, 11_606_919, 602, 41),
        "amazon2m-twin": (2_449_029, 61_859_140, 100, 47),
    }
    assert all(spec.class_sizes.sum() == spec.nodes for spec in TWINS.values())


def test_unknown_twin() -> None:
    with pytest.raises(UserError, match="no twin named 'foto-twin'"):
        generate_twin("foto-twin")


@pytest.mark.slow
def test_reddit_twin() -> None:
    graph = generate_twin("reddit-twin")
    assert (graph.num_nodes, graph.num_entries) == (232_965, 23_213_838)
    assert graph.features.shape == (232_965, 602)
    assert len(np.unique(graph.labels)) == 41
    assert np.bincount(graph.labels).min() >= 50  # the split rule takes 20 + 30 of each class
    assert_canonical(graph)
    assert graph.degrees.min() >= 1
    assert homophily(graph) == pytest.approx(0.78, abs=0.03)
