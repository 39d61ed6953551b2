"""Whole cells in real processes: how they end, that they repeat to the byte, and that killing anything is safe."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from running import ring_dataset, run, toy_cell
from toy_models import ALL, PRIVATE, find

from bench.claims import Claims
from bench.datasets.store import Stored
from bench.executors import Event, local
from bench.executors.devices import capacity_of
from bench.executors.local import LocalExecutor
from bench.ledger import Ledger
from bench.predictions import PredictionStore
from bench.records import memory_used
from bench.registry import source_hash
from bench.reuse import pending
from bench.runner import RunOptions, run_cells

HERE = Path(__file__).parent
MB = 1_000_000


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    return ring_dataset(tmp_path_factory.mktemp("data"))


ENDS = {
    "toy": "ok",
    "raises": "error",
    "nan": "diverged",
    "sleeps": "timeout",
    "aborts": "error",
    "killed": "interrupted",
    "hungry": "oom",
    "hungry-tensor": "oom",
    "announced": "oom",
    "choosy": "unsupported",
    "spy": "ok",
}


@pytest.fixture(scope="module")
def mixed(stored: dict[str, Stored], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run over good and bad cells under limits."""
    results = tmp_path_factory.mktemp("results")
    events: list[Event] = []
    cells = {name: toy_cell(stored, name) for name in ENDS}
    limits: dict[str, Any] = {"memory_limit": 250 * MB, "time_limit": 4.0}
    summary = run(list(cells.values()), stored, results, events=events, threads=2, **limits)
    return {"results": results, "cells": cells, "summary": summary, "events": events, "limits": limits}


def record_of(mixed: dict[str, Any], name: str) -> dict[str, Any]:
    return mixed["summary"].records[mixed["cells"][name].key]


def test_every_end_has_its_status_and_the_next_cells_go_on(mixed: dict[str, Any]) -> None:
    assert {name: record_of(mixed, name)["status"] for name in ENDS} == ENDS
    assert (mixed["summary"].earlier, mixed["summary"].ran, mixed["summary"].interrupted) == (0, len(ENDS), False)


def test_reasons_say_what_happened(mixed: dict[str, Any]) -> None:
    assert record_of(mixed, "raises")["reason"] == "ValueError during train: something is wrong in file.txt"
    assert "toy_models.py" in record_of(mixed, "raises")["log"]
    assert record_of(mixed, "nan")["reason"].startswith("the training loss became nan at update 1")
    assert record_of(mixed, "sleeps")["reason"] == "stopped after 4.00 s during train"
    assert record_of(mixed, "aborts")["reason"] == "the worker died during train: SIGABRT"
    assert record_of(mixed, "killed")["reason"] == "the worker was killed during train"
    assert record_of(mixed, "hungry")["reason"] == "asked for 400 MB more during preprocess, the limit is 250 MB"
    assert record_of(mixed, "hungry-tensor")["reason"] == "asked for 400 MB more during train, the limit is 250 MB"


def test_the_record_of_a_finished_cell(mixed: dict[str, Any], stored: dict[str, Stored]) -> None:
    record, cell = record_of(mixed, "toy"), mixed["cells"]["toy"]
    assert (record["key"], record["model"], record["dataset"], record["seed"]) == (cell.key, "toy", "ring", 0)
    assert record["parameters"] == 8 * 3 + 3
    assert record["choices"] == {"strategy": "linear"}
    assert record["limits"] == {"memory": 250 * MB, "time": 4.0}
    assert record["source"] == source_hash(find("toy"))
    training = record["training"]
    assert (training["epochs"], training["updates"], training["stopped_by"]) == (5, 5 * 3, "max_epochs")
    assert training["capped"] is False  # five epochs are its own setting, not a cap
    assert list(record["phases"]) == ["load", "preprocess", "train", "infer"]
    for phase in record["phases"].values():
        assert phase["seconds"] > 0 and phase["peak_anonymous"] >= 0.9 * record["baseline_anonymous"]
    assert record["phases"]["preprocess"]["source"] == "measured"
    assert record["overhead_seconds"] >= 0
    predictions = PredictionStore(mixed["results"]).load(record["predictions"])
    truth = stored["ring"].graph.labels
    test = np.random.RandomState(0).permutation(60)[48:]  # the rule 60/20/20 with seed 0
    assert record["metrics"]["test"]["accuracy"] == pytest.approx(np.mean(predictions.test == truth[np.sort(test)]))
    assert PredictionStore(mixed["results"]).curve(record["predictions"], cell.key).shape == (5, 3)


