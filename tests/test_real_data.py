"""The real files, where BENCH_DATA names a folder that has them: counts, fingerprints and conventions."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from bench.datasets.catalogue import datasets
from bench.datasets.counts import Counts, count, differences
from bench.graph import Graph, graph_fingerprint

COUNTS = {
    "pubmed": Counts(nodes=19_717, entries=88_651, self_loops=3, isolated=0, features=500, classes=3),
    "computer": Counts(nodes=13_752, entries=491_722, self_loops=0, isolated=281, features=767, classes=10),
    "photo": Counts(nodes=7_650, entries=238_163, self_loops=1, isolated=115, features=745, classes=8),
    "cs": Counts(nodes=18_333, entries=163_788, self_loops=0, isolated=0, features=6_805, classes=15),
    "physics": Counts(nodes=34_493, entries=495_924, self_loops=0, isolated=0, features=8_415, classes=5),
}
LARGEST_DEGREE = {"pubmed": 171, "computer": 2_992, "photo": 1_434, "cs": 136, "physics": 382}
CLASS_SIZES = {
    "pubmed": [4103, 7739, 7875],
    "computer": [436, 2142, 1414, 542, 5158, 308, 487, 818, 2156, 291],
    "photo": [369, 1686, 703, 915, 882, 823, 1941, 331],
    "physics": [5750, 5045, 17426, 2753, 3519],
}


def load(name: str) -> Graph:
    folder = os.environ.get("BENCH_DATA")
    if not folder:
        pytest.skip("BENCH_DATA names no folder with the real files")
    if datasets()[name].stamp(Path(folder)) is None:
        pytest.skip(f"the folder of BENCH_DATA has no files of {name}")
    return datasets()[name].load(Path(folder))


@pytest.mark.parametrize("name", COUNTS)
def test_counts_and_fingerprint(name: str) -> None:
    graph, dataset = load(name), datasets()[name]
    assert count(graph) == COUNTS[name]
    assert dataset.paper is not None and differences(dataset.paper, count(graph)) == []
    assert graph_fingerprint(graph) == dataset.fingerprint
    loops = np.repeat(np.arange(graph.num_nodes), graph.degrees) == graph.indices
    without_loops = np.bincount(np.repeat(np.arange(graph.num_nodes), graph.degrees)[~loops])
    assert without_loops.max() == LARGEST_DEGREE[name]
    sizes = np.bincount(graph.labels).tolist()
    assert sizes == CLASS_SIZES[name] if name in CLASS_SIZES else (min(sizes), max(sizes)) == (118, 4136)


def test_pubmeds_rows_sum_to_one_and_neighbours_mostly_agree() -> None:
    graph = load("pubmed")
    assert isinstance(graph.features, sp.csr_array)
    assert np.allclose(graph.features.sum(axis=1), 1, atol=1e-6)
    rows = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    same = graph.labels[rows] == graph.labels[graph.indices]
    among_test = (rows >= 18_717) & (graph.indices >= 18_717)
    # 0.80 is the published homophily; test nodes put in the wrong order would drop to a third
    assert same.mean() == pytest.approx(0.802, abs=0.001) and same[among_test].mean() > 0.7


@pytest.mark.parametrize(("name", "lowest", "highest"), [("cs", 10, 2549), ("physics", 10, 1222)])
def test_word_counts_are_kept(name: str, lowest: float, highest: float) -> None:
    sums = load(name).features.sum(axis=1)
    assert (sums.min(), sums.max()) == (lowest, highest)


@pytest.mark.parametrize("name", ["computer", "photo"])
def test_binary_features_are_ones(name: str) -> None:
    features = load(name).features
    assert isinstance(features, sp.csr_array) and (features.data == 1).all()
