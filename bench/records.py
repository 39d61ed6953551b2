"""What a record means: its status, what it used, and which later request it already answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bench.errors import UserError
from bench.text import nearest

Record = Mapping[str, Any]

OK = "ok"
OOM = "oom"
TIMEOUT = "timeout"
DIVERGED = "diverged"
UNSUPPORTED = "unsupported"
MISSING = "missing"
ERROR = "error"
INTERRUPTED = "interrupted"
CAP_REACHED = "max_epochs"  # bench.train's word for a training that no stopping rule ended
STATUSES = (OK, OOM, TIMEOUT, DIVERGED, UNSUPPORTED, MISSING, ERROR, INTERRUPTED)


def parse_statuses(text: str) -> frozenset[str]:
    """The statuses of `--retry oom,error`."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in STATUSES:
            raise UserError(f"unknown status '{name}' (known: {', '.join(STATUSES)}).{nearest(name, STATUSES)}")
    if not names:
        raise UserError(f"no status is named in '{text}' (known: {', '.join(STATUSES)})")
    return frozenset(names)


def answers(record: Record, memory_limit: int | None = None, time_limit: float | None = None) -> bool:
    """Whether this record says what running the cell under these limits would give; None is no limit."""
    status, limits = record["status"], record["limits"]
    if status == OK:
        within_memory = _fits(memory_limit, limits["memory"], memory_used(record))
        return within_memory and _fits(time_limit, limits["time"], wall_seconds(record))
    if status == OOM:
        return _number(memory_limit) <= _number(limits["memory"])
    if status == TIMEOUT:
        return _number(time_limit) <= _number(limits["time"])
    return status != INTERRUPTED


def _fits(limit: float | None, earlier_limit: float | None, used: float | None) -> bool:
    """A success holds under every limit that is no tighter than its own, or that it was measured to keep."""
    return _number(limit) >= _number(earlier_limit) or (used is not None and used <= _number(limit))


def _number(limit: float | None) -> float:
    return math.inf if limit is None else limit


def memory_used(record: Record) -> int | None:
    """Bytes above the start that a memory limit would have counted; None where nothing was measured.

    On a CUDA device that is what was reserved, else private writable address space. The latter is sampled, and older
    records lack it: resident anonymous memory, whose peaks the kernel itself notes, is the least it can have been.
    """
    on_device = _peaks(record, "peak_reserved")
    if on_device:
        return max(on_device)
    baseline = record.get("baseline_anonymous") or 0
    resident = [peak - baseline for peak in _peaks(record, "peak_anonymous")]
    return max([*_peaks(record, "peak_data"), *resident], default=None)


def _peaks(record: Record, what: str) -> list[int]:
    return [phase[what] for phase in record["phases"].values() if phase.get(what) is not None]


def phase_seconds(record: Record) -> float:
    """Time inside the phases, compilation included."""
    return sum(phase["seconds"] + phase["compile_seconds"] for phase in record["phases"].values())


def wall_seconds(record: Record) -> float:
    """The whole time of the cell as the parent process saw it."""
    return phase_seconds(record) + record["overhead_seconds"]


def newest(records: Iterable[Record]) -> Record | None:
    """The record that stands for a key: the last one, unless an `ok` is only followed by failures it outlives."""
    standing: Record | None = None
    for record in records:
        if standing is None or not _outlives(standing, record):
            standing = record
    return standing


def _outlives(earlier: Record, later: Record) -> bool:
    """An `ok` is not undone by being interrupted, or by a failure that tighter limits explain."""
    if earlier["status"] != OK or later["status"] == OK:
        return False
    tighter = any(_number(later["limits"][what]) < _number(earlier["limits"][what]) for what in ("memory", "time"))
    return tighter or later["status"] == INTERRUPTED


def answering(records: Iterable[Record], memory_limit: int | None, time_limit: float | None) -> Record | None:
    """The newest of these records that answers for these limits."""
    found = None
    for record in records:
        if answers(record, memory_limit, time_limit):
            found = record
    return found
