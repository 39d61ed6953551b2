"""Stored predictions held against their records: the hash, and the accuracies where the graph's labels are at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.datasets.catalogue import datasets
from bench.datasets.store import cache_root, find_root, find_stored, open_dataset
from bench.errors import UserError
from bench.graph import Graph
from bench.ledger import Ledger
from bench.predictions import Predictions, PredictionStore
from bench.records import OK, Record
from bench.splits import draw_split

_TOLERANCE = 1e-9  # of an accuracy: the same division of the same whole numbers


@dataclass
class Checked:
    """What came of it."""

    count: int = 0  # records with predictions
    against_labels: int = 0  # of these, with every accuracy worked out again
    wrong: list[str] = field(default_factory=list)


def check_predictions(results: Path, data: Path | None = None) -> Checked:
    """Look at the predictions of every record; nothing is downloaded and no twin is generated for it."""
    store, graphs, checked = PredictionStore(results), Graphs(data), Checked()
    for record in Ledger(results):
        name = record.get("predictions")
        if record["status"] != OK or name is None:
            continue
        checked.count += 1
        try:
            predictions = store.load(name)
        except UserError as error:
            checked.wrong.append(f"record {record['key']}: {error}")
            continue
        if predictions.hash != name:
            problem = f"its predictions have the hash {predictions.hash}, not {name}"
        else:
            problem, exact = _problem(record, predictions, graphs)
            checked.against_labels += exact
        if problem:
            checked.wrong.append(f"record {record['key']}: {problem}")
    return checked


def _problem(record: Record, predictions: Predictions, graphs: Graphs) -> tuple[str, bool]:
    """What is wrong with its accuracies, if anything, and whether labels were there to say so."""
    found = {"test": predictions.test, "val": predictions.val}
    graph = graphs.find(record)
    rule, seed = record["split"]["rule"], record["split"]["seed"]
    split = graph and draw_split(rule, graph.labels, graph.num_classes, seed, graph.masks)
    exact = split is not None
    for part, metrics in record["metrics"].items():  # a tuning trial has no test part
        stated, predicted = metrics["accuracy"], found[part]
        nodes = getattr(split, part, None)
        if graph is None or nodes is None or len(nodes) != len(predicted):  # a cost cell predicts a part of the nodes
            exact = False
            right = stated * len(predicted)
            if abs(right - round(right)) > 1e-6 * max(1, len(predicted)) or not 0 <= round(right) <= len(predicted):
                return "no number of right answers gives its accuracies", False
        elif abs(float(np.mean(graph.labels[nodes] == predicted)) - stated) > _TOLERANCE:
            return f"its predictions are right on another share of the {part} nodes than its {100 * stated:.2f} %", True
    return "", exact


class Graphs:
    """The graphs that records are about, as far as they are on this machine, each opened once."""

    def __init__(self, data: Path | None) -> None:
        self._data = data
        self._open: dict[str, Graph | None] = {}

    def find(self, record: Record) -> Graph | None:
        """The graph with its labels; None where it is not here, or not the one that the record is about."""
        name = record["dataset"]
        if name not in self._open:
            self._open[name] = self._look(name)
        graph = self._open[name]
        return graph if graph is not None and graph.fingerprint == record["data"] else None

    def _look(self, name: str) -> Graph | None:
        dataset, cache = datasets().get(name), cache_root()
        if dataset is None:
            return None
        root = find_root(dataset, self._data, cache)
        if dataset.is_twin or (dataset.layouts and root is None):
            stored = find_stored(dataset, root, cache)
        else:
            stored = open_dataset(dataset, self._data, cache)
        return stored.graph if stored else None
