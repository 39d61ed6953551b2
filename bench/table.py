"""The table at the end of a run: a pure function of the cells that were asked for and the records that answer them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from bench.cells import Cell
from bench.records import (
    LOADED,
    OK,
    Record,
    is_capped,
    machine_of,
    memory_used,
    peak,
    prepared_bytes,
    score_of,
    seconds_per_epoch,
    seconds_per_thousand_nodes,
    under_load,
)
from bench.sizes import format_size, megabytes

DATASET, MODEL, SETTINGS, YOURS, ARCHIVE, PAPER = "dataset", "model", "settings", "yours (n)", "reference (n)", "paper"
SECONDS, MEMORY, GPU_MEMORY, FAILED, NOTES = "train s", "peak memory", "peak GPU memory", "failed", "notes"
MIXED = "mixed machines"
_OPTIONAL = (ARCHIVE, PAPER, GPU_MEMORY, FAILED, NOTES)  # shown only where there is something to show


@dataclass(frozen=True)
class Context:
    """What the table needs to know besides cells and records."""

    model_titles: Mapping[str, str] = field(default_factory=dict)
    dataset_titles: Mapping[str, str] = field(default_factory=dict)
    twins: Collection[str] = ()  # dataset names
    reference: Callable[[Cell], Sequence[Record]] = lambda cell: ()  # finished reference trials of a cell's condition
    paper: Callable[[Cell], str] = lambda cell: ""  # what the paper prints for it


def summarise(cells: Sequence[Cell], records: Mapping[str, Record], context: Context) -> pd.DataFrame:
    """One row per dataset, model and settings, in the order of the cells; `records` by key, the standing ones."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.dataset, cell.model, describe_settings(cell)), []).append(cell)
    rows = [_row(group, records, context) for group in groups.values()]
    frame = pd.DataFrame(rows, dtype=object)
    return frame.drop(columns=[name for name in _OPTIONAL if not frame[name].astype(bool).any()])


def _row(cells: Sequence[Cell], records: Mapping[str, Record], context: Context) -> dict[str, Any]:
    """Fill the columns, in their order."""
    first = cells[0]
    found = [records[cell.key] for cell in cells if cell.key in records]
    good = [record for record in found if record["status"] == OK]
    return {
        DATASET: context.dataset_titles.get(first.dataset, first.dataset),
        MODEL: context.model_titles.get(first.model, first.model),
        SETTINGS: describe_settings(first),
        YOURS: scores_in_words(good),
        ARCHIVE: scores_in_words(context.reference(first)),
        PAPER: context.paper(first),
        SECONDS: f"{statistics.median(_train_seconds(record) for record in good):.1f}" if good else "",
        MEMORY: _largest(_host_memory(record) for record in good),
        GPU_MEMORY: _largest(peak(record, "peak_reserved") for record in good),
        FAILED: _failures(found),
        NOTES: "; ".join(_notes(cells, records, context)),
    }


def scores_in_words(records: Sequence[Record]) -> str:
    """Mean ± spread (n), in per cent."""
    values = [score_of(record, "test") for record in records]
    return f"{mean_and_spread(values)} ({len(values)})" if values else ""


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean ± sample standard deviation, which a single value does not have."""
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def describe_settings(cell: Cell) -> str:
    """The lane, and what differs from it."""
    return f"{cell.labels.get('settings', '')} {cell.changes}".strip()


def _train_seconds(record: Record) -> float:
    return float(record["phases"]["train"]["seconds"])


def _host_memory(record: Record) -> int | None:
    """What a memory limit counts, but never a GPU's memory, which has its own column."""
    phases = {name: {**phase, "peak_reserved": None} for name, phase in record["phases"].items()}
    return memory_used({**record, "phases": phases})


def _largest(sizes: Iterable[int | None]) -> str:
    known = [size for size in sizes if size is not None]
    return format_size(max(known)) if known else ""


