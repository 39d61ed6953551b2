"""Small files in the formats that datasets are shipped in, for the tests that read them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

NODES = 60


def small_arrays(
    classes: int = 3, features: int = 5, nodes: int = NODES
) -> tuple[sp.csr_array, sp.csr_array, np.ndarray]:
    """A one-way ring with chords and a self-loop, sparse features without an empty row, all classes in turn."""
    rows = np.concatenate([np.arange(nodes), np.arange(nodes // 2), [7]])
    columns = np.concatenate([(np.arange(nodes) + 1) % nodes, np.arange(nodes // 2) + nodes // 2, [7]])
    adjacency = sp.csr_array((np.ones(len(rows), dtype=np.float32), (rows, columns)), shape=(nodes, nodes))
    dense = np.zeros((nodes, features), dtype=np.float32)
    dense[np.arange(nodes), np.arange(nodes) % features] = 1 + np.arange(nodes) % 4
    return adjacency, sp.csr_array(dense), np.arange(nodes) % classes


def write_npz(path: Path, **changes: Any) -> Path:
    """A graph in the gnn-benchmark format; a change of None leaves the array out."""
    adjacency, features, labels = small_arrays()
    arrays: dict[str, Any] = {"labels": labels}
    for prefix, matrix in {"adj": adjacency, "attr": features}.items():
        arrays |= {f"{prefix}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    arrays |= changes
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def write_grandplus_arrays(folder: Path, name: str, classes: int) -> None:
    """Reddit and Amazon2M as the GRAND+ authors ship them."""
    adjacency, features, labels = small_arrays(classes)
    folder.mkdir(parents=True, exist_ok=True)
    sp.save_npz(folder / f"{name}_adj.npz", sp.csr_matrix(adjacency))
    np.save(folder / f"{name}_feat.npy", features.toarray().astype(np.float64))
    np.save(folder / f"{name}_labels.npy", np.eye(classes)[labels])


def write_aminer(folder: Path, protocol: int = 4) -> None:
    adjacency, features, labels = small_arrays(classes=18)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"adj.sp": sp.csr_matrix(adjacency), "features": features.toarray() * 3.0, "labels": np.eye(18)[labels]}
    for part, value in parts.items():
        (folder / f"aminer.{part}.pkl").write_bytes(pickle.dumps(value, protocol=protocol))


def write_planetoid(folder: Path, places: list[int], protocol: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """The eight Pubmed files of a small graph whose last nodes are the test nodes; returns features and labels."""
    adjacency, features, labels = small_arrays()
    dense, count = features.toarray(), len(places)
    one_hot = np.eye(3, dtype=np.int32)[labels]
    known = NODES - count
    coordinates = adjacency.tocoo()
    neighbours: dict[int, list[int]] = {node: [] for node in range(NODES)}
    for row, column in zip(coordinates.row.tolist(), coordinates.col.tolist(), strict=True):
        neighbours[row].append(column)
    parts = {
        "x": sp.csr_matrix(dense[:6]),
        "y": one_hot[:6],
        "allx": sp.csr_matrix(dense[:known]),
        "ally": one_hot[:known],
        "tx": sp.csr_matrix(dense[places]),
        "ty": one_hot[places],
        "graph": neighbours,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for part, value in parts.items():
        (folder / f"ind.pubmed.{part}").write_bytes(pickle.dumps(value, protocol=protocol))
    (folder / "ind.pubmed.test.index").write_text("\n".join(map(str, places)) + "\n")
    return dense, labels
