"""Readers for numpy's own files: graphs in the gnn-benchmark npz format, scipy's save_npz, plain npy arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.datasets.canonical import RawGraph
from bench.errors import BadData
from bench.text import shown

_COMPRESSED = ("data", "indices", "indptr", "shape")  # the arrays of a compressed sparse matrix
_ADJACENCY, _FEATURES = ("adj_", "adj_matrix."), ("attr_", "attr_matrix.")  # their prefixes, two spellings


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a file is read becomes one line that names the file."""
    try:
        yield
    except BadData:
        raise
    except OSError as error:
        raise BadData(f"{shown(path)} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:  # damage may announce any length
        raise BadData(f"{shown(path)} is damaged or larger than the memory") from error
    except RuntimeError as error:  # encrypted, compressed by an unknown method, nested too deeply
        raise BadData(f"{shown(path)} cannot be read: {_one_line(error)}") from error
    except Exception as error:  # zipfile, numpy, scipy, json and pandas raise nearly everything on damaged input
        raise BadData(f"{shown(path)} is truncated or damaged: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def read_graph_npz(paths: list[Path]) -> RawGraph:
    """One npz with adj_data/adj_indices/adj_indptr/adj_shape, attr_... or a dense attr_matrix, and labels.

    The older spelling with dots (adj_matrix.data) is read too. Arrays that are not asked for are never opened.
    """
    [path] = paths
    arrays = _Archive(path)
    adjacency = arrays.sparse(*_ADJACENCY)
    features: Any = arrays.sparse(*_FEATURES)
    if features is None:
        features = arrays.get("attr_matrix")
    labels = arrays.get("labels")
    if adjacency is None or features is None or labels is None:
        lacking = [] if adjacency is not None else arrays.lacking(*_ADJACENCY)
        if features is None:
            sparse = arrays.lacking(*_FEATURES)
            begun = len(sparse) < len(_COMPRESSED)
            lacking += sparse if begun else [f"attr_matrix (or, if sparse, {', '.join(sparse)})"]
        if labels is None:
            lacking.append("labels")
        raise BadData(
            f"{shown(path)} has no array {', '.join(lacking)}; it holds {', '.join(arrays.names) or 'nothing'}"
        )
    return RawGraph(adjacency, features, labels)


def read_sparse(path: Path) -> sp.csr_array | sp.csc_array | sp.coo_array:
    """A matrix as scipy.sparse.save_npz writes it (or GraphSAINT, which leaves the format out: CSR)."""
    arrays = _Archive(path)
    matrix = arrays.coordinates() if "row" in arrays.names else arrays.sparse("")
    if matrix is None:
        raise BadData(f"{shown(path)} holds no sparse matrix as scipy's save_npz writes it")
    return matrix


def read_array(path: Path) -> np.ndarray:
    """A npy file, mapped rather than read."""
    with reading(path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise BadData(f"{shown(path)} is an archive, not a single array")
    return array


class _Archive:
    """The arrays of an npz file, each opened on demand and never unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            if not zipfile.is_zipfile(path):
                raise BadData(f"{shown(path)} is not an npz archive, or it is truncated")
            with zipfile.ZipFile(path) as archive:
                self.names = [name.removesuffix(".npy") for name in archive.namelist()]

    def get(self, name: str) -> np.ndarray | None:
        if name not in self.names:
            return None
        with reading(self.path), np.load(self.path, allow_pickle=False) as archive:
            try:
                array = archive[name]
            except ValueError as error:
                if "Object arrays" not in str(error):
                    raise
                raise BadData(
                    f"{shown(self.path)}: {name} holds Python objects, which are never loaded; save it as numbers "
                    "(labels as integers: np.unique(labels, return_inverse=True)[1])"
                ) from error
        if not isinstance(array, np.ndarray):  # numpy hands out as bytes what does not begin like an array
            raise BadData(f"{shown(self.path)}: {name} is not an array")
        return array

    def sparse(self, *prefixes: str) -> sp.csr_array | sp.csc_array | None:
        """The compressed matrix under the first prefix that has one, its indices checked; None where there is none."""
        for prefix in prefixes:
            parts = self._all(prefix + part for part in _COMPRESSED)
            if parts:
                data, indices, indptr, shape = parts
                kind = self.get(prefix + "format")
                with reading(self.path):
                    make: Any = sp.csc_array if kind is not None and kind.item() in ("csc", b"csc") else sp.csr_array
                    matrix = make((data, indices, indptr), shape=tuple(int(size) for size in shape))
                    matrix.check_format(full_check=True)
                return matrix
        return None

    def lacking(self, *prefixes: str) -> list[str]:
        """What is missing for a compressed matrix, in the spelling that lacks the least."""
        spellings = [[prefix + part for part in _COMPRESSED] for prefix in prefixes]
        return min(([name for name in names if name not in self.names] for names in spellings), key=len)

    def coordinates(self) -> sp.coo_array | None:
        parts = self._all(("data", "row", "col", "shape"))
        if not parts:
            return None
        data, row, col, shape = parts
        with reading(self.path):
            return sp.coo_array((data, (row, col)), shape=tuple(int(size) for size in shape))

    def _all(self, names: Iterable[str]) -> list[np.ndarray]:
        found = [self.get(name) for name in names]
        return [array for array in found if array is not None] if all(array is not None for array in found) else []