def _failures(records: Iterable[Record]) -> str:
    counts = Counter(record["status"] for record in records if record["status"] != OK)
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _notes(cells: Sequence[Cell], records: Mapping[str, Record], context: Context) -> Iterable[str]:
    found = [(cell, records[cell.key]) for cell in cells if cell.key in records]
    good = [(cell, record) for cell, record in found if record["status"] == OK]
    if cells[0].dataset in context.twins:
        yield "twin"
    # by the cell: its record may have been asked for in other words, such as --set max_epochs=2 for --max-epochs 2
    capped = sum(is_capped(record["training"], cell.labels.get("cap") is not None) for cell, record in good)
    if capped:
        yield "capped" if capped == len(good) else f"{capped} capped"
    if len({machine_of(record) for _, record in good}) > 1:
        yield MIXED
    if len(found) < len(cells):
        yield f"{len(cells) - len(found)} not run"


def caption(frame: pd.DataFrame, mode: str, lane: str, records_at: str) -> list[str]:
    """What a reader must know about the numbers, and where the records are."""
    notes = " ".join(frame[NOTES]) if NOTES in frame else ""
    lines = [
        f"Splits: {mode}. Settings: {lane}. Test accuracy, or the metric named beside the dataset, in %: mean ± sample "
        "standard deviation (n trials); train s: median; peak memory: the most of any phase above the worker's start, "
        "as --memory-limit counts it."
    ]
    if "twin" in notes:
        lines.append("twin: a generated graph; its costs stand for the dataset of that name, its accuracies do not.")
    if "capped" in notes:
        lines.append("capped: --max-epochs ended training before the model's own rule would have.")
    if MIXED in notes:
        lines.append(
            f"{MIXED}: train s is over several processors or numbers of threads; `run --study cost` measures on one."
        )
    if FAILED in frame:
        lines.append("failed: `why MODEL DATASET` tells the reasons; run --retry STATUS tries those cells again.")
    return [*lines, f"Records: {records_at}"]


# -- a run that measured cost ----------------------------------------------------------------------------------------

CLEAN, DISTURBED = "clean", "under load"
COSTS: dict[str, Callable[[Record], float | None]] = {
    "preprocess s": lambda record: record["phases"]["preprocess"]["seconds"],
    "s per epoch": seconds_per_epoch,
    "infer s per 1,000 nodes": seconds_per_thousand_nodes,
    "preprocess MB": lambda record: megabytes(memory_used(record, ("preprocess",))),
    "train + infer MB": lambda record: megabytes(memory_used(record, ("train", "infer"))),
    "prepared MB": lambda record: megabytes(prepared_bytes(record)),
}


def summarise_costs(cells: Sequence[Cell], records: Mapping[str, Record], context: Context) -> pd.DataFrame:
    """One row per dataset, model, machine and whether others disturbed it; medians over n cells."""
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for cell in cells:
        record = records.get(cell.key)
        if record is not None:
            state = record["status"] if record["status"] != OK else CLEAN if under_load(record) is False else DISTURBED
            groups.setdefault((cell.dataset, cell.model, state, machine_of(record)), []).append(record)
    rows = []
    for (dataset, model, state, machine), found in groups.items():
        names = (context.dataset_titles.get(dataset, dataset), context.model_titles.get(model, model))
        measured = [_measured(cost, found) if state in (CLEAN, DISTURBED) else "" for cost in COSTS.values()]
        rows.append((*names, *measured, str(len(found)), state, machine))
    return pd.DataFrame(rows, columns=["dataset", "model", *COSTS, "n", "measured", "machine"], dtype=object)


def _measured(cost: Callable[[Record], float | None], records: Sequence[Record]) -> str:
    values = [value for record in records if (value := cost(record)) is not None]
    if not values:
        return ""
    median = statistics.median(values)
    return f"{median:.4g}" if median < 10_000 else f"{median:.0f}"  # no powers of ten


def cost_caption(frame: pd.DataFrame, records_at: str) -> list[str]:
    """What a reader must know about the numbers."""
    lines = [
        "Medians over n cells, run one at a time with nothing prepared in advance. s per epoch: after the first look "
        "at the validation nodes, validation included. Memory: above what a worker has at its start."
    ]
    if DISTURBED in set(frame["measured"]):
        lines.append(
            f"under load: others used more than {LOADED:.0%} of the cell's number of processors meanwhile. The same "
            "command measures these again; on a quiet machine they become clean."
        )
    return [*lines, f"Records: {records_at}"]
