"""The store: parsed once, mapped after, labels apart, whole or not at all."""

from __future__ import annotations

import json
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
import scipy.sparse as sp
from raw_files import write_aminer, write_npz

from bench.datasets import fetch as fetching
from bench.datasets.catalogue import Dataset, datasets, own_dataset
from bench.datasets.store import Stored, cache_root, data_roots, find_root, open_arrays, open_dataset
from bench.errors import BadData, MissingData, UserError
from bench.graph import UNKNOWN_LABEL, Graph, graph_fingerprint


@pytest.fixture
def own(tmp_path: Path) -> Dataset:
    return own_dataset(write_npz(tmp_path / "mine.npz"))


def counting(dataset: Dataset) -> tuple[Dataset, list[int]]:
    calls: list[int] = []

    def load(root: Path | None) -> Graph:
        calls.append(1)
        return dataset.load(root)

    return replace(dataset, load=load), calls


def is_mapped(array: Any) -> bool:
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "base", None)
    return array is not None


def same(one: Graph, two: Graph) -> bool:
    return graph_fingerprint(one) == graph_fingerprint(two)


def test_what_is_opened_is_what_was_loaded(own: Dataset, tmp_path: Path) -> None:
    loaded = own.load(None)
    for _ in range(2):
        stored = open_dataset(own, None, tmp_path / "cache")
        assert same(stored.graph, loaded) and stored.graph.fingerprint == graph_fingerprint(loaded)
        assert (stored.graph.name, stored.graph.num_classes) == ("mine", 3)
        assert stored.folder == tmp_path / "cache" / "graphs" / f"mine-{stored.graph.fingerprint[:12]}"


