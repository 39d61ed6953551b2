"""`report`, `verify`, `compare` and `pack` from the outside."""

from __future__ import annotations

import functools
import json
import re
import tarfile
from pathlib import Path

import pytest
from ledgers import made_up_records, write_ledger
from typer.testing import CliRunner

from bench.cli import app
from bench.commands import reports as commands
from bench.commands.reports import build_report
from bench.datasets.catalogue import datasets

STEADY = [90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.5]
RIVAL = [88.0, 87.5, 88.5, 88.0, 87.0, 88.5, 88.0, 87.5, 88.0, 88.0]


def bench(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.fixture
def results(tmp_path: Path) -> Path:
    records = made_up_records("nagphormer", "photo", STEADY) + made_up_records("gcn", "photo", RIVAL)
    return write_ledger(tmp_path / "results", records, with_predictions=True)


def test_verify_rebuilds_the_same_bytes(results: Path, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    code, output = bench("report", "--results", results, "--reports", reports)
    assert code == 0, output
    files = {str(path.relative_to(reports)) for path in reports.rglob("*") if path.is_file()}
    assert {"index.html", "report.md", "tables/accuracy-small.csv", "figures/trials.svg", "figures/trials.png"} <= files
    code, output = bench("verify", "--results", results, "--reports", reports)
    expected = f"{len(files)} files and 20 stored predictions checked, 0 of these against the labels; 0 wrong"
    assert code == 0 and expected in output


@pytest.fixture
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ledger gives the same report (as the test above says): here it is asked for again and again."""
    built = functools.cache(build_report)
    monkeypatch.setattr(commands, "build_report", lambda results, *_: built(results))


def test_pictures_by_other_versions_are_not_compared_and_the_rest_is(
    results: Path, tmp_path: Path, built_once: None
) -> None:
    reports = tmp_path / "reports"
    assert bench("report", "--results", results, "--reports", reports)[0] == 0
    picture, page = reports / "figures" / "trials.svg", reports / "index.html"
    picture.write_text(picture.read_text().replace("svg", "gvs", 1))
    assert bench("verify", "--results", results, "--reports", reports)[0] == 1
    (reports / "drawn-by.json").write_text('{"matplotlib": "1.0"}')
    page.write_text(re.sub("base64,[A-Za-z0-9+/=]{9}", "base64,AAAA", page.read_text()))
    code, output = bench("verify", "--results", results, "--reports", reports)
    assert code == 0 and "other versions drew the pictures" in output and "0 wrong" in output
    page.write_text(page.read_text().replace("90.50 ±", "99.50 ±"))
    code, output = bench("verify", "--results", results, "--reports", reports)
    assert code == 1 and "index.html: differs" in output


def test_verify_finds_whatever_was_changed_and_report_puts_it_right(
    results: Path, tmp_path: Path, built_once: None
) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    (reports / "report.md").write_text("better numbers")
    (reports / "tables").mkdir()
    (reports / "tables" / "invented.csv").write_text("99.99")
    changed, broken = [json.loads(line) for line in next((results / "ledger").iterdir()).read_text().splitlines()[:2]]
    paths = [results / "predictions" / r["predictions"][:2] / f"{r['predictions']}.npz" for r in (changed, broken)]
    another = next(path for path in (results / "predictions").rglob("*.npz") if path not in paths)
    paths[0].write_bytes(another.read_bytes())
    paths[1].write_bytes(b"not an archive")
    code, output = bench("verify", "--results", results, "--reports", reports)
    assert code == 1
    assert "report.md: differs from what the ledger gives" in output
    assert "index.html: is missing beside what the ledger gives" in output
    assert "tables/invented.csv: the ledger gives no such file" in output
    assert f"record {changed['key']}: its predictions have the hash" in output
    assert f"record {broken['key']}: predictions/" in output and "cannot be read" in output
    code, output = bench("report", "--results", results, "--reports", reports)
    assert code == 0 and "holds no training curve of cell" in output


def test_report_removes_what_it_wrote_itself_and_nothing_else(results: Path, tmp_path: Path, built_once: None) -> None:
    reports = tmp_path / "paper"
    own = [reports / "figures" / "photograph.png", reports / "tables" / "survey.csv"]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    assert bench("report", "--results", results, "--reports", reports)[0] == 0
    contents = (reports / "contents.txt").read_text().splitlines()
    found = {path.relative_to(reports).as_posix() for path in reports.rglob("*") if path.is_file()}
    assert set(contents) == found - {"figures/photograph.png", "tables/survey.csv"}
    outdated = reports / "tables" / "an-older-study.csv"  # as if the last report had had it
    outdated.write_text("90")
    (reports / "contents.txt").write_text("\n".join([*contents, "tables/an-older-study.csv"]))
    assert bench("report", "--results", results, "--reports", reports)[0] == 0
    assert not outdated.exists() and [path.read_text() for path in own] == ["mine", "mine"]
    code, output = bench("verify", "--results", results, "--reports", reports)
    assert code == 1 and "2 wrong" in output
    assert "figures/photograph.png: the ledger gives no such file" in output
    assert "tables/survey.csv: the ledger gives no such file" in output


@pytest.mark.parametrize("command", ["report", "verify"])
def test_settings_that_no_model_has_are_refused(results: Path, tmp_path: Path, command: str) -> None:
    reports = tmp_path / "reports"
    code, output = bench(command, "--results", results, "--reports", reports, "--settings", "authr")
    assert code == 2 and "unknown settings 'authr'" in output and "Did you mean 'author'?" in output
    assert len(output.strip().splitlines()) == 1 and not reports.exists()


def test_an_empty_ledger_makes_a_report_and_no_ledger_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    code, output = bench("report", "--results", tmp_path / "results", "--reports", tmp_path / "reports")
    assert code == 0
    assert "not run yet" in (tmp_path / "reports" / "report.md").read_text()
    code, output = bench("report", "--results", tmp_path / "nowhere", "--reports", tmp_path / "reports")
    assert code == 2 and "there is no results folder" in output


def test_a_torn_line_is_named_and_the_rest_is_shown(results: Path, tmp_path: Path) -> None:
    with next((results / "ledger").iterdir()).open("a") as file:
        file.write('{"schema": 1, "key": "torn')
    code, output = bench("report", "--results", results, "--reports", tmp_path / "reports")
    assert code == 0 and "the last line is torn" in output
    assert "90.50 ± 0.41 (10)" in (tmp_path / "reports" / "report.md").read_text()


def test_compare_pairs_trials(results: Path) -> None:
    code, output = bench("compare", "nagphormer", "gcn", "--results", results)
    assert code == 0 and "first is better" in output and "+2.60" in output and "| 1.00 " in output
    code, output = bench("compare", "nagphormer", "gcn:tunedgnn", "--results", results)
    assert code == 0 and "not run" in output
    code, output = bench("compare", "nagphormer:hops=5", "gcn:hidden=3", "--results", results, "--datasets", "cs")
    assert code == 2 and "neither nagphormer:hops=5 nor gcn:hidden=3" in output
    code, output = bench("compare", "nagphormer", "gcn:tundegnn", "--results", results)
    assert code == 2 and "tunedgnn" in output


def test_pack_holds_everything_and_names_nobody(results: Path, tmp_path: Path) -> None:
    reports, archive = tmp_path / "reports", tmp_path / "all.tar.gz"
    reports.mkdir()
    (reports / "index.html").write_text("a page")
    for folder in ("frontier/ledger", "pilots/ledger"):
        (results / folder).mkdir(parents=True)
        (results / folder / "one.jsonl").touch()
    for private in ("frontier/logs/cell.log", "frontier/.claims/cell", "tuning/.claims/study"):
        (results / private).parent.mkdir(parents=True)
        (results / private).write_text("/home/somebody")
    code, _ = bench("pack", archive, "--results", results, "--reports", reports)
    assert code == 0
    with tarfile.open(archive) as file:
        members = {member.name: member for member in file.getmembers()}
        passports = file.extractfile("passports.json")
        assert passports is not None
        assert json.load(passports)["photo"]["fingerprints"] == [datasets()["photo"].fingerprint]
    assert {"environments.json", "reports/index.html", "results/frontier/ledger/one.jsonl"} <= members.keys()
    assert "results/pilots/ledger/one.jsonl" not in members  # trainings of two epochs say nothing to a reviewer
    assert sum(name.startswith("results/predictions/") for name in members) == 20
    assert not any("logs" in name or ".claims" in name for name in members)
    assert all((member.uid, member.uname, member.gname) == (0, "", "") for member in members.values())
