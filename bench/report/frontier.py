"""How much memory is enough: what `run --study frontier` found, from the ledger of its own runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.cells import canonical_json
from bench.datasets.catalogue import datasets
from bench.ledger import Ledger
from bench.records import DIVERGED, FRONTIER, OK, OOM, Record, machine_of
from bench.registry import models
from bench.report.results import dataset_title, model_title
from bench.report.table import Entry, Table, entry
from bench.sizes import MEGABYTE
from bench.text import settings_as_typed


def frontier_table(results: Path) -> Table | None:
    """A row per model, dataset, configuration and machine; of searches of different lengths the longest counts."""
    rows = [_row(records) for records in _searches(Ledger(results / FRONTIER))]
    if not rows:
        return None
    return Table(
        "frontier",
        "Memory frontier: the smallest memory limit that is enough",
        ("Dataset", "Method", "Settings", "enough, MB", "not enough, MB", "epochs", "runs", "machine"),
        tuple(rows),
        (
            "Memory that a cell may take beyond what a worker has at its start; read-only file maps are free. Found by "
            "bisection, each run with nothing prepared in advance; `python -m bench run --study frontier` searches.",
        ),
    )


def _searches(records: Iterable[Record]) -> list[list[Record]]:
    """The runs of each search that found something: one configuration, source, machine and number of threads."""
    known = models()
    found: dict[tuple[str, ...], dict[tuple[int, str], list[Record]]] = {}
    for record in records:
        if record["model"] in known and record["dataset"] in datasets():
            rest = {name: value for name, value in record["config"].items() if name != "max_epochs"}
            what = (record["dataset"], record["model"], canonical_json(rest), machine_of(record))
            length = (record["config"]["max_epochs"], str(record["source"]))
            found.setdefault(what, {}).setdefault(length, []).append(record)
    ended = [
        {length: records for length, records in searches.items() if any(map(_fits, records))}
        for _, searches in sorted(found.items())
    ]
    return [searches[_longest(searches)] for searches in ended if searches]


def _longest(searches: dict[tuple[int, str], list[Record]]) -> tuple[int, str]:
    """The longest, the newest of these."""
    return max(searches, key=lambda length: (length[0], max(str(record["started"]) for record in searches[length])))


def _fits(record: Record) -> bool:
    return record["status"] in (OK, DIVERGED)


def _row(records: list[Record]) -> tuple[Entry, ...]:
    first = records[0]
    enough = min(record["limits"]["memory"] for record in records if _fits(record))
    short = [record["limits"]["memory"] for record in records if record["status"] == OOM]
    too_little = max((limit for limit in short if limit < enough), default=None)
    note = f"{len(records)} runs in {FRONTIER}/ below the results"
    labels = first["labels"]
    told = (
        f"{labels.get('settings', '')} {settings_as_typed(labels.get('set', {}))}".strip(),
        f"{enough / MEGABYTE:,.0f}",
        "" if too_little is None else f"{too_little / MEGABYTE:,.0f}",
        str(first["config"]["max_epochs"]),
        str(len(records)),
        machine_of(first),
    )
    names = entry(dataset_title(first["dataset"])), entry(model_title(first["model"]))
    return (*names, *(Entry(text, note=note) for text in told))
