"""The report as one page that needs nothing else: tables, figures and the records behind every number."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import Record, address, machine_of, memory_used, score_of
from bench.report.drawing import Drawing
from bench.report.table import Entry, Table
from bench.text import settings_as_typed

TEMPLATE = Path(__file__).with_suffix(".html")
RECORD_HEADER = (
    "record", "dataset", "model", "status", "split seed", "seed", "test %", "val %", "epochs", "train s", "memory",
    "settings", "machine", "started", "why",
)  # fmt: skip


@dataclass(frozen=True)
class Head:
    """What stands above the tables, line by line."""

    about: tuple[str, ...] = ()  # the paper, and what the report rests on
    findings: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def make_page(
    parts: Sequence[Table | Drawing], records: Iterable[Record], head: Head, chips: Sequence[tuple[str, str]]
) -> str:
    """The whole page; every text from records stands in one block of JSON, and only as text content after that."""
    items = [item for part in parts if isinstance(part, Table) for row in part.rows for item in row]
    shown = {key for item in items for key in (*item.keys, *item.mark_keys)}
    found = [record for record in records if address(record) in shown]
    groups = Groups({address(record): at for at, record in enumerate(found)})
    data = {
        "about": head.about,
        "findings": head.findings,
        "counts": [*head.counts, *head.warnings],
        "chips": chips,
        "parts": [_table(part, groups) if isinstance(part, Table) else _figure(part) for part in parts],
        "recordHeader": RECORD_HEADER,
        "records": [_row(record) for record in found],
        "groups": groups.members,
    }
    # "<" is all that could end the script element early
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("@DATA@", text)


class Groups:
    """Sets of records that entries rest on, each written once: many entries rest on the same."""

    def __init__(self, places: Mapping[str, int]) -> None:
        self.members: list[list[int]] = []
        self._places = places
        self._known: dict[tuple[str, ...], int] = {}

    def index(self, keys: tuple[str, ...]) -> int:
        if keys not in self._known:
            self._known[keys] = len(self.members)
            self.members.append([self._places[key] for key in keys if key in self._places])
        return self._known[keys]


def _table(table: Table, groups: Groups) -> dict[str, Any]:
    rows = [[_entry(item, groups) for item in row] for row in table.rows]
    return {"name": table.name, "title": table.title, "header": table.header, "rows": rows, "caption": table.caption}


def _entry(item: Entry, groups: Groups) -> dict[str, Any]:
    """What is not said has its default: most entries are a text and nothing more."""
    said: dict[str, Any] = {"text": item.text}
    if item.keys:
        said["group"] = groups.index(item.keys)
    if item.mark_keys:
        said["marked"] = groups.index(item.mark_keys)
    if item.bold:
        said["bold"] = True
    if item.note:
        said["note"] = item.note
    if item.value is not None:
        said["value"] = item.value
    return said


def _figure(drawing: Drawing) -> dict[str, Any]:
    image = base64.b64encode(drawing.files["png"]).decode()
    return {"name": f"figure-{drawing.name}", "title": drawing.title, "image": f"data:image/png;base64,{image}"}


def _row(record: Record) -> list[str]:
    memory = memory_used(record)
    train: Mapping[str, Any] = record["phases"].get("train", {})
    chosen = record["labels"].get("set") or {}
    return [
        record["key"],
        record["dataset"],
        record["model"],
        record["status"],
        str(record["split"]["seed"]),
        str(record["seed"]),
        _percent(record, "test"),
        _percent(record, "val"),
        str(record["training"].get("epochs", "")),
        f"{train['seconds']:.1f}" if "seconds" in train else "",
        "" if memory is None else f"{memory / 1e6:,.0f} MB",
        f"{record['labels'].get('settings', '')} {settings_as_typed(chosen)}".strip(),
        machine_of(record),
        record["started"],
        record["reason"],
    ]


def _percent(record: Record, part: str) -> str:
    return f"{score_of(record, part):.2f}" if record["metrics"].get(part) else ""
