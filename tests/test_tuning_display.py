"""What is shown while a study runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from tuning_toys import ring_search

from bench.commands.tune_display import TrialDisplay, trial_line
from bench.executors import Event
from bench.tuning.study import Budget, Trial

FIRST = Trial(0, "ok", {"hidden": 64, "rate": 1e-5}, 0.8, 12.0, 11.0, "a")
SECOND = Trial(1, "ok", {"hidden": 128, "rate": 0.1}, 0.9, 8.0, 7.0, "b")
PRUNED = Trial(2, "pruned", {"hidden": 8, "rate": 0.1}, None, 1.0, None, "c")
FAILED = Trial(3, "oom", {"hidden": 9, "rate": 0.1}, None, 1.0, None, "d")


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=150, color_system=None)


def shown(display: TrialDisplay) -> str:
    file = display.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize(
    ("budget", "jobs", "expected"),
    [
        (Budget(trials=4), 1, "2 of 4 trials, best 90.00 % (trial 1), about 20.0 s left"),
        (Budget(trials=4), 2, "2 of 4 trials, best 90.00 % (trial 1), about 10.0 s left"),
        (Budget(hours=0.01), 1, "2 trials, best 90.00 % (trial 1), about 16.0 s left"),
        (Budget(trials=4, hours=0.01), 1, "2 of 4 trials, best 90.00 % (trial 1), about 16.0 s left"),
    ],
)
def test_how_far_a_study_is(budget: Budget, jobs: int, expected: str) -> None:
    assert TrialDisplay(console(False), "x:", budget, [FIRST, SECOND], jobs).line() == expected


def test_before_the_first_trial_nothing_is_known() -> None:
    assert TrialDisplay(console(False), "x:", Budget(trials=4), []).line() == "0 of 4 trials, time left unknown"


def test_in_a_file_every_trial_is_a_line() -> None:
    display = TrialDisplay(console(False), "gcn on ring:", Budget(trials=4), [], 1)
    with display:
        display.on_trials([FIRST], FIRST, "")
        display.on_trials([FIRST, FAILED], FAILED, "too much")
    first, second = shown(display).splitlines()
    assert first.startswith("gcn on ring: trial 0: val 80.00 %, 12.0 s, hidden=64 rate=1e-05; 1 of 4 trials")
    assert second.startswith("gcn on ring: trial 3: oom, 1.00 s, hidden=9 rate=0.1 (too much); 2 of 4 trials")


def test_on_a_terminal_a_picture_moves_and_only_failures_stay(tmp_path: Path) -> None:
    display = TrialDisplay(console(True), "gcn on ring:", Budget(trials=4), [], 1)
    assert display.live is not None
    display.on_trials([FIRST], FIRST, "")
    display.on_trials([FIRST, PRUNED], PRUNED, "")
    assert shown(display) == ""
    display.on_trials([FIRST, PRUNED, FAILED], FAILED, "")
    assert trial_line(FAILED) in shown(display)

    cell = ring_search(tmp_path)[0].cell({"batch_size": 8}, 3, "toys")
    display.on_event(Event("started", cell))
    display.on_event(Event("progress", cell, "train", 2, 5, 0.75))
    display.console.print(display.picture())
    picture = shown(display)
    assert "batch_size=8" in picture and "2/5" in picture and "75.00" in picture and "━" in picture
    display.on_event(Event("finished", cell))
    assert display.cells.running == {}
