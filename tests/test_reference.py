"""Our archive and the user's results: shown beside each other, never mixed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ledgers import made_up_records, write_ledger
from running import ring_dataset
from typer.testing import CliRunner, Result

from bench import reference as module
from bench.cells import Cell
from bench.cli import app
from bench.ledger import Ledger
from bench.paper.numbers import published_accuracy
from bench.records import Record
from bench.reference import Reference, folder_to_read, open_reference

OWN = Path("results/own")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BENCH_OFFLINE", "1")
    monkeypatch.delenv("BENCH_DATA", raising=False)


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run_ring(*more: str) -> Result:
    ring_dataset(Path("data"))
    result = bench("run", "--models", "gcn", "--datasets", "data/ring.npz", "--trials", "2", "--max-epochs", "3", *more)
    assert result.exit_code == 0, result.output
    return result


def cell_of(record: Record) -> Cell:
    split = record["split"]
    names = record["model"], record["revision"], record["dataset"], record["data"], record["config"]
    return Cell(*names, split["rule"], split["seed"], record["seed"], record["labels"])


def archive(folder: Path, records: list[dict[str, Any]]) -> Reference:
    return Reference(Ledger(write_ledger(folder, records)))


def test_own_trials_are_trained_although_the_reference_has_them_and_both_are_shown(reference: Path) -> None:
    run_ring("--results", str(reference))
    kept = sorted(path.read_bytes() for path in reference.rglob("*.jsonl"))
    again = run_ring()
    assert "2 cells: 2 to run" in again.stdout
    assert "reference (n)" in again.stdout and "yours (n)" in again.stdout
    assert "gcn on ring: 2 trials predict every node as the reference does" in again.stdout
    assert len(list(Ledger(OWN))) == 2
    assert sorted(path.read_bytes() for path in reference.rglob("*.jsonl")) == kept  # read, never written


def test_reuse_reference_counts_its_trials_as_done(reference: Path) -> None:
    run_ring("--results", str(reference))
    done = run_ring("--reuse-reference")
    assert "nothing to run: all 2 cells are in" in done.stdout
    assert not (OWN / "ledger").exists()


@pytest.mark.parametrize("state", ["missing", "unreadable"])
def test_a_reference_that_cannot_be_used_is_said_and_the_run_goes_on(
    reference: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(reference)
    if state == "unreadable":
        reference.write_text("a file where a folder should be")
        monkeypatch.setattr(Path, "is_dir", lambda path: True if path == reference else path.exists())
    result = run_ring()
    assert "2 cells: 2 to run" in result.stdout
    expected = "is missing" if state == "missing" else "cannot be read"
    assert expected in " ".join(result.output.split())


def test_a_capped_cell_is_shown_beside_the_longest_trials_of_its_condition(tmp_path: Path) -> None:
    whole = made_up_records("gcn", "photo", [90.0, 92.0])
    capped = [
        {**record, "key": f"c{i}", "config": {**record["config"], "max_epochs": 5}} for i, record in enumerate(whole)
    ]
    found = archive(tmp_path / "archive", [*whole, *capped])
    cell = cell_of({**whole[0], "config": {**whole[0]["config"], "max_epochs": 7}})
    assert [record["key"] for record in found.trials(cell)] == [record["key"] for record in whole]
    other = cell_of({**whole[0], "config": {**whole[0]["config"], "hidden": 17}})
    assert found.trials(other) == []


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([90.0, 92.0, 94.0], "3 trials predict every node as the reference does"),
        ([91.5, 92.0, 94.0], "agrees: up to 1.50 points from"),  # 90, 92, 94 spread by 2.00
        ([92.5, 92.0, 94.0], "DIFFERS: up to 2.50 points from"),
    ],
)
def test_agreement_is_judged_by_the_spread(tmp_path: Path, accuracies: list[float], expected: str) -> None:
    archived = made_up_records("gcn", "photo", [90.0, 92.0, 94.0])
    for record in archived:
        record["predictions"] = f"{record['metrics']['test']['accuracy']:.3f}"
    own = made_up_records("gcn", "photo", accuracies)
    for record in own:
        record["predictions"] = f"{record['metrics']['test']['accuracy']:.3f}"
    line = archive(tmp_path / "archive", archived).agreement(
        [cell_of(record) for record in own], {record["key"]: record for record in own}
    )
    assert expected in line
    assert ("spread by 2.00" in line) is ("up to" in line)


def test_readers_take_own_results_where_there_are_any(reference: Path) -> None:
    assert folder_to_read(None).resolve() == reference.resolve()
    Path("older").mkdir()
    assert folder_to_read(Path("older")) == Path("older")
    write_ledger(OWN, made_up_records("gcn", "photo", [90.0]))
    assert folder_to_read(None) == OWN
    assert open_reference(module.REFERENCE) == (None, "")


def test_a_report_on_own_results_has_both_and_touches_nothing_else(reference: Path) -> None:
    write_ledger(reference, made_up_records("gcn", "photo", [90.0, 92.0]) + made_up_records("gat", "photo", [80.0]))
    assert bench("report").exit_code == 0
    before = {path: path.read_bytes() for path in Path("reports").rglob("*") if path.is_file()}
    write_ledger(OWN, made_up_records("gcn", "photo", [70.0]))
    result = bench("report")
    assert result.exit_code == 0, result.output
    assert {path: path.read_bytes() for path in before} == before
    text = " ".join(Path("reports/own/report.md").read_text().split())
    paper = published_accuracy("gcn", "photo")
    assert f"| Photo | GCN | default | fresh | 70.00 (1) | 91.00 ± 1.41 (2) | {paper} |" in text
    assert "[reference]" in text
    assert bench("verify").exit_code == 0


def test_what_the_paper_prints() -> None:
    assert published_accuracy("gcn", "photo") == "92.70 ± 0.20"
    assert published_accuracy("graphgps", "computer") == "OOM"
    assert published_accuracy("gcn", "digits") == ""
