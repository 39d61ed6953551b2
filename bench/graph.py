"""The nouns of the data: a graph with its features and labels, and a split of its nodes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

UNKNOWN_LABEL = -1


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected, unweighted graph in CSR form; every edge is stored in both directions, a self-loop once."""

    name: str
    indptr: np.ndarray  # int32 (int64 from 2^31 entries on), length N + 1
    indices: np.ndarray  # same type as indptr; ascending within a row, no duplicates
    features: np.ndarray | sp.csr_array  # float32, N x d; sparse stays sparse
    labels: np.ndarray  # int64, length N; UNKNOWN_LABEL where the reader may not know
    num_classes: int
    fingerprint: str = ""
    masks: np.ndarray | None = None  # uint8, public splits x N: which part a node is in, see bench/splits.py

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_entries(self) -> int:
        """Stored adjacency entries: each undirected edge counts twice, each self-loop once."""
        return len(self.indices)

    @property
    def num_features(self) -> int:
        return int(self.features.shape[1])

    @property
    def degrees(self) -> np.ndarray:
        return np.diff(self.indptr)

    def adjacency(self) -> sp.csr_array:
        """The adjacency matrix as scipy sees it, with ones as values."""
        values = np.ones(self.num_entries, dtype=np.float32)
        return sp.csr_array((values, self.indices, self.indptr), shape=(self.num_nodes, self.num_nodes))

    def with_labels(self, labels: np.ndarray) -> Graph:
        return replace(self, labels=labels)


PARTS = ("train", "val", "test")  # of a split; masks number them from 1


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint, ascending index arrays (int64) and where they come from."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    rule: str
    seed: int

    @property
    def fingerprint(self) -> str:
        return _digest([self.train, self.val, self.test], {"rule": self.rule})


def graph_fingerprint(graph: Graph) -> str:
    """A hash of what the graph contains; neither its name nor the way it is stored matters."""
    features = graph.features
    parts = [graph.indptr.astype(np.int64), graph.indices, graph.labels.astype(np.int64)]
    if sp.issparse(features):
        parts += [features.indptr.astype(np.int64), features.indices.astype(np.int32), features.data]
    else:
        parts.append(features)
    return _digest(parts, {"classes": graph.num_classes, "features": list(features.shape)})


def _digest(arrays: list[np.ndarray], header: dict[str, object]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B"))
    return digest.hexdigest()[:32]
