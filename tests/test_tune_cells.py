"""Trials as real processes: pruned within an epoch, prepared arrays shared, driver time small."""

from __future__ import annotations

from pathlib import Path

from running import ring_dataset, run, toy_cell
from toy_models import find
from tuning_toys import Silent, drive, ring_search

from bench.executors import EndCell, Event
from bench.executors.local import LocalExecutor
from bench.ledger import Ledger
from bench.records import is_failure, newest
from bench.reuse import satisfies
from bench.runner import RunOptions, run_cells
from bench.tuning.study import Budget


def test_a_listener_ends_a_cell_within_one_epoch(tmp_path: Path) -> None:
    stored = ring_dataset(tmp_path)
    cell = toy_cell(stored, "slow", max_epochs=100)
    epochs: list[int] = []

    def listen(event: Event) -> None:
        if event.kind == "progress":
            epochs.append(event.epoch)
            if event.epoch == 3:
                raise EndCell("pruned: it is enough")

    options, executor = RunOptions(progress_interval=0.0), LocalExecutor(tmp_path / "logs")
    summary = run_cells([cell], stored, options, Ledger(tmp_path), executor, listen, find)
    record = summary.records[cell.key]
    assert record["status"] == "pruned" and epochs == [1, 2, 3]
    assert record["reason"] == "pruned: it is enough during train, epoch 3 of 100"
    assert record["phases"]["train"]["seconds"] >= 0.6  # three epochs of 0.2 s


def test_a_pruned_cell_is_neither_a_failure_nor_an_answer(tmp_path: Path) -> None:
    stored = ring_dataset(tmp_path)
    summary = run([toy_cell(stored, max_epochs=1)], stored, tmp_path)
    [ok] = summary.records.values()
    pruned = {**ok, "status": "pruned", "started": "2999"}
    assert not satisfies(pruned) and not is_failure(pruned)
    assert newest([ok, pruned]) is ok and newest([pruned, ok]) is ok


def test_trials_share_what_was_prepared(tmp_path: Path) -> None:
    search, stored = ring_search(tmp_path, fixed={"max_epochs": 2})
    trials = drive(search, stored, tmp_path, Budget(trials=5), LocalExecutor(tmp_path / "logs"), Silent())
    assert all(trial.outcome == "ok" for trial in trials)
    records = sorted(Ledger(tmp_path), key=lambda record: record["labels"]["trial"])
    assert [record["phases"]["preprocess"]["source"] for record in records] == ["measured", *["reused"] * 4]


def test_several_at_once_fill_every_slot_once(tmp_path: Path) -> None:
    search, stored = ring_search(tmp_path, fixed={"max_epochs": 2})
    trials = drive(search, stored, tmp_path, Budget(trials=5), LocalExecutor(tmp_path / "logs", jobs=2))
    assert [trial.slot for trial in trials] == list(range(5))
    imagined = drive(search, stored, tmp_path / "imagined", Budget(trials=5))
    assert [trial.settings for trial in trials] == [trial.settings for trial in imagined]
