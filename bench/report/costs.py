"""Seconds and memory: timings of two machines, or of an idle and a busy one, never share a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bench.datasets.catalogue import datasets
from bench.records import (
    LOADED,
    Record,
    address,
    inference_seconds,
    is_at_most,
    machine_of,
    memory_used,
    preparation_seconds,
    prepared_bytes,
    seconds_per_epoch,
    seconds_per_thousand_nodes,
    under_load,
)
from bench.report.entries import median_entry, setting_lines
from bench.report.evidence import Trials
from bench.report.results import Results, Setting, model_title
from bench.report.table import Entry, Table, entry, without_constants, without_empty
from bench.sizes import megabytes

Cost = Callable[[Record], float | None]
COSTS: dict[str, Cost] = {  # of whole trainings
    "preprocess s": preparation_seconds,
    "train s": lambda record: record["phases"]["train"]["seconds"],
    "s per epoch": seconds_per_epoch,
    "infer s": lambda record: record["phases"]["infer"]["seconds"],
    "per 1,000 nodes": seconds_per_thousand_nodes,
    "memory MB": lambda record: megabytes(memory_used(record)),
    "disk MB": lambda record: megabytes(prepared_bytes(record)),
    "epochs": lambda record: record["training"]["epochs"],
}
CLEAN = "no"
DISTURBED = {True: "yes", False: CLEAN, None: "unknown"}
MEANING = (
    "Medians over n trials. Memory: the peak above the start, of private writable memory (on a GPU: reserved); the "
    "largest of any phase unless phases are named. Disk: prepared arrays. "
    f"Disturbed: whether others used more than {LOADED:.0%} of the cell's number of processors meanwhile, "
    "so that the seconds are too many; older records do not say."
)


def cost_table(results: Sequence[Results], setting: Setting) -> Table:
    """A row per dataset, model, machine and whether others were busy on it, of the trainings that gave the scores."""
    shown = [(each.title, trials) for each in results for trials in each.good]
    rows = [
        (
            entry(title),
            entry(model_title(trials.model)),
            *medians(row, COSTS).values(),
            *place(trials, row),
        )
        for title, trials in shown
        for row in comparable(trials)
    ]
    table = Table(
        "costs",
        "Costs: seconds and memory of the trials",
        ("Dataset", "Method", *COSTS, "n", "disturbed", "machine"),
        tuple(rows),
        (MEANING, *setting_lines(setting, (trials for _, trials in shown), marked=False)),
    )
    return without_empty(table)


def comparable(trials: Trials) -> Iterator[list[Record]]:
    """The records that may share a row: of one machine, and alike in whether others disturbed them."""
    for several in by_machine(trials.good).values():
        yield from _grouped(several, lambda record: DISTURBED[under_load(record)]).values()


def by_machine(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Machine -> its records."""
    return _grouped(records, machine_of)


def _grouped(records: Iterable[Record], what: Callable[[Record], str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(what(record), []).append(record)
    return dict(sorted(found.items()))


def medians(records: Sequence[Record], columns: Mapping[str, Cost]) -> dict[str, Entry]:
    keys = tuple(map(address, records))
    return {name: median_entry([cost(record) for record in records], keys) for name, cost in columns.items()}


def place(trials: Trials, records: Sequence[Record]) -> tuple[Entry, Entry, Entry]:
    """How many records a row rests on, with what failed on the same machine; whether disturbed; the machine."""
    machine, keys = machine_of(records[0]), tuple(map(address, records))
    row = replace(trials, records=tuple(records))
    there = replace(trials, records=tuple(record for record in trials.records if machine_of(record) == machine))
    marks = [f"{count} {status}" for status, count in sorted(there.failures.items())]
    marks += ["capped"] if row.capped else []
    marks += ["reference"] if trials.reference else []
    count = " ".join([str(len(records)), *(f"[{mark}]" for mark in marks)])
    disturbed = DISTURBED[under_load(records[0])]
    return Entry(count, keys, value=float(len(records))), Entry(disturbed, keys), Entry(machine, keys)


def in_brief(table: Table) -> Table:
    """A cost table as a reader gets it: one clean row where there is one, and what never changes below the table.

    Of several machines the one with the most clean rows of the dataset, so that its rows can be compared.
    """
    if not {"disturbed", "machine", "n"} <= set(table.header):
        return table  # nothing was measured
    disturbed, machine, number = (table.header.index(name) for name in ("disturbed", "machine", "n"))
    clean = [row for row in table.rows if row[disturbed].text == CLEAN]
    there = Counter((row[0].text, row[machine].text) for row in clean)
    best: dict[tuple[str, str], tuple[Entry, ...]] = {}
    for row in sorted(clean, key=lambda row: (there[row[0].text, row[machine].text], row[number].value or 0)):
        best[row[0].text, row[1].text] = row
    rows = tuple(row for row in table.rows if best.get((row[0].text, row[1].text), row) is row)
    left_out = len(table.rows) - len(rows)
    if left_out:
        line = (
            f"{left_out} more rows stand in {table.name}.csv only: measurements that others disturbed, or of another "
            "machine, of models that have a clean one here."
        )
        table = replace(table, rows=rows, caption=(line, *table.caption))
    return without_constants(table, keep=2)


def whole_inference(record: Record) -> float | None:
    """Seconds of inference over all nodes of the graph, from those that were measured."""
    nodes = nodes_of(record)
    return None if nodes is None else inference_seconds(record, nodes)


def is_bound(record: Record) -> bool:
    """Whether that is only known not to be longer."""
    return is_at_most(record, nodes_of(record) or 0)


def nodes_of(record: Record) -> int | None:
    """Of the graph; one that the catalogue has no counts of is small enough for the sample to be all of it."""
    known = datasets().get(record["dataset"])
    return known.paper.nodes if known and known.paper else record["phases"]["infer"].get("nodes")
