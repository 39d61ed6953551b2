"""Which records of the ledger stand for a trial, and which do not, so that its cell runs again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuning_toys import Imagined, drive, ring_search

from bench.datasets.store import Stored
from bench.environment import processor
from bench.ledger import Ledger
from bench.predictions import PredictionStore
from bench.tuning.search import Search
from bench.tuning.study import Budget, Trial

TRIALS = 6


def values(trials: list[Trial]) -> list[tuple[object, ...]]:
    return [(trial.slot, trial.outcome, tuple(trial.settings.items()), trial.accuracy) for trial in trials]


def anew(search: Search, stored: Stored, results: Path) -> tuple[list[Trial], list[int]]:
    """The same study from its beginning, beside the records of the first time; and the slots whose cells ran again."""
    (results / "tuning" / "toys.journal").unlink()
    executor = Imagined()
    trials = drive(search, stored, results, Budget(trials=TRIALS), executor)
    return trials, [job.cell.labels["trial"] for job in executor.jobs]


def rewrite(results: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The ledger as if its records had come about otherwise."""
    for path in (results / "ledger").glob("*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            change(record)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_records_of_older_code_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, stored = ring_search(tmp_path)
    first = drive(search, stored, tmp_path, Budget(trials=TRIALS))
    assert anew(search, stored, tmp_path)[1] == []
    monkeypatch.setattr("bench.runner.source_hash", lambda model: "edited")
    trials, ran = anew(search, stored, tmp_path)
    assert ran == list(range(TRIALS)) and values(trials) == values(first)
    assert anew(search, stored, tmp_path)[1] == []  # these are of the present code


def test_an_error_is_tried_again_and_what_the_limits_explain_is_not(tmp_path: Path) -> None:
    search, stored = ring_search(tmp_path)
    fates = iter(["ok", "error", "oom", "diverged", "error", "unsupported"])
    drive(search, stored, tmp_path, Budget(trials=TRIALS), Imagined(lambda job: next(fates)))
    trials, ran = anew(search, stored, tmp_path)
    assert ran == [1, 4]
    assert [trial.outcome for trial in trials] == ["ok", "ok", "oom", "diverged", "ok", "unsupported"]


def test_a_time_out_of_a_longer_limit_costs_no_more_than_it_would_now(tmp_path: Path) -> None:
    search, stored = ring_search(tmp_path, time_limit=600.0)
    fates = iter(["timeout", "ok"] * (TRIALS // 2))
    first = drive(search, stored, tmp_path, Budget(trials=TRIALS), Imagined(lambda job: next(fates)))
    rewrite(tmp_path, lambda record: record.update(overhead_seconds=600.0) if record["status"] == "timeout" else None)
    trials, ran = anew(replace(search, time_limit=60.0), stored, tmp_path)
    assert ran == []
    assert [trial.seconds for trial in trials[::2]] == [60.0] * 3
    assert [trial.seconds for trial in trials[1::2]] == [trial.seconds for trial in first[1::2]]


HARM: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "nonsense": lambda path: path.write_bytes(b"nonsense"),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "spoilt": lambda path: path.write_bytes(path.read_bytes()[:60] + b"\xff" * 9 + path.read_bytes()[69:]),
}


@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_without_its_predictions_a_cell_runs_again(harm: Callable[[Path], object], prune: bool, tmp_path: Path) -> None:
    search, stored = ring_search(tmp_path, prune=prune, fixed={"max_epochs": 34})
    first = drive(search, stored, tmp_path, Budget(trials=TRIALS))
    by_trial = {record["labels"]["trial"]: record for record in Ledger(tmp_path) if record["status"] == "ok"}
    file = by_trial[2]["predictions"]
    harm(PredictionStore(tmp_path).path(file))
    trials, ran = anew(search, stored, tmp_path)
    without_answer = {slot for slot in range(TRIALS) if slot not in by_trial or by_trial[slot]["predictions"] == file}
    assert set(ran) == without_answer and values(trials) == values(first)
    assert len(PredictionStore(tmp_path).curve(file, by_trial[2]["key"])) == 34


def quiet(record: dict[str, Any]) -> None:
    record["load"] = {"others": 0.0, "processors": 2}


def disturbed(record: dict[str, Any]) -> None:
    record["load"] = {"others": 0.5, "processors": 2}


def unknown(record: dict[str, Any]) -> None:
    record["load"] = None


def with_threads(record: dict[str, Any]) -> None:
    quiet(record)
    record["environment"]["threads"] = 7


def elsewhere(record: dict[str, Any]) -> None:
    quiet(record)
    record["environment"]["processor"] = "another one"


@pytest.mark.parametrize(
    ("change", "again"), [(quiet, False), (disturbed, True), (unknown, True), (with_threads, True), (elsewhere, True)]
)
def test_seconds_count_only_where_they_can_be_compared(
    change: Callable[[dict[str, Any]], None], again: bool, tmp_path: Path
) -> None:
    both, stored = ring_search(tmp_path, objective=("accuracy", "seconds"))
    drive(both, stored, tmp_path, Budget(trials=TRIALS))
    assert all(record["environment"]["processor"] == processor() for record in Ledger(tmp_path))
    rewrite(tmp_path, change)
    assert anew(both, stored, tmp_path)[1] == (list(range(TRIALS)) if again else [])


def test_where_only_accuracy_counts_so_does_every_record(tmp_path: Path) -> None:
    search, stored = ring_search(tmp_path)
    drive(search, stored, tmp_path, Budget(trials=TRIALS))
    rewrite(tmp_path, disturbed)
    assert anew(search, stored, tmp_path)[1] == []
