"""The paper's model against the others, on each dataset and over all: worked-out numbers, and when nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ledgers import failed, made_up_records, write_ledger

from bench.ledger import Ledger
from bench.paper.numbers import control
from bench.paper.rivals import across_table, control_table, ranking
from bench.paper.trial_index import TrialIndex
from bench.report.across import RankComparison
from bench.report.evidence import Evidence
from bench.report.results import Setting
from bench.report.table import Entry, Table

STEADY = [90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.5]
JITTER = [0.5, -0.5, 0.0, 0.5, -0.5, 0.0, 0.5, -0.5, 0.0, 0.0]  # sums to nothing


def shifted(by: float, jitter: bool = True) -> list[float]:
    return [value + by + (change if jitter else 0.0) for value, change in zip(STEADY, JITTER, strict=True)]


def findings(results: Path, records: list[dict[str, Any]], mode: str = "fresh") -> TrialIndex:
    return TrialIndex(Evidence(Ledger(write_ledger(results, records))), Setting(mode))


def row(table: Table, name: str) -> dict[str, Entry]:
    [found] = [entries for entries in table.rows if entries[0].text == name]
    return dict(zip(table.header, found, strict=True))


def against(found: TrialIndex) -> Table:
    return control_table(found)


def test_the_control_is_the_papers_model() -> None:
    assert control() == "nagphormer"


def test_differences_to_the_control_with_holms_mark(tmp_path: Path) -> None:
    records = [
        *made_up_records("nagphormer", "photo", STEADY),
        *made_up_records("gcn", "photo", shifted(-5.0)),
        *made_up_records("gat", "photo", shifted(0.0)),
        *made_up_records("appnp", "photo", shifted(-5.0)[:9]),
    ]
    table = against(findings(tmp_path, records))
    assert table.header[0] == "NAGphormer minus"
    worse, equal, few, missing = (row(table, name)["Photo"] for name in ("GCN", "GAT", "APPNP", "SAN"))
    # differences 5 ∓ jitter: s = sqrt(1.5/9) = 0.408, error s·sqrt(1/10 + 1/3) = 0.269, t(9) at 97.5 % = 2.262
    assert worse.text == "+5.00 [+4.39, +5.61] (10)*"
    assert "better in 100 % of pairs" in worse.note and "Holm's p" in worse.note
    assert equal.text == "+0.00 [-0.61, +0.61] (10)" and "better in 50 % of pairs" in equal.note
    assert few.text.endswith("(9)") and "Holm" not in few.note  # one trial too few to decide anything
    assert missing.text == "–" and missing.note == "python -m bench run --models san --datasets photo"
    keys = {record["key"] for record in records if record["model"] in ("nagphormer", "gcn")}
    assert set(worse.keys) == keys


def test_over_two_datasets_each_counts_the_same(tmp_path: Path) -> None:
    records = [
        *made_up_records("nagphormer", "photo", STEADY),
        *made_up_records("nagphormer", "computer", STEADY[:3]),
        *made_up_records("gcn", "photo", shifted(-4.0, jitter=False)),
        *made_up_records("gcn", "computer", shifted(2.0, jitter=False)[:3]),
        *made_up_records("gat", "photo", STEADY),
        *[failed(record, "oom") for record in made_up_records("gat", "computer", STEADY[:3])],
    ]
    found = findings(tmp_path, records)
    table = across_table(found)
    gcn, gat = row(table, "GCN"), row(table, "GAT")
    assert gcn["These graphs"].text == "+1.00 [+1.00, +1.00]"  # (4 - 2) / 2, and the same whatever is resampled
    assert gcn["Graphs like these"].text == "+1.00 [-2.00, +4.00]"
    assert gcn["Middle half"].text == "+1.00 [+1.00, +1.00]"  # of three trials each: -2, -2, -2, 4, 4, 4
    assert gcn["P(better)"].text.startswith("0.50 [")  # always on Photo, never on Computer but for its spread
    assert (gat["Datasets"].text, gat["These graphs"].text, gat["Failed"].text) == ("1", "", "Computer (oom)")
    assert gat["Failed"].keys and not any(entries[0].text == "SAN" for entries in table.rows)


FIVE = ("photo", "computer", "pubmed", "cs", "physics")


def three_on(names: tuple[str, ...], trials: int = 10) -> list[dict[str, Any]]:
    return [
        record
        for dataset in names
        for model, by in (("nagphormer", 1.0), ("gcn", 0.0), ("gat", -1.0))
        for record in made_up_records(model, dataset, shifted(by)[:trials])
    ]


@pytest.mark.parametrize(("names", "trials"), [(FIVE[:4], 10), (FIVE, 9)])
def test_few_datasets_or_trials_have_no_ranks_and_one_line_says_why(
    tmp_path: Path, names: tuple[str, ...], trials: int
) -> None:
    found = findings(tmp_path, three_on(names, trials))
    table = across_table(found)
    assert "Mean rank" not in table.header
    [line] = [line for line in table.caption if "Friedman" in line]
    assert line.startswith("No mean ranks and no Friedman test:")
    assert line.endswith(f"here are 3, {len(names)} and as few as {trials}.")


def test_a_failed_model_shares_the_last_place_and_one_not_run_is_not_ranked(tmp_path: Path) -> None:
    records = three_on(FIVE)
    gone = [failed(record, "oom") for dataset in FIVE for record in made_up_records("gt", dataset, [90.0])]
    partly = made_up_records("san", "photo", [99.0, 99.0])
    found = findings(tmp_path, [*records, *gone, *partly])
    ranked, _ = ranking(found.published, control())
    assert isinstance(ranked, RankComparison)
    ranks = dict(zip(ranked.models, ranked.mean_ranks, strict=True))
    assert ranks == {"nagphormer": 1.0, "gcn": 2.0, "gat": 3.0, "gt": 4.0}
    table = across_table(found)
    assert row(table, "NAGphormer")["Mean rank"].text == "1.00" and row(table, "GT")["Mean rank"].text == "4.00"
    [about] = [line for line in table.caption if "Friedman's test: p = " in line]
    assert about.startswith("Mean ranks of 4 models on Pubmed, Computer, Photo, CS, Physics;")
    assert about.endswith("told apart are mean ranks more than 2.10 apart.")  # 2.569 · sqrt(4 · 5 / (6 · 5))


def test_without_three_models_there_are_no_ranks(tmp_path: Path) -> None:
    found = findings(tmp_path, made_up_records("nagphormer", "photo", STEADY))
    assert any("here are 1, 1 and as few as 10" in line for line in across_table(found).caption)


@pytest.mark.parametrize("mode", ["frozen", "sealed"])
def test_other_split_modes_have_tables_of_their_own(tmp_path: Path, mode: str) -> None:
    records = made_up_records("nagphormer", "photo", STEADY) + made_up_records("gcn", "photo", shifted(-5.0))
    records += made_up_records("nagphormer", "photo", shifted(5.0), mode=mode)
    table = against(findings(tmp_path, records, mode))
    shared = {"frozen": "(1)", "sealed": "–"}[mode]  # the first frozen trial is the first fresh one
    assert row(table, "GCN")["Photo"].text.endswith(shared)
