"""Slots: filled once, freed by death, refused to a study that searches something else."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend, JournalStorage
from tuning_toys import kill_while_asking, open_study, ring_search

from bench.errors import UserError
from bench.space import Space, Whole
from bench.tuning.sampling import SlotSampler
from bench.tuning.search import Search
from bench.tuning.study import Asked, Budget, OtherStudy, Tuning, differences, open_tuning


@pytest.fixture
def search(tmp_path: Path) -> Search:
    return ring_search(tmp_path)[0]


def asked(tuning: Tuning, budget: Budget) -> Asked:
    slot = tuning.next_slot(budget)
    assert slot is not None
    found = tuning.ask(slot)
    assert found is not None
    return found


def states(tuning: Tuning) -> list[str]:
    return [trial.state.name for trial in tuning.study.trials]


def test_a_slot_is_filled_by_a_trial_that_ended_by_itself(search: Search, tmp_path: Path) -> None:
    tuning, budget = open_study(search, tmp_path), Budget(trials=5)
    for outcome, accuracy in [("ok", 0.5), ("pruned", None), ("oom", None), ("error", None)]:
        assert tuning.tell(asked(tuning, budget), outcome, "cell", 2.0, accuracy, 1.0 if accuracy else None)
    assert [(trial.slot, trial.outcome, trial.accuracy, trial.seconds) for trial in tuning.trials()] == [
        (0, "ok", 0.5, 2.0), (1, "pruned", None, 2.0), (2, "oom", None, 2.0), (3, "error", None, 2.0),
    ]  # fmt: skip
    assert tuning.next_slot(budget) == 4
    assert tuning.next_slot(Budget(trials=4)) is None
    assert tuning.next_slot(Budget(hours=7.9 / 3600)) is None  # 8 seconds are spent
    assert tuning.next_slot(Budget(hours=8.1 / 3600)) == 4
    tuning.close()


def test_the_dead_free_their_slot_and_the_living_keep_theirs(search: Search, tmp_path: Path) -> None:
    budget = Budget(trials=4)
    dead, alive, other = (open_study(search, tmp_path) for _ in range(3))
    lost, kept = asked(dead, budget), asked(alive, budget)
    assert (lost.slot, kept.slot) == (0, 1)
    assert other.live_slots() == {0, 1} and other.next_slot(budget) == 2
    dead.close()  # as the kernel does it for a process that was killed
    assert other.live_slots() == {1} and other.next_slot(budget) == 0
    again = asked(other, budget)
    assert again.slot == 0 and again.settings == lost.settings
    assert not dead.tell(lost, "ok", "cell", 1.0, 0.9, 1.0)  # too late: it was taken for dead
    assert other.tell(again, "ok", "cell", 1.0, 0.9, 1.0) and alive.tell(kept, "ok", "cell", 1.0, 0.8, 1.0)
    assert [trial.slot for trial in other.trials()] == [0, 1]
    assert states(other) == ["FAIL", "COMPLETE", "COMPLETE"]
    alive.close()
    other.close()


def test_of_two_that_want_one_slot_at_once_only_one_goes_on(search: Search, tmp_path: Path) -> None:
    first, second = open_study(search, tmp_path), open_study(search, tmp_path)
    mine = first.ask(0)
    assert mine is not None and second.ask(0) is None  # its slot was chosen before the first had signed
    assert second.next_slot(Budget(trials=9)) == 1
    assert first.tell(mine, "ok", "cell", 1.0, 0.5, 1.0)
    assert second.ask(0) is None  # nor is a slot filled twice
    assert states(first) == ["COMPLETE", "FAIL", "FAIL"]
    first.close()
    second.close()


def test_one_killed_between_its_result_and_its_end_is_done_again(search: Search, tmp_path: Path) -> None:
    tuning, budget = open_study(search, tmp_path), Budget(trials=2)
    found = asked(tuning, budget)
    result = {"outcome": "ok", "cell": "c", "seconds": 1.0, "accuracy": 0.5, "cost": 1.0}
    found.trial.set_user_attr("result", result)
    tuning.close()
    other = open_study(search, tmp_path)
    assert other.next_slot(budget) == 0 and other.trials() == [] and states(other) == ["FAIL"]
    other.close()


def test_a_driver_that_is_killed_before_its_sign_of_life_leaves_nothing_that_runs(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, budget = open_study(search, tmp_path), Budget(trials=2)
    kill_while_asking(killed, monkeypatch)
    other = open_study(search, tmp_path)
    assert other.live_slots() == set() and states(other) == ["WAITING"] and other.next_slot(budget) == 0
    found = asked(other, budget)
    assert found.slot == 0 and states(other) == ["WAITING", "RUNNING"]
    assert other.tell(found, "ok", "cell", 1.0, 0.5, 1.0) and other.next_slot(budget) == 1
    other.close()


def test_a_trial_that_tune_did_not_make_is_left_alone(search: Search, tmp_path: Path) -> None:
    tuning = open_study(search, tmp_path)
    tuning.study.ask()
    assert tuning.live_slots() == set() and tuning.next_slot(Budget(trials=2)) == 0
    assert tuning.trials() == [] and states(tuning) == ["RUNNING"]
    tuning.close()


def test_lock_files_of_the_dead_are_swept_away(search: Search, tmp_path: Path) -> None:
    folder = tmp_path / "tuning" / ".claims"
    folder.mkdir(parents=True)
    (folder / "dead").write_text("tune")
    alive = open_study(search, tmp_path)
    other = open_study(search, tmp_path)
    assert {path.name for path in folder.iterdir()} == {alive.presence.name, other.presence.name}
    alive.close()
    other.close()
    assert list(folder.iterdir()) == []


def test_what_is_given_back_is_free_again(search: Search, tmp_path: Path) -> None:
    tuning, budget = open_study(search, tmp_path), Budget(trials=2)
    tuning.give_back(asked(tuning, budget))
    assert tuning.next_slot(budget) == 0 and tuning.trials() == []
    tuning.close()


def test_a_grid_ends_where_it_has_no_more_points(search: Search, tmp_path: Path) -> None:
    small = replace(search, sampler="grid", fixed={"learning_rate": 0.01, "batch_size": 16})
    tuning, budget = open_study(small, tmp_path), Budget(trials=100)
    tried = []
    while (slot := tuning.next_slot(budget)) is not None:
        found = tuning.ask(slot)
        assert found is not None
        tried.append(found.settings["dropout"])
        tuning.tell(found, "ok", "cell", 1.0, 0.5, 1.0)
    assert sorted(tried) == [0.0, 0.25, 0.5]
    tuning.close()


# -- the same study, or another one -----------------------------------------------------------------------------------


def test_a_space_that_changed_is_another_study_and_the_change_is_named(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_study(search, tmp_path).close()
    open_study(search, tmp_path).close()  # the same again is fine
    wider = {**search.model.spaces["wide"], "batch_size": Whole(4, 80)}
    monkeypatch.setattr(search.model, "spaces", {"wide": wider})
    changed = replace(search)
    with pytest.raises(OtherStudy) as caught:
        open_study(changed, tmp_path)
    assert "space batch_size was whole numbers 4 to 40, is whole numbers 4 to 80" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"sampler": "tpe"}, "sampler was random, is tpe"),
        ({"data": "other"}, "data was"),
        ({"max_epochs": 2}, "setting max_epochs was 5, is 2"),
        ({"fixed": {"dropout": 0.5}}, "space dropout was 0.0, 0.25, 0.5, is absent"),
    ],
)
def test_what_else_makes_it_another_study(
    search: Search, tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    open_study(search, tmp_path).close()
    with pytest.raises(OtherStudy, match=expected):
        open_study(replace(search, **change), tmp_path)


def test_a_study_that_somebody_else_made_is_left_alone(search: Search, tmp_path: Path) -> None:
    (tmp_path / "tuning").mkdir()
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "tuning" / "toys.journal")))
    study = optuna.create_study(storage=storage, study_name="toys", direction="maximize")
    study.tell(study.ask(), 1.0)
    with pytest.raises(UserError, match="that `tune` did not make; choose another --name"):
        open_study(search, tmp_path)
    assert len(study.trials) == 1


@pytest.mark.parametrize(("pareto", "directions"), [(False, ["minimize"]), (True, ["maximize"])])
def test_nor_is_an_empty_one_taken_that_looks_for_something_else(
    pareto: bool, directions: list[str], search: Search, tmp_path: Path
) -> None:
    (tmp_path / "tuning").mkdir()
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "tuning" / "toys.journal")))
    study = optuna.create_study(storage=storage, study_name="toys", directions=directions)
    objective = ("accuracy", "seconds") if pareto else ("accuracy",)
    with pytest.raises(UserError, match="that `tune` did not make; choose another --name"):
        open_study(replace(search, objective=objective), tmp_path)
    assert study.user_attrs == {}


def test_differences() -> None:
    assert differences({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 2, "d": 4}}) == ["b d was 3, is 4"]
    assert differences({"a": (1, 2)}, {"a": [1, 2]}) == []


# -- a database: heartbeats instead of locks -------------------------------------------------------------------------


def test_without_heartbeats_a_driver_is_taken_for_dead(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.tuning.storage.HEARTBEAT", 1)
    monkeypatch.setattr("bench.tuning.storage.GRACE", 3)
    url, budget = f"sqlite:///{tmp_path}/studies.db", Budget(trials=4)
    dead, alive = open_study(search, tmp_path, url), open_study(search, tmp_path, url)
    lost, kept = asked(dead, budget), asked(alive, budget)
    assert alive.live_slots() == {0, 1}
    dead.close()
    found = set()
    for _ in range(60):
        found = alive.live_slots()
        if found == {1}:
            break
        time.sleep(0.25)
    assert found == {1} and alive.next_slot(budget) == 0
    again = asked(alive, budget)
    assert again.settings == lost.settings
    assert not dead.tell(lost, "ok", "cell", 1.0, 0.5, 1.0)
    assert alive.tell(again, "ok", "cell", 1.0, 0.5, 1.0) and alive.tell(kept, "ok", "cell", 1.0, 0.5, 1.0)
    assert [trial.slot for trial in alive.trials()] == [0, 1]
    alive.close()


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_tpe_repeats_no_settings_while_there_are_new_ones(sampler: str, tmp_path: Path) -> None:
    space: Space = {"hidden": (2, 4), "layers": Whole(1, 5)}
    tuning = open_tuning("ten", {}, SlotSampler(sampler, 0, space, None), False, None, tmp_path / "ten.journal")
    for _ in range(12):  # TPE would stay with what is best: the largest number of layers
        trial = asked(tuning, Budget(trials=12))
        tuning.tell(trial, "ok", "cell", 1.0, trial.settings["layers"] / 10, 1.0)
    found = {tuple(trial.settings.items()) for trial in tuning.trials()}
    assert len(tuning.trials()) == 12  # though there are only ten
    assert len(found) == 10 if sampler == "tpe" else len(found) < 10
    tuning.close()
