"""The end table, worked out by hand for a few records."""

import dataclasses
from typing import Any

import pytest

from bench.cells import Cell
from bench.table import Context, caption, mean_and_spread, summarise

CONTEXT = Context(model_titles={"net": "Net"}, dataset_titles={"photo": "Photo"})


def make_cell(trial: int, **changes: Any) -> Cell:
    cell = Cell("net", 1, "photo", "abc", {"max_epochs": 9}, "rule", trial, trial, {"settings": "author"})
    return dataclasses.replace(cell, **changes)


def make_record(cell: Cell, accuracy: float = 0.9, seconds: float = 1.0, **changes: Any) -> dict[str, Any]:
    record = {
        "key": cell.key,
        "status": "ok",
        "reason": None,
        "metrics": {"test": {"accuracy": accuracy}, "val": {"accuracy": 0.5}},
        "training": {"stopped_by": "patience", "capped": False, "epochs": 5, "best_epoch": 3},
        "environment": {"processor": "CPU", "gpu": None, "threads": 1},
        "baseline_anonymous": 4_000_000,  # the interpreter and its libraries
        "phases": {
            "load": {"seconds": 0.1, "compile_seconds": 0.0, "peak_anonymous": 9_000_000},
            "train": {"seconds": seconds, "compile_seconds": 0.0, "peak_anonymous": 5_000_000},
        },
    }
    return {**record, **changes}


def test_mean_and_sample_deviation() -> None:
    assert mean_and_spread([]) == ""
    assert mean_and_spread([91.5]) == "91.50"
    assert mean_and_spread([90.0, 92.0]) == "91.00 ± 1.41"  # sqrt(2): the divisor is n - 1
    assert mean_and_spread([1.0, 2.0, 3.0, 4.0]) == "2.50 ± 1.29"


def test_a_row() -> None:
    cells = [make_cell(trial) for trial in range(3)]
    records = [make_record(cell, *values) for cell, values in zip(cells, [(0.9, 1), (0.92, 7), (0.94, 2)], strict=True)]
    frame = summarise(cells, {record["key"]: record for record in records}, CONTEXT)
    expected = {
        "dataset": "Photo",
        "model": "Net",
        "settings": "author",
        "yours (n)": "92.00 ± 2.00 (3)",
        "train s": "2.0",
        "peak memory": "5.00 MB",  # 9 MB in the phase that had most, less the 4 MB of the start
    }
    (row,) = frame.to_dict("records")
    assert expected.items() <= row.items()
    assert not {"reference (n)", "paper", "peak GPU memory", "failed", "notes"} & row.keys()  # they would say nothing


def test_failures_are_counted_by_status_and_kept_out_of_the_mean() -> None:
    cells = [make_cell(trial) for trial in range(5)]
    statuses = ["ok", "oom", "error", "oom"]
    records = {
        cell.key: {**make_record(cell, 0.8), "status": status} for cell, status in zip(cells, statuses, strict=False)
    }
    for record in records.values():
        if record["status"] != "ok":
            record.update(phases={}, metrics={}, training={})
    frame = summarise(cells, records, CONTEXT)
    (row,) = frame.to_dict("records")
    assert row["yours (n)"] == "80.00 (1)"
    assert any(line.startswith("failed: ") for line in caption(frame, "fresh", "author", "results/"))
    assert row["failed"] == "2 oom, 1 error"
    assert row["notes"] == "1 not run"


def test_nothing_finished() -> None:
    cell = make_cell(0)
    (row,) = summarise([cell], {cell.key: make_record(cell, status="error", phases={})}, CONTEXT).to_dict("records")
    assert (row["yours (n)"], row["train s"], row["peak memory"]) == ("", "", "")


def test_marks() -> None:
    labels = {"settings": "author", "cap": 2}
    cells = [make_cell(trial, dataset="photo-twin", labels=labels) for trial in range(2)]
    capped = {"stopped_by": "max_epochs", "capped": True, "epochs": 2, "best_epoch": 2}
    records = {cells[0].key: make_record(cells[0], training=capped), cells[1].key: make_record(cells[1])}
    context = Context(twins={"photo-twin"})
    frame = summarise(cells, records, context)
    (row,) = frame.to_dict("records")
    assert row["notes"] == "twin; 1 capped"
    text = caption(frame, "fresh", "author", "results/")
    assert text[0].startswith("Splits: fresh. Settings: author.")
    assert [line.partition(":")[0] for line in text[1:]] == ["twin", "capped", "Records"]


@pytest.mark.parametrize("first_spelling_was_a_cap", [True, False])
def test_capped_is_a_matter_of_how_it_was_asked_for_and_not_of_who_ran_it_first(first_spelling_was_a_cap: bool) -> None:
    by_cap = make_cell(0, labels={"settings": "author", "cap": 9})  # --max-epochs 9
    by_set = make_cell(0, labels={"settings": "author", "set": {"max_epochs": 9}})  # --set max_epochs=9
    assert by_cap.key == by_set.key
    training = {"stopped_by": "max_epochs", "capped": first_spelling_was_a_cap, "epochs": 9, "best_epoch": 2}
    records = {by_cap.key: make_record(by_cap, training=training)}
    assert list(summarise([by_cap], records, CONTEXT)["notes"]) == ["capped"]
    assert "notes" not in summarise([by_set], records, CONTEXT)


def test_settings_show_what_was_set() -> None:
    cell = make_cell(0, labels={"settings": "author", "set": {"hidden": 8, "dropout": 0.1}})
    (row,) = summarise([cell], {}, CONTEXT).to_dict("records")
    assert row["settings"] == "author hidden=8 dropout=0.1"


def test_device_memory_has_its_own_column() -> None:
    cell = make_cell(0)
    record = make_record(cell)
    record["phases"]["train"]["peak_reserved"] = 3_000_000_000
    (row,) = summarise([cell], {cell.key: record}, CONTEXT).to_dict("records")
    assert (row["peak GPU memory"], row["peak memory"]) == ("3.00 GB", "5.00 MB")


def test_seconds_of_several_machines_are_marked() -> None:
    cells = [make_cell(trial) for trial in range(3)]
    records = {cell.key: make_record(cell) for cell in cells}
    assert "notes" not in summarise(cells, records, CONTEXT)
    records[cells[2].key]["environment"] = {"processor": "CPU", "gpu": None, "threads": 2}
    frame = summarise(cells, records, CONTEXT)
    assert list(frame["notes"]) == ["mixed machines"]
    assert [line.partition(":")[0] for line in caption(frame, "fresh", "author", "r/")[1:]] == [
        "mixed machines",
        "Records",
    ]
    records[cells[2].key].update(status="error")  # its seconds are in no mean
    assert "notes" not in summarise(cells, records, CONTEXT)


def test_datasets_and_models_keep_the_order_asked_for() -> None:
    cells = [make_cell(0, dataset=data, model=model) for data in ("z", "a") for model in ("net", "gnn")]
    frame = summarise(cells, {}, CONTEXT)
    assert list(zip(frame["dataset"], frame["model"], strict=True)) == [
        ("z", "Net"),
        ("z", "gnn"),
        ("a", "Net"),
        ("a", "gnn"),
    ]


@pytest.mark.parametrize("count", [2, 5])
def test_identical_trials_have_no_spread(count: int) -> None:
    assert mean_and_spread([95.4] * count) == "95.40 ± 0.00"
