"""Stored predictions against their records, with the labels of the embedded graph and without."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledgers import made_up_records, write_ledger

from bench.commands.stored import Checked, check_predictions
from bench.datasets.catalogue import resolve
from bench.datasets.store import open_dataset
from bench.predictions import Predictions, PredictionStore
from bench.reference import REFERENCE
from bench.splits import draw_split

WRONG = 7  # nodes of the test set


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A record on digits whose predictions are right but for seven test nodes."""
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    [dataset] = resolve("digits")
    graph = open_dataset(dataset, None, tmp_path / "cache").graph
    [made] = made_up_records("gcn", "digits", [50.0])
    split = draw_split(made["split"]["rule"], graph.labels, graph.num_classes, seed=0)
    predictions = Predictions(graph.labels[split.val].astype(np.uint8), graph.labels[split.test].astype(np.uint8))
    predictions.test[:WRONG] = (predictions.test[:WRONG] + 1) % 10
    made["data"] = graph.fingerprint
    made["metrics"] = {"test": {"accuracy": 1 - WRONG / len(split.test)}, "val": {"accuracy": 1.0}}
    made["predictions"] = PredictionStore(tmp_path / "results").save(predictions, made["key"], [])
    return made


def test_accuracies_are_worked_out_again(tmp_path: Path, record: dict[str, Any]) -> None:
    assert check_predictions(write_ledger(tmp_path / "results", [record])) == Checked(1, 1, [])


def test_an_accuracy_that_is_possible_and_wrong_is_found(tmp_path: Path, record: dict[str, Any]) -> None:
    stated = record["metrics"]["test"]["accuracy"]
    record["metrics"]["test"]["accuracy"] = 1 - (WRONG - 1) / round(WRONG / (1 - stated))
    [problem] = check_predictions(write_ledger(tmp_path / "results", [record])).wrong
    assert f"record {record['key']}: its predictions are right on another share of the test nodes" in problem


def test_without_the_graph_only_the_impossible_is_found(tmp_path: Path, record: dict[str, Any]) -> None:
    record["data"] = "another content"
    results = write_ledger(tmp_path / "results", [record])
    assert check_predictions(results) == Checked(1, 0, [])
    impossible = {**record, "key": "k2", "metrics": {"test": {"accuracy": 0.1234567}, "val": {"accuracy": 1.0}}}
    checked = check_predictions(write_ledger(results, [impossible]))
    assert checked == Checked(2, 0, ["record k2: no number of right answers gives its accuracies"])


def test_the_archive_predicts_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.environ.get("BENCH_DATA")
    if not data:
        pytest.skip("BENCH_DATA names no folder with raw data: the labels are not at hand")
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    checked = check_predictions(REFERENCE, Path(data))
    assert checked.wrong == []
    assert checked.against_labels > 0.9 * checked.count > 0  # all but those on generated graphs
