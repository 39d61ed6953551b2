"""The runner's bookkeeping, with an executor that only pretends; whole cells are in test_runs.py."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Pretender, ring_dataset, toy_cell
from toy_models import find
from tuning_toys import Imagined

from bench.cells import Cell
from bench.claims import Claims
from bench.datasets.store import Stored
from bench.errors import UserError
from bench.executors import Event, Outcome
from bench.executors.local import LocalExecutor
from bench.graph import UNKNOWN_LABEL
from bench.ledger import Ledger
from bench.prepared import private_folder
from bench.reuse import older_code_line, pending
from bench.runner import RunOptions, Summary, run_cells
from bench.splits import draw_split
from bench.worker import Job

RULE = "uniform-60/20/20"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    return ring_dataset(tmp_path_factory.mktemp("data"))


def pretend(
    cells: list[Cell],
    stored: dict[str, Stored],
    results: Path,
    executor: Pretender,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Summary:
    return run_cells(cells, stored, RunOptions(), Ledger(results), executor, on_event, find)


def test_a_claim_says_whose_cell_it_is(stored: dict[str, Stored], tmp_path: Path) -> None:
    cell, seen = toy_cell(stored), []
    pretend([cell], stored, tmp_path, Pretender(), lambda event: seen.append(Claims(tmp_path).held()))
    assert seen == [{cell.key: "toy\tring"}]  # still held while the end is told


def test_the_same_work_under_two_labels_is_run_once(stored: dict[str, Stored], tmp_path: Path) -> None:
    cell = toy_cell(stored)
    twin = replace(cell, labels={**cell.labels, "trial": 7})
    executor = Pretender()
    summary = pretend([cell, twin], stored, tmp_path, executor)
    assert executor.asked == 1 and list(summary.records) == [cell.key]


def test_a_cap_that_ended_the_training_is_in_the_record(stored: dict[str, Stored], tmp_path: Path) -> None:
    cell = toy_cell(stored)
    capped = replace(toy_cell(stored, trial=1), labels={**cell.labels, "cap": 5})
    summary = pretend([cell, capped], stored, tmp_path, Pretender())
    assert summary.records[cell.key]["training"]["capped"] is False
    assert summary.records[capped.key]["training"]["capped"] is True


def test_a_cell_that_another_run_holds_is_waited_for_and_not_repeated(
    stored: dict[str, Stored], tmp_path: Path
) -> None:
    mine, theirs = toy_cell(stored, trial=0), toy_cell(stored, trial=1)
    claim = Claims(tmp_path).take(theirs.key, "")
    assert claim is not None
    executor = Pretender()

    def other_run_finishes() -> None:
        if executor.turned_away == 2:
            record = {**next(iter(Ledger(tmp_path))), "key": theirs.key, "parameters": 99}
            Ledger(tmp_path).append(record)
            claim.release()

    executor.before = other_run_finishes
    events: list[Event] = []
    summary = pretend([mine, theirs], stored, tmp_path, executor, events.append)
    assert (summary.ran, summary.elsewhere) == (1, 1)
    assert summary.records[theirs.key]["parameters"] == 99
    assert [(event.kind, event.elsewhere) for event in events] == [("finished", False), ("finished", True)]
    assert [event.record for event in events] == [summary.records[mine.key], summary.records[theirs.key]]
    assert executor.turned_away == 2


def test_a_cell_whose_holder_died_without_a_record_is_taken_over(stored: dict[str, Stored], tmp_path: Path) -> None:
    cell = toy_cell(stored)
    claim = Claims(tmp_path).take(cell.key, "")
    assert claim is not None
    executor = Pretender()
    executor.before = lambda: claim.release() if executor.turned_away == 1 and Claims(tmp_path).held() else None
    summary = pretend([cell], stored, tmp_path, executor)
    assert (summary.ran, summary.elsewhere, executor.turned_away) == (1, 0, 1)


def test_a_record_that_appears_after_planning_is_not_repeated_even_unclaimed(
    stored: dict[str, Stored], tmp_path: Path
) -> None:
    cells = [toy_cell(stored, trial=0), toy_cell(stored, trial=1)]
    executor = Pretender()

    def other_run_is_quick() -> None:
        if executor.asked == 1 and len(list(Ledger(tmp_path))) == 1:
            Ledger(tmp_path).append({**next(iter(Ledger(tmp_path))), "key": cells[1].key})

    executor.before = other_run_is_quick
    summary = pretend(cells, stored, tmp_path, executor)
    assert (summary.ran, summary.elsewhere) == (1, 1)


@pytest.mark.parametrize(
    ("status", "changed", "again"),
    [
        ("ok", {"source": "before the change"}, False),  # the revision is the same, so is the mathematics
        ("error", {"source": "before the change"}, True),  # it may have been mended
        ("error", {}, False),
        ("ok", {"protocol": 0}, True),
        ("ok", {"protocol": 1}, False),
    ],
)
def test_what_a_change_of_code_runs_again(
    stored: dict[str, Stored], tmp_path: Path, status: str, changed: dict[str, Any], again: bool
) -> None:
    cell = toy_cell(stored)
    pretend([cell], stored, tmp_path / "first", Pretender(status=status))
    [record] = Ledger(tmp_path / "first").of(cell.key)
    assert record["protocol"] == 1
    Ledger(tmp_path / "second").append({**record, **changed})
    assert (pending([cell], Ledger(tmp_path / "second"), RunOptions(), find)[0] == [cell]) is again


def test_results_of_older_code_are_named_with_the_flag_that_redoes_them() -> None:
    made = [{"model": model, "source": source} for model, source in (("gcn", "old"), ("gcn", "new"), ("gat", "old"))]
    present = {"gcn": "new", "gat": "new"}
    line = "2 results were made by older code of gcn, gat (same revision); --redo runs them again"
    assert older_code_line(made, present) == line
    assert older_code_line(made[:1], present).startswith("1 result was made by older code of gcn (")
    assert older_code_line(made[1:2], present) == ""


def test_a_graph_that_cannot_be_split_is_a_record_and_the_others_go_on(
    stored: dict[str, Stored], tmp_path: Path
) -> None:
    impossible = replace(toy_cell(stored), split_rule="total-20/30")  # 150 of 60 nodes
    fine = toy_cell(stored, trial=1)
    summary = pretend([impossible, fine], stored, tmp_path, Pretender())
    assert summary.records[impossible.key]["status"] == "unsupported"
    assert summary.records[impossible.key]["reason"].startswith("no split: ")
    assert summary.records[fine.key]["status"] == "ok"


def test_a_results_folder_that_cannot_be_written_stops_before_the_first_cell(
    stored: dict[str, Stored], tmp_path: Path
) -> None:
    (tmp_path / "results").write_text("in the way")
    executor = Pretender()
    with pytest.raises(UserError, match="cannot be written"):
        pretend([toy_cell(stored)], stored, tmp_path / "results", executor)
    assert executor.asked == 0


def test_a_disk_that_fills_ends_the_run_with_one_line_and_frees_its_claims(
    stored: dict[str, Stored], tmp_path: Path
) -> None:
    cells = [toy_cell(stored, trial=trial) for trial in range(3)]
    executor = Pretender()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        if executor.asked == 1:
            [ledger] = (tmp_path / "ledger").iterdir()
            resource.setrlimit(resource.RLIMIT_FSIZE, (ledger.stat().st_size + 100, before[1]))

    executor.before = fill
    try:
        with pytest.raises(UserError, match="finished records are safe"):
            pretend(cells, stored, tmp_path, executor)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    ledger = Ledger(tmp_path)
    assert [record["key"] for record in ledger] == [cells[0].key] and ledger.warnings == []
    assert list((tmp_path / ".claims").iterdir()) == []
    assert pretend(cells, stored, tmp_path, Pretender()).ran == 2


def test_workers_go_to_the_device_that_has_the_fewest(stored: dict[str, Stored], tmp_path: Path) -> None:
    executor = LocalExecutor(tmp_path, 4, ("cuda:0", "cuda:1"))
    graph = stored["ring"].graph
    job = Job(toy_cell(stored), "toy_models", "Toy", tmp_path, graph.labels, draw_split(RULE, graph.labels, 3, 0))
    running: list[Any] = []
    for _ in range(4):
        placed = executor._placed(job, running)
        running.append(type("Running", (), {"job": placed}))
    assert [worker.job.device for worker in running] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]


def test_what_is_done_again_prepares_its_own_arrays(tmp_path: Path) -> None:
    """Arrays that older code left in the cache would prove nothing of the new code."""
    stored, shared, executor = ring_dataset(tmp_path), tmp_path / "prepared", Imagined()
    options = RunOptions(cache_folder=shared, private_arrays=True)
    run_cells([toy_cell(stored)], stored, options, Ledger(tmp_path), executor, find=find)
    [job] = executor.jobs
    assert job.cache_folder == private_folder(shared) / job.cell.key


def test_a_job_carries_no_label_of_a_test_node(tmp_path: Path) -> None:
    stored, executor = ring_dataset(tmp_path), Imagined()
    run_cells([toy_cell(stored)], stored, RunOptions(), Ledger(tmp_path), executor, find=find)
    [job] = executor.jobs
    known = np.concatenate([job.split.train, job.split.val])
    assert len(known) == 48 and np.array_equal(job.labels[known], known % 3)  # the ring's classes go round
    assert len(job.split.test) == 12 and (job.labels[job.split.test] == UNKNOWN_LABEL).all()


def test_memory_that_ran_out_is_recorded_with_what_there_was(tmp_path: Path) -> None:
    stored = ring_dataset(tmp_path)

    class Full(Imagined):
        def _outcome(self, job: Any, on_event: Any) -> Outcome:
            return Outcome(job, "oom", "no more", result={"phases": {}, "capacity": 12 * 10**9})

    for limit, expected in ((None, 12 * 10**9), (8 * 10**9, 8 * 10**9), (64 * 10**9, 12 * 10**9)):
        options = RunOptions(memory_limit=limit, redo=True)
        summary = run_cells([toy_cell(stored)], stored, options, Ledger(tmp_path), Full(), find=find)
        assert [record["limits"]["memory"] for record in summary.records.values()] == [expected]
