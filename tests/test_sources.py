"""Raw files of every supported format become the same kind of graph, and damaged ones one clear line."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_files import NODES, small_arrays, write_aminer, write_grandplus_arrays, write_npz, write_planetoid

from bench.datasets import catalogue
from bench.datasets.canonical import RawGraph, canonical_graph, check_graph
from bench.datasets.digits import nearest_neighbours
from bench.errors import BadData, MissingData
from bench.graph import Graph

DENSE = small_arrays()[1].toarray()
LABELS = small_arrays()[2]


def expected_adjacency() -> np.ndarray:
    dense = small_arrays()[0].toarray() > 0
    return dense | dense.T


def load(name: str, root: Path | None) -> Graph:
    return catalogue.datasets()[name].load(root)


def dense_features(graph: Graph) -> np.ndarray:
    return graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()


def test_npz_is_symmetrised_and_keeps_counts_and_loops(tmp_path: Path) -> None:
    graph = catalogue.own_dataset(write_npz(tmp_path / "ring.npz")).load(None)
    assert np.array_equal(graph.adjacency().toarray() > 0, expected_adjacency())
    assert graph.num_entries == 2 * (60 + 30) + 1  # ring, chords, and the loop once
    assert np.array_equal(dense_features(graph), DENSE) and graph.features.dtype == np.float32
    assert isinstance(graph.features, sp.csr_array) and graph.indices.dtype == np.int32
    assert np.array_equal(graph.labels, LABELS) and graph.labels.dtype == np.int64
    assert (graph.name, graph.num_classes) == ("ring", 3)


def test_npz_in_the_older_spelling_and_with_dense_features(tmp_path: Path) -> None:
    adjacency, features, labels = small_arrays()
    arrays: dict[str, Any] = {"labels": labels, "attr_matrix": features.toarray()}
    arrays |= {f"adj_matrix.{part}": getattr(adjacency, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(tmp_path / "a.npz", **arrays)
    graph = catalogue.own_dataset(tmp_path / "a.npz").load(None)
    assert np.array_equal(graph.adjacency().toarray() > 0, expected_adjacency())
    assert isinstance(graph.features, np.ndarray) and np.array_equal(graph.features, DENSE)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.sampled_from([0.0, 0.5, 1.0, 3.0])), min_size=1))
def test_canonical_adjacency_is_the_symmetric_pattern(entries: list[tuple[int, int, float]]) -> None:
    rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
    pairs = {(int(i), int(j)) for i, j, v in entries if v} | {(int(j), int(i)) for i, j, v in entries if v}
    raw = RawGraph(sp.coo_array((values, (rows, columns)), shape=(8, 8)), np.ones((8, 2)), np.arange(8) % 2)
    if not pairs:
        with pytest.raises(BadData, match="empty"):
            canonical_graph("g", raw, "g")
        return
    graph = canonical_graph("g", raw, "g")
    found = [
        (node, int(other)) for node in range(8) for other in graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
    ]
    assert found == sorted(pairs)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"labels": None}, "has no array labels; it holds "),
        ({"adj_data": None}, "has no array adj_data; it holds "),
        ({"adj_data": None, "adj_shape": None, "labels": None}, "has no array adj_data, adj_shape, labels; "),
        ({"attr_shape": None}, "has no array attr_shape; "),
        (
            {f"attr_{part}": None for part in ("data", "indices", "indptr", "shape")},
            r"has no array attr_matrix \(or, if sparse, attr_data, attr_indices, attr_indptr, attr_shape\); it holds",
        ),
        ({"labels": np.array(["a"] * NODES)}, "not numbers"),
        ({"labels": np.array([None] * NODES)}, "broken.npz: labels holds Python objects, .*labels as integers: "),
        ({"labels": LABELS[:-1]}, "59 labels"),
        ({"labels": LABELS - 1}, "0 to C-1"),
        ({"labels": LABELS * 2}, "0 to C-1"),
        ({"labels": LABELS + 0.5}, "not whole numbers"),
        ({"labels": np.zeros(NODES, dtype=int)}, "fewer than two classes"),
        ({"labels": np.zeros((NODES, 2, 2))}, "3 dimensions"),
        ({"labels": np.zeros((NODES, 0))}, "the labels have no column"),
        ({"labels": LABELS * 1e300}, "0 to C-1"),
        ({"adj_format": np.array(["csr", "csr"])}, "truncated or damaged"),
        ({"adj_format": np.array([])}, "truncated or damaged"),
        ({"attr_matrix": np.full((NODES, 4), np.nan), "attr_data": None}, "NaN or infinite"),
        ({"attr_matrix": np.full((NODES, 4), 1e300), "attr_data": None}, "NaN or infinite"),
        ({"attr_matrix": np.ones((NODES - 1, 4)), "attr_data": None}, "59 rows of features"),
        ({"attr_matrix": np.ones(NODES), "attr_data": None}, "matrix of real numbers"),
        ({"attr_data": np.zeros_like(small_arrays()[1].data)}, "no feature that is not zero"),
        ({"adj_shape": (NODES, NODES + 1)}, "must be square"),
        ({"adj_indices": small_arrays()[0].indices + 1}, "truncated or damaged"),
        ({"adj_indptr": small_arrays()[0].indptr[::-1]}, "truncated or damaged"),
        ({"adj_data": small_arrays()[0].data * np.nan}, "not finite"),
        ({"adj_data": small_arrays()[0].data * 0}, "empty"),
    ],
)
def test_a_broken_npz_gets_one_line_that_names_it(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadData, match=says) as caught:
        catalogue.own_dataset(write_npz(tmp_path / "broken.npz", **changes)).load(None)
    assert "broken.npz" in str(caught.value) and "\n" not in str(caught.value)


def write_archive(path: Path, **members: bytes) -> Path:
    """The good graph with some of its members replaced by these bytes."""
    write_npz(path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content |= {f"{name}.npy": replacement for name, replacement in members.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, replacement in content.items():
            archive.writestr(name, replacement)
    return path


def npy(header: str) -> bytes:
    """The start of an npy file of version 1, whatever the header claims, and no data."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,)}"), "larger than the memory"),
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (60,)}"), "truncated or damaged"),
        (npy("{'descr': (), 'fortran_order': False, 'shape': (60,)}"), "truncated or damaged"),
        (npy("{'descr': '<i8', 'fortran_order': ((((("), "truncated or damaged"),
        (npy("[" * 9_000), "broken"),
        (b"no array at all", "labels is not an array"),
    ],
    ids=["huge", "empty", "odd type", "open brackets", "deep", "bytes"],
)
def test_a_member_that_is_no_array_is_refused(tmp_path: Path, labels: bytes, says: str) -> None:
    with pytest.raises(BadData, match=says) as caught:
        catalogue.own_dataset(write_archive(tmp_path / "broken.npz", labels=labels)).load(None)
    assert "broken.npz" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [(6, 1, "cannot be read: .*encrypted"), (8, 99, "cannot be read: .*compression"), (6, 32, "cannot be read: ")],
)
def test_an_archive_of_an_unusual_kind_is_refused(tmp_path: Path, offset: int, value: int, says: str) -> None:
    """Flags (bit 0 encryption, bit 5 patches) and compression method, in each member's own header and the directory."""
    path = write_npz(tmp_path / "exotic.npz")
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            content[member.header_offset + offset] = value
    place = content.find(b"PK\x01\x02")
    while place >= 0:
        content[place + 2 + offset] = value
        place = content.find(b"PK\x01\x02", place + 1)
    path.write_bytes(bytes(content))
    with pytest.raises(BadData, match=says) as caught:
        catalogue.own_dataset(path).load(None)
    assert "exotic.npz" in str(caught.value) and "\n" not in str(caught.value)


