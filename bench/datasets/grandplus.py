"""Readers for the large graphs as the GRAND+ authors ship them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from bench.datasets.canonical import RawGraph
from bench.datasets.npz import read_array, read_sparse
from bench.datasets.pickles import read_pickle
from bench.errors import BadData
from bench.text import shown

_ROWS = 1 << 16  # rows standardised together


def read_arrays(paths: list[Path]) -> RawGraph:
    """Reddit and Amazon2M: a sparse npz, a feature npy, one-hot labels in a npy."""
    adjacency, features, labels = paths
    return RawGraph(read_sparse(adjacency), read_array(features), np.array(read_array(labels)))


def read_aminer(paths: list[Path]) -> RawGraph:
    """AMiner-CS: three pickles; features are standardised over all nodes, as the official code does on loading."""
    adjacency, features, labels = (read_pickle(path) for path in paths)
    if not sp.issparse(adjacency):
        raise BadData(f"{shown(paths[0])} holds no sparse matrix")
    for path, array in zip(paths[1:], (features, labels), strict=True):
        if not isinstance(array, np.ndarray) or not array.size:
            raise BadData(f"{shown(path)} holds no array")
    if features.ndim != 2:
        raise BadData(f"{shown(paths[1])} holds no matrix")
    return RawGraph(adjacency, standardise(features), labels)


def standardise(features: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and deviation 1 in float32; a constant column becomes 0."""
    means = features.mean(axis=0, dtype=np.float64)
    deviations = features.std(axis=0, dtype=np.float64)
    deviations[deviations == 0] = 1
    result = np.empty(features.shape, dtype=np.float32)
    for start in range(0, len(features), _ROWS):
        result[start : start + _ROWS] = (features[start : start + _ROWS] - means) / deviations
    return result
