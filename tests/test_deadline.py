"""When a cell is given up: by hand, and never one that could still have ended in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import ring_dataset, run, toy_cell

from bench.executors.deadline import Deadline
from bench.train import least_epochs


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def recipe(**changes: Any) -> dict[str, Any]:
    return {"schedule": "constant", "stop": "loss", "max_epochs": 500, "patience": 9, "evaluate_every": 1, **changes}


def given_up(limit: float | None, seconds: list[float], every: int = 1, **changes: Any) -> tuple[int, str] | None:
    """The epoch after which a training with epochs of these lengths is given up, and why."""
    clock = Clock()
    deadline = Deadline(limit, recipe(evaluate_every=every, **changes), clock)
    for epoch, taken in enumerate(seconds, 1):
        clock.now += taken
        if deadline.passed():
            return None
        if epoch % every == 0 and (reason := deadline.will_miss_deadline(epoch, clock.now)):
            return epoch, reason
    return None


def test_given_up_as_soon_as_twice_the_pace_would_not_do() -> None:
    # ten epochs at least; after the second of 25 s, eight more at 12.5 s would end at 150 s
    reason = "an epoch takes 25.0 s and training at least 10 of them, which does not fit into 2 min 00 s (estimated)"
    assert given_up(120.0, [25.0] * 10) == (2, f"{reason}; given up")
    later = given_up(150.0, [25.0] * 10)
    assert later is not None and later[0] == 3  # 50 + 8 * 12.5 is just in time, 75 + 7 * 12.5 is not
    assert given_up(250.0, [25.0] * 10) is None
    assert given_up(None, [1e6] * 10) is None


def test_the_first_epoch_is_warming_up() -> None:
    assert given_up(120.0, [60.0] + [5.0] * 9) is None  # 60 + 9 * 60 / 2 would not have been in time


def test_a_short_hiccup_says_nothing() -> None:
    assert given_up(100.0, [0.1, 4.0, 0.1, 0.1], patience=199) is None  # 200 epochs of 4 s would take 800 s


def test_who_hears_late_of_an_epoch_still_knows_how_long_it_took() -> None:
    """A parent that was suspended for 100 s finds ten epochs of a second each, and gives nothing up."""
    clock = Clock()
    deadline = Deadline(120.0, recipe(), clock)
    began, clock.now = clock.now, clock.now + 100.0
    assert [deadline.will_miss_deadline(epoch, began + epoch) for epoch in range(1, 11)] == [None] * 10


def test_time_spent_waiting_for_others_is_given_back() -> None:
    clock = Clock()
    deadline = Deadline(120.0, recipe(), clock)
    clock.now += 50
    deadline.waits(True)
    clock.now += 500
    assert not deadline.passed()  # nor does it while it waits
    deadline.waits(False)
    clock.now += 69
    assert not deadline.passed()
    clock.now += 2
    assert deadline.passed()  # 50 + 71 of its own


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ({}, 10),
        ({"max_epochs": 4}, 4),
        ({"evaluate_every": 3}, 30),
        ({"stop": "never", "max_epochs": 70}, 70),
        ({"schedule": "plateau"}, 1),
    ],
)
def test_how_many_epochs_there_are_at_least(changes: dict[str, Any], epochs: int) -> None:
    assert least_epochs(recipe(**changes)) == epochs


@given(
    limit=st.floats(1.0, 1e4),
    pace=st.floats(1e-3, 1e3),
    patience=st.integers(1, 60),
    every=st.integers(1, 5),
    warming=st.floats(0.0, 1e3),
)
def test_given_up_where_twice_the_pace_would_not_do_and_nowhere_else(
    limit: float, pace: float, patience: int, every: int, warming: float
) -> None:
    epochs = (patience + 1) * every
    verdict = given_up(limit, [warming + pace] + [pace] * (epochs - 1), every, patience=patience)
    if warming + epochs * pace <= limit:
        assert verdict is None
    if warming + pace + (epochs - 1) * pace / 2 > limit and 2 * every < epochs and warming + 2 * every * pace < limit:
        watched = every * pace >= 0.05 * limit
        assert verdict is not None or not watched


def test_a_cell_that_cannot_end_in_time_gives_its_time_back(tmp_path: Path) -> None:
    stored = ring_dataset(tmp_path / "data")
    cell = toy_cell(stored, "slow", max_epochs=1000)
    [record] = run([cell], stored, tmp_path / "results", time_limit=4.0).records.values()
    assert record["status"] == "timeout" and record["limits"]["time"] == 4.0
    assert "training at least 51 of them, which does not fit into 4.00 s (estimated); given up" in record["reason"]
    assert record["reason"].endswith("of 1000")  # during train, epoch so and so
    assert record["phases"]["train"]["seconds"] < 3.0