def test_an_empty_graph_is_refused(tmp_path: Path) -> None:
    nothing = {
        "adj_data": [],
        "adj_indices": [],
        "adj_indptr": [0],
        "adj_shape": (0, 0),
        "labels": np.zeros(0, dtype=int),
    }
    with pytest.raises(BadData, match="empty"):
        path = write_npz(tmp_path / "empty.npz", **nothing, attr_data=None, attr_matrix=np.zeros((0, 3)))
        catalogue.own_dataset(path).load(None)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_npz_is_refused(tmp_path: Path, keep: float) -> None:
    path = write_npz(tmp_path / "half.npz")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(BadData, match=r"half\.npz"):
        catalogue.own_dataset(path).load(None)


@settings(max_examples=60)
@given(st.data())
def test_a_flipped_byte_in_an_npz_never_gets_past_unnoticed(tmp_path_factory: Any, data: st.DataObject) -> None:
    path = write_npz(tmp_path_factory.mktemp("flip") / "flip.npz")
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    try:
        graph = catalogue.own_dataset(path).load(None)
    except BadData:
        return
    assert np.array_equal(graph.adjacency().toarray() > 0, expected_adjacency())  # an unused byte of the archive
    assert np.array_equal(dense_features(graph), DENSE)


def test_check_graph_names_the_rule_that_is_broken() -> None:
    indptr, indices = np.array([0, 1, 2], dtype=np.int32), np.array([1, 0], dtype=np.int32)
    good = Graph("g", indptr, indices, np.eye(2, dtype=np.float32), np.array([0, 1]), 2)
    assert check_graph(good, "g") is good
    wrong = {
        "0 to 1; they go from 0 to 2": {"labels": np.array([0, 2])},
        "float32": {"features": np.eye(2)},
    }
    for says, change in wrong.items():
        with pytest.raises(BadData, match=says):
            check_graph(Graph(**{**good.__dict__, **change}), "g")


