"""What a person sees while a study runs: a bar that moves on a terminal, one line per trial elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from bench.commands.display import RunningCells, Screen
from bench.console import say
from bench.executors import Event
from bench.records import OK, PRUNED
from bench.sizes import format_duration
from bench.text import as_typed
from bench.tuning.choosing import best
from bench.tuning.study import Budget, Trial


class TrialDisplay(Screen):
    """Hears what happens to trials and shows it; on a terminal, only what failed stays behind above the picture."""

    def __init__(self, console: Console, title: str, budget: Budget, trials: list[Trial], jobs: int = 1) -> None:
        self.title, self.budget, self.trials, self.jobs = title, budget, trials, jobs
        self.cells = RunningCells()
        super().__init__(console)  # draws the first picture

    def on_event(self, event: Event) -> None:
        self.cells.hear(event)

    def on_trials(self, trials: list[Trial], last: Trial | None, note: str) -> None:
        """Take in the trials that count, and show the last one or what else there is to say."""
        self.trials = trials
        line = note
        if last is not None:
            line = f"{trial_line(last)}{f' ({note})' if note else ''}; {self.line()}"
        usual = last is not None and last.outcome in (OK, PRUNED)
        if line and not (usual and self.live):
            say(self.console, f"{self.title} {line}")

    def line(self) -> str:
        """How far the study is."""
        count = f"{len(self.trials)} of {self.budget.trials}" if self.budget.trials else str(len(self.trials))
        top, left = best(self.trials), self.budget.seconds_left(self.trials, jobs=self.jobs)
        parts = [f"{count} trials"]
        parts += [] if top is None else [f"best {top.percent} (trial {top.slot})"]
        parts += ["time left unknown" if left is None else f"about {format_duration(left)} left"]
        return ", ".join(parts)

    def picture(self) -> Group:
        table = self.cells.table(
            ["trial", "settings"], lambda cell: [str(cell.labels["trial"]), written(cell.labels.get("set", {}))]
        )
        bar = ProgressBar(total=1.0, completed=self.budget.share_used(self.trials), width=60)
        return Group(table, bar, Text(f"{self.title} {self.line()}", style="bold"))


def trial_line(trial: Trial) -> str:
    """One trial in one line."""
    result = trial.outcome if trial.accuracy is None else f"val {trial.percent}"
    return f"trial {trial.slot}: {result}, {format_duration(trial.seconds)}, {written(trial.settings)}"


def written(settings: Mapping[str, Any]) -> str:
    """Settings as --set takes them, in few digits."""
    return " ".join(f"{name}={_short(value)}" for name, value in settings.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else as_typed(value)
