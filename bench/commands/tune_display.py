"""What a person sees while a study runs: a bar that moves on a terminal, one line per trial elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bench.commands.display import Running
from bench.console import say
from bench.executors import Event
from bench.records import OK, PRUNED
from bench.sizes import format_duration
from bench.text import as_typed
from bench.tuning.choosing import best
from bench.tuning.study import Budget, Trial


class TrialDisplay:
    """The plain form, which the live one extends."""

    def __init__(self, console: Console, title: str, budget: Budget, trials: list[Trial], jobs: int = 1) -> None:
        self.console, self.title, self.budget, self.jobs = console, title, budget, jobs
        self.trials = trials
        self.running: dict[str, Running] = {}

    def __enter__(self) -> TrialDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def on_event(self, event: Event) -> None:
        if event.kind == "started":
            self.running[event.cell.key] = Running(event.cell, time.monotonic())
        elif event.kind == "finished":
            self.running.pop(event.cell.key, None)
        elif event.cell.key in self.running:
            shown = self.running[event.cell.key]
            shown.phase = event.phase
            if event.kind == "progress":
                shown.epoch, shown.accuracy = event.epoch, event.val_accuracy

    def on_trials(self, trials: list[Trial], last: Trial | None, note: str) -> None:
        self.trials = trials
        if last is not None:
            usual = last.outcome in (OK, PRUNED)
            self.show(f"{trial_line(last)}{f' ({note})' if note else ''}; {self.line()}", usual)
        elif note:
            self.show(note)

    def show(self, line: str, usual: bool = False) -> None:
        say(self.console, f"{self.title} {line}")

    def seconds_left(self) -> float | None:
        """By the mean of the trials so far and by the hours, whichever ends first; None if nothing is known."""
        used, left = sum(trial.seconds for trial in self.trials), []
        if self.budget.hours is not None:
            left.append(3600 * self.budget.hours - used)
        if self.budget.trials is not None and self.trials:
            left.append((self.budget.trials - len(self.trials)) * used / len(self.trials))
        return max(0.0, min(left)) / self.jobs if left else None

    def line(self) -> str:
        """How far the study is."""
        count = f"{len(self.trials)} of {self.budget.trials}" if self.budget.trials else str(len(self.trials))
        top, left = best(self.trials), self.seconds_left()
        parts = [f"{count} trials"]
        parts += [] if top is None else [f"best {100 * (top.accuracy or 0.0):.2f} % (trial {top.slot})"]
        parts += ["time left unknown" if left is None else f"about {format_duration(left)} left"]
        return ", ".join(parts)


class LiveTrialDisplay(TrialDisplay):
    """A picture that redraws itself; what failed stays behind above it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._live = Live(get_renderable=self.picture, console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> TrialDisplay:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, line: str, usual: bool = False) -> None:
        if not usual:
            super().show(line)

    def picture(self) -> Group:
        table = Table("trial", "settings", "phase", "epoch", "val %", "elapsed", box=None, pad_edge=False)
        for running in list(self.running.values()):
            cell = running.cell
            table.add_row(
                str(cell.labels["trial"]),
                written(cell.labels.get("set", {})),
                running.phase,
                "" if running.epoch is None else f"{running.epoch}/{cell.config['max_epochs']}",
                "" if running.accuracy is None else f"{100 * running.accuracy:.2f}",
                format_duration(time.monotonic() - running.since),
            )
        return Group(table, self._bar(), Text(f"{self.title} {self.line()}", style="bold"))

    def _bar(self) -> ProgressBar:
        shares = [0.0]
        if self.budget.trials:
            shares.append(len(self.trials) / self.budget.trials)
        if self.budget.hours:
            shares.append(sum(trial.seconds for trial in self.trials) / (3600 * self.budget.hours))
        return ProgressBar(total=1.0, completed=min(1.0, max(shares)), width=60)


def make_trial_display(console: Console, title: str, budget: Budget, trials: list[Trial], jobs: int) -> TrialDisplay:
    """The display that suits where the output goes."""
    return (LiveTrialDisplay if console.is_terminal else TrialDisplay)(console, title, budget, trials, jobs)


def trial_line(trial: Trial) -> str:
    """One trial in one line."""
    result = f"val {100 * trial.accuracy:.2f} %" if trial.accuracy is not None else trial.outcome
    return f"trial {trial.slot}: {result}, {format_duration(trial.seconds)}, {written(trial.settings)}"


def written(settings: Mapping[str, Any]) -> str:
    """Settings as --set takes them, in few digits."""
    return " ".join(f"{name}={_short(value)}" for name, value in settings.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else as_typed(value)