def test_a_stopped_phase_is_charged_to_itself_not_to_the_harness(mixed: dict[str, Any]) -> None:
    record = record_of(mixed, "sleeps")
    assert record["phases"]["train"]["seconds"] > 2
    assert record["overhead_seconds"] < 1
    assert record["baseline_anonymous"] > MB


@pytest.mark.parametrize("name", ["toy", "sleeps", "killed", "hungry-tensor", "raises", "nan"])
def test_where_the_preparation_came_from_is_known_however_the_cell_ends(mixed: dict[str, Any], name: str) -> None:
    preprocess = record_of(mixed, name)["phases"]["preprocess"]
    assert (preprocess["source"], preprocess["reused_seconds"]) == ("measured", 0.0)


def test_the_memory_that_the_limit_counts_is_measured(mixed: dict[str, Any]) -> None:
    used = memory_used(record_of(mixed, "toy"))
    grown = [phase["peak_data"] for phase in record_of(mixed, "toy")["phases"].values()]
    assert used is not None and 0 < max(grown) <= used < 100 * MB


def test_what_a_worker_is_shown_and_how_it_is_set_up(mixed: dict[str, Any]) -> None:
    shown = record_of(mixed, "spy")["choices"]
    train = np.random.RandomState(0).permutation(60)[:36]
    assert shown["known"] == " ".join(map(str, sorted(train)))
    assert shown["threads"] == f"2 {min(2, os.cpu_count() or 1)}"
    assert shown["deterministic"] == "True" and shown["dgl"] == "False"
    # one BLAS thread while preparing, so that what is cached does not depend on their number, and all of them after
    assert shown["blas"] == "1 2"


def test_events_tell_the_story_of_a_cell(mixed: dict[str, Any]) -> None:
    story = [event for event in mixed["events"] if event.cell.model == "toy"]
    assert [event.kind for event in story if event.kind != "progress"] == ["started", *["phase"] * 4, "finished"]
    progress = next(event for event in story if event.kind == "progress")
    assert (progress.epoch, progress.max_epochs, progress.phase) == (1, 5, "train")
    assert 0 <= progress.val_accuracy <= 1
    assert story[-1].record == record_of(mixed, "toy") and story[-1].record["status"] == "ok"


def test_records_name_no_place_on_this_machine(mixed: dict[str, Any]) -> None:
    [ledger] = (mixed["results"] / "ledger").iterdir()
    text = ledger.read_text()
    for place in (str(HERE.parent), str(mixed["results"].parent), sys.prefix, PRIVATE):
        assert place not in text
    assert len(text.splitlines()) == len(ENDS)
    assert all(json.loads(line)["schema"] == 1 for line in text.splitlines())


def test_the_same_request_again_runs_only_what_was_interrupted(
    mixed: dict[str, Any], stored: dict[str, Stored]
) -> None:
    todo, answered = pending(
        list(mixed["cells"].values()), Ledger(mixed["results"]), RunOptions(**mixed["limits"]), find
    )
    assert [cell.model for cell in todo] == ["killed"]
    assert len(answered) == len(ENDS) - 1


@pytest.mark.parametrize(
    ("options", "again"),
    [
        ({"retry": frozenset({"error"})}, {"raises", "aborts", "killed"}),
        ({"retry": frozenset({"oom", "diverged"})}, {"hungry", "hungry-tensor", "announced", "nan", "killed"}),
        ({"redo": True}, set(ENDS)),
        ({"memory_limit": 300 * MB}, {"hungry", "hungry-tensor", "announced", "killed"}),
        ({"memory_limit": 100 * MB}, {"killed"}),  # the good ones were measured to need less
        ({"time_limit": None}, {"sleeps", "killed"}),
    ],
)
def test_what_is_run_again(mixed: dict[str, Any], options: dict[str, Any], again: set[str]) -> None:
    todo, _ = pending(
        list(mixed["cells"].values()), Ledger(mixed["results"]), RunOptions(**{**mixed["limits"], **options}), find
    )
    assert {cell.model for cell in todo} == again


