"""The table at the end of a run that measured cost: seconds and bytes, disturbed measurements apart from clean ones."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from bench.cells import Cell
from bench.records import (
    LOADED,
    OK,
    Record,
    machine_of,
    memory_used,
    prepared_bytes,
    seconds_per_epoch,
    seconds_per_thousand_nodes,
    under_load,
)
from bench.sizes import megabytes
from bench.table import Context

CLEAN, DISTURBED = "clean", "under load"


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


COSTS: dict[str, Callable[[Record], float | None]] = {
    "preprocess s": lambda record: record["phases"]["preprocess"]["seconds"],
    "s per epoch": seconds_per_epoch,
    "infer s per 1,000 nodes": seconds_per_thousand_nodes,
    "preprocess MB": lambda record: megabytes(memory_used(record, ("preprocess",))),
    "train + infer MB": lambda record: megabytes(memory_used(record, ("train", "infer"))),
    "prepared MB": lambda record: megabytes(prepared_bytes(record)),
}


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