@pytest.mark.parametrize("protocol", [2, 4])
def test_pubmed_puts_test_rows_where_the_index_says(tmp_path: Path, protocol: int) -> None:
    places = [57, 59, 55, 58, 56]
    features, labels = write_planetoid(tmp_path / "PubMed" / "raw", places, protocol)
    graph = load("pubmed", tmp_path)
    assert np.array_equal(graph.labels, labels)
    assert np.allclose(dense_features(graph), features / features.sum(axis=1, keepdims=True))
    assert np.array_equal(graph.adjacency().toarray() > 0, expected_adjacency())


def test_pubmed_with_a_wrong_test_index_is_refused(tmp_path: Path) -> None:
    write_planetoid(tmp_path / "PubMed" / "raw", [57, 59, 55, 58, 56])
    index = tmp_path / "PubMed" / "raw" / "ind.pubmed.test.index"
    for text in ("55 56 57 58 58", "55 56 57 58", "1 2 3 4 x"):
        index.write_text(text)
        with pytest.raises(BadData, match=r"ind\.pubmed\.test\.index"):
            load("pubmed", tmp_path)


@pytest.mark.parametrize(
    ("part", "content"), [("tx", sp.csr_matrix(np.ones((5, 4)))), ("ty", np.eye(4, dtype=np.int32)[[0, 1, 2, 3, 0]])]
)
def test_pubmed_files_that_do_not_fit_are_refused(tmp_path: Path, part: str, content: Any) -> None:
    folder = tmp_path / "PubMed" / "raw"
    write_planetoid(folder, [57, 59, 55, 58, 56])
    (folder / f"ind.pubmed.{part}").write_bytes(pickle.dumps(content))
    with pytest.raises(BadData, match=rf"ind\.pubmed\.{part} ") as caught:
        load("pubmed", tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_files_are_missing_data(tmp_path: Path) -> None:
    write_planetoid(tmp_path / "PubMed" / "raw", [57, 59, 55, 58, 56])
    (tmp_path / "PubMed" / "raw" / "ind.pubmed.ty").unlink()
    for root in (tmp_path, None):
        assert catalogue.datasets()["pubmed"].stamp(root) is None
        with pytest.raises(MissingData, match="pubmed"):
            load("pubmed", root)


@pytest.mark.parametrize("folder", ["reddit", "", "dataset/reddit"])
def test_reddit_from_the_grandplus_files(tmp_path: Path, folder: str) -> None:
    write_grandplus_arrays(tmp_path / folder, "reddit", classes=41)
    graph = load("reddit", tmp_path)
    assert np.array_equal(graph.adjacency().toarray() > 0, expected_adjacency())
    assert np.array_equal(dense_features(graph), DENSE) and graph.num_classes == 41
    assert np.array_equal(graph.labels, np.arange(NODES) % 41)


def test_amazon2m_from_the_grandplus_files_in_each_sparse_format(tmp_path: Path) -> None:
    write_grandplus_arrays(tmp_path / "Amazon2M", "Amazon2M", classes=47)
    adjacency = small_arrays()[0]
    for matrix in (sp.csr_array(adjacency), sp.csc_array(adjacency), sp.coo_array(adjacency)):
        sp.save_npz(tmp_path / "Amazon2M" / "Amazon2M_adj.npz", matrix)
        graph = load("amazon2m", tmp_path)
        assert np.array_equal(graph.adjacency().toarray() > 0, expected_adjacency())


def test_labels_that_are_not_one_hot_are_refused(tmp_path: Path) -> None:
    write_grandplus_arrays(tmp_path, "reddit", classes=41)
    np.save(tmp_path / "reddit_labels.npy", np.zeros((NODES, 41)))
    with pytest.raises(BadData, match="one-hot"):
        load("reddit", tmp_path)


def test_aminer_is_standardised_over_all_nodes(tmp_path: Path) -> None:
    write_aminer(tmp_path / "aminer")
    features = dense_features(load("aminer", tmp_path))
    raw = DENSE.astype(np.float64) * 3
    assert np.allclose(features, (raw - raw.mean(axis=0)) / raw.std(axis=0), atol=1e-6)
    assert np.allclose(features.mean(axis=0), 0, atol=1e-6) and np.allclose(features.std(axis=0), 1, atol=1e-6)


def write_reddit2(folder: Path) -> None:
    adjacency, features, _ = small_arrays()
    folder.mkdir(parents=True)
    parts = {part: getattr(adjacency, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(folder / "adj_full.npz", **parts)
    np.save(folder / "feats.npy", features.toarray())
    # keys in no particular order, as in the original
    classes = {str(node): node % 41 for node in np.random.RandomState(0).permutation(NODES).tolist()}
    (folder / "class_map.json").write_text(json.dumps(classes))


def test_reddit_from_pygs_reddit2_is_the_same_graph(tmp_path: Path) -> None:
    write_reddit2(tmp_path / "copy" / "Reddit2" / "raw")
    write_grandplus_arrays(tmp_path / "own" / "reddit", "reddit", classes=41)
    one, two = load("reddit", tmp_path / "copy"), load("reddit", tmp_path / "own")
    assert np.array_equal(one.indices, two.indices) and np.array_equal(one.labels, two.labels)
    assert np.array_equal(dense_features(one), dense_features(two))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"0": 1', '{"a": 1}', '{"0": [1, 2]}', "[]"])
def test_a_broken_class_map_is_refused(tmp_path: Path, text: str) -> None:
    write_reddit2(tmp_path / "Reddit2" / "raw")
    (tmp_path / "Reddit2" / "raw" / "class_map.json").write_text(text)
    with pytest.raises(BadData, match=r"class_map\.json"):
        load("reddit", tmp_path)


def write_products(folder: Path) -> None:
    adjacency, features, _ = small_arrays()
    folder.mkdir(parents=True)
    pairs = adjacency.tocoo()
    tables: dict[str, list[list[Any]]] = {
        "edge": [list(pair) for pair in zip(pairs.row.tolist(), pairs.col.tolist(), strict=True)],
        "node-feat": features.toarray().tolist(),
        "node-label": [[node % 47] for node in range(NODES)],
    }
    for name, rows in tables.items():
        text = "".join(",".join(map(str, row)) + "\n" for row in rows)
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))


def test_amazon2m_from_ogbs_products_gets_inverse_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.datasets.large._ROWS", 7)  # several pieces per table
    write_products(tmp_path / "ogbn_products" / "raw")
    graph = load("amazon2m", tmp_path)
    assert np.array_equal(graph.adjacency().toarray() > 0, expected_adjacency())
    assert np.array_equal(dense_features(graph), DENSE) and np.array_equal(graph.labels, np.arange(NODES) % 47)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("edge", "0,1\n2,x\n"),
        ("edge", "0,60\n"),
        ("edge", "0,-1\n"),
        ("edge", "1\n"),
        ("node-feat", "1,2\n"),
        ("node-label", ""),
    ],
)
def test_broken_ogb_tables_are_refused(tmp_path: Path, file: str, text: str) -> None:
    write_products(tmp_path / "ogbn_products" / "raw")
    path = tmp_path / "ogbn_products" / "raw" / f"{file}.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(BadData, match=file):
        load("amazon2m", tmp_path)
    path.write_bytes(gzip.compress(b"0,1\n" * 1000)[:-12])
    with pytest.raises(BadData, match=file):
        load("amazon2m", tmp_path)


