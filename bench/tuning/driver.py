"""From a study to its trials and back: asks for settings, has their cells run, tells what came of them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Protocol

from bench.cells import Cell
from bench.errors import UserError
from bench.executors import EndCell, Event
from bench.predictions import PredictionStore
from bench.records import (
    DIVERGED,
    ERROR,
    INTERRUPTED,
    OK,
    OOM,
    PRUNED,
    TIMEOUT,
    UNSUPPORTED,
    Record,
    metric_of,
    preparation_seconds,
    wall_seconds,
)
from bench.tuning.choosing import outcomes
from bench.tuning.pruning import LOST, Judge, most_evaluations
from bench.tuning.search import Search
from bench.tuning.study import Asked, Budget, Trial, Tuning

PATIENCE = 1.0  # seconds between two looks at what other drivers are doing
GIVE_UP_AT = 10  # trials: if the first ten all fail outright, so will the others
KILLS = 3  # of a cell's worker, after which it is not tried again: the next one would be killed as well


class Listener(Protocol):
    """What shows the progress."""

    def on_event(self, event: Event) -> None: ...

    def on_trials(self, trials: list[Trial], last: Trial | None, note: str) -> None: ...


class Driver:
    """The loop of one study, turned inside out: the runner pulls cells from here and reports events to here."""

    def __init__(
        self, search: Search, tuning: Tuning, budget: Budget, predictions: PredictionStore, listener: Listener
    ) -> None:
        self.search, self.tuning, self.budget, self.listener = search, tuning, budget, listener
        self._predictions = predictions
        # by cell; two trials may have the same settings
        self._asked: dict[str, list[tuple[Asked, Judge | None]]] = defaultdict(list)
        self._killed: dict[str, list[float]] = defaultdict(list)  # by cell: seconds of each time its worker was killed

    # -- what to run -------------------------------------------------------------------------------------------------

    def cells(self) -> Iterator[Cell | None]:
        """The cells of the study's trials; None while all slots are taken but some may become free again."""
        quiet_until = 0.0
        while True:
            if time.monotonic() < quiet_until:
                yield None
                continue
            slot, trials = self.tuning.next_slot(self.budget), self.tuning.trials()
            given_up = len(trials) >= GIVE_UP_AT and all(map(failed_outright, trials[:GIVE_UP_AT]))
            if slot is not None and not given_up:
                asked = self.tuning.ask(slot)
                if asked is not None:
                    yield from self._cell_of(asked)
            elif self.tuning.live_slots():
                quiet_until = time.monotonic() + PATIENCE
            else:
                if slot is not None:
                    self._say_given_up(trials)
                return

    def _say_given_up(self, trials: list[Trial]) -> None:
        first = trials[:GIVE_UP_AT]
        note = (
            f"given up: the first {GIVE_UP_AT} trials all failed ({outcomes(first)}; the last one: "
            f"{first[-1].reason}). Mend the cause, or change --space, --set or the limits, and start "
            f"another study with --name {self.tuning.name}-2"
        )
        self.listener.on_trials(trials, None, note)

    def _cell_of(self, asked: Asked) -> Iterator[Cell]:
        try:
            cell = self.search.cell(asked.settings, asked.slot, self.tuning.name)
        except UserError as error:  # settings that are fine one by one, but not together
            self._fill(asked, UNSUPPORTED, "", 0.0, reason=str(error))
            return
        kills = self._killed.get(cell.key, [])
        if len(kills) >= KILLS:
            self._fill(asked, OOM, cell.key, sum(kills), reason=f"its worker was killed {KILLS} times")
            return
        recipe = self.search.resolve(asked.settings).config
        judge = Judge(asked.trial, most_evaluations(recipe)) if self.search.prune else None
        self._asked[cell.key].append((asked, judge))
        yield cell

    # -- what came of it ---------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Hear what happens to a cell; raises EndCell where its trial is not worth finishing."""
        self.listener.on_event(event)
        if event.kind == "progress":
            _, judge = self._asked[event.cell.key][0]
            if judge is not None and (reason := judge.see(event.val_accuracy)) is not None:
                raise EndCell(reason)
        elif event.kind == "finished":
            assert event.record is not None
            self._finished(*self._asked[event.cell.key].pop(0), event.record, event.elsewhere)

    def _finished(self, asked: Asked, judge: Judge | None, record: Record, known: bool) -> None:
        status, seconds = record["status"], wall_seconds(record)
        if status == INTERRUPTED:
            self._killed[record["key"]].append(seconds)
            self.tuning.give_back(asked)
            note = f"trial {asked.slot}: {record['reason']}; it does not count and will be done again"
            self.listener.on_trials(self.tuning.trials(), None, note)
            return
        if status == TIMEOUT and self.search.time_limit is not None:
            seconds = min(seconds, self.search.time_limit)  # the ledger's may have had longer
        note = "its cell was in the ledger" if known else ""
        if status == OK and judge is not None:
            curve = self._predictions.curve(record["predictions"], record["key"])[:, 2] if known else ()
            if judge.follow(curve) is not None:
                status = PRUNED  # as it would have been, had it run now
            else:
                judge.complete()
        if status == OK:
            found = {"accuracy": float(record["metrics"]["val"][metric_of(record)]), "cost": training_cost(record)}
            self._fill(asked, OK, record["key"], seconds, note, **found)
        else:
            self._fill(asked, status, record["key"], seconds, note, reason=record.get("reason", ""))

    def _fill(self, asked: Asked, outcome: str, cell: str, seconds: float, note: str = "", **result: Any) -> None:
        """Tell how the trial ended, with what `Tuning.tell` takes beside this, and have it shown."""
        told = self.tuning.tell(asked, outcome, cell, seconds, **result)
        trials = self.tuning.trials()
        last = next((trial for trial in trials if trial.slot == asked.slot), None)
        self.listener.on_trials(trials, last, (note or result.get("reason", "")) if told else LOST)

    def close(self) -> None:
        """Leave free what was asked for and never started."""
        for waiting in self._asked.values():
            for asked, _ in waiting:
                self.tuning.give_back(asked)
        self._asked.clear()


def failed_outright(trial: Trial) -> bool:
    """Whether the trial came to nothing in a way that the budget hardly notices, and others of its kind will too."""
    estimated = trial.outcome == OOM and trial.reason.startswith("estimated")
    return estimated or trial.outcome in (ERROR, UNSUPPORTED, DIVERGED)


def training_cost(record: Record) -> float:
    """Seconds of preparing and training, as if nothing had been found in the cache."""
    return preparation_seconds(record) + float(record["phases"]["train"]["seconds"])
