"""From what a file says to the one form every graph has here, and the checks that every graph must pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.errors import BadData
from bench.graph import PARTS, Graph

_BLOCK = 1 << 22  # numbers looked at together, so that checking a large graph needs no second copy of it


@dataclass
class RawGraph:
    """What a reader found in its files: nothing is symmetrised, merged, cast or checked yet."""

    adjacency: Any  # scipy sparse, any format; every stored entry other than zero is an edge
    features: Any  # numpy array or scipy sparse
    labels: np.ndarray  # one integer per node, or one row per node with a single maximum (one-hot)
    masks: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # train, val, test: of N, or of splits x N booleans


def canonical_graph(name: str, raw: RawGraph, where: str, num_classes: int | None = None) -> Graph:
    """Symmetric union, unweighted, duplicates merged, self-loops as shipped; features float32, labels int64.

    `where` stands in messages. Without `num_classes` the labels must use every class from 0 to the largest.
    """
    labels = class_numbers(raw.labels, where)
    if num_classes is None:
        num_classes = _count_classes(labels, where)
    indptr, indices = _symmetric_union(raw.adjacency, where)
    features = as_features(raw.features, where)
    masks = None if raw.masks is None else _public_splits(raw.masks, len(labels), where)
    return check_graph(Graph(name, indptr, indices, features, labels, num_classes, masks=masks), where)


def _public_splits(masks: tuple[np.ndarray, np.ndarray, np.ndarray], num_nodes: int, where: str) -> np.ndarray:
    """One row per split with the part of each node, 0 where it is in none."""
    parts = [np.atleast_2d(np.asarray(mask)) for mask in masks]
    if {part.shape for part in parts} != {(len(parts[0]), num_nodes)} or any(part.dtype != bool for part in parts):
        shapes = ", ".join(f"{part.dtype} {part.shape}" for part in parts)
        raise BadData(f"{where}: train, val and test masks must be booleans of {num_nodes} nodes each, not {shapes}")
    stacked = np.stack(parts)
    if (stacked.sum(axis=0) > 1).any():
        raise BadData(f"{where}: its masks overlap: a node is in two of train, val and test")
    for name, part in zip(PARTS, parts, strict=True):
        if not part.any(axis=1).all():
            raise BadData(f"{where}: a {name} mask has no node")
    return np.where(stacked.any(axis=0), stacked.argmax(axis=0) + 1, 0).astype(np.uint8)


def class_numbers(labels: np.ndarray, where: str) -> np.ndarray:
    """Labels as int64 class numbers, from integers or from one-hot rows."""
    if labels.dtype.kind not in "biuf":
        raise BadData(f"{where}: the labels are of type {labels.dtype}, not numbers")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        if labels.shape[1] == 0:
            raise BadData(f"{where}: the labels have no column")
        top = labels.max(axis=1, keepdims=True)
        if not ((labels == top).sum(axis=1) == 1).all():
            raise BadData(f"{where}: a row of the one-hot labels names no class or several")
        return labels.argmax(axis=1).astype(np.int64)
    if labels.ndim != 1:
        raise BadData(f"{where}: the labels have {labels.ndim} dimensions instead of one")
    if labels.dtype.kind == "f" and not (np.isfinite(labels).all() and (labels == np.floor(labels)).all()):
        raise BadData(f"{where}: the labels are not whole numbers")
    with np.errstate(invalid="ignore"):  # what does not fit becomes negative, which the check then names
        return labels.astype(np.int64)


def as_features(features: Any, where: str) -> np.ndarray | sp.csr_array:
    """Features as float32; sparse ones as CSR with ascending columns, no duplicates and no stored zeros."""
    if features.dtype.kind not in "biuf" or features.ndim != 2:
        raise BadData(f"{where}: the features must be a matrix of real numbers")
    with np.errstate(over="ignore"):  # what does not fit becomes infinite, which the check then names
        if isinstance(features, np.ndarray):
            return np.ascontiguousarray(features, dtype=np.float32)
        matrix: Any = sp.csr_array(features.astype(np.float32))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def check_graph(graph: Graph, where: str) -> Graph:
    """The graph itself if its parts fit and its values are usable; otherwise BadData says what is wrong.

    That its adjacency is symmetric, ascending and without duplicates is due to how it was made.
    """
    problem = _shape_problem(graph) or _value_problem(graph)
    if problem:
        raise BadData(f"{where}: {problem}")
    return graph


def _count_classes(labels: np.ndarray, where: str) -> int:
    present = np.unique(labels)
    if len(present) and (present[0] != 0 or present[-1] != len(present) - 1):
        raise BadData(
            f"{where}: the labels must be 0 to C-1 with every class in use; "
            f"there are {len(present)} different ones between {present[0]} and {present[-1]}"
        )
    return len(present)


def _symmetric_union(adjacency: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise BadData(f"{where}: the adjacency has the shape {adjacency.shape}; it must be square")
    if adjacency.data.dtype.kind not in "biuf" or not np.isfinite(adjacency.data).all():
        raise BadData(f"{where}: the adjacency's values are not finite numbers")
    rows = adjacency.astype(bool).tocsr()  # as booleans, adding is "or" and nothing overflows
    rows.sum_duplicates()
    rows.eliminate_zeros()
    columns = rows.T.tocsr()
    if not (np.array_equal(rows.indptr, columns.indptr) and np.array_equal(rows.indices, columns.indices)):
        rows = (rows + columns).tocsr()
    del columns
    kind = np.int32 if rows.nnz < 2**31 else np.int64
    return rows.indptr.astype(kind, copy=False), rows.indices.astype(kind, copy=False)


def _shape_problem(graph: Graph) -> str:
    nodes = graph.num_nodes
    if nodes < 1 or graph.num_entries < 1:
        return "the graph is empty: it has no node or no edge"
    if graph.features.shape[0] != nodes or len(graph.labels) != nodes:
        return (
            f"the parts do not fit: {nodes} nodes in the adjacency, {graph.features.shape[0]} rows of features, "
            f"{len(graph.labels)} labels"
        )
    if graph.features.dtype != np.float32 or graph.labels.dtype != np.int64:
        return "features must be float32 and labels int64"
    if graph.num_features == 0 or (isinstance(graph.features, sp.csr_array) and graph.features.nnz == 0):
        return "there is no feature that is not zero"
    if graph.num_classes < 2 or graph.labels.min() == graph.labels.max():
        return "there are fewer than two classes"
    if graph.labels.min() < 0 or graph.labels.max() >= graph.num_classes:
        lowest, highest = graph.labels.min(), graph.labels.max()
        return f"labels must lie in 0 to {graph.num_classes - 1}; they go from {lowest} to {highest}"
    return ""


def _value_problem(graph: Graph) -> str:
    features = graph.features
    values = (features.data if isinstance(features, sp.csr_array) else features).reshape(-1)
    for start in range(0, len(values), _BLOCK):
        if not np.isfinite(values[start : start + _BLOCK]).all():
            return "the features hold NaN or infinite values"
    if isinstance(features, sp.csr_array) and features.indices.max() >= features.shape[1]:
        return "the features name a column that does not exist"
    return ""
