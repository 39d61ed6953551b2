"""Tables from ledgers made up for the purpose: what an entry says, what is bold, what the scorecard decides."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ledgers import failed, made_up_records, write_ledger

from bench.data.catalogue import datasets
from bench.ledger import Ledger
from bench.report.build import make_tables
from bench.report.evidence import Evidence
from bench.report.findings import Findings, Setting, split_sizes
from bench.report.rivals import ranking
from bench.report.scorecard import scorecard, scores
from bench.report.statistics import SplitSizes
from bench.report.table import Entry, Table, entry, escape_latex, to_csv, to_latex, to_markdown
from bench.report.tables import all_tables
from bench.studies import find_study

COST = dict(find_study("cost").variants[0].settings)  # a fixed number of epochs
STEADY = [90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.5]  # mean 90.5


def findings(results: Path, records: list[dict[str, Any]], **setting: str) -> Findings:
    return Findings(Evidence(Ledger(write_ledger(results, records))), Setting(**setting))


def tables(found: Findings) -> dict[str, Table]:
    return {table.name: table for table in all_tables(found)}


def place(table: Table, row: str, column: str) -> Entry:
    [found] = [entries for entries in table.rows if entries[0].text == row]
    return found[table.header.index(column)]


def shifted(by: float) -> list[float]:
    return [value + by for value in STEADY]


def test_an_entry_says_mean_spread_and_n_and_names_its_records(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "photo", [90.0, 91.0, 93.0])
    table = tables(findings(tmp_path, records))["accuracy-small"]
    found = place(table, "NAGphormer", "Photo")
    assert found.text == "91.33 ± 1.53 (3)"  # deviations -4/3, -1/3, 5/3: variance 42/9/2
    assert set(found.keys) == {record["key"] for record in records}
    missing = place(table, "GCN", "Photo")
    assert missing.text == "–"
    assert missing.note == "python -m bench run --models gcn --datasets photo\nthe paper has 92.70 ± 0.20"


def test_one_trial_has_no_spread_and_failures_are_named(tmp_path: Path) -> None:
    first, second = made_up_records("nagphormer", "photo", [90.0, 91.0])
    alone = made_up_records("gcn", "photo", [92.0])
    table = tables(findings(tmp_path, [first, failed(second, "timeout"), *alone]))["accuracy-small"]
    assert place(table, "NAGphormer", "Photo").text == "90.00 (1) [1 timeout]"
    assert place(table, "GCN", "Photo").text == "92.00 (1)†"
    gone = failed(made_up_records("nagphormer", "computer", [90.0])[0], "oom", "needs 3 TB")
    table = tables(findings(tmp_path / "b", [gone]))["accuracy-small"]
    found = place(table, "NAGphormer", "Computer")
    assert (found.text, found.note) == ("oom", "needs 3 TB\nthe paper has 91.22 ± 0.14")


def test_bold_is_the_group_that_is_not_worse_than_the_best(tmp_path: Path) -> None:
    jitter = [0.5, -0.5, 0.0, 0.5, -0.5, 0.0, 0.5, -0.5, 0.0, 0.0]
    near = [value + change for value, change in zip(STEADY, jitter, strict=True)]
    records = [
        *made_up_records("nagphormer", "photo", STEADY),
        *made_up_records("nagphormer+", "photo", near),
        *made_up_records("gcn", "photo", shifted(-20.0)),
    ]
    table = tables(findings(tmp_path, records))["accuracy-small"]
    bold = {row[0].text for row in table.rows if place(table, row[0].text, "Photo").bold}
    assert bold == {"NAGphormer", "NAGphormer+"}
    assert "Photo: 2 of 3 models lead (bold)." in table.caption


def test_below_ten_trials_nothing_is_bold(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "photo", STEADY[:9]) + made_up_records("gcn", "photo", shifted(-20.0)[:9])
    table = tables(findings(tmp_path, records))["accuracy-small"]
    assert not any(item.bold for row in table.rows for item in row)
    assert "Photo: undecided, fewer than two models have 10 trials." in table.caption


def everything(found: Findings) -> dict[str, Table]:
    return {table.name: table for table in make_tables(found, scores(found), ranking(found))}


@pytest.mark.parametrize("gone", [0, 12])  # a trial that makes ten, one that makes three
def test_deleting_one_record_changes_the_entries_that_rest_on_it_and_no_others(tmp_path: Path, gone: int) -> None:
    records = made_up_records("nagphormer", "photo", STEADY) + made_up_records("gcn", "computer", [88.0, 89.5, 91.0])
    records += made_up_records("nagphormer", "photo", shifted(-3.0), settings={"structural_encoding": False})
    records += made_up_records("gat", "photo", shifted(1.0)) + made_up_records("nagphormer", "computer", STEADY[:4])
    kept = [record for at, record in enumerate(records) if at != gone]
    whole, rest = (everything(findings(tmp_path / name, part)) for name, part in (("a", records), ("b", kept)))
    changed = 0
    for name, table in whole.items():
        for before, after in zip(table.rows, rest[name].rows, strict=True):
            for old, new in zip(before, after, strict=True):
                rests = records[gone]["key"] in (*old.keys, *old.mark_keys)
                assert (old != new) == rests
                changed += rests
    assert changed > 10


def test_gains_are_paired_differences(tmp_path: Path) -> None:
    with_it = made_up_records("nagphormer", "photo", shifted(2.0))
    without = made_up_records("nagphormer", "photo", STEADY, settings={"structural_encoding": False})
    table = tables(findings(tmp_path, with_it + without))["structural-encoding"]
    assert place(table, "NAGphormer, gain", "Photo").text == "+2.00 [+2.00, +2.00] (10)"
    assert place(table, "NAGphormer, structural_encoding=false", "Photo").text.startswith("90.50 ± ")
    assert place(table, "NAGphormer+, gain", "Photo").text == "–"


def test_twins_never_stand_in_a_real_column(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "reddit-twin", [50.0], seconds=123.0, settings=COST)
    found = tables(findings(tmp_path, records))
    assert all(
        row[table.header.index("Reddit")].text in ("–", "") for table in [found["accuracy-large"]] for row in table.rows
    )
    cost = found["cost"]
    [row] = [row for row in cost.rows if row[0].text == datasets()["reddit-twin"].title and row[1].text == "NAGphormer"]
    values = dict(zip(cost.header, (item.text for item in row), strict=True))
    assert values["train s"] == "123" and values["s per epoch"] == "24.6" and values["memory MB"] == "300"
    assert (values["paper: GPU MB"], values["paper: s"]) == ("1,925", "20.72")


def test_timings_of_two_machines_are_two_rows(tmp_path: Path) -> None:
    first, second = made_up_records("nagphormer", "reddit-twin", [50.0, 51.0], settings=COST)
    second["environment"] = {**second["environment"], "processor": "Another 2"}
    cost = tables(findings(tmp_path, [first, second]))["cost"]
    machines = {row[cost.header.index("machine")].text for row in cost.rows if row[0].keys or row[2].keys}
    assert machines == {"Paper Tiger 1, 2 thread(s)", "Another 2, 2 thread(s)"}


@pytest.mark.parametrize(
    ("accuracies", "verdict"),
    [
        ([95.5, 95.0, 96.0, 95.5, 95.0, 96.0, 95.5, 95.0, 96.0, 95.5], "reproduced"),  # the paper has 95.49
        ([90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.5], "lower"),
        ([99.0, 99.5, 99.0, 99.5, 99.0, 99.5, 99.0, 99.5, 99.0, 99.5], "higher"),
        ([95.5, 95.0, 96.0], "undecided"),
    ],
)
def test_the_scorecard_judges_against_the_paper(tmp_path: Path, accuracies: list[float], verdict: str) -> None:
    known = findings(tmp_path, made_up_records("nagphormer", "photo", accuracies))
    found = scores(known)
    [score] = [score for score in found if score.trials.records]
    assert score.verdict == verdict
    table = scorecard(known, found)
    assert f"1 {verdict}" in table.caption[0] and "published accuracies" in table.caption[0]
    assert sum(other.verdict == "not run" for other in found) == len(found) - 1


def test_what_the_corrected_t_knows_about_splits() -> None:
    assert split_sizes(datasets()["photo"]) == SplitSizes(test=20, train=60)
    assert split_sizes(datasets()["reddit"]) == SplitSizes(test=232_965, train=820)


# -- forms ------------------------------------------------------------------------------------------------------------

AWKWARD = Table(
    "awkward",
    "50% of <b>all</b> & more",
    ("a_b", "c|d"),
    (
        (entry("x_1"), Entry("1 ± 2 | 3", ("k1", "k2"), bold=True)),
        (entry("[1, 2]"), entry("\\end{document} " + "a long sentence " * 4)),
    ),
    ("one $ two",),
)


def test_markdown_escapes_what_it_would_read_as_markup() -> None:
    text = to_markdown(AWKWARD)
    assert "**1 ± 2 \\| 3**" in text and "a\\_b" in text and "\\<b\\>" in text


def test_latex_escapes_and_stands_on_its_own() -> None:
    text = to_latex(AWKWARD)
    assert "{}[1, 2]" in text and r"p{6cm}" in text
    assert text.startswith("\\documentclass") and text.rstrip().endswith("\\end{document}")
    assert "\\textbf{1 $\\pm$ 2 $|$ 3}" in text and "x\\_1 & " in text
    assert escape_latex("a\\b~ü") == "a\\textbackslash{}b\\textasciitilde{}?"


def test_csv_names_the_records() -> None:
    assert to_csv(AWKWARD).startswith('a_b,c|d,records\nx_1,1 ± 2 | 3,k1 k2\n"[1, 2]",')


@pytest.mark.timeout(120)
def test_every_latex_table_compiles_on_its_own(tmp_path: Path) -> None:
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("no pdflatex here; Debian's packages are texlive-latex-recommended and texlive-latex-extra")
    records = made_up_records("nagphormer", "photo", STEADY) + made_up_records("gcn", "photo", shifted(-2.0))
    records += [
        failed(record, "oom", "100 % of _this_ #1 {x} ~ ^ \\ü") for record in made_up_records("gat", "cs", [90.0])
    ]
    tables = {**everything(findings(tmp_path / "results", records)), AWKWARD.name: AWKWARD}
    for name, table in tables.items():
        (tmp_path / f"{name}.tex").write_text(to_latex(table))
        command = [program, "-interaction=nonstopmode", "-halt-on-error", "-draftmode", f"{name}.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60)
        assert done.returncode == 0, f"{name}: {done.stdout[-2000:]}"
