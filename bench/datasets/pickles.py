"""An unpickler for data files that runs nothing: numpy arrays, scipy matrices and plain containers, no more.

Every global that such a file may name is replaced by a passive stand-in of ours. Neither numpy's nor scipy's own
restoring code sees anything from the file; what the stand-ins collected is checked and only then made into arrays.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.datasets.npz import reading
from bench.errors import BadData
from bench.text import shown

_KINDS = "biuf"  # booleans and real numbers; above all no "O", Python objects


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


class _Call:
    """A function that a pickle may call but not alter."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise _RefusedError("it wants to change a function")


class _NumberType:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str, align: object = False, copy: object = False) -> None:
        if not isinstance(code, str) or len(code) > 3 or code.lstrip("<>=|")[:1] not in tuple(_KINDS):
            raise _RefusedError(f"it holds an array of type {code!r}, and only numbers are read")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or state[2:5] != (None, None, None):
            raise _RefusedError("it describes a number type that is not plain")
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stands in for numpy.ndarray: an empty shell that is then told its shape, type and bytes."""

    values: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, content = state
        self.values = _array(content, kind, shape, "F" if fortran else "C")


class _Sparse:
    """Stands in for scipy's csr, csc and coo matrices: keeps the attributes it is told."""

    make: Callable[..., Any]
    state: dict[str, Any]

    def __setstate__(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict):
            raise _RefusedError("it describes a sparse matrix in an unknown way")
        self.state = state


def _array(content: object, kind: object, shape: object, order: str) -> np.ndarray:
    if isinstance(content, str):  # written by Python 2, whose strings were bytes
        content = content.encode("latin1")
    if not isinstance(kind, _NumberType) or not isinstance(content, bytes | bytearray) or not isinstance(shape, tuple):
        raise _RefusedError("it holds an array that is not made of plain numbers")
    if not all(isinstance(size, int) and size >= 0 for size in shape) or order not in ("C", "F"):
        raise _RefusedError("it holds an array of an impossible shape")
    return np.frombuffer(content, dtype=kind.dtype).reshape(shape, order=order)  # type: ignore[call-overload]


def _reconstruct(subtype: object, shape: object, code: object) -> _Array:
    if subtype is not _Array:
        raise _RefusedError("it restores an array of a class of its own")
    return _Array()


def _from_buffer(content: object, kind: object, shape: object, order: str) -> _Array:
    array = _Array()
    array.values = _array(content, kind, shape, order)
    return array


def _bytes(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, by which Python 3 writes bytes in the older protocols."""
    if encoding != "latin1":
        raise _RefusedError(f"it wants to encode text as {encoding!r}")
    return text.encode("latin1")


def _plain_dict(factory: object = None) -> dict[Any, Any]:
    if factory not in (None, list):
        raise _RefusedError("it holds a dictionary with a function inside")
    return {}


def _sparse_class(format: str) -> type[_Sparse]:
    return type(f"_{format}", (_Sparse,), {"make": getattr(sp, f"{format}_array")})


_ADMITTED: dict[str, Any] = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _NumberType,
    "collections.defaultdict": _Call(_plain_dict),
    "__builtin__.list": list,
    "builtins.list": list,
    "_codecs.encode": _Call(_bytes),
}
for _core in ("numpy.core", "numpy._core"):
    _ADMITTED[f"{_core}.multiarray._reconstruct"] = _Call(_reconstruct)
    _ADMITTED[f"{_core}.numeric._frombuffer"] = _Call(_from_buffer)
for _format in ("csr", "csc", "coo"):
    for _module in (f"scipy.sparse.{_format}", f"scipy.sparse._{_format}"):
        _ADMITTED[f"{_module}.{_format}_matrix"] = _ADMITTED[f"{_module}.{_format}_array"] = _sparse_class(_format)


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        wanted = f"{module}.{name}"
        if wanted not in _ADMITTED:
            raise _RefusedError(f"it asks for {wanted}, which no data file needs")
        return _ADMITTED[wanted]

    def persistent_load(self, pid: object) -> Any:
        raise _RefusedError("it refers to an object outside the file")


def _finish(found: Any) -> Any:
    """What the stand-ins collected, as the real thing."""
    if isinstance(found, _Array):
        return found.values
    if isinstance(found, _Sparse):
        return _matrix(found)
    if isinstance(found, dict):
        return {key: _finish(value) for key, value in found.items()}
    if isinstance(found, list) and all(isinstance(item, int) for item in found):
        return found
    raise _RefusedError(f"it holds a {type(found).__name__.lstrip('_')}, not an array, a matrix or lists of numbers")


def _matrix(found: _Sparse) -> Any:
    state = found.state
    shape = state.get("_shape", state.get("shape"))
    if found.make is sp.coo_array:
        row, col = state["coords"] if "coords" in state else (state["row"], state["col"])
        index: Any = (_part(row), _part(col))
        return sp.coo_array((_part(state["data"]), index), shape=shape)
    parts = (_part(state["data"]), _part(state["indices"]), _part(state["indptr"]))
    matrix = found.make(parts, shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def _part(array: object) -> np.ndarray:
    if not isinstance(array, _Array):
        raise _RefusedError("it holds a sparse matrix that is not made of arrays")
    return array.values.copy()  # what stands on bytes is read-only, and scipy sorts in place
