"""The plain report: every dataset and model that has records, whoever knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ledgers import failed, made_up_records, write_ledger

from bench.ledger import Ledger
from bench.report.evidence import Evidence
from bench.report.results import Results, Setting, results_of
from bench.report.sections import plain_sections
from bench.report.statistics import Refusal
from bench.report.table import Table

STEADY = [90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.5]


def under(records: list[dict[str, Any]], dataset: str, rule: str) -> list[dict[str, Any]]:
    """The same records, had they been made on another graph or with other splits."""
    return [
        {**record, "key": f"{dataset}{record['key']}{rule}", "dataset": dataset,
         "data": record["data"] if dataset == record["dataset"] else dataset.ljust(32, "0"),
         "split": {**record["split"], "rule": rule}}
        for record in records
    ]  # fmt: skip


def evidence(results: Path, records: list[dict[str, Any]]) -> Evidence:
    return Evidence(Ledger(write_ledger(results, records)))


def by_title(found: Evidence, mode: str = "fresh") -> dict[str, Results]:
    return {each.title: each for each in results_of(found, Setting(mode))}


def tables(found: Evidence) -> dict[str, Table]:
    return {
        part.name: part
        for section in plain_sections(found, Setting())
        for part in section.parts
        if isinstance(part, Table)
    }


def rows(table: Table) -> list[list[str]]:
    return [[item.text for item in row] for row in table.rows]


def test_a_users_own_graph_other_splits_and_settings_are_shown(tmp_path: Path) -> None:
    rule = "uniform-60/20/20"
    plain = made_up_records("gcn", "digits", [90.0, 91.0], lane="default")
    changed = made_up_records("gat", "digits", [80.0, 82.0], lane="default", settings={"heads": 2})
    halves = made_up_records("gcn", "photo", [70.0])
    records = under(plain, "mine", rule) + under(changed, "mine", rule) + under(halves, "photo", "uniform-50/25/25")
    found = evidence(tmp_path, records + under(plain, "public", "masks-0123abcd"))
    shown = tables(found)
    assert shown["accuracy"].header == ("Method", "Photo, uniform-50/25/25", "mine", "public")
    assert rows(shown["accuracy"]) == [
        ["GAT", "", "81.00 ± 1.41 (2)† [heads=2]", ""],
        ["GCN", "70.00 (1)†", "90.50 ± 0.71 (2)†", "90.50 ± 0.71 (2)†"],
    ]
    assert shown["behind-best"].header == ("Method", "mine: GCN minus")
    assert ["mine", "GAT", "default heads=2", "fresh", "81.00 ± 1.41 (2)"] in rows(shown["conditions"])
    assert isinstance(by_title(found)["public"].sizes, Refusal)  # whose splits no test is known for


def test_what_failed_is_in_the_tables_with_its_reason(tmp_path: Path) -> None:
    good, gone = made_up_records("gcn", "digits", [90.0, 91.0])
    found = evidence(tmp_path, [good, failed(gone, "oom", "too large")])
    [row] = tables(found)["conditions"].rows
    assert [item.text for item in row][-2:] == ["90.00 (1)", "1 oom"] and row[-1].note == "too large"
    assert (
        rows(tables(found)["accuracy"])[0][1].startswith("90.00 (1)")
        and "[1 oom]" in rows(tables(found)["accuracy"])[0][1]
    )


def test_split_modes_stand_apart(tmp_path: Path) -> None:
    fresh = made_up_records("gcn", "digits", [90.0, 91.0])
    sealed = made_up_records("gcn", "digits", [70.0], mode="sealed")
    found = evidence(tmp_path, fresh + sealed)
    [one], [other] = by_title(found).values(), by_title(found, "sealed").values()
    assert one.trials["gcn"].accuracies == [90.0, 91.0] and other.trials["gcn"].accuracies == [70.0]
    assert by_title(found, "frozen")["Digits (k-NN graph)"].trials["gcn"].accuracies == [
        90.0
    ]  # the trial that both are


def test_leaders_need_ten_trials_of_two_models(tmp_path: Path) -> None:
    records = made_up_records("gcn", "digits", STEADY) + made_up_records("gat", "digits", [v - 20 for v in STEADY])
    [whole] = results_of(evidence(tmp_path / "a", records), Setting())
    assert not isinstance(whole.leaders, Refusal) and whole.leaders.members == ("gcn",)
    [part] = results_of(evidence(tmp_path / "b", records[1:]), Setting())
    assert isinstance(part.leaders, Refusal) and part.leaders.reason == "fewer than two models have 10 trials"


def test_an_empty_ledger_has_plain_sections(tmp_path: Path) -> None:
    sections = plain_sections(evidence(tmp_path, []), Setting())
    assert [line for section in sections for line in section.headlines] == ["Accuracy was run on nothing yet."]