def test_the_same_cell_gives_the_same_bytes_whatever_is_cached(stored: dict[str, Stored], tmp_path: Path) -> None:
    cell = toy_cell(stored)
    first = run([cell], stored, tmp_path / "a").records[cell.key]
    again = run([cell], stored, tmp_path / "a", redo=True).records[cell.key]
    fresh = run([cell], stored, tmp_path / "b", cache_folder=tmp_path / "cache").records[cell.key]
    reused = run([cell], stored, tmp_path / "c", cache_folder=tmp_path / "cache").records[cell.key]
    sources = [record["phases"]["preprocess"]["source"] for record in (first, again, fresh, reused)]
    assert sources == ["measured", "measured", "measured", "reused"]
    assert len({record["predictions"] for record in (first, again, fresh, reused)}) == 1
    curves = [
        PredictionStore(tmp_path / place).curve(record["predictions"], cell.key).tolist()
        for place, record in (("a", first), ("b", fresh), ("c", reused))
    ]
    assert curves[0] == curves[1] == curves[2]  # losses tell more than 24 classes, which may agree by luck
    other = toy_cell(stored, trial=1)
    assert run([other], stored, tmp_path / "a").records[other.key]["predictions"] != first["predictions"]


def test_shuffled_test_labels_change_the_score_but_not_one_prediction(
    stored: dict[str, Stored], tmp_path: Path
) -> None:
    cell = toy_cell(stored)
    test = np.sort(np.random.RandomState(0).permutation(60)[48:])
    labels = stored["ring"].graph.labels.copy()
    labels[test] = np.roll(labels[test], 1)
    shuffled = {"ring": replace(stored["ring"], graph=stored["ring"].graph.with_labels(labels))}
    honest = run([cell], stored, tmp_path / "a").records[cell.key]
    blind = run([cell], shuffled, tmp_path / "b").records[cell.key]
    assert blind["predictions"] == honest["predictions"]
    assert blind["metrics"]["test"]["accuracy"] < honest["metrics"]["test"]["accuracy"]
    assert blind["metrics"]["val"] == honest["metrics"]["val"]


