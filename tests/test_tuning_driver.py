"""The loop from settings to cells and back, with imagined trainings; real ones are in test_tune_cells.py."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from optuna.trial import TrialState
from tuning_toys import (
    Imagined,
    KilledHere,
    Silent,
    drive,
    imagined_accuracy,
    kill_while_asking,
    open_study,
    ring_search,
)

from bench.datasets.store import Stored
from bench.errors import UserError
from bench.ledger import Ledger
from bench.records import wall_seconds
from bench.tuning.choosing import best, best_so_far, cheapest, front, outcomes
from bench.tuning.pruning import LOST
from bench.tuning.search import Search
from bench.tuning.study import Budget, Trial
from bench.worker import Job


@pytest.fixture
def ring(tmp_path: Path) -> tuple[Search, Stored]:
    return ring_search(tmp_path)


def values(trials: list[Trial]) -> list[tuple[object, ...]]:
    return [(trial.slot, trial.outcome, tuple(trial.settings.items()), trial.accuracy) for trial in trials]


def test_every_trial_is_a_cell_and_its_validation_accuracy_the_value(
    ring: tuple[Search, Stored], tmp_path: Path
) -> None:
    search, stored = ring
    trials = drive(search, stored, tmp_path, Budget(trials=6))
    records = {record["key"]: record for record in Ledger(tmp_path)}
    assert len(trials) == 6 and [trial.slot for trial in trials] == list(range(6))
    assert trials[0].settings == {"learning_rate": 0.05, "dropout": 0.5, "batch_size": 16}  # the toy's own settings
    for trial in trials:
        record = records[trial.cell]
        assert {name: record["config"][name] for name in trial.settings} == trial.settings
        assert record["split"]["rule"] == "tuning:uniform-60/20/20" and record["labels"]["study"] == "toys"
        assert trial.accuracy == pytest.approx(imagined_accuracy(record["config"]))
        assert trial.accuracy == record["metrics"]["val"]["accuracy"]
        assert trial.cost == pytest.approx(3.5)  # 1 s of preparing, 2 s found in the cache, 0.5 s of training


@pytest.mark.parametrize(("sampler", "prune", "epochs"), [("random", False, 5), ("tpe", True, 70)])
def test_a_study_killed_three_times_is_the_study_that_was_never_killed(
    sampler: str, prune: bool, epochs: int, tmp_path: Path
) -> None:
    search, stored = ring_search(tmp_path, sampler=sampler, prune=prune, max_epochs=None, fixed={"max_epochs": epochs})
    budget = Budget(trials=16)  # TPE begins to think after ten
    undisturbed = drive(search, stored, tmp_path / "whole", budget)
    assert len(undisturbed) == 16
    if prune:
        assert Counter(trial.outcome for trial in undisturbed)["pruned"] >= 3
    for end in (3, 6, 4):
        with pytest.raises(KilledHere):
            drive(search, stored, tmp_path / "killed", budget, Imagined(dies_at=end))
    assert values(drive(search, stored, tmp_path / "killed", budget)) == values(undisturbed)
    finished = Counter(record["key"] for record in Ledger(tmp_path / "killed") if record["status"] == "ok")
    assert max(finished.values()) == 1  # nothing was done twice
    tuning = open_study(search, tmp_path / "killed")
    assert Counter(trial.state.name for trial in tuning.study.trials)["RUNNING"] == 0  # none is stuck
    tuning.close()


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_what_the_ledger_knows_changes_nothing_but_the_time(sampler: str, tmp_path: Path) -> None:
    """Cells that are there already are judged by their curves as if they ran now."""
    search, stored = ring_search(tmp_path, sampler=sampler, prune=True, fixed={"max_epochs": 70})
    cold = drive(search, stored, tmp_path / "results", Budget(trials=16))
    (tmp_path / "results" / "tuning" / "toys.journal").unlink()
    executor, listener = Imagined(), Silent()
    warm = drive(search, stored, tmp_path / "results", Budget(trials=16), executor, listener)
    assert values(warm) == values(cold)
    assert len(executor.jobs) == sum(trial.outcome == "pruned" for trial in cold)  # only those had no answer
    notes = [note for trial, note in listener.heard if trial is not None and trial.outcome == "ok"]
    assert set(notes) == {"its cell was in the ledger"}


def test_a_complete_cell_of_another_study_is_pruned_where_it_would_have_been(tmp_path: Path) -> None:
    patient, stored = ring_search(tmp_path, prune=False, fixed={"max_epochs": 70})
    hasty, _ = ring_search(tmp_path, prune=True, fixed={"max_epochs": 70})
    alone = drive(hasty, stored, tmp_path / "alone", Budget(trials=16))
    assert all(trial.outcome == "ok" for trial in drive(patient, stored, tmp_path / "both", Budget(trials=16)))
    (tmp_path / "both" / "tuning" / "toys.journal").unlink()
    executor = Imagined()
    assert values(drive(hasty, stored, tmp_path / "both", Budget(trials=16), executor)) == values(alone)
    assert executor.jobs == []


def test_all_that_ends_by_itself_counts(ring: tuple[Search, Stored], tmp_path: Path) -> None:
    search, stored = ring
    fates = iter(["ok", "oom", "timeout", "error", "diverged", "unsupported", "ok"])
    listener = Silent()
    trials = drive(search, stored, tmp_path, Budget(trials=7), Imagined(lambda job: next(fates)), listener)
    assert [trial.outcome for trial in trials] == [
        "ok", "oom", "timeout", "error", "diverged", "unsupported", "ok",
    ]  # fmt: skip
    assert outcomes(trials) == "2 complete, 1 oom, 1 timeout, 1 error, 1 diverged, 1 unsupported"
    assert "it was oom" in [note for _, note in listener.heard]


def test_an_interrupted_trial_does_not_count_and_is_done_again(ring: tuple[Search, Stored], tmp_path: Path) -> None:
    search, stored = ring
    fates = iter(["ok", "interrupted", "ok", "ok"])
    trials = drive(search, stored, tmp_path, Budget(trials=3), Imagined(lambda job: next(fates)))
    assert [trial.outcome for trial in trials] == ["ok", "ok", "ok"]
    statuses = Counter(record["status"] for record in Ledger(tmp_path))
    assert statuses == {"ok": 3, "interrupted": 1}


def test_hours_end_a_study_after_the_trial_that_used_them_up(ring: tuple[Search, Stored], tmp_path: Path) -> None:
    search, stored = ring

    def fate(job: Job) -> str:
        time.sleep(0.1)
        return "oom"

    trials = drive(search, stored, tmp_path, Budget(hours=0.25 / 3600), Imagined(fate))
    assert 1 <= len(trials) <= 3
    assert sum(trial.seconds for trial in trials[:-1]) < 0.25 <= sum(trial.seconds for trial in trials)


@pytest.mark.parametrize("fate", ["unsupported", "error", "diverged", "oom:estimated: needs about 9 GB"])
@pytest.mark.parametrize("budget", [Budget(trials=50), Budget(hours=1.0)])
def test_a_study_that_can_only_fail_is_given_up_and_says_so(
    fate: str, budget: Budget, ring: tuple[Search, Stored], tmp_path: Path
) -> None:
    search, stored = ring
    listener, (outcome, _, reason) = Silent(), fate.partition(":")
    trials = drive(search, stored, tmp_path, budget, Imagined(lambda job: fate), listener)
    assert [trial.outcome for trial in trials] == [outcome] * 10
    last = reason or f"it was {outcome}"
    assert listener.heard[-1] == (
        None,
        f"given up: the first 10 trials all failed (10 {outcome}; the last one: {last}). Mend the cause, or change "
        "--space, --set or the limits, and start another study with --name toys-2",
    )
    assert sum(note.startswith("given up") for _, note in listener.heard) == 1


def test_one_that_may_still_find_something_is_not(ring: tuple[Search, Stored], tmp_path: Path) -> None:
    search, stored = ring
    listener = Silent()
    executor = Imagined(lambda job: "oom" if job.cell.labels["trial"] == 3 else "error")  # it was tried, and too large
    assert len(drive(search, stored, tmp_path / "a", Budget(trials=15), executor, listener)) == 15
    assert len(drive(search, stored, tmp_path / "b", Budget(trials=10), Imagined(lambda job: "error"), listener)) == 10
    assert not any("given up" in note for _, note in listener.heard)  # in the second the budget was spent


def test_a_worker_that_is_killed_again_and_again_is_taken_for_too_large(
    ring: tuple[Search, Stored], tmp_path: Path
) -> None:
    search, stored = ring
    executor = Imagined(lambda job: "interrupted:the worker was killed" if job.cell.labels["trial"] == 1 else "ok")
    listener = Silent()
    trials = drive(search, stored, tmp_path, Budget(trials=3), executor, listener)
    assert [trial.outcome for trial in trials] == ["ok", "oom", "ok"]
    assert [job.cell.labels["trial"] for job in executor.jobs] == [0, 1, 1, 1, 2]
    killed = [record for record in Ledger(tmp_path) if record["status"] == "interrupted"]
    assert trials[1].seconds == pytest.approx(sum(map(wall_seconds, killed)))
    notes = [note for _, note in listener.heard]
    assert notes.count("trial 1: the worker was killed; it does not count and will be done again") == 3
    assert notes.count("its worker was killed 3 times") == 1


def test_a_trial_that_another_driver_took_for_dead_is_ended_and_done_again(tmp_path: Path) -> None:
    search, stored = ring_search(tmp_path, prune=True, fixed={"max_epochs": 70})
    listener, taken = Silent(), []

    def fate(job: Job) -> str:
        if job.cell.labels["trial"] == 2 and not taken:
            other = open_study(search, tmp_path)
            taken.extend(trial for trial in other.study.trials if trial.state.name == "RUNNING")
            for trial in taken:
                other.study.tell(trial.number, state=TrialState.FAIL)
            other.close()
        return "ok"

    executor = Imagined(fate)
    trials = drive(search, stored, tmp_path, Budget(trials=4), executor, listener)
    assert [trial.slot for trial in trials] == [0, 1, 2, 3] and len(taken) == 1
    assert [job.cell.labels["trial"] for job in executor.jobs] == [0, 1, 2, 2, 3]
    assert (None, LOST) in listener.heard
    ended = [record for record in Ledger(tmp_path) if record["status"] == "pruned"]
    assert [record["labels"]["trial"] for record in ended] == [2]
    assert ended[0]["phases"]["train"]["seconds"] == 3.2  # at the first rung


def test_no_trial_of_a_driver_that_was_killed_while_asking_is_waited_for(
    ring: tuple[Search, Stored], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, stored = ring
    killed = open_study(search, tmp_path)
    kill_while_asking(killed, monkeypatch)
    assert len(drive(search, stored, tmp_path, Budget(trials=2))) == 2
    later = open_study(search, tmp_path)
    assert [trial.state.name for trial in later.study.trials] == ["WAITING", "COMPLETE", "COMPLETE"]
    later.close()


def test_settings_that_do_not_go_together_are_a_failed_trial(
    ring: tuple[Search, Stored], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, stored = ring
    whole = Search.cell

    def picky(self: Search, settings: dict[str, object], slot: int, study: str) -> object:
        if slot == 1:
            raise UserError("not together")
        return whole(self, settings, slot, study)

    monkeypatch.setattr(Search, "cell", picky)
    trials = drive(search, stored, tmp_path, Budget(trials=3))
    assert [trial.outcome for trial in trials] == ["ok", "unsupported", "ok"]


def test_two_objectives_have_a_front_and_no_pruning(tmp_path: Path) -> None:
    search, stored = ring_search(
        tmp_path, sampler="tpe", objective=("accuracy", "seconds"), fixed={"max_epochs": 70, "learning_rate": 0.01}
    )
    executor = Imagined(
        lambda job: "oom" if job.cell.config["batch_size"] % 4 == 1 else "ok",
        seconds=lambda config: 2.0 * config["batch_size"],
    )
    trials = drive(search, stored, tmp_path, Budget(trials=16), executor)
    assert len(trials) == 16 and {trial.outcome for trial in trials} == {"ok", "oom"}
    assert all((trial.outcome == "oom") == (trial.settings["batch_size"] % 4 == 1) for trial in trials)

    points = {  # worked out from the settings alone; 3 seconds of preparing
        trial.slot: (
            imagined_accuracy({**trial.settings, "learning_rate": 0.01}),
            3 + 2.0 * trial.settings["batch_size"],
        )
        for trial in trials
        if trial.outcome == "ok"
    }
    tuning = open_study(search, tmp_path)
    told = {t.user_attrs["claim"]["slot"]: t.values for t in tuning.study.trials if t.state == TrialState.COMPLETE}
    assert {slot: pytest.approx(list(point)) for slot, point in points.items()} == told
    assert all(trial.intermediate_values == {} for trial in tuning.study.trials)
    tuning.close()
    unbeaten = {
        (accuracy, cost)
        for accuracy, cost in points.values()
        if not any(a >= accuracy and c <= cost and (a, c) != (accuracy, cost) for a, c in points.values())
    }
    assert [points[trial.slot] for trial in front(trials)] == sorted(unbeaten, key=lambda point: point[1])
    assert 1 < len(unbeaten) < len(points)


# -- choosing ----------------------------------------------------------------------------------------------------------


def trial(slot: int, accuracy: float | None, cost: float = 1.0) -> Trial:
    complete = accuracy is not None
    return Trial(
        slot, "ok" if complete else "pruned", {}, accuracy, cost + 1, cost if complete else None, f"cell{slot}"
    )


def test_the_best_is_the_first_of_equals() -> None:
    trials = [trial(0, 0.5), trial(1, None), trial(2, 0.9), trial(3, 0.9), trial(4, 0.8)]
    top = best(trials)
    assert top is not None and top.slot == 2
    assert best([trial(0, None)]) is None


def test_the_best_so_far() -> None:
    trials = [trial(0, 0.5), trial(1, None), trial(2, 0.4), trial(3, 0.9), trial(4, 0.9)]
    assert [found.slot for found in best_so_far(trials)] == [0, 3]


def test_the_cheapest_within_two_tenths_of_a_point() -> None:
    trials = [trial(0, 0.9000, 10), trial(1, 0.8980, 5), trial(2, 0.8979, 1), trial(3, 0.8985, 6)]
    found = cheapest(trials)
    assert found is not None and found.slot == 1
    assert cheapest([]) is None


def test_the_front() -> None:
    trials = [trial(0, 0.9, 10), trial(1, 0.8, 5), trial(2, 0.85, 5), trial(3, 0.7, 1), trial(4, 0.9, 11)]
    assert [found.slot for found in front(trials)] == [3, 2, 0]
