"""`report` on a ledger that years would fill: its seconds and its memory, in a separate process."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.cells import Cell, Protocol, make_cells
from bench.paper.studies import studies
from bench.predictions import Predictions, PredictionStore
from bench.registry import models, source_hash
from bench.settings import resolve_settings
from perf.cases import GB, Options
from perf.measure import measure, scratch_folder
from perf.records import TESTED, made_up_record
from perf.table import Row

CURVE = 200  # evaluations of a stored training curve


@dataclass(frozen=True)
class BigReport:
    """As many records as asked for, spread over every study."""

    name: str = "report-20000"
    records: int = 20_000
    seconds: float = 60
    memory: float = 1  # GB

    @property
    def about(self) -> str:
        return f"`report` on a ledger of {self.records:,} made-up records of all studies"

    def run(self, options: Options) -> list[Row]:
        with scratch_folder() as folder:
            options.say(f"{self.name}: writing the ledger")
            write_big_ledger(folder / "results", self.records)
            options.say(f"{self.name}: measuring")
            task = {"kind": "perf.report:run_report", "results": str(folder / "results")}
            result = measure(task, options.threads)
        options.say(f"{self.name}: {result.values['files']} files, the page has {result.values['page'] / 1e6:.1f} MB")
        return [
            Row(self.name, "seconds", result.values["seconds"], limit=self.seconds),
            Row(self.name, "peak memory, GB", result.peak_resident / GB, limit=self.memory),
        ]


def run_report(task: dict[str, Any]) -> dict[str, Any]:
    """What `report` does but for writing the files."""
    start = time.perf_counter()
    from bench.commands.reports import build_report

    report = build_report(Path(task["results"]))
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "files": len(report.files), "page": len(report.files["index.html"])}


def write_big_ledger(results: Path, count: int) -> None:
    """A results folder with this many records; the accuracy studies' have predictions and training curves."""
    (results / "ledger").mkdir(parents=True)
    store, rng = PredictionStore(results), np.random.default_rng(0)
    sources = {name: source_hash(model) for name, model in models().items()}
    curve = [(1 / step, 1.2 / step, 0.9 - 0.5 / step) for step in range(1, CURVE + 1)]
    with (results / "ledger" / "made-up.jsonl").open("w") as file:
        for cell, study in itertools.islice(all_cells(), count):
            accuracy = round(2 * rng.normal(80 + len(cell.model), 1)) / 2
            record = made_up_record(cell, accuracy, sources[cell.model], seconds=float(rng.uniform(1, 100)))
            if studies()[study].purpose:
                record["purpose"] = studies()[study].purpose
            if study.startswith("accuracy"):
                classes = rng.integers(7, size=TESTED).astype(np.uint8)
                record["predictions"] = store.save(Predictions(classes, classes), cell.key, curve)
            file.write(json.dumps({"schema": 1, **record}) + "\n")


def all_cells() -> Iterator[tuple[Cell, str]]:
    """Different cells of all studies without end, each with the first study that has it: trial 0 of all, then 1, …"""
    columns: dict[str, tuple[Any, Any, str, Any, str]] = {}
    for study in studies().values():
        for model, dataset, variant in study.combinations():
            resolved = resolve_settings(model, dataset.settings_name, overrides=variant.settings)
            fingerprint = dataset.fingerprint or dataset.name.ljust(32, "f")
            [cell] = make_cells(model, dataset, fingerprint, resolved, Protocol(trials=1))
            columns.setdefault(cell.key, (model, dataset, fingerprint, resolved, study.name))
    for trial in itertools.count():
        for model, dataset, fingerprint, resolved, study_name in columns.values():
            [cell] = make_cells(model, dataset, fingerprint, resolved, Protocol(1, trial))
            yield cell, study_name