# -- a message says where the file lies, as one would type it


def message_of(name: str, root: Path) -> str:
    with pytest.raises(BadData) as caught:
        load(name, root)
    return str(caught.value)


def test_a_message_gives_the_path_below_the_current_folder_or_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for root in (here / "data", tmp_path / "far"):
        write_npz(root / "Photo" / "raw" / "amazon_electronics_photo.npz", labels=np.full(NODES, 9))
    file = "Photo/raw/amazon_electronics_photo.npz"
    assert message_of("photo", here / "data").startswith(f"data/{file}: ")
    assert message_of("photo", Path("data")).startswith(f"data/{file}: ")
    assert message_of("photo", Path("../far")).startswith(f"../far/{file}: ")
    assert message_of("photo", tmp_path / "far").startswith(f"{tmp_path}/far/{file}: ")


def test_every_reader_says_where_its_file_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_aminer(Path("a/aminer"))
    Path("a/aminer/aminer.labels.pkl").write_bytes(b"broken")
    assert message_of("aminer", Path("a")).startswith("a/aminer/aminer.labels.pkl is ")
    Path("a/aminer/aminer.labels.pkl").write_bytes(pickle.dumps([1, 2]))
    assert message_of("aminer", Path("a")) == "a/aminer/aminer.labels.pkl holds no array"
    write_planetoid(Path("p/PubMed/raw"), [57, 59, 55, 58, 56])
    Path("p/PubMed/raw/ind.pubmed.graph").write_bytes(pickle.dumps([1, 2]))
    assert message_of("pubmed", Path("p")) == "p/PubMed/raw/ind.pubmed.graph holds no dictionary of neighbour lists"
    write_reddit2(Path("r/Reddit2/raw"))
    Path("r/Reddit2/raw/class_map.json").write_text("{}")
    assert message_of("reddit", Path("r")).startswith("r/Reddit2/raw/class_map.json does not give")
    Path("r/Reddit2/raw/class_map.json").write_text(json.dumps({str(node): 50 for node in range(NODES)}))
    assert message_of("reddit", Path("r")).startswith("reddit (r/Reddit2/raw/adj_full.npz and its companions): ")
    write_products(Path("o/ogbn_products/raw"))
    Path("o/ogbn_products/raw/edge.csv.gz").write_bytes(gzip.compress(b"0\n"))
    assert message_of("amazon2m", Path("o")) == "o/ogbn_products/raw/edge.csv.gz must have two columns"


def test_nearest_neighbours_break_ties_by_number() -> None:
    points = np.array([[0, 0], [2, 0], [0, 2], [2, 2], [10, 10]])
    assert nearest_neighbours(points, 1).tolist() == [[1], [0], [0], [1], [3]]
    assert nearest_neighbours(points, 2).tolist() == [[1, 2], [0, 3], [0, 3], [1, 2], [1, 3]]


def test_digits_are_real_and_neighbours_mostly_agree() -> None:
    graph = load("digits", None)
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (1797, 64, 10)
    assert graph.features.min() == 0 and graph.features.max() == 1
    assert graph.degrees.min() >= 8
    rows = np.repeat(np.arange(1797), graph.degrees)
    assert (graph.labels[rows] == graph.labels[graph.indices]).mean() > 0.95
