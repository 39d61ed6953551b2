"""The paper's model against the others, on each dataset and over all: worked-out numbers, and when nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ledgers import failed, made_up_records, write_ledger

from bench.ledger import Ledger
from bench.paper.numbers import control
from bench.paper.rivals import across_table, control_table
from bench.paper.trial_index import TrialIndex
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


@pytest.mark.parametrize("mode", ["frozen", "sealed"])
def test_other_split_modes_have_tables_of_their_own(tmp_path: Path, mode: str) -> None:
    records = made_up_records("nagphormer", "photo", STEADY) + made_up_records("gcn", "photo", shifted(-5.0))
    records += made_up_records("nagphormer", "photo", shifted(5.0), mode=mode)
    table = against(findings(tmp_path, records, mode))
    shared = {"frozen": "(1)", "sealed": "–"}[mode]  # the first frozen trial is the first fresh one
    assert row(table, "GCN")["Photo"].text.endswith(shared)
