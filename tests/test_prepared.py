"""The cache of prepared arrays: what is measured and what is reused, what goes first, and what a crash leaves."""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph, random_split

from bench.prepared import Arrays, PrepareCache, as_tensor, list_entries, private_folder
from bench.registry import find_model
from bench.source_code import hash_file


class Maker:
    """Computes a bundle of about `size` bytes and counts how often it had to."""

    def __init__(self, size: int = 800, value: float = 1.0) -> None:
        self.size, self.value, self.calls = size, value, 0

    def __call__(self) -> Arrays:
        self.calls += 1
        return {"table": np.full(self.size // 8, self.value), "order": np.arange(3, dtype=np.int32)}


def visible(folder: Path) -> list[str]:
    """Everything in the folder, hidden drafts included, but for the lock files."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".locks")


def kept(folder: Path) -> set[str]:
    return {str(entry.depends_on["which"]) for entry in list_entries(folder)}


def fill(folder: Path, names: str) -> None:
    """Entries of about 10,000 bytes, the first of them used longest ago, each by a process of its own."""
    for at, which in enumerate(names):
        PrepareCache(folder).get("thing", {"which": which}, Maker(10_000))
        [path] = [entry.path for entry in list_entries(folder) if entry.depends_on["which"] == which]
        os.utime(path / "entry.json", (1000 + at, 1000 + at))


def small_disk(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A disk of so many bytes that holds nothing but the cache."""
    monkeypatch.setattr(
        "bench.prepared.free_space", lambda folder: size - sum(entry.size for entry in list_entries(folder))
    )


def test_the_first_computes_and_the_others_find(tmp_path: Path) -> None:
    make, first, second = Maker(), PrepareCache(tmp_path), PrepareCache(tmp_path)
    computed = first.get("thing", {"a": 1, "b": "x"}, make)
    assert (first.source, first.hits, first.reused) == ("measured", 0, 0.0) and first.measured > 0
    found = second.get("thing", {"b": "x", "a": 1}, make)  # the order of the dependencies is none of its business
    assert make.calls == 1
    assert (second.source, second.hits, second.measured) == ("reused", 1, 0.0)
    assert second.reused == pytest.approx(first.measured)
    for name, expected in Maker()().items():
        for arrays in (computed, found):
            assert arrays.keys() == {"table", "order"}
            assert np.array_equal(arrays[name], expected) and arrays[name].dtype == expected.dtype


def test_partly_reused(tmp_path: Path) -> None:
    PrepareCache(tmp_path).get("thing", {"which": 1}, Maker())
    cache = PrepareCache(tmp_path)
    cache.get("thing", {"which": 1}, Maker())
    cache.get("thing", {"which": 2}, Maker())
    assert cache.source == "partly reused"


@pytest.mark.parametrize(
    ("what", "depends_on"), [("other", {"a": 1}), ("thing", {"a": 2}), ("thing", {"a": "1"}), ("thing", {"b": 1})]
)
def test_whatever_it_depends_on_makes_another_entry(tmp_path: Path, what: str, depends_on: dict[str, object]) -> None:
    make, cache = Maker(), PrepareCache(tmp_path)
    cache.get("thing", {"a": 1}, make)
    cache.get(what, depends_on, make)
    assert make.calls == 2 and len(list_entries(tmp_path)) == 2


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, cache = Maker(), PrepareCache(None)
    for _ in range(2):
        assert np.array_equal(cache.get("thing", {}, make)["table"], np.ones(100))
    assert make.calls == 2 and cache.source == "measured" and cache.hits == 0
    assert visible(tmp_path) == []


def test_an_entry_says_what_it_is(tmp_path: Path) -> None:
    cache = PrepareCache(tmp_path)
    cache.get("thing", {"graph": "abc", "hop": 3}, Maker(8000))
    [entry] = list_entries(tmp_path)
    assert (entry.what, entry.depends_on) == ("thing", {"graph": "abc", "hop": 3})
    assert entry.seconds == pytest.approx(cache.measured)
    assert 8000 < entry.size < 9000
    assert entry.size == sum(file.stat().st_size for file in entry.path.iterdir())


def test_stored_arrays_are_maps_that_nobody_can_write_into(tmp_path: Path) -> None:
    table = PrepareCache(tmp_path).get("thing", {}, Maker())["table"]
    assert not table.flags.writeable and type(table) is np.ndarray
    tensor = as_tensor(table)
    assert torch.equal(tensor, torch.ones(100, dtype=torch.float64))
    assert tensor.data_ptr() == table.__array_interface__["data"][0]  # no copy


def test_empty_and_strided_arrays(tmp_path: Path) -> None:
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {"empty": np.zeros((5, 0), dtype=np.float32), "turned": grid.T}
    for _ in range(2):
        found = PrepareCache(tmp_path).get("thing", {}, lambda: arrays)
        assert found["empty"].shape == (5, 0) and found["empty"].dtype == np.float32
        assert np.array_equal(found["turned"], grid.T) and found["turned"].flags.c_contiguous


# -- the limit --------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    def get(which: str, size: int = 10_000) -> None:
        PrepareCache(tmp_path, limit=40_000).get("thing", {"which": which}, Maker(size))

    fill(tmp_path, "abc")
    get("a")  # used again: now "b" is the oldest
    get("d")
    assert kept(tmp_path) == {"a", "c", "d"}
    get("e", 25_000)
    assert kept(tmp_path) == {"d", "e"}
    assert sum(entry.size for entry in list_entries(tmp_path)) <= 40_000


def test_the_cache_counts_what_lies_on_disk_and_what_had_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def two() -> dict[str, np.ndarray]:
        return {"x": np.zeros(10), "y": np.zeros(3, dtype=np.int8)}  # 83 bytes

    cache = PrepareCache(tmp_path, limit=20_000)
    cache.get("a", {}, two)
    cache.get("a", {}, two)
    assert (cache.on_disk, cache.in_memory, capsys.readouterr().out) == (2 * 83, 0, "")
    cache.get("large", {}, Maker(30_000))
    assert (cache.on_disk, cache.in_memory) == (2 * 83, 30_012)
    assert capsys.readouterr().out == "warning: no room on disk for large (30.0 kB): it stays in memory\n"
    nowhere = PrepareCache()
    nowhere.get("a", {}, two)
    assert (nowhere.on_disk, nowhere.in_memory) == (0, 83)


def test_what_is_larger_than_the_limit_is_handed_out_and_not_kept(tmp_path: Path) -> None:
    cache = PrepareCache(tmp_path, limit=20_000)
    cache.get("thing", {"which": "small"}, Maker(10_000))
    make = Maker(30_000, value=2.0)
    for _ in range(2):
        assert np.array_equal(cache.get("thing", {"which": "large"}, make)["table"], np.full(3750, 2.0))
    assert make.calls == 2
    assert kept(tmp_path) == {"small"}  # nothing was evicted in vain
    assert visible(tmp_path) == [list_entries(tmp_path)[0].path.name]


def test_a_full_disk_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.prepared.free_space", lambda folder: 100)
    assert np.array_equal(PrepareCache(tmp_path).get("thing", {}, Maker())["table"], np.ones(100))
    assert visible(tmp_path) == []


def test_where_the_disk_is_full_the_least_recently_used_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_disk(monkeypatch, 40_000)
    fill(tmp_path, "abc")
    PrepareCache(tmp_path).get("thing", {"which": "d"}, Maker(10_000))
    assert kept(tmp_path) == {"b", "c", "d"}
    PrepareCache(tmp_path).get("thing", {"which": "e"}, Maker(25_000))
    assert kept(tmp_path) == {"d", "e"}
    large = PrepareCache(tmp_path).get("thing", {"which": "f"}, Maker(50_000, value=6.0))["table"]
    assert np.array_equal(large, np.full(6250, 6.0))
    assert kept(tmp_path) == {"d", "e"}  # nothing was evicted in vain


@pytest.mark.parametrize("limit", [2**30, 25_000])
def test_what_the_cell_itself_uses_does_not_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Its maps hold the space until it ends: nothing would be won, and the next cell would have to begin anew."""
    small_disk(monkeypatch, 25_000)
    cache = PrepareCache(tmp_path, limit)
    for which in "abc":
        assert cache.get("hop", {"which": which}, Maker(10_000))["table"].sum() == 1250
    assert kept(tmp_path) == {"a", "b"}
    again = PrepareCache(tmp_path, limit)
    again.get("hop", {"which": "a"}, Maker())
    again.get("hop", {"which": "c"}, Maker(10_000))
    assert kept(tmp_path) == {"a", "c"}  # what another had used may go


def test_evicting_what_is_in_use_does_no_harm(tmp_path: Path) -> None:
    one, other = PrepareCache(tmp_path, limit=15_000), PrepareCache(tmp_path, limit=15_000)
    first = one.get("thing", {"which": "a"}, Maker(10_000, value=5.0))["table"]
    other.get("thing", {"which": "b"}, Maker(10_000))
    assert kept(tmp_path) == {"b"}
    assert (first == 5.0).all()


# -- crashes and company ----------------------------------------------------------------------------------------------


def test_a_failed_computation_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> Arrays:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        PrepareCache(tmp_path).get("thing", {}, fail)
    assert visible(tmp_path) == []


def test_a_disk_that_fills_while_writing_costs_the_cache_not_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, calls = np.save, []

    def save(file: Path, array: np.ndarray, **options: bool) -> None:
        calls.append(file)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, array, **options)

    monkeypatch.setattr(np, "save", save)
    arrays = PrepareCache(tmp_path).get("thing", {}, Maker())
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: array.tolist() for name, array in Maker()().items()
    }
    assert len(calls) == 2 and visible(tmp_path) == []
    assert "could not be kept: No space left on device" in capsys.readouterr().out


def test_an_entry_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = np.save

    def save(file: Path, array: np.ndarray, **options: bool) -> None:
        real(file, array, **options)
        assert list_entries(tmp_path) == []  # another process looks while this one writes
        assert all(name.startswith(".") for name in visible(tmp_path))

    monkeypatch.setattr(np, "save", save)
    PrepareCache(tmp_path).get("thing", {}, Maker())
    assert len(list_entries(tmp_path)) == len(visible(tmp_path)) == 1


def test_of_two_that_want_an_entry_at_once_one_computes_and_the_other_waits(tmp_path: Path) -> None:
    maker, computing, caches = Maker(value=4.0), threading.Event(), [PrepareCache(tmp_path), PrepareCache(tmp_path)]
    results: list[np.ndarray] = []

    def compute() -> Arrays:
        computing.set()
        time.sleep(0.2)  # long enough for the other to look and find nothing, were there no lock
        return maker()

    def work(cache: PrepareCache) -> None:
        results.append(cache.get("thing", {}, compute)["table"])

    threads = [threading.Thread(target=work, args=(cache,)) for cache in caches]
    threads[0].start()
    assert computing.wait(30)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert maker.calls == 1 and [cache.source for cache in caches] == ["measured", "reused"]
    assert len(results) == 2 and all(np.array_equal(table, np.full(100, 4.0)) for table in results)
    assert len(visible(tmp_path)) == 1


def test_an_entry_that_another_process_evicts_right_after_it_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PrepareCache(tmp_path).get("thing", {}, Maker(value=4.0))
    real = os.utime

    def utime(file: Path) -> None:
        real(file)
        shutil.rmtree(file.parent)

    monkeypatch.setattr(os, "utime", utime)
    assert np.array_equal(PrepareCache(tmp_path).get("thing", {}, Maker(value=4.0))["table"], np.full(100, 4.0))


def test_an_entry_that_another_process_evicts_right_after_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.rename

    def rename(self: Path, target: Path) -> None:
        real(self, target)
        shutil.rmtree(target)

    monkeypatch.setattr(Path, "rename", rename)
    assert np.array_equal(PrepareCache(tmp_path).get("thing", {}, Maker(value=4.0))["table"], np.full(100, 4.0))


@pytest.mark.parametrize("damage", ["truncated array", "empty array", "missing array", "torn description"])
def test_a_damaged_entry_is_computed_again(tmp_path: Path, damage: str) -> None:
    PrepareCache(tmp_path).get("thing", {}, Maker())
    [entry] = list_entries(tmp_path)
    if damage == "truncated array":
        os.truncate(entry.path / "table.npy", 200)
    elif damage == "empty array":  # what a power cut leaves behind
        os.truncate(entry.path / "table.npy", 0)
    elif damage == "missing array":
        (entry.path / "table.npy").unlink()
    else:
        os.truncate(entry.path / "entry.json", 10)
    make, cache = Maker(), PrepareCache(tmp_path)
    assert np.array_equal(cache.get("thing", {}, make)["table"], np.ones(100))
    assert make.calls == 1 and cache.source == "measured"
    assert np.array_equal(cache.get("thing", {}, make)["table"], np.ones(100))
    assert make.calls == 1  # and now it is whole


def test_waiting_for_others_is_told_from_computing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that only moves while a lock is waited for (7 s) and while something is computed (5 s)."""
    now, lock = [0.0], fcntl.flock

    def wait(handle: Any, operation: int) -> None:
        now[0] += 7
        lock(handle, operation)

    def compute() -> Arrays:
        now[0] += 5
        return {"table": np.ones(3)}

    monkeypatch.setattr("bench.prepared.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(fcntl, "flock", wait)
    first, second = PrepareCache(tmp_path), PrepareCache(tmp_path)
    for cache in (first, second):
        cache.get("thing", {}, compute)
    assert (first.waited, first.measured, first.reused) == (7, 5, 0)
    assert (second.waited, second.measured, second.reused) == (7, 0, 5)


def test_what_other_code_computed_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    package, found = tmp_path / "kitchen", []
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cook.py").write_text("from kitchen.salt import PINCH\ndef cook():\n    return {'soup': PINCH}\n")

    def cooked() -> str:
        cache = PrepareCache(tmp_path / "cache")
        cache.get("soup", {"for": 2}, importlib.import_module("kitchen.cook").cook)
        return cache.source

    for text in ("PINCH = np.ones(1)", "# more prose\nPINCH = np.ones(1)", "PINCH = np.zeros(1)"):
        (package / "salt.py").write_text(f"import numpy as np\n{text}\n")
        for name in [name for name in sys.modules if name.partition(".")[0] == "kitchen"]:
            del sys.modules[name]
        hash_file.cache_clear()
        found.append(cooked())
    assert found == ["measured", "reused", "measured"]  # what it imports counts, prose does not
    monkeypatch.setattr("scipy.__version__", "another")
    assert [cooked(), cooked()] == ["measured", "reused"]
    hash_file.cache_clear()


def test_models_that_share_code_share_what_it_computes(tmp_path: Path) -> None:
    graph = random_graph()
    sources = []
    for name in ("nagphormer", "nagphormer+"):
        model, cache = find_model(name), PrepareCache(tmp_path)
        model.prepare(graph, random_split(graph), model.Config(), 0, cache)
        sources.append(cache.source)
    assert sources == ["measured", "reused"]


def test_only_drafts_that_are_a_day_old_are_nobodys(tmp_path: Path) -> None:
    for name, age in ((".thing-young", 80_000), (".thing-old", 90_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.npy").write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    PrepareCache(tmp_path).get("thing", {}, Maker())
    assert [name for name in visible(tmp_path) if name.startswith(".")] == [".thing-young"]


def test_the_private_folders_of_the_dead_are_removed_and_no_others(tmp_path: Path) -> None:
    own = private_folder(tmp_path)
    here, _, number = own.name.rpartition("-")
    assert number == str(os.getpid()) and own.parent == tmp_path
    dead, alive, elsewhere = f"{here}-{2**22 + 1}", f"{here}-{os.getppid()}", f".own-elsewhere-{2**22 + 1}"
    for name in (dead, alive, elsewhere, own.name):  # ours: an earlier process had the same number
        (tmp_path / name / "cell").mkdir(parents=True)
    assert private_folder(tmp_path) == own and visible(tmp_path) == sorted([alive, elsewhere])


def test_a_folder_that_does_not_exist_yet_has_no_entries(tmp_path: Path) -> None:
    assert list_entries(tmp_path / "later") == []
    PrepareCache(tmp_path / "later" / "still").get("thing", {}, Maker())
    assert len(list_entries(tmp_path / "later" / "still")) == 1
