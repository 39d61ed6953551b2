"""How much memory is enough: what `frontier` found, from the ledger of its own runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.data.catalogue import datasets
from bench.ledger import FRONTIER, Ledger
from bench.plan import canonical_json
from bench.records import DIVERGED, OK, OOM, Record
from bench.registry import models, source_hash
from bench.report.findings import dataset_title, model_title
from bench.report.table import Entry, Table, entry
from bench.sizes import MEGABYTE


def frontier_table(results: Path) -> Table | None:
    """A row per model, dataset and configuration; of searches of different lengths the longest counts."""
    rows = [_row(records) for records in _searches(Ledger(results / FRONTIER))]
    if not rows:
        return None
    return Table(
        "frontier",
        "Memory frontier: the smallest memory limit that is enough",
        ("Dataset", "Method", "enough, MB", "not enough, MB", "epochs", "threads", "runs"),
        tuple(rows),
        (
            "Memory that a cell may take beyond what a worker has at its start; read-only file maps are free. Found by "
            "bisection, each run with nothing prepared in advance; `python -m bench frontier` searches.",
            *(["stale: the model's code has changed since."] if any("stale" in row[1].text for row in rows) else []),
        ),
    )


def _searches(records: Iterable[Record]) -> list[list[Record]]:
    """The runs of each search: one configuration, source, device and number of threads."""
    known = models()
    found: dict[tuple[str, ...], dict[tuple[int, str], list[Record]]] = {}
    for record in records:
        if record["model"] in known and record["dataset"] in datasets():
            place = record["environment"]
            rest = {name: value for name, value in record["config"].items() if name != "max_epochs"}
            what = (
                record["dataset"],
                record["model"],
                canonical_json(rest),
                str(place["device"]),
                str(place["threads"]),
            )
            length = (record["config"]["max_epochs"], str(record["source"]))
            found.setdefault(what, {}).setdefault(length, []).append(record)
    longest = (searches[_longest(searches)] for _, searches in sorted(found.items()))
    return [records for records in longest if any(_fits(record) for record in records)]


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
    stale = "" if first["source"] == source_hash(models()[first["model"]]) else " [stale]"
    note = f"{len(records)} runs in {FRONTIER}/ below the results"
    numbers = (
        f"{enough / MEGABYTE:,.0f}",
        "" if too_little is None else f"{too_little / MEGABYTE:,.0f}",
        str(first["config"]["max_epochs"]),
        str(first["environment"]["threads"]),
        str(len(records)),
    )
    names = entry(dataset_title(first["dataset"])), entry(f"{model_title(first['model'])}{stale}")
    return (*names, *(Entry(text, note=note) for text in numbers))
