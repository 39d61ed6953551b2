"""Reader for Planetoid's Pubmed: eight files, most of them pickles of Python 2."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.datasets.canonical import RawGraph
from bench.datasets.npz import reading
from bench.datasets.pickles import read_pickle
from bench.errors import BadData
from bench.text import shown


def read_pubmed(paths: list[Path]) -> RawGraph:
    """x and y repeat the first rows of allx and ally; test rows lie at the places that test.index names."""
    by_part = {path.name.split(".", 2)[2]: path for path in paths}
    known, unknown = _features(by_part["allx"]), _features(by_part["tx"])
    known_labels, unknown_labels = _one_hot(by_part["ally"]), _one_hot(by_part["ty"])
    places = _test_places(by_part["test.index"], known.shape[0], unknown.shape[0])
    if (known.shape[0], unknown.shape[0]) != (len(known_labels), len(unknown_labels)):
        raise BadData(f"{shown(by_part['ally'])} and .ty do not fit the feature files .allx and .tx beside them")
    for part, first, second in (("tx", known, unknown), ("ty", known_labels, unknown_labels)):
        if first.shape[1] != second.shape[1]:
            raise BadData(f"{shown(by_part[part])} has {second.shape[1]} columns instead of {first.shape[1]}")
    order = np.concatenate([np.arange(known.shape[0]), places])
    features = sp.vstack([known, unknown], format="csr")[np.argsort(order)]
    labels = np.concatenate([known_labels, unknown_labels])[np.argsort(order)]
    adjacency = _adjacency(by_part["graph"], len(labels))
    return RawGraph(adjacency, divide_by_row_sums(features), labels)


def divide_by_row_sums(features: sp.csr_array) -> sp.csr_array:
    """Rows that sum to one; a row of zeros stays as it is.

    The sums are added up in the features' precision: the recorded fingerprint is of what that gives.
    """
    sums = np.asarray(features.sum(axis=1)).reshape(-1).astype(np.float64)
    scale = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums != 0)
    return sp.csr_array(sp.diags_array(scale) @ features)


def _features(path: Path) -> sp.csr_array:
    matrix = read_pickle(path)
    if isinstance(matrix, np.ndarray | dict | list):
        raise BadData(f"{shown(path)} holds no sparse matrix")
    return matrix.tocsr()


def _one_hot(path: Path) -> np.ndarray:
    array = read_pickle(path)
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        raise BadData(f"{shown(path)} holds no matrix of labels")
    return array


def _test_places(path: Path, first: int, count: int) -> np.ndarray:
    with reading(path):
        places = np.array([int(line) for line in path.read_text().split()], dtype=np.int64)
    if not np.array_equal(np.sort(places), np.arange(first, first + count)):
        raise BadData(f"{shown(path)} must name each of the nodes {first} to {first + count - 1} once")
    return places


def _adjacency(path: Path, nodes: int) -> sp.coo_array:
    neighbours: Any = read_pickle(path)
    if not isinstance(neighbours, dict) or not all(isinstance(row, list) for row in neighbours.values()):
        raise BadData(f"{shown(path)} holds no dictionary of neighbour lists")
    with reading(path):
        rows = np.repeat(
            np.fromiter(neighbours.keys(), dtype=np.int64), [len(listed) for listed in neighbours.values()]
        )
        columns = np.fromiter(chain.from_iterable(neighbours.values()), dtype=np.int64)
        return sp.coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(nodes, nodes))
