"""The boundary between what is to be run and how: an executor turns jobs into outcomes, in any order."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:  # the worker imports its meters from this room
    from bench.cells import Cell
    from bench.records import Record
    from bench.worker import Job


@dataclass(frozen=True)
class Event:
    """Something to show while cells run."""

    kind: Literal["started", "phase", "progress", "finished"]
    cell: Cell
    phase: str = ""  # of the worker, from "phase" on
    epoch: int = 0
    max_epochs: int = 0
    val_accuracy: float = 0.0
    record: Record | None = None  # of a finished cell
    elsewhere: bool = False  # another run on the same folder finished it


class EndCell(Exception):
    """A listener raises this at a cell's progress to have it ended and recorded as pruned; the text says why."""


def utc_now() -> str:
    """The time in UTC to the millisecond, in a form that sorts."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a job. `result` is the worker's part of the record, or as much of it as arrived."""

    job: Job | None  # None: the parent itself found that there is nothing to run
    status: str
    reason: str
    started: str = field(default_factory=utc_now)
    device: str = "cpu"
    result: dict[str, Any] = field(default_factory=lambda: {"phases": {}})
    log_tail: str = ""  # the end of what a failed worker printed, without absolute paths


class Executor(Protocol):
    """Pulls a job whenever it has room. `None` from `jobs` means: nothing right now, ask again in a second.

    A listener that raises EndCell at a "progress" event has that cell ended before anything else it says is heard.
    Once `stopped()` is true it starts nothing more, ends what is running, and yields that as interrupted.
    """

    def run(
        self, jobs: Iterator[Job | None], on_event: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> Iterator[Outcome]: ...


LOCAL = "local"
EXECUTORS = {  # by name, module:class; imported when it is chosen
    LOCAL: "bench.executors.local:LocalExecutor",
}


def make_executor(name: str, logs: Path, jobs: int, devices: Sequence[str]) -> Executor:
    """Import the executor of this name, and make one that keeps logs there and runs so many jobs at once."""
    executor: Executor = pkgutil.resolve_name(EXECUTORS[name])(logs, jobs, devices)
    return executor
