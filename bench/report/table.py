"""A table before it has a form, and its forms: Markdown and CSV. The page has its own."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, replace

from tabulate import tabulate


@dataclass(frozen=True)
class Entry:
    """One place of a table: what it says, and the records it rests on."""

    text: str = ""
    keys: tuple[str, ...] = ()  # bench.records.address of each
    bold: bool = False
    note: str = ""  # more, for a page that can show it: the command that would fill it, an interval
    value: float | None = None  # what it is sorted by
    mark_keys: tuple[str, ...] = ()  # the records on which it rests whether it is bold, or has a mark


@dataclass(frozen=True)
class Table:
    """Rows of entries under a header; the first column names the row."""

    name: str  # of its files
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    caption: tuple[str, ...] = ()  # sentences that a reader must know
    brief: Table | None = None  # as a reader gets it, where only the CSV file has everything


def entry(text: str) -> Entry:
    """An entry that rests on no record, such as a name."""
    return Entry(text)


def without_empty(table: Table) -> Table:
    """The same table without columns that say nothing in any row."""
    kept = [at for at in range(len(table.header)) if not table.rows or any(row[at].text for row in table.rows)]
    rows = tuple(tuple(row[at] for at in kept) for row in table.rows)
    return replace(table, header=tuple(table.header[at] for at in kept), rows=rows)


def without_constants(table: Table, keep: int = 1) -> Table:
    """The same table with the columns that say the same in every row as a line below; the first ones are names."""
    if len(table.rows) < 2:
        return table
    said = [{row[at].text for row in table.rows} for at in range(len(table.header))]
    moved = [at for at, texts in enumerate(said) if at >= keep and len(texts) == 1 and texts != {""}]
    if not moved:
        return table
    line = "; ".join(f"{table.header[at]} {table.rows[0][at].text}" for at in moved)
    kept = [at for at in range(len(table.header)) if at not in moved]
    return replace(
        table,
        header=tuple(table.header[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in table.rows),
        caption=(f"In every row: {line}.", *table.caption),
    )


def to_markdown(table: Table) -> str:
    """A heading, the table, and the caption below it."""
    rows = [[_markdown(item) for item in row] for row in table.rows]
    header = [_escape_markdown(text) for text in table.header]
    body = tabulate(rows, headers=header, tablefmt="github", disable_numparse=True)
    caption = "\n".join(f"{_escape_markdown(line)}  " for line in table.caption)
    return f"### {_escape_markdown(table.title)}\n\n{body}\n\n{caption}\n"


def _markdown(item: Entry) -> str:
    text = _escape_markdown(item.text)
    return f"**{text}**" if item.bold and text else text


def _escape_markdown(text: str) -> str:
    """Plain text; what stands between two backticks is a command and stays one."""
    parts = re.split(r"(`[^`]*`)", text)  # commands are the odd ones
    escaped = [
        part.replace("|", r"\|") if at % 2 else re.sub(r"([\\|*_<>`])", r"\\\1", part) for at, part in enumerate(parts)
    ]
    return " ".join("".join(escaped).split())


def to_csv(table: Table) -> str:
    """One line per row; what rests on records is followed by their keys."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*table.header, "records"])
    for row in table.rows:
        keys = dict.fromkeys(key for item in row for key in item.keys)
        writer.writerow([*(item.text for item in row), " ".join(keys)])
    return buffer.getvalue()