def test_the_second_time_nothing_is_parsed_or_hashed(
    own: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, calls = counting(own)
    open_dataset(dataset, None, tmp_path / "cache")
    monkeypatch.setattr("bench.datasets.store.graph_fingerprint", lambda graph: pytest.fail("hashed again"))
    open_dataset(dataset, None, tmp_path / "cache")
    assert calls == [1]


def test_a_changed_file_is_parsed_again_and_the_old_graph_stays(own: Dataset, tmp_path: Path) -> None:
    old = open_dataset(own, None, tmp_path / "cache")
    write_npz(tmp_path / "mine.npz", labels=np.arange(60) % 2)
    new = open_dataset(own, None, tmp_path / "cache")
    assert new.graph.fingerprint != old.graph.fingerprint and new.graph.num_classes == 2
    assert old.folder.exists() and same(old.graph, open_arrays(old.folder).with_labels(old.graph.labels))


def test_arrays_are_mapped_and_cannot_be_written(own: Dataset, tmp_path: Path) -> None:
    graph = open_dataset(own, None, tmp_path / "cache").graph
    assert isinstance(graph.features, sp.csr_array)
    for array in (graph.indptr, graph.indices, graph.features.data, graph.features.indices):
        assert not array.flags.writeable and is_mapped(array)
    product = graph.features @ np.ones((5, 2), dtype=np.float32)  # scipy works on the maps as they are
    assert np.array_equal(product[:, 0], graph.features.sum(axis=1))


def test_a_worker_gets_no_label(own: Dataset, tmp_path: Path) -> None:
    stored = open_dataset(own, None, tmp_path / "cache")
    seen = open_arrays(stored.folder)
    assert (seen.labels == UNKNOWN_LABEL).all() and len(seen.labels) == 60 and seen.num_classes == 3
    assert seen.fingerprint == stored.graph.fingerprint
    files = {path.name for path in stored.folder.iterdir()}
    assert files == {
        "graph.json", "indptr.npy", "indices.npy", "features_data.npy", "features_indices.npy", "features_indptr.npy",
    }  # fmt: skip
    labels = stored.graph.labels.tobytes()
    assert not any(labels in path.read_bytes() for path in stored.folder.iterdir())


def test_dense_features_stay_dense(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "dense.npz", attr_data=None, attr_matrix=np.arange(240.0).reshape(60, 4))
    features = open_dataset(own_dataset(path), None, tmp_path / "cache").graph.features
    assert isinstance(features, np.ndarray) and np.array_equal(features, np.arange(240.0).reshape(60, 4))


@pytest.mark.parametrize("damage", ["indices.npy", "graph.json", "folder", "labels", "empty indices", "empty labels"])
def test_a_damaged_or_cleared_store_is_made_again(own: Dataset, tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "cache"
    stored = open_dataset(own, None, cache)
    if damage == "folder":
        for path in stored.folder.iterdir():
            path.unlink()
        stored.folder.rmdir()
    elif damage == "labels":
        next((cache / "labels").iterdir()).unlink()
    elif damage == "empty labels":
        next((cache / "labels").iterdir()).write_bytes(b"")
    elif damage == "empty indices":
        (stored.folder / "indices.npy").write_bytes(b"")
    else:
        (stored.folder / damage).write_bytes((stored.folder / damage).read_bytes()[:100])
    assert same(open_dataset(own, None, cache).graph, own.load(None))


def test_a_folder_of_another_version_is_not_trusted(own: Dataset, tmp_path: Path) -> None:
    stored = open_dataset(own, None, tmp_path / "cache")
    facts = json.loads((stored.folder / "graph.json").read_text())
    (stored.folder / "graph.json").write_text(json.dumps({**facts, "format": 0}))
    with pytest.raises(BadData, match="another version"):
        open_arrays(stored.folder)
    assert open_dataset(own, None, tmp_path / "cache").graph.num_nodes == 60


def test_a_write_that_fails_leaves_nothing_behind(
    own: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = np.save

    def full(path: Path, array: np.ndarray, **options: Any) -> None:
        if path.name == "features_indices.npy":
            raise OSError(28, "No space left on device")
        save(path, array, **options)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match=r"No space left on device.*BENCH_CACHE"):
        open_dataset(own, None, tmp_path / "cache")
    left = [path for path in (tmp_path / "cache" / "graphs").iterdir() if path.is_dir()]
    assert left == [] and not (tmp_path / "cache" / "stamps").exists()
    monkeypatch.undo()
    assert open_dataset(own, None, tmp_path / "cache").graph.num_nodes == 60


def test_everything_is_on_the_disk_before_it_gets_its_name(
    own: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename may outlive a power cut that the content does not: arrays of zeros under a good fingerprint."""
    safe: set[Path] = set()
    named: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        safe.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    def checked(move: Any) -> Any:
        def call(path: Path, target: Path) -> Path:
            inside = list(path.iterdir()) if path.is_dir() else []
            assert {path, *inside} <= safe
            named.append(target.parent.name)
            return move(path, target)

        return call

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", checked(Path.rename))
    monkeypatch.setattr(Path, "replace", checked(Path.replace))
    open_dataset(own, None, tmp_path.resolve() / "cache")
    assert sorted(named) == ["graphs", "labels", "stamps"]


@pytest.mark.parametrize("place", ["labels", "graphs", "stamps"])
def test_a_disk_that_fails_leaves_no_draft(
    own: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fail(descriptor: int) -> None:
        if place in Path(f"/proc/self/fd/{descriptor}").readlink().parts:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=r"Input/output error.*BENCH_CACHE"):
        open_dataset(own, None, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache" / place).iterdir() if path.name != ".mine.lock"] == []


def test_a_bad_download_is_not_named_by_its_temporary_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_OFFLINE", raising=False)
    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))

    def download(dataset: Dataset, url: str, target: Path) -> None:
        write_npz(target, labels=np.full(60, 9))

    monkeypatch.setattr(fetching, "_download", download)
    with pytest.raises(MissingData, match=r"\(Photo/raw/amazon_electronics_photo\.npz: ") as caught:
        open_dataset(datasets()["photo"], None, tmp_path / "cache")
    assert ".download-" not in str(caught.value)


def test_a_full_disk_is_not_blamed_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_OFFLINE", raising=False)
    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetching, "_answers", lambda url: True)
    monkeypatch.setattr(fetching, "_unreachable", set())

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", full)
    with pytest.raises(BadData, match=r"Photo cannot be kept.*No space left on device"):  # the other datasets go on
        open_dataset(datasets()["photo"], None, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_said(own: Dataset, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(UserError, match="BENCH_CACHE"):
        open_dataset(own, None, tmp_path / "cache")


def test_many_at_once_parse_only_once(own: Dataset, tmp_path: Path) -> None:
    dataset, calls = counting(own)

    def open_it(_: int) -> Stored:
        return open_dataset(dataset, None, tmp_path / "cache")

    with ThreadPoolExecutor(4) as pool:
        graphs = list(pool.map(open_it, range(4)))
    assert calls == [1] and len({stored.graph.fingerprint for stored in graphs}) == 1


def test_data_folders_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "b"))
    assert cache_root() == tmp_path / "cache"
    assert data_roots(tmp_path / "a") == [tmp_path / "a", tmp_path / "b", tmp_path / "cache" / "raw"]
    (tmp_path / "a").mkdir()
    aminer = datasets()["aminer"]
    assert find_root(aminer, tmp_path / "a", cache_root()) is None
    for folder in ("cache/raw", "b", "a"):
        write_aminer(tmp_path / folder / "aminer")
        assert find_root(aminer, tmp_path / "a", cache_root()) == tmp_path / folder
    monkeypatch.delenv("BENCH_DATA")
    assert data_roots(None) == [tmp_path / "cache" / "raw"]
    with pytest.raises(UserError, match="does not exist"):
        find_root(aminer, tmp_path / "nowhere", cache_root())


def test_the_same_content_from_two_places_is_stored_once(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_aminer(tmp_path / folder / "aminer")
    folders = {
        open_dataset(datasets()["aminer"], tmp_path / root, tmp_path / "cache").folder for root in ("one", "two")
    }
    assert len(folders) == 1
