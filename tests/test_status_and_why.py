"""`status` and `why` on a ledger made by hand: what is counted where, what is shown, in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ledgers import failed, made_up_records, write_ledger
from typer.testing import CliRunner

from bench import registry
from bench.cli import app

MODEL = next(iter(registry.models()))


def bench(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def as_trial(record: dict[str, Any], slot: int, status: str) -> dict[str, Any]:
    """The record, had it been a trial of `tune`."""
    labels = {**record["labels"], "mode": "tuning", "study": "net-photo-s0", "trial": slot}
    split = {**record["split"], "rule": "tuning:uniform-60/20/20"}
    return {**failed(record, status, "too slow"), "key": f"{slot:020x}", "labels": labels, "split": split}


@pytest.fixture
def results(tmp_path: Path) -> str:
    """Three fresh trials of which two failed, two sealed ones of which one did, and four of `tune`, one pruned."""
    fresh = made_up_records(MODEL, "photo", [90, 91, 92])
    sealed = made_up_records(MODEL, "photo", [93, 94], mode="sealed")
    records = [fresh[1], failed(sealed[1], "error"), failed(fresh[2], "oom"), failed(fresh[0], "timeout"), sealed[0]]
    records += [as_trial(fresh[0], slot, status) for slot, status in ((11, "timeout"), (2, "timeout"), (3, "pruned"))]
    return str(write_ledger(tmp_path / "results", records))


def test_pruned_trials_are_neither_done_nor_failed(results: str) -> None:
    *_, row, last = bench("status", "--results", results).splitlines()
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        "photo",
        MODEL,
        "2",
        "1",
        "0",
        "1 error, 1 oom, 3 timeout",
    ]
    assert last.startswith("2 done, 0 running, 5 failed, 1 pruned")


def origins(text: str) -> list[str]:
    """Of each failure that is shown, all that stands before its cell."""
    return [line.partition(", cell ")[0] for line in text.splitlines() if ", cell " in line]


def test_failures_are_sorted_and_say_what_they_were_run_for(results: str) -> None:
    text = bench("why", MODEL, "photo", "--results", results)
    lane = made_up_records(MODEL, "photo", [90])[0]["labels"]["settings"]
    expected = [
        f"fresh splits, {lane} settings, trial 0",
        f"fresh splits, {lane} settings, trial 2",
        f"sealed splits, {lane} settings, trial 1",
    ]
    assert origins(text) == expected
    assert text.splitlines()[-2:] == [
        f"{MODEL} on photo: 3 of 5 cells failed",
        "and 2 trials of `tune`, which --tuning shows",
    ]
    with_tuning = bench("why", MODEL, "photo", "--tuning", "--results", results)
    trials = [f"tuning study net-photo-s0, trial {slot}" for slot in (2, 11)]  # by number, not by letter
    assert origins(with_tuning) == [*expected, *trials]
    assert with_tuning.splitlines()[-1] == f"{MODEL} on photo: 5 of 8 cells failed"
