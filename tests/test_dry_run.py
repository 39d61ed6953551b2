"""`run --dry-run` as a user meets it: pilots where nothing is known, records where something is, and a budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import _write_ring
from typer.testing import CliRunner, Result

from bench.cli import app
from bench.ledger import Ledger


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BENCH_OFFLINE", "1")
    _write_ring(tmp_path / "ring.npz")


PLAN = ("run", "--dry-run", "--pilots")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--threads", "1", "--datasets", "ring.npz"])


def table(result: Result) -> list[list[str]]:
    """dataset, model, settings, to run, each, in all, memory, disk, from."""
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in result.stdout.splitlines() if "|" in line]
    return rows[2:]


def test_pilots_then_records_then_nothing_left() -> None:
    asked = ("--models", "gcn", "--trials", "2", "--max-epochs", "30")
    first = bench(*PLAN, *asked, "--budget", "1d")
    assert first.exit_code == 0, first.output
    [row] = table(first)
    assert row[:4] == ["ring", "gcn", "default", "2 of 2"] and row[8] == "pilot"
    assert "2 cells to run, 0 done" in first.stdout and "within 24 h 00 min: 2 cells" in first.stdout
    assert not Path("results/own/ledger").exists()  # two epochs are nobody's result
    pilots = list(Ledger(Path("results/own/pilots")))
    assert sorted(item["training"]["epochs"] for item in pilots) in (
        [2],
        [2, 20],
    )  # a second one where the first was short

    again = bench(*PLAN, *asked, "--budget", "0.001s")
    [row] = table(again)
    assert row[8] == "pilot" and len(list(Ledger(Path("results/own/pilots")))) == len(pilots)
    assert "0 cells" in again.stdout and "gcn ring default: left out" in again.stdout

    assert bench("run", *asked).exit_code == 0
    done = bench(*PLAN, *asked)
    assert done.stdout.splitlines()[-1] == "nothing to run: all 2 cells are there"
    [row] = table(bench(*PLAN, "--models", "gcn", "--trials", "3", "--max-epochs", "30"))
    assert row[3] == "1 of 3" and row[8] == "records"


def test_pilots_from_elsewhere_are_done_again_here() -> None:
    asked = (*PLAN, "--models", "gcn", "--trials", "1", "--max-epochs", "2")
    assert bench(*asked).exit_code == 0
    [file] = Path("results/own/pilots/ledger").glob("*.jsonl")
    [line] = file.read_text().splitlines()
    assert line.count('"threads": 1') == 1
    file.write_text(line.replace('"threads": 1', '"threads": 7') + "\n")
    for _ in range(2):  # once more: then it is known here
        [row] = table(bench(*asked))
        assert row[8] == "pilot" and "unknown" not in row
        assert len(list(Ledger(Path("results/own/pilots")))) == 2


def test_pilots_of_a_study_serve_its_purpose() -> None:
    result = bench(*PLAN, "--study", "cost", "--models", "gcn")
    assert result.exit_code == 0, result.output
    pilots = list(Ledger(Path("results/own/pilots")))
    assert {item.get("purpose") for item in pilots} == {"cost"}
    assert {item["phases"]["infer"]["nodes"] for item in pilots} == {60}  # all, where accuracy takes 24


def test_arrays_that_will_not_fit_are_said_before_anything_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 nodes, 8 features, K = 3, s = 10: 4 * 60 * 10 bytes of encoding and 4 * (3 + 1) * 60 * 18 of tokens."""
    monkeypatch.setattr("bench.planning.forecast.free_space", lambda folder: 5000)
    asked = ("--models", "nagphormer", "--trials", "1", "--set", "tokens=materialised")
    result = bench("run", "--dry-run", *asked)
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "warning: the prepared arrays want up to 19.7 kB of the disk, and there is room for 5.00 kB" in words
    assert "what does not fit stays in memory" in words
    [row] = table(bench("run", "--dry-run", *asked))
    assert row[4] == "unknown" and row[7] == "19.7 kB"
    monkeypatch.setattr("bench.planning.forecast.free_space", lambda folder: 19_680)
    assert "warning" not in bench("run", "--dry-run", *asked).output


def test_without_pilots_the_unknown_stays_unknown() -> None:
    result = bench("run", "--dry-run", "--models", "gcn", "--trials", "2", "--budget", "1h")
    assert result.exit_code == 0
    [row] = table(result)
    assert row[4:6] == ["unknown", "unknown"]
    assert "2 cells about which nothing is known" in result.stdout
    assert "gcn ring default: left out, time unknown" in result.stdout
    assert not Path("results/own").exists()


def test_a_pilot_that_fails_says_how() -> None:
    result = bench(*PLAN, "--models", "gcn", "--trials", "1", "--memory-limit", "20kB", "--budget", "1h")
    assert result.exit_code == 0
    assert "1 cell to run" in result.stdout and "within 1 h 00 min: 0 cells" in result.stdout
    assert "left out, its pilot failed" in result.stdout and "peak memory unknown" in result.stdout
    [row] = table(result)
    assert row[8] == "failed pilot"
    assert "gcn ring: its pilot ended as oom: " in result.stdout


def test_a_pilot_that_runs_out_of_time_says_over_what() -> None:
    result = bench(*PLAN, "--models", "gcn", "--trials", "2", "--pilot-limit", "0.01s")
    [row] = table(result)
    assert row[4].startswith("over ") and row[5].startswith("over ") and row[8] == "failed pilot"
    assert "its pilot ended as timeout: " in result.stdout
    assert "2 cells to run, 0 done: over " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "soon"], "'soon' is not a length of time"),
        (["--pilot-limit", "x"], "'x' is not a length of time"),
        (["--study", "hopps"], "Did you mean 'hops'?"),
        (["--study", "hops", "--models", "gcn"], "the study hops varies settings of"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    result = bench(*PLAN, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr and len(result.stderr.splitlines()) == 1
