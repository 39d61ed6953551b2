"""The unpickler reads data, and refuses everything that could do something."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.datasets.pickles import read_pickle
from bench.errors import BadData

ARRAYS = [
    np.arange(12, dtype=np.int32).reshape(3, 4),
    np.linspace(0, 1, 6).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(4, dtype=">i8"),
    np.array([True, False]),
]


def write(folder: Path, content: bytes) -> Path:
    path = folder / "file.pkl"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.dtype.str)
def test_arrays_of_numbers_come_back(tmp_path: Path, array: np.ndarray, protocol: int) -> None:
    found = read_pickle(write(tmp_path, pickle.dumps(array, protocol=protocol)))
    assert found.dtype == array.dtype and np.array_equal(found, array)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_matrix, sp.coo_matrix, sp.csr_array])
def test_sparse_matrices_come_back(tmp_path: Path, kind: Any) -> None:
    dense = np.array([[0, 1.5, 0], [2, 0, 0]])
    found = read_pickle(write(tmp_path, pickle.dumps(kind(dense))))
    assert np.array_equal(found.toarray(), dense)
    found.tocsr().sort_indices()  # its arrays can be written


def test_module_paths_of_old_scipy_and_numpy_are_known(tmp_path: Path) -> None:
    content = pickle.dumps(sp.csr_matrix(np.eye(3)), protocol=2)
    assert b"scipy.sparse._csr" in content
    old = content.replace(b"scipy.sparse._csr", b"scipy.sparse.csr").replace(b"numpy._core", b"numpy.core")
    assert np.array_equal(read_pickle(write(tmp_path, old)).toarray(), np.eye(3))


def test_a_defaultdict_of_lists_comes_back_as_a_dict(tmp_path: Path) -> None:
    lists = collections.defaultdict(list, {0: [1, 2], 1: [0]})
    for protocol in (2, 4):
        found = read_pickle(write(tmp_path, pickle.dumps(lists, protocol=protocol)))
        assert type(found) is dict and found == {0: [1, 2], 1: [0]}


class Calls:
    """Pickles to a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize(
    ("hostile", "asks_for"),
    [
        (Calls(os.system, "touch ran"), "posix.system"),
        (Calls(eval, "open('ran', 'w')"), "builtins.eval"),
        (Calls(getattr, "a", "upper"), "builtins.getattr"),
        (Calls(np.fromfile, "ran"), "numpy.*fromfile"),
        (Calls(np.load, "ran"), "numpy.*load"),
        (collections.OrderedDict(), "collections.OrderedDict"),
        (Path("x"), "pathlib"),
        (np.float64(1.0), ".*scalar"),
        (sp.lil_matrix(np.eye(2)), ".*lil_matrix"),
        ({0: [Calls(os.system, "touch ran")]}, "posix.system"),
    ],
)
def test_any_other_global_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: Any, asks_for: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadData, match=rf"file\.pkl is refused: it asks for {asks_for}"):
        read_pickle(write(tmp_path, pickle.dumps(hostile)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(np.array([1, "a", None], dtype=object)),
        pickle.dumps(np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])),
        pickle.dumps(np.array(["text"])),
        pickle.dumps(collections.defaultdict(int)),
        pickle.dumps("text"),
        pickle.dumps([[1], [2]]),
        pickle.dumps({0: ["a"]}),
        b"cos\nsystem\n(S'touch ran'\ntR.",  # the classic, in protocol 0
        b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00O8\x85R.",
        b"\x80\x02ccollections\ndefaultdict\n}X\x01\x00\x00\x00aK\x01sb.",  # a state for one of our own functions
        b"\x80\x02cnumpy\nndarray\n}X\x01\x00\x00\x00aK\x01sb.",  # and for one of our own classes
        b"\x80\x04\x8c\x01aQ.",  # a reference to something outside
        b"",
        b"not a pickle at all",
        b"<!DOCTYPE html><html></html>",
    ],
)
def test_what_is_not_plain_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadData, match=r"file\.pkl") as caught:
        read_pickle(write(tmp_path, content))
    assert not (tmp_path / "ran").exists() and "\n" not in str(caught.value)


MATRIX = pickle.dumps(sp.csr_matrix(np.arange(12.0).reshape(3, 4)), protocol=4)


@pytest.mark.parametrize("keep", [1, len(MATRIX) // 3, len(MATRIX) - 60, len(MATRIX) - 1])
def test_a_truncated_pickle_is_refused(tmp_path: Path, keep: int) -> None:
    with pytest.raises(BadData, match=r"file\.pkl"):
        read_pickle(write(tmp_path, MATRIX[:keep]))


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(MATRIX) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_either_noticed_or_harmless(tmp_path_factory: Any, damage: list[tuple[int, int]]) -> None:
    content = bytearray(MATRIX)
    for place, value in damage:
        content[place] = value
    try:
        found = read_pickle(write(tmp_path_factory.mktemp("damage"), bytes(content)))
    except BadData:
        return
    assert isinstance(found, np.ndarray | dict | list) or sp.issparse(found)


def test_indices_outside_the_matrix_are_refused(tmp_path: Path) -> None:
    matrix = sp.csr_matrix(np.eye(3))
    matrix.indices = matrix.indices + 5
    with pytest.raises(BadData, match="damaged"):
        read_pickle(write(tmp_path, pickle.dumps(matrix)))
