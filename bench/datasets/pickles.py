"""An unpickler for data files that runs nothing: numpy arrays, scipy matrices and plain containers, no more.

Whatever such a file names is replaced by a passive stand-in that only remembers what it was given. Neither numpy's nor
scipy's own restoring code sees anything from the file; what was remembered is checked and only then made into arrays.
"""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.datasets.npz import reading
from bench.errors import BadData
from bench.text import shown

_KINDS = "biuf"  # booleans and real numbers; above all no "O", Python objects
_ARRAYS = {  # by the function that restores one; numpy has called its modules by two names
    f"{core}.{function}"
    for core in ("numpy.core", "numpy._core")
    for function in ("multiarray._reconstruct", "numeric._frombuffer")
}
_MATRICES = {  # by class; so has scipy
    f"scipy.sparse.{module}.{format}_{kind}": format
    for format in ("csr", "csc", "coo")
    for module in (format, f"_{format}")
    for kind in ("matrix", "array")
}
_NAMED = {"numpy.ndarray", "numpy.dtype", "collections.defaultdict", "_codecs.encode", *_ARRAYS, *_MATRICES}
_LISTS = ("__builtin__.list", "builtins.list")


def read_pickle(path: Path) -> Any:
    """The array, sparse matrix or dict of lists that a pickle holds; anything else in it is refused."""
    with reading(path), path.open("rb") as file:
        try:
            return _finish(_DataUnpickler(file, encoding="latin1").load())
        except _RefusedError as error:
            raise BadData(f"{shown(path)} is refused: {error}") from error
        except (pickle.UnpicklingError, AttributeError, IndexError, struct.error, RecursionError) as error:
            raise BadData(f"{shown(path)} is not a whole pickle: {' '.join(str(error).split())}") from error


class _RefusedError(Exception):
    """The file asks for something that data does not need."""


class _StandIn(dict[Any, Any]):
    """For a class or a function that a file names: remembers arguments, state and items, and does nothing with them."""

    path = ""
    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        wanted = f"{module}.{name}"
        if wanted in _LISTS:
            return list
        if wanted not in _NAMED:
            raise _RefusedError(f"it asks for {wanted}, which no data file needs")
        return type(name, (_StandIn,), {"path": wanted})  # a new one each time: what the file does to it is forgotten

    def persistent_load(self, pid: object) -> Any:
        raise _RefusedError("it refers to an object outside the file")


def _finish(found: Any) -> Any:
    """What the stand-ins remember, as the real thing."""
    path = getattr(found, "path", "") if isinstance(found, _StandIn) else ""
    if path in _ARRAYS:
        return _array(found)
    if path in _MATRICES:
        return _matrix(found)
    if path == "collections.defaultdict" and found.arguments not in ((), (None,), (list,)):
        raise _RefusedError("it holds a dictionary with a function inside")
    if type(found) is dict or path == "collections.defaultdict":
        return {key: _finish(value) for key, value in found.items()}
    if isinstance(found, list) and all(isinstance(item, int) for item in found):
        return found
    raise _RefusedError(f"it holds a {type(found).__name__}, not an array, a matrix or lists of numbers")


def _array(found: object) -> np.ndarray:
    if not isinstance(found, _StandIn) or found.path not in _ARRAYS:
        raise _RefusedError("it holds a sparse matrix that is not made of arrays")
    if found.path.endswith("_frombuffer"):
        content, kind, shape, order = found.arguments
    else:
        if getattr(found.arguments[0], "path", "") != "numpy.ndarray":
            raise _RefusedError("it restores an array of another class")
        _, shape, kind, fortran, content = found.state
        order = "F" if fortran else "C"
    content, kind = _content(content), _number_type(kind)
    if not isinstance(shape, tuple) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise _RefusedError("it holds an array of an impossible shape")
    return np.frombuffer(content, dtype=kind).reshape(shape, order="F" if order == "F" else "C")


def _content(content: object) -> bytes | bytearray:
    """The bytes of an array; the older protocols write them as text."""
    if isinstance(content, _StandIn) and content.path == "_codecs.encode":
        content, encoding = content.arguments
        if encoding != "latin1":
            raise _RefusedError(f"it wants to encode text as {encoding!r}")
    if isinstance(content, str):  # also as written by Python 2, whose strings were bytes
        content = content.encode("latin1")
    if not isinstance(content, bytes | bytearray):
        raise _RefusedError("it holds an array that is not made of plain numbers")
    return content


def _number_type(found: object) -> np.dtype[Any]:
    if not isinstance(found, _StandIn) or found.path != "numpy.dtype":
        raise _RefusedError("it holds an array that is not made of plain numbers")
    code, state = found.arguments[0], found.state
    if not isinstance(code, str) or len(code) > 3 or code.lstrip("<>=|")[:1] not in tuple(_KINDS):
        raise _RefusedError(f"it holds an array of type {code!r}, and only numbers are read")
    if not isinstance(state, tuple) or len(state) < 5 or state[2:5] != (None, None, None):
        raise _RefusedError("it describes a number type that is not plain")
    kind: np.dtype[Any] = np.dtype(code)
    return kind.newbyteorder(state[1]) if state[1] in ("<", ">") else kind


def _matrix(found: _StandIn) -> Any:
    format, state = _MATRICES[found.path], found.state
    if not isinstance(state, dict):
        raise _RefusedError("it describes a sparse matrix in an unknown way")
    make, shape = getattr(sp, f"{format}_array"), state.get("_shape", state.get("shape"))
    if format == "coo":
        row, col = state["coords"] if "coords" in state else (state["row"], state["col"])
        return make((_part(state["data"]), (_part(row), _part(col))), shape=shape)
    matrix = make(tuple(_part(state[name]) for name in ("data", "indices", "indptr")), shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def _part(array: object) -> np.ndarray:
    return _array(array).copy()  # what stands on bytes is read-only, and scipy sorts in place
