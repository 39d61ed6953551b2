"""The ledger: one JSON record per line, one file per writing process, nothing ever changed or taken away."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from bench.errors import UserError
from bench.files import failing_clearly, force_to_disk
from bench.records import Record, newest

SCHEMA = 1
REPEATED = ("config", "environment")  # what many records have in common; each content is kept once
REQUIRED = frozenset({"key", "status", "limits", "phases", "overhead_seconds", "started"})  # to judge a record by


class Ledger:
    """All records below a results folder, and one more file as soon as this process has something to add."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.folder = results / "ledger"
        self.warnings: list[str] = []
        self._read_up_to: dict[str, int] = {}  # file name -> bytes already understood
        self._by_key: dict[str, list[Record]] = {}
        self._contents: dict[str, Any] = {}  # of REPEATED, by their text
        self._file: IO[bytes] | None = None
        self._written: list[bytes] = []  # by this process
        self.refresh(first=True)

    # -- reading -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        for records in self._by_key.values():
            yield from records

    def of(self, key: str) -> list[Record]:
        """All records of one cell, oldest first."""
        return self._by_key.get(key, [])

    def newest(self, key: str) -> Record | None:
        """The record that stands for a cell."""
        return newest(self.of(key))

    def refresh(self, first: bool = False) -> list[Record]:
        """Read what any process has appended since the last look; returns the records that are new."""
        found: list[Record] = []
        for path in sorted(self.folder.glob("*.jsonl")):
            torn, records = self._read_tail(path)
            found += records
            if torn and first:  # later, half a line is what another process is writing at this moment
                self.warnings.append(f"ledger/{path.name}: the last line is torn and was left out; its cell runs again")
        for key in {record["key"] for record in found}:
            self._by_key[key].sort(key=lambda record: record["started"])  # stable: a file's own order is kept
        return found

    def _read_tail(self, path: Path) -> tuple[bool, list[Record]]:
        start = self._read_up_to.get(path.name, 0)
        if path.stat().st_size <= start:
            return False, []
        with path.open("rb") as file:
            file.seek(start)
            whole, newline, torn = file.read().rpartition(b"\n")
        self._read_up_to[path.name] = start + len(whole) + len(newline)
        return bool(torn), [record for line in whole.splitlines() if (record := self._parse(line, path.name))]

    def _parse(self, line: bytes, name: str) -> Record | None:
        if not line.strip():
            return None
        try:
            record = json.loads(line)
            schema = int(record["schema"])
            complete = schema > SCHEMA or REQUIRED.issubset(record)
        except (ValueError, TypeError, KeyError):
            complete = False
        if not complete:
            self.warnings.append(f"ledger/{name}: a line that cannot be read was left out; its cell runs again")
            return None
        if schema > SCHEMA:
            raise UserError(
                f"ledger/{name} was written by a newer version (schema {schema}, this one reads up to {SCHEMA}); "
                "update nagphormer-bench or use another --results folder"
            )
        for part in REPEATED:
            if part in record:
                record[part] = self._contents.setdefault(json.dumps(record[part]), record[part])
        self._by_key.setdefault(record["key"], []).append(record)
        return record

    # -- writing -------------------------------------------------------------------------------------------------

    def append(self, record: dict[str, Any]) -> None:
        """Write one record so that it survives a crash; a record that does not fit on the disk leaves no trace."""
        line = json.dumps({"schema": SCHEMA, **record}, allow_nan=False).encode() + b"\n"
        advice = "; make room and run again: finished records are safe, this cell runs again"
        with failing_clearly(f"the ledger in {self.results.name}/ cannot be written", advice):
            if self._file is not None and not _is_there(self._file):  # a `git stash` has taken it away: once more, all
                self.close()
                _write(self._create(), b"".join([*self._written, line]))
            else:
                _write(self._file or self._create(), line)
            self._written.append(line)

    def _create(self) -> IO[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(4)}.jsonl"
        self._file = (self.folder / name).open("xb", buffering=0)
        force_to_disk(self.folder)
        return self._file

    def close(self) -> None:
        """No more is written into this file; the next record begins another."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _write(file: IO[bytes], content: bytes) -> None:
    """All of it, on the disk, or nothing."""
    size = file.seek(0, os.SEEK_END)
    try:
        written = file.write(content)
        if written != len(content):  # a nearly full disk takes a part; asking for the rest gives the reason
            file.write(content[written:])
        os.fsync(file.fileno())
    except OSError:
        file.truncate(size)
        raise


def _is_there(file: IO[bytes]) -> bool:
    """Whether the name under which a file was opened still leads to it."""
    try:
        return os.path.samestat(Path(file.name).stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def check_writable(results: Path, *folders: str) -> None:
    """Find out before the first cell, not after it, that results cannot be kept."""
    for folder in (results, *(results / name for name in ("ledger", *folders))):
        probe = folder / f".probe-{secrets.token_hex(4)}"
        with failing_clearly(f"the results folder '{folder}' cannot be written", "; choose another with --results"):
            folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"1")
            probe.unlink()
