"""What models say they will need, against what finished cells of the committed ledger did need."""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from graphs import random_graph

from bench.datasets.catalogue import datasets
from bench.graph import UNKNOWN_LABEL, Graph
from bench.ledger import Ledger
from bench.records import OK
from bench.registry import scan

RESULTS = Path(__file__).parent.parent / "results" / "reference"


def measured_peaks() -> dict[tuple[str, str, str], list[int]]:
    """Peaks by model, dataset and configuration, of cells that ran to their own end on the newest code that did.

    A cell that had to compile kernels first needed memory for that, which comes once per installation; a few workers
    were charged with 69 MB of library buffers while they loaded the graph, which no other phase can be told apart from.
    """
    peaks: dict[tuple[str, str, str], dict[str, list[int]]] = defaultdict(dict)
    for record in sorted(Ledger(RESULTS), key=lambda record: str(record["started"])):
        phases, labels = record["phases"], record["labels"]
        if record["status"] != OK or labels["mode"] != "fresh" or {"set", "cap"} & set(labels):
            continue
        compiled = any(phase["compile_seconds"] for phase in phases.values())
        charged = phases["load"]["peak_data"] > 60e6
        if not (compiled or charged):
            key = record["model"], record["dataset"], json.dumps(record["config"])
            of_code = peaks[key].pop(record["source"], [])  # put last again: the newest
            peaks[key][record["source"]] = [*of_code, max(phase["peak_data"] for phase in phases.values())]
    return {key: list(by_code.values())[-1] for key, by_code in peaks.items()}


PEAKS = measured_peaks()
RECORDED = sorted({record["model"] for record in Ledger(RESULTS)} & scan().models.keys())


def graph_of(name: str) -> Graph:
    """With the labels of three fifths of its nodes, as a worker sees it."""
    folder = os.environ.get("BENCH_DATA")
    if not folder or datasets()[name].stamp(Path(folder)) is None:
        pytest.skip(f"BENCH_DATA names no folder with the files of {name}")
    graph = datasets()[name].load(Path(folder))
    known = np.arange(graph.num_nodes) % 5 < 3
    return graph.with_labels(np.where(known, graph.labels, UNKNOWN_LABEL))


@pytest.mark.parametrize("cell", PEAKS, ids=lambda cell: "-".join(cell[:2]))
def test_the_estimate_is_within_a_quarter_of_the_measured_peak(cell: tuple[str, str, str]) -> None:
    name, dataset, config = cell
    model = scan().models[name]
    estimate = model.estimate_memory(graph_of(dataset), model.Config(**json.loads(config)))
    assert estimate == pytest.approx(statistics.median(PEAKS[cell]), rel=0.25)


def test_most_models_have_something_to_compare() -> None:
    """Not all: the records of a model may all be of cells that compiled something first."""
    assert len({model for model, _, _ in PEAKS}) >= len(RECORDED) / 2


@pytest.mark.parametrize("name", RECORDED)
def test_a_model_with_records_has_an_estimate(name: str) -> None:
    """Others need none."""
    model = scan().models[name]
    estimate = model.estimate_memory(random_graph(), model.Config())
    assert estimate is not None and estimate > 0
