"""Cost that can be compared: what is measured, on what, and what counts as disturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Pretender, ring_dataset, toy_cell
from toy_models import find

from bench import reuse, runner, worker
from bench.claims import Claims
from bench.executors import meter
from bench.executors.local import LocalExecutor
from bench.executors.meter import LoadWatch
from bench.graph import Split
from bench.ledger import Ledger
from bench.predictions import PredictionStore
from bench.prepared import private_folder
from bench.records import (
    COST,
    PART_OF_INFERENCE,
    Record,
    inference_seconds,
    is_at_most,
    machine_of,
    newest,
    prepared_bytes,
    seconds_per_epoch,
    seconds_per_thousand_nodes,
    under_load,
)
from bench.reuse import find_reusable, pending
from bench.runner import RunOptions, Summary, run_cells
from bench.table import Context, cost_caption, summarise_costs


def record(status: str = "ok", others: float | None = 0.0, purpose: str | None = COST, **train: Any) -> dict[str, Any]:
    load = None if others is None else {"start": 0.1, "end": 0.2, "others": others, "processors": 4}
    return {
        "status": status,
        "limits": {"memory": None, "time": None},
        "purpose": purpose,
        "load": load,
        "environment": {"processor": "Slow 1", "gpu": None, "threads": 2, "device": "cpu"},
        "phases": {
            "preprocess": {"seconds": 2.0, "compile_seconds": 0.0, "prepared_bytes": 5_000_000},
            "train": {"seconds": 30.0, "compile_seconds": 0.0, **train},
            "infer": {"seconds": 3.0, "compile_seconds": 0.0, "nodes": 600},
        },
        "overhead_seconds": 0.1,
        "training": {"epochs": 20},
    }


# -- the numbers ----------------------------------------------------------------------------------------------------


def test_an_epoch_is_measured_after_the_first_look() -> None:
    assert seconds_per_epoch(record(first_evaluation=[5, 14.0], last_evaluation=[20, 29.0])) == 1.0
    assert seconds_per_epoch(record(first_evaluation=[20, 29.0], last_evaluation=[20, 29.0])) == 1.5  # one look only
    assert seconds_per_epoch(record()) == 1.5  # a record of earlier times


def test_inference_per_thousand_nodes_and_bytes_on_disk() -> None:
    assert seconds_per_thousand_nodes(record()) == 5.0
    assert prepared_bytes(record()) == 5_000_000
    old = record()
    del old["phases"]["infer"]["nodes"], old["phases"]["preprocess"]["prepared_bytes"]
    assert seconds_per_thousand_nodes(old) is None and prepared_bytes(old) is None


def test_inference_over_more_nodes_follows_the_line_through_two_sizes() -> None:
    measured = record()
    measured["phases"][PART_OF_INFERENCE] = {"seconds": 1.2, "compile_seconds": 0.0, "nodes": 60}
    # 3 s for 600 nodes and 1.2 s for 60: 1 s for the graph and 1 / 300 s for each
    assert inference_seconds(measured, 6000) == pytest.approx(21.0) and not is_at_most(measured, 6000)
    assert inference_seconds(measured, 600) == 3.0
    measured["phases"][PART_OF_INFERENCE]["seconds"] = 3.5  # it all goes into the graph
    assert inference_seconds(measured, 6000) == 3.0
    assert inference_seconds(record(), 6000) == 30.0 and is_at_most(record(), 6000)  # one size: in proportion
    assert not is_at_most(record(), 600)
    silent = record()
    del silent["phases"]["infer"]["nodes"]
    assert inference_seconds(silent, 6000) is None


@pytest.mark.parametrize(("others", "expected"), [(0.0, False), (0.2, False), (0.21, True), (3.0, True), (None, None)])
def test_a_twentieth_of_the_machine_may_be_busy(others: float | None, expected: bool | None) -> None:
    assert under_load(record(others=others)) is expected  # of 4 processors


def test_a_pinned_cell_minds_a_twentieth_of_what_it_has_itself() -> None:
    pinned = record(others=0.06)
    assert under_load(pinned) is False  # of 4 processors
    pinned["load"]["usable"] = 1
    assert under_load(pinned) is True
    pinned["load"]["usable"] = 2
    assert under_load(pinned) is False


def test_the_load_of_others_is_all_that_is_busy_but_us(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own = iter([100.0, 116.0]), iter([7.0, 12.0])
    monkeypatch.setattr(meter, "_busy", lambda: next(busy))
    monkeypatch.setattr(meter, "_own", lambda: next(own))
    monkeypatch.setattr(meter.psutil, "cpu_count", lambda: 8)
    clock = iter([1000.0, 1004.0])
    monkeypatch.setattr(meter.time, "perf_counter", lambda: next(clock))
    found = LoadWatch().look()
    assert (found["others"], found["processors"]) == (2.75, 8)  # (16 - 5) / 4 seconds
    assert found["start"] >= 0 and found["end"] >= 0


def test_the_machines_clock_counts_our_own_work_too() -> None:
    busy, own = meter._busy(), meter._own()
    while meter._own() - own < 0.3:
        pass
    assert meter._busy() - busy >= 0.25  # the machine's clock has seen it too, and more if others work


# -- which record stands and answers --------------------------------------------------------------------------------


def test_only_records_of_the_same_purpose_answer() -> None:
    plain, cost = record(purpose=None), record()
    assert find_reusable([plain, cost], None, None) is plain
    assert find_reusable([plain, cost], None, None, COST) is cost
    assert find_reusable([cost], None, None) is None


def test_a_disturbed_measurement_is_made_again() -> None:
    assert find_reusable([record(others=1.0)], None, None, COST) is None
    failed = record("error", others=1.0)
    assert find_reusable([failed], None, None, COST) is failed
    loaded_result = record(others=1.0, purpose=None)
    assert find_reusable([loaded_result], None, None) is loaded_result  # an accuracy does not mind


@pytest.mark.parametrize("change", [{"processor": "Fast 2"}, {"threads": 1}, {"gpu": "Card 3", "device": "cuda"}])
def test_a_measurement_answers_for_its_own_machine_only(change: dict[str, Any]) -> None:
    here, there = record(), record()
    there["environment"] = {**there["environment"], **change}
    assert find_reusable([here, there], None, None, COST, machine_of(here)) is here
    assert find_reusable([there], None, None, COST, machine_of(here)) is None
    assert find_reusable([there], None, None, COST, machine_of(there)) is there


def test_what_was_measured_with_other_threads_or_elsewhere_is_measured_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, ledger = ring_dataset(tmp_path), Ledger(tmp_path / "results")
    cell = toy_cell(stored)
    monkeypatch.setattr(reuse, "processor", lambda: "Slow 1")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: {"cuda:1": "Card 3"}[device])
    reuse.this_machine.cache_clear()
    ledger.append({**record(), "key": cell.key, "started": "2026"})
    ledger.refresh()

    def left(**options: Any) -> int:
        return len(pending([cell], ledger, RunOptions(purpose=COST, **options), find)[0])

    assert (left(threads=2), left(threads=1), left(threads=2, device="cuda:1")) == (0, 1, 1)
    reuse.this_machine.cache_clear()


def test_a_clean_measurement_outlives_a_disturbed_one_and_a_result_both() -> None:
    clean, disturbed, unknown, plain = record(), record(others=2.0), record(others=None), record(purpose=None)
    assert newest([clean, disturbed]) is clean
    assert newest([clean, unknown]) is clean
    assert newest([disturbed, clean]) is clean
    assert newest([disturbed, unknown]) is unknown
    assert newest([plain, clean]) is plain
    assert newest([clean, plain]) is plain
    later = record()
    assert newest([clean, later]) is later


def test_the_table_keeps_clean_and_disturbed_apart(tmp_path: Path) -> None:
    stored = ring_dataset(tmp_path)
    cells = [toy_cell(stored, trial=trial) for trial in range(4)]
    found: list[Record] = [record(), record(), record(others=2.0), record("oom")]
    found[1]["phases"]["infer"]["seconds"] = 6.0
    records = {cell.key: item for cell, item in zip(cells, found, strict=True)}
    frame = summarise_costs(cells, records, Context())
    assert frame["measured"].tolist() == ["clean", "under load", "oom"]
    assert frame["n"].tolist() == ["2", "1", "1"]
    assert frame["infer s per 1,000 nodes"].tolist() == ["7.5", "5", ""]
    assert frame["prepared MB"].tolist() == ["5", "5", ""]
    assert frame["machine"].tolist() == ["Slow 1, 2 thread(s)"] * 3
    assert any("under load" in line for line in cost_caption(frame, "results/"))
    assert not any("under load" in line for line in cost_caption(frame[:1], "results/"))


def test_the_table_keeps_machines_apart(tmp_path: Path) -> None:
    stored = ring_dataset(tmp_path)
    cells = [toy_cell(stored, trial=trial) for trial in range(2)]
    here, there = record(), record()
    there["environment"] = {**there["environment"], "threads": 1}
    there["phases"]["infer"]["seconds"] = 6.0
    frame = summarise_costs(cells, {cells[0].key: here, cells[1].key: there}, Context())
    assert frame["machine"].tolist() == ["Slow 1, 2 thread(s)", "Slow 1, 1 thread(s)"]
    assert frame["infer s per 1,000 nodes"].tolist() == ["5", "10"]


def test_large_costs_are_written_out(tmp_path: Path) -> None:
    stored = ring_dataset(tmp_path)
    cell, large = toy_cell(stored), record()
    large["phases"]["preprocess"]["prepared_bytes"] = 11_130_449_999
    frame = summarise_costs([cell], {cell.key: large}, Context())
    assert frame["prepared MB"].tolist() == ["11130"]


# -- how it is measured ---------------------------------------------------------------------------------------------


def sample(train: int, val: int, test: int, wanted: int | None) -> tuple[Split, np.ndarray, Split]:
    nodes = np.arange(train + val + test)
    split = Split(nodes[:train], nodes[train : train + val], nodes[train + val :], "by hand", 0)

    class Job:
        cell = type("Cell", (), {"seed": 3})

    job: Any = Job()
    job.split, job.inference_nodes = split, wanted
    asked, others = worker._inference_sample(job)
    return asked, others, split


def test_inference_is_measured_on_enough_nodes_or_all() -> None:
    asked, others, split = sample(60, 20, 20, None)
    assert asked is split and len(others) == 0
    asked, others, split = sample(60, 20, 20, 1000)  # fewer than were asked for: all
    assert asked is split and others.tolist() == split.train.tolist()
    asked, others, split = sample(60, 20, 20, 50)  # some training nodes make up
    assert asked is split and len(others) == 10
    asked, others, split = sample(5, 10, 85, 50)  # more than enough: part of the test nodes
    assert len(others) == 0 and len(asked.val) + len(asked.test) == 50
    assert set(asked.test) < set(split.test) and (np.diff(asked.test) > 0).all()
    again, _, _ = sample(5, 10, 85, 50)
    assert again.test.tolist() == asked.test.tolist()


def test_evaluations_are_timed_from_the_start_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 14.0, 15.0, 16.5])
    monkeypatch.setattr(worker.time, "perf_counter", lambda: next(clock))
    told: list[int] = []
    evaluations = worker._Evaluations()
    on_epoch = evaluations.before(lambda epoch, accuracy: told.append(epoch))
    for epoch in (5, 10, 15):
        on_epoch(epoch, 0.5)
    assert (evaluations.first, evaluations.last) == ((5, 4.0), (15, 6.5))
    assert told == [5, 10, 15]


def measure(cells: list[Any], stored: Any, results: Path, **options: Any) -> Summary:
    ledger, executor = Ledger(results), LocalExecutor(results / "logs")
    return run_cells(cells, stored, RunOptions(**options), ledger, executor, find=find)


def test_a_cost_cell_prepares_everything_itself_and_predicts_every_node(tmp_path: Path) -> None:
    stored, results, cache = ring_dataset(tmp_path), tmp_path / "results", tmp_path / "prepared"
    cell = toy_cell(stored, stop="never", max_epochs=4)
    measure([cell], stored, results, cache_folder=cache)  # a plain run fills the cache
    [plain] = Ledger(results)
    assert pending([cell], Ledger(results), RunOptions(purpose=COST), find)[0] == [cell]

    summary = measure([cell, toy_cell(stored, trial=1)], stored, results, cache_folder=cache, purpose=COST)
    cost = summary.records[cell.key]
    assert cost["purpose"] == COST and "purpose" not in plain
    assert cost["phases"]["preprocess"]["source"] == "measured"
    assert cost["phases"]["preprocess"]["prepared_bytes"] == 60 * 8 * 4
    assert (plain["phases"]["infer"]["nodes"], cost["phases"]["infer"]["nodes"]) == (24, 60)
    assert not {PART_OF_INFERENCE} & (plain["phases"].keys() | cost["phases"].keys())  # there is nothing to work out
    assert cost["metrics"] == plain["metrics"]  # the same training, the same test nodes
    assert cost["phases"]["train"]["first_evaluation"][0] == 1 and cost["phases"]["train"]["last_evaluation"][0] == 4
    assert cost["load"]["start"] >= 0 and cost["load"]["end"] >= 0 and cost["load"]["others"] >= 0
    assert cost["load"]["usable"] == 1  # pinned to its one thread's processor
    assert not list(cache.glob(".own*"))  # nothing of it is left
    standing = Ledger(results).newest(cell.key)
    assert standing is not None and "purpose" not in standing  # the result still stands


def test_a_sample_of_the_test_nodes_is_scored_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.runner.COST_NODES", 16)
    stored, results = ring_dataset(tmp_path), tmp_path / "results"
    [cost] = measure([toy_cell(stored)], stored, results, purpose=COST).records.values()
    assert cost["phases"]["infer"]["nodes"] == 16  # 12 validation nodes and 4 of 12 test nodes
    assert cost["phases"][PART_OF_INFERENCE]["nodes"] == 2 and cost["phases"][PART_OF_INFERENCE]["seconds"] > 0
    test = np.sort(np.random.RandomState(0).permutation(60)[48:])
    asked = test[np.sort(np.random.default_rng(0).choice(12, 4, replace=False))]
    predicted = PredictionStore(results).load(cost["predictions"]).test
    assert cost["metrics"]["test"]["accuracy"] == np.mean(predicted == asked % 3)  # the ring's classes go round


def test_what_a_killed_attempt_prepared_is_prepared_again(tmp_path: Path) -> None:
    stored, results, cache = ring_dataset(tmp_path), tmp_path / "results", tmp_path / "prepared"
    cell = toy_cell(stored)
    left = private_folder(cache) / cell.key  # as by an earlier process that had this one's number
    [before] = measure([cell], stored, tmp_path / "earlier", cache_folder=left).records.values()
    assert before["phases"]["preprocess"]["source"] == "measured" and list(left.glob("scaled-*"))
    [cost] = measure([cell], stored, results, cache_folder=cache, purpose=COST).records.values()
    assert cost["phases"]["preprocess"]["source"] == "measured"


def test_on_one_machine_one_cell_at_a_time_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, executor = ring_dataset(tmp_path), Pretender()
    turn = Claims(runner.TURNS).take(COST, "toy on moon")
    assert turn is not None
    executor.before = lambda: turn.release() if executor.asked == 2 else None
    cells, options = [toy_cell(stored), toy_cell(stored, trial=1)], RunOptions(purpose=COST)
    measured = run_cells(cells, stored, options, Ledger(tmp_path), executor, find=find)
    assert measured.ran == 2 and executor.turned_away == 2
    assert capsys.readouterr().err == "waiting: another run measures toy on moon on this machine\n"
    ours = Claims(runner.TURNS).take(COST, "")
    assert ours is not None  # it was given back
    plain = run_cells([toy_cell(stored, trial=2)], stored, RunOptions(), Ledger(tmp_path), Pretender(), find=find)
    ours.release()
    assert plain.ran == 1  # a plain run does not wait
