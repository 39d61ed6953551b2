from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.errors import UserError
from bench.ledger import SCHEMA, Ledger, check_writable
from bench.predictions import Predictions, PredictionStore


def record(key: str, status: str = "ok", second: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "key": key,
        "status": status,
        "limits": {"memory": None, "time": None},
        "phases": {},
        "overhead_seconds": 0.1,
        "started": f"2024-01-01T00:00:{second:02}.000+00:00",
        **more,
    }


def files(results: Path) -> list[Path]:
    return sorted((results / "ledger").glob("*"))


@pytest.fixture
def small_disk() -> Iterator[Any]:
    """No file may grow beyond the given size, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_one_process_appends_another_reads(tmp_path: Path) -> None:
    writer, reader = Ledger(tmp_path), Ledger(tmp_path)
    assert files(tmp_path) == []  # nothing to say, no file
    writer.append(record("a"))
    assert [found["key"] for found in reader.refresh()] == ["a"]
    writer.append(record("b"))
    assert [found["key"] for found in reader.refresh()] == ["b"]
    assert reader.refresh() == []
    assert {found["key"] for found in Ledger(tmp_path)} == {"a", "b"}
    [path] = files(tmp_path)
    assert [json.loads(line)["schema"] for line in path.read_text().splitlines()] == [SCHEMA, SCHEMA]


def test_every_writer_has_its_own_file_and_time_orders_them(tmp_path: Path) -> None:
    first, second, third = Ledger(tmp_path), Ledger(tmp_path), Ledger(tmp_path)
    second.append(record("a", "oom", second=2))
    third.append(record("a", "ok", second=3))
    first.append(record("a", "error", second=1))
    ledger = Ledger(tmp_path)
    assert len(files(tmp_path)) == 3
    assert [found["status"] for found in ledger.of("a")] == ["error", "oom", "ok"]
    newest = ledger.newest("a")
    assert newest is not None and newest["status"] == "ok"
    assert ledger.of("unknown") == [] and ledger.newest("unknown") is None


def test_a_torn_last_line_is_reported_and_left_out(tmp_path: Path) -> None:
    writer = Ledger(tmp_path)
    writer.append(record("a"))
    writer.append(record("b"))
    writer.close()
    [path] = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    ledger = Ledger(tmp_path)
    assert {found["key"] for found in ledger} == {"a"}
    assert len(ledger.warnings) == 1
    assert path.name in ledger.warnings[0] and "torn" in ledger.warnings[0]


def test_a_line_that_is_still_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    line = json.dumps({"schema": SCHEMA, **record("a")}).encode()
    path = tmp_path / "ledger" / "other.jsonl"
    path.parent.mkdir()
    path.write_bytes(line[:30])
    assert ledger.refresh() == [] and ledger.warnings == []
    path.write_bytes(line + b"\n")
    assert [found["key"] for found in ledger.refresh()] == ["a"]


@pytest.mark.parametrize("line", ["{not json", "3", '{"schema": 1}', '{"schema": "x", "key": "a"}'])
def test_a_line_that_cannot_be_read_costs_only_itself(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    good = json.dumps({"schema": SCHEMA, **record("a")})
    (folder / "x.jsonl").write_text(f"{line}\n\n{good}\n")
    ledger = Ledger(tmp_path)
    assert {found["key"] for found in ledger} == {"a"}
    assert len(ledger.warnings) == 1 and "x.jsonl" in ledger.warnings[0]


def test_records_of_a_newer_version_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "new.jsonl").write_text(json.dumps({"schema": SCHEMA + 1, "something": "else"}) + "\n")
    with pytest.raises(UserError, match=r"new\.jsonl was written by a newer version") as caught:
        Ledger(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_disk_that_fills_loses_no_finished_record_and_leaves_no_half_line(tmp_path: Path, small_disk: Any) -> None:
    ledger = Ledger(tmp_path)
    ledger.append(record("a"))
    [path] = files(tmp_path)
    before = path.read_bytes()
    small_disk(len(before) + 50)
    with pytest.raises(UserError, match=r"cannot be written.*finished records are safe") as caught:
        ledger.append(record("b"))
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    small_disk(10**6)
    ledger.append(record("c"))  # after room was made
    again = Ledger(tmp_path)
    assert {found["key"] for found in again} == {"a", "c"} and again.warnings == []


def test_a_number_that_json_cannot_hold_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Ledger(tmp_path).append(record("a", accuracy=float("nan")))
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_found_out_at_once(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file, not a folder")
    with pytest.raises(UserError, match=r"cannot be written.*--results"):
        check_writable(tmp_path / "results")
    check_writable(tmp_path / "fine", "predictions")
    assert (tmp_path / "fine" / "predictions").is_dir() and files(tmp_path / "fine") == []


@pytest.mark.parametrize("replaced", [False, True])
def test_records_survive_a_file_that_is_taken_away_while_it_grows(tmp_path: Path, replaced: bool) -> None:
    """`git stash` or a checkout of another branch, in the middle of a run."""
    ledger = Ledger(tmp_path)
    ledger.append(record("a"))
    [file] = (tmp_path / "ledger").iterdir()
    content = file.read_bytes()
    file.unlink()
    if replaced:  # and brought back, as another file of the same name
        file.write_bytes(content)
    ledger.append(record("b"))
    ledger.append(record("c"))
    assert [len(Ledger(tmp_path).of(key)) > 0 for key in "abc"] == [True, True, True]
    assert len(Ledger(tmp_path).of("c")) == 1


# -- predictions, which are kept beside the ledger ------------------------------------------------------------------

PREDICTED = Predictions(np.array([1, 0, 2], dtype=np.uint8), np.array([2, 2], dtype=np.uint8))
CURVE = [(1.5, 1.25, 0.5), (1.0, 1.125, 0.75)]


def test_predictions_come_back_under_their_hash(tmp_path: Path) -> None:
    store = PredictionStore(tmp_path)
    name = store.save(PREDICTED, "cell", CURVE)
    assert store.path(name) == tmp_path / "predictions" / name[:2] / f"{name}.npz"
    loaded = store.load(name)
    assert loaded.val.tolist() == [1, 0, 2] and loaded.test.tolist() == [2, 2]
    assert loaded.hash == name
    assert store.curve(name, "cell").tolist() == [list(row) for row in CURVE]
    assert store.curve(name, "cell").dtype == np.float32


def test_the_hash_is_of_the_predictions_and_not_of_the_curve(tmp_path: Path) -> None:
    store = PredictionStore(tmp_path)
    name = store.save(PREDICTED, "cell", CURVE)
    before = store.path(name).read_bytes()
    assert store.save(PREDICTED, "cell", CURVE) == name
    assert store.path(name).read_bytes() == before
    assert store.save(PREDICTED, "other", CURVE[:1]) == name  # equal predictions of another cell: both curves stay
    assert store.curve(name, "cell").shape == (2, 3) and store.curve(name, "other").shape == (1, 3)
    moved = Predictions(np.array([1, 0], dtype=np.uint8), np.array([2, 2, 2], dtype=np.uint8))
    assert moved.hash != PREDICTED.hash  # the same bytes with the border elsewhere


def test_predictions_that_do_not_fit_or_are_damaged_give_one_line(tmp_path: Path, small_disk: Any) -> None:
    store = PredictionStore(tmp_path)
    small_disk(100)
    with pytest.raises(UserError, match="finished records are safe"):
        store.save(PREDICTED, "cell", CURVE)
    assert [path for path in (tmp_path / "predictions").rglob("*") if path.is_file()] == []
    small_disk(10**6)
    name = store.save(PREDICTED, "cell", CURVE)
    whole = store.path(name).read_bytes()
    scribbled = bytearray(whole)
    scribbled[60:90] = bytes(30)  # in the middle of the first compressed member
    for damaged in (whole[:100], b"", bytes(scribbled)):
        store.path(name).write_bytes(damaged)
        with pytest.raises(UserError, match="cannot be read"):
            store.load(name)


def test_what_records_have_in_common_is_kept_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for key, hidden in (("a", 64), ("b", 64), ("c", 128)):
        ledger.append(record(key, config={"hidden": hidden}))
    a, b, c = (Ledger(tmp_path).of(key)[0]["config"] for key in "abc")
    assert (a, b, c) == ({"hidden": 64}, {"hidden": 64}, {"hidden": 128})
    again = Ledger(tmp_path)
    assert again.of("a")[0]["config"] is again.of("b")[0]["config"]


def test_a_damaged_file_does_not_cost_what_was_just_computed(tmp_path: Path) -> None:
    store, classes = PredictionStore(tmp_path), np.arange(5, dtype=np.uint8)
    predictions = Predictions(classes, classes)
    name = store.save(predictions, "one", [(1.0, 1.0, 0.5)])
    store.path(name).write_bytes(b"nonsense")
    assert store.save(predictions, "two", [(2.0, 2.0, 0.5)]) == name
    assert np.array_equal(store.load(name).test, classes)
    assert store.curve(name, "two").tolist() == [[2.0, 2.0, 0.5]]
    assert store.path(name).with_suffix(".damaged").read_bytes() == b"nonsense"


def test_cells_with_equal_predictions_do_not_lose_each_others_curves(tmp_path: Path) -> None:
    store, classes = PredictionStore(tmp_path), np.zeros(3, dtype=np.uint8)
    predictions, keys = Predictions(classes, classes), [f"cell{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        [name] = set(pool.map(lambda key: PredictionStore(tmp_path).save(predictions, key, [(1.0, 1.0, 1.0)]), keys))
    assert all(len(store.curve(name, key)) == 1 for key in keys)
