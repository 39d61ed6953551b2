"""The report as one page that needs nothing else: tables, figures and the records behind every number."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.records import Record, memory_used
from bench.report.table import Table

TEMPLATE = Path(__file__).with_suffix(".html")
RECORD_HEADER = (
    "record",
    "status",
    "split seed",
    "seed",
    "test %",
    "val %",
    "epochs",
    "train s",
    "memory",
    "started",
    "why",
)


def make_page(
    tables: Sequence[Table],
    figures: Sequence[tuple[str, bytes]],
    records: Iterable[Record],
    lead: str,
    chips: Sequence[tuple[str, str]],
    foot: Sequence[str],
) -> str:
    """The whole page; every text from records stands in one block of JSON, and only as text content after that."""
    shown = {key for table in tables for row in table.rows for entry in row for key in entry.keys}
    data = {
        "lead": lead,
        "chips": chips,
        "tables": [asdict(table) for table in tables],
        "figures": [{"title": title, "image": _data_url(image)} for title, image in figures],
        "recordHeader": RECORD_HEADER,
        "records": {record["key"]: _row(record) for record in records if record["key"] in shown},
        "foot": foot,
    }
    # "<" is all that could end the script element early
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("@DATA@", text)


def _data_url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def _row(record: Record) -> list[str]:
    memory = memory_used(record)
    train: Mapping[str, Any] = record["phases"].get("train", {})
    return [
        record["key"],
        record["status"],
        str(record["split"]["seed"]),
        str(record["seed"]),
        _percent(record, "test"),
        _percent(record, "val"),
        str(record["training"].get("epochs", "")),
        f"{train['seconds']:.1f}" if "seconds" in train else "",
        "" if memory is None else f"{memory / 1e6:,.0f} MB",
        record["started"],
        record["reason"],
    ]


def _percent(record: Record, part: str) -> str:
    metrics = record["metrics"].get(part)
    return f"{100 * metrics['accuracy']:.2f}" if metrics else ""
