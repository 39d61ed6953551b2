"""What a person sees while cells run: a live picture on a terminal, one line per finished cell elsewhere."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bench.cells import Cell
from bench.console import say
from bench.planning.estimate import Forecaster
from bench.records import OK, Record, score_of, wall_seconds
from bench.sizes import format_duration

if TYPE_CHECKING:
    from bench.executors import Event

AnyScreen = TypeVar("AnyScreen", bound="Screen")


@dataclass
class Running:
    """A cell at work, as far as it has told."""

    cell: Cell
    since: float
    phase: str = "starting"
    epoch: int | None = None
    accuracy: float | None = None  # on the validation nodes


@dataclass
class RunningCells:
    """The cells at work by key; knows nothing of how they are shown."""

    clock: Callable[[], float] = time.monotonic
    running: dict[str, Running] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Take in what happens to a cell; late news of a finished one is ignored."""
        key = event.cell.key
        if event.kind == "started":
            self.running[key] = Running(event.cell, self.clock())
        elif event.kind == "finished":
            self.running.pop(key, None)
        elif key in self.running:
            shown = self.running[key]
            shown.phase = event.phase or shown.phase
            if event.kind == "progress":
                shown.epoch, shown.accuracy = event.epoch, event.val_accuracy

    def table(self, columns: Sequence[str], describe: Callable[[Cell], Sequence[str]]) -> Table:
        """Draw a row per cell: what describes it in these columns, and how far it is."""
        table = Table(*columns, "phase", "epoch", "val %", "elapsed", box=None, pad_edge=False)
        for running in list(self.running.values()):  # a copy: another thread draws
            table.add_row(
                *describe(running.cell),
                running.phase,
                "" if running.epoch is None else f"{running.epoch}/{running.cell.config['max_epochs']}",
                "" if running.accuracy is None else f"{100 * running.accuracy:.2f}",
                format_duration(self.clock() - running.since),
            )
        return table


class Screen(ABC):
    """A picture that redraws itself as long as it is open, if this is a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = (
            Live(get_renderable=self.picture, console=console, refresh_per_second=4, transient=True)
            if console.is_terminal
            else None
        )

    def __enter__(self: AnyScreen) -> AnyScreen:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()

    @abstractmethod
    def picture(self) -> Group:
        """Draw what is going on."""


@dataclass
class Progress(RunningCells):
    """How far a run has come."""

    waiting: dict[str, Cell] = field(default_factory=dict)  # by key
    estimator: Forecaster = field(default_factory=Forecaster)
    jobs: int = 1
    finished: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        return len(self.waiting) + len(self.running) + self.finished

    def hear(self, event: Event) -> None:
        super().hear(event)
        if event.kind in ("started", "finished"):  # another process may have done it without our starting it
            self.waiting.pop(event.cell.key, None)
        if event.record is not None:
            self.finished += 1
            self.failed += event.record["status"] != OK
            self.estimator.add(event.record)

    def seconds_left(self) -> float | None:
        """By the records of this and earlier runs; None while there is nothing to judge by."""
        running = list(self.running.values())  # a copy: the live picture is drawn by another thread
        cells = [*self.waiting.values(), *(at_work.cell for at_work in running)]
        total = self.estimator.total(cells)
        if total is None:
            return None
        spent = 0.0
        for at_work in running:
            expected, elapsed = self.estimator.seconds(at_work.cell), self.clock() - at_work.since
            if expected is None and elapsed > total / len(cells):
                return None  # the first of its kind has outlasted what others suggest
            spent += min(elapsed, total / len(cells) if expected is None else expected)
        return (total - spent) / min(self.jobs, max(len(cells), 1))

    def line(self) -> str:
        left = self.seconds_left()
        parts = [f"{self.finished} of {self.total} done", f"{len(self.running)} running"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if left is None:
            parts.append("time left unknown")
        else:
            parts.append("nearly done" if left < 1 else f"about {format_duration(left)} left")
        return ", ".join(parts)


def finished_line(cell: Cell, record: Record) -> str:
    """One finished cell in one line."""
    which = " ".join(filter(None, [cell.model, cell.dataset, cell.changes]))
    start = f"{which} trial {cell.labels.get('trial', '-')}: {record['status']}"
    if record["status"] != OK:
        return f"{start}: {record['reason']}" if record.get("reason") else start
    training = record["training"]
    return (
        f"{start}, test {score_of(record, 'test'):.2f} %, val {score_of(record, 'val'):.2f} %, "
        f"best epoch {training['best_epoch']} of {training['epochs']}, {format_duration(wall_seconds(record))}"
    )


class Display(Screen):
    """Hears what happens to cells and shows it; on a terminal, only failures stay behind above the picture."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self.progress = progress
        super().__init__(console)  # draws the first picture

    def on_event(self, event: Event) -> None:
        """Take in what happened, and show what is finished."""
        self.progress.hear(event)
        if event.record is None:
            return
        line = finished_line(event.cell, event.record)
        if not self.live:
            count = f"[{self.progress.finished}/{self.progress.total}]"
            say(self.console, f"{count} {line}{' (by another run)' if event.elsewhere else ''}")
        elif event.record["status"] != OK:
            say(self.console, line)

    def picture(self) -> Group:
        table = self.progress.table(
            ["model", "dataset", "trial"],
            lambda cell: [f"{cell.model} {cell.changes}".strip(), cell.dataset, str(cell.labels.get("trial", ""))],
        )
        return Group(table, Text(self.progress.line(), style="bold"))


def make_display(console: Console, cells: Iterable[Cell], estimator: Forecaster, jobs: int) -> Display:
    """Return the display of a run."""
    return Display(console, Progress(waiting={cell.key: cell for cell in cells}, estimator=estimator, jobs=jobs))
