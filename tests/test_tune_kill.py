"""`tune` killed and interrupted as a whole process; slow, because every start imports everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend, JournalStorage
from running import ring_dataset

ROOT = Path(__file__).parents[1]
TRIALS, RING, DIGITS = 12, "gcn-ring-wide-random-s0", "nagphormer-digits-wide-random-s0"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def start(tmp_path: Path, results: str, *what: str) -> subprocess.Popen[str]:
    """A study of GCN on the ring, if nothing else is said."""
    if not what:
        ring_dataset(tmp_path)
        what = ("--model", "gcn", "--datasets", str(tmp_path / "ring.npz"), "--trials", str(TRIALS), "--max-epochs")
        what += ("300", "--set", "patience=300")
    command = [
        sys.executable, "-m", "bench", "tune", *what, "--sampler", "random", "--threads", "1", "--results",
        str(tmp_path / results),
    ]  # fmt: skip
    environment = {**os.environ, "BENCH_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def after_trials(process: subprocess.Popen[str], count: int) -> None:
    """Wait until so many trials were finished in this process, and a bit into the next."""
    assert process.stdout is not None
    while count:
        line = process.stdout.readline()
        assert line, "it ended too early"
        count -= ": trial " in line
    time.sleep(0.4)


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate()
    return process.returncode


def trials(tmp_path: Path, results: str, study: str = RING) -> list[dict[str, Any]]:
    content = json.loads((tmp_path / results / "tuning" / f"{study}.json").read_text())
    return [
        {key: trial[key] for key in ("trial", "outcome", "settings", "val_accuracy")} for trial in content["trials"]
    ]


def states(tmp_path: Path, results: str, study: str = RING) -> Counter[str]:
    journal = tmp_path / results / "tuning" / f"{study}.journal"
    found = optuna.load_study(study_name=study, storage=JournalStorage(JournalFileBackend(str(journal))))
    return Counter(trial.state.name for trial in found.trials)


def test_killed_three_times_and_the_same_in_the_end(tmp_path: Path) -> None:
    """Twenty trials of NAGphormer on digits; the smallest width and two epochs, to be done in time."""
    what = ("--model", "nagphormer", "--datasets", "digits", "--trials", "20", "--max-epochs", "2", "--set")
    what += ("hidden=128",)
    for count in (3, 5, 4):
        process = start(tmp_path, "killed", *what)
        after_trials(process, count)
        os.kill(process.pid, signal.SIGKILL)
        assert ended(process) == -signal.SIGKILL
    assert ended(start(tmp_path, "killed", *what)) == 0
    assert ended(start(tmp_path, "whole", *what)) == 0
    found = trials(tmp_path, "killed", DIGITS)
    assert found == trials(tmp_path, "whole", DIGITS)
    assert [trial["trial"] for trial in found] == list(range(20))
    assert {trial["outcome"] for trial in found} == {"ok"}
    assert states(tmp_path, "whole", DIGITS) == {"COMPLETE": 20}
    after = states(tmp_path, "killed", DIGITS)
    assert after["COMPLETE"] == 20 and after["RUNNING"] == 0 and after["FAIL"] <= 3


def test_interrupted_it_says_so_and_goes_on_later(tmp_path: Path) -> None:
    process = start(tmp_path, "results")
    after_trials(process, 2)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on from here" in output
    assert 2 <= len(trials(tmp_path, "results")) <= 4 and states(tmp_path, "results")["RUNNING"] == 0
    assert not (tmp_path / "results" / "tuned").exists()  # the budget is not spent
    assert ended(start(tmp_path, "results")) == 0
    assert len(trials(tmp_path, "results")) == TRIALS


def test_two_processes_share_a_study_and_one_finishes_it(tmp_path: Path) -> None:
    one, two = start(tmp_path, "shared"), start(tmp_path, "shared")
    after_trials(one, 2)
    os.kill(one.pid, signal.SIGKILL)
    ended(one)
    assert ended(two) == 0
    assert [trial["trial"] for trial in trials(tmp_path, "shared")] == list(range(TRIALS))
    found = states(tmp_path, "shared")
    assert found["COMPLETE"] == TRIALS and found["RUNNING"] == 0
