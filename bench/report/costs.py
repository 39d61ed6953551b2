"""Seconds and memory: timings of two machines, or of an idle and a busy one, never share a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from bench.data.catalogue import Dataset, resolve
from bench.paper import published
from bench.records import (
    Record,
    memory_used,
    prepared_bytes,
    seconds_per_epoch,
    seconds_per_thousand_nodes,
    under_load,
)
from bench.report.entries import accuracy_entry, median_entry, setting_lines
from bench.report.evidence import Evidence, Trials
from bench.report.findings import Findings, model_title
from bench.report.table import Entry, Table, entry, without_empty
from bench.studies import Study

MEGABYTE = 1e6
LIBRARIES = ("python", "torch", "numpy", "scipy", "numba", "torch_geometric", "dgl")
COSTS: dict[str, Callable[[Record], float | None]] = {
    "preprocess s": lambda record: _preprocess(record),
    "train s": lambda record: record["phases"]["train"]["seconds"],
    "s per epoch": seconds_per_epoch,
    "infer s": lambda record: record["phases"]["infer"]["seconds"],
    "per 1,000 nodes": seconds_per_thousand_nodes,
    "memory MB": lambda record: (memory_used(record) or 0) / MEGABYTE or None,
    "disk MB": lambda record: (prepared_bytes(record) or 0) / MEGABYTE or None,
    "epochs": lambda record: record["training"]["epochs"],
}
DISTURBED = {True: "yes", False: "no", None: "unknown"}


def _preprocess(record: Record) -> float | None:
    """As measured; where arrays were reused, with the time that somebody had spent on them."""
    phase = record["phases"]["preprocess"]
    return float(phase["seconds"] + (phase.get("reused_seconds") or 0.0))


def machine_of(record: Record) -> str:
    """What timings have in common that may stand in one column."""
    environment = record["environment"]
    return f"{environment['gpu'] or environment['processor']}, {environment['threads']} thread(s)"


def by_machine(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Machine -> its records."""
    return _grouped(records, machine_of)


def _grouped(records: Iterable[Record], what: Callable[[Record], str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(what(record), []).append(record)
    return dict(sorted(found.items()))


def cost_table(findings: Findings, study: Study, order: Sequence[str], paper_table: str | None = None) -> Table:
    """A row per model, dataset, machine and whether others were busy on it; twins stand under their own names."""
    paper = published(paper_table).set_index(["row", "column", "measure"])["mean"] if paper_table else None
    rows, shown = [], []
    extra = resolve(study.extra) if study.extra else []
    for dataset in [*findings.columns(study), *extra]:
        for model in order:
            trials = findings.trials(study.name, model, dataset.name)
            if trials is not None and (trials.records or (paper is not None and not dataset.is_twin)):
                rows += _cost_rows(trials, dataset, paper)
                shown.append(trials)
    printed = ("paper: GPU MB", "paper: s") if paper is not None else ()
    caption = [
        "Medians over n trials. Memory: largest of any phase above the start (on a GPU: reserved). Disk: prepared "
        "arrays. Disturbed: whether others used the machine meanwhile, so that the seconds are too many; older records "
        "do not say."
    ]
    if paper is not None:
        caption.append("The paper's seconds are for training and inference on an RTX 2080 Ti.")
    if any(dataset.is_twin for dataset in extra):
        caption.append(
            "A twin is a generated graph of the dataset's shape: its costs stand for the dataset, accuracies do not."
        )
    table = Table(
        study.name if paper is not None else f"{study.name}-cost",
        f"{study.shows}: {study.about}"
        if paper is not None
        else f"Cost of {study.shows}: seconds and memory of its trials",
        ("Dataset", "Method", *COSTS, "n", "disturbed", "machine", *printed),
        tuple(rows),
        (*caption, *setting_lines(findings, shown, study.name if paper is not None else "", marked=False)),
    )
    return without_empty(table)


def _cost_rows(trials: Trials, dataset: Dataset, paper: pd.Series | None) -> list[tuple[Entry, ...]]:
    real = dataset.settings_name or dataset.name
    names = (entry(dataset.title), entry(model_title(trials.model)))
    printed = [] if paper is None else [_printed(paper, trials.model, real, what) for what in ("memory_mb", "seconds")]
    if not trials.good:
        return [(*names, accuracy_entry(trials), *[entry("")] * (len(COSTS) + 2), *printed)]
    marks = [f" [{mark}]" for mark, there in (("capped", trials.capped), ("stale", trials.stale)) if there]
    rows = []
    for machine, several in by_machine(trials.good).items():
        for disturbed, records in _grouped(several, lambda record: DISTURBED[under_load(record)]).items():
            keys = tuple(record["key"] for record in records)
            costs = [median_entry([cost(record) for record in records], keys) for cost in COSTS.values()]
            count = Entry(f"{len(records)}{''.join(marks)}", keys, value=float(len(records)))
            rows.append((*names, *costs, count, Entry(disturbed, keys), Entry(machine, keys), *printed))
    return rows


def _printed(paper: pd.Series, model: str, dataset: str, what: str) -> Entry:
    if (model, dataset, what) not in paper.index:
        return entry("")
    value = float(paper[model, dataset, what])
    return Entry(f"{value:,g}", note="Table 6 of the paper", value=value)


def machine_table(evidence: Evidence) -> Table:
    """Where the records were made: machine, threads and library versions."""
    found: dict[tuple[str, ...], list[str]] = {}
    for record in evidence.records:
        environment = record["environment"]
        libraries = (str(environment.get(name) or "–") for name in LIBRARIES)
        threads = f"{environment['threads']} on {environment.get('device', '–')}"
        kind = (str(environment["gpu"] or environment["processor"]), threads, *libraries)
        found.setdefault(kind, []).append(record["key"])
    rows = tuple(
        (entry(kind[0]), *(Entry(text, tuple(keys)) for text in (str(len(keys)), *kind[1:])))
        for kind, keys in sorted(found.items())
    )
    return Table(
        "machines",
        "Machines: where the records were made",
        ("Machine", "Cells", "Threads", *LIBRARIES),
        rows,
        ("A record also names the code version, the data's fingerprint and the load; the ledger has all of it.",),
    )
