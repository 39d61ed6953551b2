"""Readers for the large graphs: GRAND+'s own files, and the copies of two of them, PyG's Reddit2 and ogbn-products."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from bench.datasets.canonical import RawGraph
from bench.datasets.npz import read_array, read_sparse, reading
from bench.datasets.pickles import read_pickle
from bench.errors import BadData
from bench.text import shown

_ROWS = 1 << 18  # lines of a table parsed together
_BLOCK = 1 << 16  # rows standardised together


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
    for start in range(0, len(features), _BLOCK):
        result[start : start + _BLOCK] = (features[start : start + _BLOCK] - means) / deviations
    return result


def read_reddit2(paths: list[Path]) -> RawGraph:
    """GraphSAINT's files; the roles (its own split) are not needed, because the benchmark draws its own splits."""
    adjacency, features, classes = paths
    with reading(classes):
        by_node = json.loads(classes.read_text())
        labels = np.array([by_node[str(node)] for node in range(len(by_node))])
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadData(f"{shown(classes)} does not give each node one class number")
    return RawGraph(read_sparse(adjacency), read_array(features), labels)


def read_ogbn_products(paths: list[Path]) -> RawGraph:
    """OGB's tables, each edge written once; the other direction is added by the symmetric union."""
    edges, features, labels = paths
    classes = np.concatenate(list(_table(labels, np.int64)))
    if classes.shape[1] != 1:
        raise BadData(f"{shown(labels)} must have one column")
    matrix = _features(features, len(classes))
    ends = np.concatenate(list(_table(edges, np.int32)))
    if ends.shape[1] != 2:
        raise BadData(f"{shown(edges)} must have two columns")
    with reading(edges):
        pairs = (ends[:, 0], ends[:, 1])
        adjacency = sp.coo_array((np.ones(len(ends), dtype=bool), pairs), shape=(len(classes), len(classes)))
    return RawGraph(adjacency, matrix, classes[:, 0])


def _features(path: Path, nodes: int) -> np.ndarray:
    """Filled piece by piece: the whole table would not fit beside its parsed form."""
    result = None
    filled = 0
    for block in _table(path, np.float32):
        if result is None:
            result = np.empty((nodes, block.shape[1]), dtype=np.float32)
        if filled + len(block) <= nodes:
            result[filled : filled + len(block)] = block
        filled += len(block)
    if result is None or filled != nodes:
        raise BadData(f"{shown(path)} has {filled} rows for {nodes} nodes")
    return result


def _table(path: Path, kind: type[np.generic]) -> Iterator[np.ndarray]:
    """A compressed comma-separated table of numbers without a header, in pieces."""
    import pandas

    with reading(path), pandas.read_csv(path, header=None, dtype=kind, chunksize=_ROWS, compression="gzip") as pieces:
        for piece in pieces:
            yield piece.to_numpy()
