"""What a person sees while cells run: a live picture on a terminal, one line per finished cell elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

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


@dataclass
class Running:
    """A cell at work, as far as it has told."""

    cell: Cell
    since: float
    phase: str = "starting"
    epoch: int | None = None
    accuracy: float | None = None  # on the validation nodes


@dataclass
class Progress:
    """How far a run has come; knows nothing of how it is shown."""

    waiting: dict[str, Cell]  # by key
    estimator: Forecaster
    jobs: int = 1
    clock: Callable[[], float] = time.monotonic
    running: dict[str, Running] = field(default_factory=dict)
    finished: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        return len(self.waiting) + len(self.running) + self.finished

    def start(self, cell: Cell) -> None:
        self.waiting.pop(cell.key, None)
        self.running[cell.key] = Running(cell, self.clock())

    def phase(self, cell: Cell, name: str) -> None:
        if cell.key in self.running:
            self.running[cell.key].phase = name

    def epoch(self, cell: Cell, epoch: int, accuracy: float) -> None:
        if cell.key in self.running:
            self.running[cell.key].epoch, self.running[cell.key].accuracy = epoch, accuracy

    def finish(self, cell: Cell, record: Record) -> None:
        self.waiting.pop(cell.key, None)  # another process may have done it without our starting it
        self.running.pop(cell.key, None)
        self.finished += 1
        self.failed += record["status"] != OK
        self.estimator.add(record)

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


class Display:
    """Hears what happens to cells and shows it; this is the plain form, which the live one extends."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self.console, self.progress = console, progress

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def on_event(self, event: Event) -> None:
        if event.kind == "started":
            self.progress.start(event.cell)
        elif event.kind == "phase":
            self.progress.phase(event.cell, event.phase)
        elif event.kind == "progress":
            self.progress.epoch(event.cell, event.epoch, event.val_accuracy)
        else:
            assert event.record is not None
            self.progress.finish(event.cell, event.record)
            self.show_finished(event.cell, event.record, elsewhere=event.elsewhere)

    def show_finished(self, cell: Cell, record: Record, elsewhere: bool) -> None:
        count = f"[{self.progress.finished}/{self.progress.total}]"
        say(self.console, f"{count} {finished_line(cell, record)}{' (by another run)' if elsewhere else ''}")


class LiveDisplay(Display):
    """A picture that redraws itself; only failures stay behind above it."""

    def __init__(self, console: Console, progress: Progress) -> None:
        super().__init__(console, progress)
        self._live = Live(get_renderable=self.picture, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show_finished(self, cell: Cell, record: Record, elsewhere: bool) -> None:
        if record["status"] != OK:
            say(self.console, finished_line(cell, record))

    def picture(self) -> Group:
        table = Table("model", "dataset", "trial", "phase", "epoch", "val %", "elapsed", box=None, pad_edge=False)
        for running in list(self.progress.running.values()):
            table.add_row(
                f"{running.cell.model} {running.cell.changes}".strip(),
                running.cell.dataset,
                str(running.cell.labels.get("trial", "")),
                running.phase,
                "" if running.epoch is None else f"{running.epoch}/{running.cell.config['max_epochs']}",
                "" if running.accuracy is None else f"{100 * running.accuracy:.2f}",
                format_duration(self.progress.clock() - running.since),
            )
        return Group(table, Text(self.progress.line(), style="bold"))


def make_display(console: Console, cells: Iterable[Cell], estimator: Forecaster, jobs: int) -> Display:
    """The display that suits where the output goes."""
    progress = Progress({cell.key: cell for cell in cells}, estimator, jobs)
    return (LiveDisplay if console.is_terminal else Display)(console, progress)
