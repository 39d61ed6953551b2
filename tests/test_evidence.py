"""Which records a table's entry rests on: found by what was run, never by what it was called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ledgers import failed, made_up_records, write_ledger

from bench.datasets.catalogue import resolve
from bench.ledger import Ledger
from bench.registry import find_model
from bench.report.evidence import Evidence, Trials

[PHOTO] = resolve("photo")


def evidence(results: Path, records: list[dict[str, Any]]) -> Evidence:
    return Evidence(Ledger(write_ledger(results, records)))


def trials(found: Evidence, model: str = "nagphormer", **which: Any) -> Trials:
    return found.trials(find_model(model), PHOTO, **which)


def test_trials_are_found_by_settings_and_sorted_by_seed(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "photo", [90.0, 91.0, 92.0])
    others = made_up_records("nagphormer", "photo", [50.0], settings={"hops": 5})
    found = evidence(tmp_path, [records[2], *others, records[0], records[1]])
    assert trials(found).accuracies == [90.0, 91.0, 92.0]
    assert trials(found).by_seeds() == {(0, 0): 90.0, (1, 1): 91.0, (2, 2): 92.0}
    assert trials(found, settings={"hops": 5}).accuracies == [50.0]
    assert trials(found, model="gcn").records == ()


def test_fresh_and_frozen_trials_share_the_first(tmp_path: Path) -> None:
    fresh = made_up_records("nagphormer", "photo", [90.0, 91.0])
    frozen = made_up_records("nagphormer", "photo", [90.0, 95.0], mode="frozen")
    sealed = made_up_records("nagphormer", "photo", [70.0], mode="sealed")
    assert fresh[0]["key"] == frozen[0]["key"]
    found = evidence(tmp_path, [*fresh, frozen[1], *sealed])
    assert trials(found).accuracies == [90.0, 91.0]
    assert trials(found, mode="frozen").accuracies == [90.0, 95.0]
    assert trials(found, mode="sealed").accuracies == [70.0]


def test_the_lane_is_the_one_that_was_found(tmp_path: Path) -> None:
    records = made_up_records("gcn", "photo", [92.0]) + made_up_records("gcn", "photo", [94.0], lane="tunedgnn")
    found = evidence(tmp_path, records)
    assert (trials(found, "gcn").lane, trials(found, "gcn").accuracies) == ("default", [92.0])
    tuned = trials(found, "gcn", lane="tunedgnn")
    assert (tuned.lane, tuned.accuracies) == ("tunedgnn", [94.0])


def test_capped_trials_stand_in_only_where_no_others_are(tmp_path: Path) -> None:
    capped = made_up_records("nagphormer", "photo", [60.0], max_epochs=5)
    longer = made_up_records("nagphormer", "photo", [70.0], max_epochs=9)
    found = trials(evidence(tmp_path / "a", [*capped, *longer]))
    assert (found.accuracies, found.capped) == ([70.0], 1)
    found = trials(evidence(tmp_path / "b", [*capped, *made_up_records("nagphormer", "photo", [90.0])]))
    assert (found.accuracies, found.capped) == ([90.0], 0)
    for status in ("interrupted", "timeout"):  # what ended counts
        stopped = failed(made_up_records("nagphormer", "photo", [90.0])[0], status)
        found = trials(evidence(tmp_path / status, [*capped, stopped]))
        assert (found.accuracies, found.capped, found.failures) == ([60.0], 1, {})


def test_a_cell_that_somebody_stopped_has_no_outcome(tmp_path: Path) -> None:
    stopped = failed(made_up_records("nagphormer", "photo", [90.0])[0], "interrupted")
    found = trials(evidence(tmp_path, [stopped]))
    assert found.records == () and not found.failures


def test_failures_are_counted_and_kept_apart(tmp_path: Path) -> None:
    first, second, third = made_up_records("nagphormer", "photo", [90.0, 91.0, 92.0])
    found = trials(evidence(tmp_path, [first, failed(second, "oom"), failed(third, "timeout")]))
    assert found.accuracies == [90.0]
    assert found.failures == {"oom": 1, "timeout": 1}
    assert len(found.keys) == 3


def test_records_of_other_code_count_and_those_of_another_protocol_or_content_do_not(tmp_path: Path) -> None:
    old, new = made_up_records("nagphormer", "photo", [90.0, 91.0])
    old["source"] = "another"
    elsewhere = {**made_up_records("nagphormer", "photo", [10.0])[0], "data": "0" * 32, "key": "z", "started": "9999"}
    stranger = {**made_up_records("gcn", "photo", [10.0])[0], "model": "perceptron", "key": "y"}
    protocol = {**made_up_records("nagphormer", "photo", [10.0] * 3)[2], "protocol": 0}
    found = evidence(tmp_path, [old, new, elsewhere, stranger, protocol])
    assert trials(found).accuracies == [90.0, 91.0]
    assert found.warnings == [
        "photo: only records of the dataset's own content, 7e8e8fba, are shown; left out: 1 of 00000000",
        "1 record(s) of 'perceptron', which is not a model here, are left out",
    ]


def test_where_nobody_knows_the_content_the_newest_is_shown(tmp_path: Path) -> None:
    [reddit] = resolve("reddit")
    assert reddit.fingerprint is None
    newer, older = made_up_records("nagphormer", "reddit", [90.0, 10.0])
    older |= {"data": "0" * 32, "started": "2020"}
    found = evidence(tmp_path, [newer, older])
    assert found.trials(find_model("nagphormer"), reddit).accuracies == [90.0]
    assert found.warnings == [
        "reddit: only records of the newest content, redditff, are shown; left out: 1 of 00000000"
    ]


@pytest.mark.parametrize(
    ("which", "options"),
    [
        ({}, ""),
        ({"mode": "frozen"}, " --split frozen"),
        ({"settings": {"structural_encoding": False}}, " --set structural_encoding=false"),
        ({"lane": "default"}, " --settings default"),
    ],
)
def test_the_command_that_would_fill_it(tmp_path: Path, which: dict[str, Any], options: str) -> None:
    found = trials(evidence(tmp_path, []), **which)
    assert found.command == f"python -m bench run --models nagphormer --datasets photo{options}"


def test_a_limit_on_epochs_by_whatever_name_is_a_cap(tmp_path: Path) -> None:
    by_hand = made_up_records("nagphormer", "photo", [60.0], settings={"max_epochs": 5})
    by_hand[0]["training"]["stopped_by"] = "max_epochs"
    found = trials(evidence(tmp_path / "a", by_hand))
    assert (found.accuracies, found.capped) == ([60.0], 1)
    longer = made_up_records("nagphormer", "photo", [99.0], settings={"max_epochs": 10**6})
    assert trials(evidence(tmp_path / "b", longer)).records == ()  # not what was asked for


def test_other_settings_and_splits_never_stand_in(tmp_path: Path) -> None:
    records = [
        *made_up_records("nagphormer", "photo", [10.0], settings={"hidden": 64}),
        *made_up_records("nagphormer", "photo", [20.0], lane="default", settings={"dropout": 0.9}),
        *made_up_records("nagphormer", "photo", [30.0], mode="sealed"),
        *made_up_records("nagphormer", "photo-twin", [40.0]),
    ]
    assert trials(evidence(tmp_path, records)).records == ()


def test_records_that_lack_something_are_named_and_left_out(tmp_path: Path) -> None:
    good, no_place, no_number, tuning = made_up_records("nagphormer", "photo", [90.0, 91.0, 92.0, 93.0])
    del no_place["environment"]
    no_number["metrics"] = {"test": {"accuracy": "high"}, "val": {"accuracy": 0.9}}
    tuning["split"]["rule"] = f"tuning:{tuning['split']['rule']}"
    del tuning["metrics"]["test"]
    found = evidence(tmp_path, [good, no_place, no_number, tuning])
    assert trials(found).accuracies == [90.0]
    assert found.warnings == [
        f"1 record(s) without a usable 'environment.processor' are left out: {no_place['key']}",
        f"1 record(s) without a usable 'metrics.test.accuracy' are left out: {no_number['key']}",
    ]
    assert tuning["key"] in {record["key"] for record in found.records}  # known, and in no table


def later(records: list[dict[str, Any]]) -> dict[str, Any]:
    return {**records[0], "started": "2027-01-01T00:00:00.000+00:00"}


def test_two_results_of_one_cell_are_named_and_the_newest_counts(tmp_path: Path) -> None:
    old, new = made_up_records("nagphormer", "photo", [90.0]), made_up_records("nagphormer", "photo", [95.0])
    found = evidence(tmp_path, [later(new), *old])
    assert trials(found).accuracies == [95.0]
    assert found.warnings == [
        "1 cell(s) were run again and predicted differently, on another machine or with other code (test accuracies up "
        "to 5.00 points apart); the newest of each counts: nagphormer on photo (1)"
    ]


def test_a_cell_that_was_run_again_with_the_same_result_is_no_news(tmp_path: Path) -> None:
    once = made_up_records("nagphormer", "photo", [90.0])
    found = evidence(tmp_path, [failed(once[0], "timeout"), *once, later(once)])
    assert trials(found).accuracies == [90.0]
    assert found.warnings == []