@pytest.mark.parametrize("names", [("killed",), ("sleeps", "killed")])
def test_a_cell_that_the_kernel_killed_had_the_machine_to_itself_or_only_what_it_used(
    stored: dict[str, Stored], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    kills = itertools.count()
    monkeypatch.setattr(local, "_kernel_kills", lambda: next(kills))  # as if the killer were the kernel
    grown = lambda worker: 130 * MB if hasattr(worker, "_memory_at_start") else 100 * MB  # noqa: E731
    monkeypatch.setattr(local._Worker, "_memory", grown)
    cells = {name: toy_cell(stored, name) for name in names}
    records = run(list(cells.values()), stored, tmp_path, jobs=2, time_limit=4.0).records
    killed = records[cells["killed"].key]
    assert killed["status"] == "oom" and "the kernel killed the worker" in killed["reason"]
    assert killed["limits"]["memory"] == (capacity_of("cpu") if len(names) == 1 else 30 * MB)


def test_matrix_products_do_not_hang_under_a_tight_memory_limit(stored: dict[str, Stored], tmp_path: Path) -> None:
    cell = toy_cell(stored, model="multiplies")
    record = run([cell], stored, tmp_path, memory_limit=24 * MB, time_limit=60.0).records[cell.key]
    assert record["status"] == "ok"  # OpenBLAS wants 32 MB at its first product, and would wait for them for ever


def test_a_model_may_live_outside_the_package(
    stored: dict[str, Stored], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "elsewhere" / "plugged_in.py"
    file.parent.mkdir()
    file.write_text("from toy_models import Toy\n\n\nclass Mine(Toy):\n    name = 'mine'\n")
    spec = importlib.util.spec_from_file_location("plugged_in", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "plugged_in", module)  # as an import would; the worker has to find it by itself
    spec.loader.exec_module(module)
    cell = replace(toy_cell(stored), model="mine")
    executor, options = LocalExecutor(tmp_path / "logs"), RunOptions(paths=(str(file.parent),))
    summary = run_cells([cell], stored, options, Ledger(tmp_path), executor, find=lambda name: module.Mine)
    assert summary.records[cell.key]["status"] == "ok"


def test_two_jobs_run_at_once(stored: dict[str, Stored], tmp_path: Path) -> None:
    events: list[Event] = []
    cells = [toy_cell(stored, "slow", trial, max_epochs=3) for trial in range(3)]
    summary = run(cells, stored, tmp_path, jobs=2, events=events)
    assert [record["status"] for record in summary.records.values()] == ["ok"] * 3
    order = [event.kind for event in events if event.kind in ("started", "finished")]
    assert order[:3] == ["started", "started", "finished"]


def start_run(data: Path, results: Path, models: str, count: int, epochs: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(HERE / "running.py"), str(data), str(results), models, str(count), str(epochs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=HERE.parent)


def lives(process: psutil.Process) -> bool:
    """Orphans that nobody has reaped yet are dead all the same."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_second_cell(results: Path) -> None:
    """Until at least one cell is recorded and the worker of another has begun its log."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        recorded = {record["key"] for record in Ledger(results)}
        if recorded and {log.stem for log in (results / "logs").iterdir()} - recorded:
            return
        time.sleep(0.05)
    raise AssertionError("the run did not get that far")


def test_killing_the_parent_ends_its_workers_and_the_next_run_finishes_the_rest(
    stored: dict[str, Stored], tmp_path: Path
) -> None:
    data = stored["ring"].folder.parent.parent.parent
    with start_run(data, tmp_path, "toy,sleeps", 1, 5) as parent:
        wait_for_second_cell(tmp_path)  # it sleeps and would notice nothing by itself
        family = psutil.Process(parent.pid).children(recursive=True)
        assert any(process.children() for process in family)  # the fork server has a worker
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 60  # it takes no second, unless the machine is busy
        while any(map(lives, family)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(lives, family))
    assert Claims(tmp_path).held() == {}
    summary = run([toy_cell(stored, "toy"), toy_cell(stored, "sleeps")], stored, tmp_path, time_limit=4.0)
    assert (summary.earlier, summary.ran) == (1, 1)
    assert [record["status"] for record in summary.records.values()] == ["ok", "timeout"]


def test_ctrl_c_records_what_was_running_and_keeps_what_was_done(stored: dict[str, Stored], tmp_path: Path) -> None:
    data = stored["ring"].folder.parent.parent.parent
    with start_run(data, tmp_path, "toy,sleeps,nan", 1, 5) as parent:
        wait_for_second_cell(tmp_path)
        parent.send_signal(signal.SIGINT)
        output, _ = parent.communicate(timeout=120)
    assert parent.returncode == 0
    assert output.split()[-1] == b"True"
    assert [record["status"] for record in Ledger(tmp_path)] == ["ok", "interrupted"]
    assert list((tmp_path / ".claims").iterdir()) == []


def test_two_runs_at_once_do_each_cell_once(stored: dict[str, Stored], tmp_path: Path) -> None:
    data = stored["ring"].folder.parent.parent.parent
    with start_run(data, tmp_path, "slow", 4, 2) as other:
        wait_for_second_cell(tmp_path)
        ours = run([toy_cell(stored, "slow", trial, max_epochs=2) for trial in range(4)], stored, tmp_path)
        theirs = [int(word) for word in other.communicate(timeout=240)[0].split()[:3]]
    outputs = [theirs, [ours.earlier, ours.ran, ours.elsewhere]]
    keys = [record["key"] for record in Ledger(tmp_path)]
    assert len(keys) == len(set(keys)) == 4
    for earlier, ran, elsewhere in outputs:
        assert earlier + ran + elsewhere == 4  # neither ended before all was there
    assert sum(ran for _, ran, _ in outputs) == 4


def test_a_fork_server_that_dies_while_it_starts_is_an_interruption(
    stored: dict[str, Stored], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def server_is_gone() -> None:
        raise EOFError("unexpected EOF")  # what reading from it gives then

    monkeypatch.setattr(local, "_warm_up", server_is_gone)
    with pytest.raises(KeyboardInterrupt):
        run([toy_cell(stored)], stored, tmp_path)
    assert list(Ledger(tmp_path)) == [] and Claims(tmp_path).held() == {}
    monkeypatch.setattr(local, "_warm_up", lambda: os.kill(os.getpid(), signal.SIGINT) or server_is_gone())
    assert run([toy_cell(stored)], stored, tmp_path).interrupted  # it was meant: the table is still shown


def test_all_toy_models_are_used_here() -> None:
    assert set(ALL) == {*ENDS, "slow", "multiplies"}
