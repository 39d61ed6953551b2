"""A study: numbered slots, each of which is filled by one trial that ended by itself.

Optuna keeps the trials. A slot is the unit of the budget and of the seed: a trial whose driver was killed leaves its
slot free, and the next trial there gets the same settings. So restarts neither lose nor repeat anything, and several
drivers can share a study without a lock that would have to be shared too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from bench.cells import canonical_json
from bench.errors import UserError
from bench.records import DIVERGED, OK, OOM, PRUNED, TIMEOUT
from bench.space import Space
from bench.tuning.sampling import SlotSampler, distributions
from bench.tuning.storage import Presence, driver_of, open_storage, quiet

IDENTITY = "bench"  # the study attribute that says what is searched
UNSIGNED = 60  # seconds after which a running trial that nobody signed is taken for dead
STARTUP = 5  # complete trials before the first one is pruned
AVOIDED = (PRUNED, TIMEOUT, OOM, DIVERGED)  # outcomes from which the sampler learns what to avoid


def count_trials(number: int) -> str:
    """A number of trials in words."""
    return "1 trial" if number == 1 else f"{number} trials"


@dataclass(frozen=True)
class Budget:
    """What a study may cost: trials that ended by themselves, hours that they took together, or both."""

    trials: int | None = None
    hours: float | None = None

    def __str__(self) -> str:
        parts = [count_trials(self.trials)] if self.trials is not None else []
        parts += [f"{self.hours:g} h"] if self.hours is not None else []
        return " or ".join(parts)


@dataclass(frozen=True)
class Trial:
    """A trial that counts."""

    slot: int
    outcome: str  # the record's status
    settings: Mapping[str, Any]
    accuracy: float | None  # on the validation nodes; of complete trials only
    seconds: float  # of the whole cell
    cost: float | None  # preparing and training, whatever was found in a cache; of complete trials only
    cell: str  # the record's key
    reason: str = ""  # of a failure


@dataclass(frozen=True)
class Asked:
    """A trial to be run now."""

    slot: int
    trial: optuna.Trial

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.trial.params)


class Tuning:
    """One study, seen by one driver."""

    def __init__(
        self,
        name: str,
        space: Space,
        sampler: SlotSampler,
        presence: Presence,
        study: optuna.Study,
    ) -> None:
        self.name, self.sampler, self.presence, self.study = name, sampler, presence, study
        self.distributions = distributions(space)
        self._first_seen: dict[int, float] = {}  # running trials that nobody had signed, by number

    @property
    def pareto(self) -> bool:
        return len(self.study.directions) > 1

    # -- what is there -----------------------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """The trials that count, by slot."""
        found = [_counted(trial, self.pareto) for trial in self.study.get_trials(deepcopy=False)]
        return sorted((trial for trial in found if trial is not None), key=lambda trial: trial.slot)

    def live_slots(self) -> set[int]:
        """The slots that living drivers are working on; what the dead left behind is cleaned away."""
        running = self._running()
        if running:
            self.presence.fail_dead(self.study, running)
            for trial in running:
                if not driver_of(trial) and self._is_old(trial):
                    self._fail(trial.number)
            running = self._running()
        return {slot for trial in running if (slot := _slot(trial)) is not None}

    def is_busy(self) -> bool:
        """Whether a trial is running still: a living driver's, or one so young that nobody has signed it yet."""
        self.live_slots()
        return bool(self._running())

    def _is_old(self, trial: FrozenTrial) -> bool:
        """Whether its driver has had time to sign it, by the clocks of both machines or by this one's alone."""
        seen = self._first_seen.setdefault(trial.number, time.monotonic())
        return max(_age(trial), time.monotonic() - seen) > UNSIGNED

    def _running(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    # -- the next one ------------------------------------------------------------------------------------------------

    def next_slot(self, budget: Budget) -> int | None:
        """The lowest slot that is free and within the budget."""
        live, counted = self.live_slots(), self.trials()
        if budget.hours is not None and sum(trial.seconds for trial in counted) >= 3600 * budget.hours:
            return None
        taken = live | {trial.slot for trial in counted}
        slot = next(number for number in range(len(taken) + 1) if number not in taken)
        limits = [limit for limit in (budget.trials, self.sampler.size) if limit is not None]
        return slot if slot < min(limits, default=slot + 1) else None

    def ask(self, slot: int) -> Asked | None:
        """A trial for this slot; None if another driver was quicker."""
        trial = self._draw(slot)
        try:
            self.presence.begin(trial._trial_id)
            trial.set_user_attr("claim", {"slot": slot, "driver": self.presence.name})
            if not self._contested(slot, trial.number):
                return Asked(slot, trial)
        except UpdateFinishedTrialError:
            pass  # somebody with another clock took it for dead before it was signed
        self.presence.end(trial._trial_id)
        self._fail(trial.number)
        time.sleep(random.uniform(0.0, 0.5))  # two that gave way to each other must not meet again
        return None

    def _draw(self, slot: int) -> optuna.Trial:
        """A trial with the slot's settings: new ones, where the sampler cares and finds any."""
        known = [trial.settings for trial in self.trials()]
        for attempt in range(self.sampler.attempts):
            self.sampler.prepare(slot, attempt)
            with quiet():
                trial = self.study.ask(self.distributions)
            if trial.params not in known or attempt + 1 == self.sampler.attempts:
                break
            self._fail(trial.number)
        return trial

    def _contested(self, slot: int, number: int) -> bool:
        """Whether another trial holds or has filled the slot. Everybody signs first and looks then: no two go on."""
        return any(
            other.number != number
            and _slot(other) == slot
            and (other.state == TrialState.RUNNING or _counted(other, self.pareto) is not None)
            for other in self.study.get_trials(deepcopy=False)
        )

    # -- how it ended ------------------------------------------------------------------------------------------------

    def tell(
        self,
        asked: Asked,
        outcome: str,
        cell: str,
        seconds: float,
        accuracy: float | None = None,
        cost: float | None = None,
        reason: str = "",
    ) -> bool:
        """Fill the slot; False if the trial was taken for dead meanwhile, so that somebody else fills it."""
        try:
            result = {"outcome": outcome, "cell": cell, "seconds": seconds, "accuracy": accuracy, "cost": cost}
            asked.trial.set_user_attr("result", {**result, "reason": reason})
            values = [value for value in (accuracy, cost)[: len(self.study.directions)] if value is not None] or None
            told = self.study.tell(asked.trial, values, _state(outcome, self.pareto), skip_if_finished=True)
            return _counted(told, self.pareto) is not None
        except UpdateFinishedTrialError:
            return False
        finally:
            self.presence.end(asked.trial._trial_id)

    def give_back(self, asked: Asked) -> None:
        """Leave the slot free: the trial was stopped from outside and does not count."""
        self.presence.end(asked.trial._trial_id)
        self._fail(asked.trial.number)

    def _fail(self, number: int) -> None:
        self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def close(self) -> None:
        self.presence.close()


class OtherStudy(UserError):
    """The storage has a study of this name that searches something else."""


def open_tuning(
    name: str,
    identity: Mapping[str, Any],
    space: Space,
    sampler: SlotSampler,
    pareto: bool,
    url: str | None,
    journal: Path,
) -> Tuning:
    """Create the study or go on with it; raises OtherStudy where the name is taken by one that searches otherwise."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage, presence = open_storage(url, journal)
    try:
        study = _open_study(storage, name, sampler, pareto)
        known = study.user_attrs.get(IDENTITY)
        if known is None and (study.get_trials(deepcopy=False) or study.directions != _directions(pareto)):
            raise UserError(f"the storage has a study '{name}' that `tune` did not make; choose another --name")
        if known is None:
            study.set_user_attr(IDENTITY, dict(identity))
        else:
            _check_same(name, known, identity)
    except BaseException:
        presence.close()
        raise
    return Tuning(name, space, sampler, presence, study)


def _directions(pareto: bool) -> list[StudyDirection]:
    return [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE] if pareto else [StudyDirection.MAXIMIZE]


def _open_study(storage: BaseStorage, name: str, sampler: SlotSampler, pareto: bool) -> optuna.Study:
    pruner = optuna.pruners.NopPruner() if pareto else optuna.pruners.MedianPruner(n_startup_trials=STARTUP)
    try:  # asking first leaves no trace in a journal
        return optuna.load_study(study_name=name, storage=storage, sampler=sampler, pruner=pruner)
    except KeyError:
        return optuna.create_study(
            storage=storage,
            sampler=sampler,
            pruner=pruner,
            study_name=name,
            directions=_directions(pareto),
            load_if_exists=True,  # another driver may be quicker
        )


def _check_same(name: str, known: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    changes = differences({key: value for key, value in known.items() if key in identity}, identity)
    if changes:
        raise OtherStudy(f"the study {name} searches something else ({'; '.join(changes)})")


def differences(before: Mapping[str, Any], now: Mapping[str, Any], inside: str = "") -> list[str]:
    """What changed, one short text each."""
    changes = []
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += differences(old, new, f"{inside}{key} ")
        elif canonical_json(old) != canonical_json(new):
            changes.append(f"{inside}{key} was {_shown(old)}, is {_shown(new)}")
    return changes


def _shown(value: Any) -> str:
    return "absent" if value is None else str(value)


def _slot(trial: FrozenTrial) -> int | None:
    return trial.user_attrs.get("claim", {}).get("slot")


def _age(trial: FrozenTrial) -> float:
    """Seconds since its creation by this machine's clock."""
    start = trial.datetime_start
    return 0.0 if start is None else (datetime.now(start.tzinfo) - start).total_seconds()


def _state(outcome: str, pareto: bool) -> TrialState:
    """Optuna's word for an outcome; what it calls pruned ranks below all that is complete (not in two dimensions)."""
    if outcome == OK:
        return TrialState.COMPLETE
    return TrialState.PRUNED if outcome in AVOIDED and not pareto else TrialState.FAIL


def _counted(trial: FrozenTrial, pareto: bool) -> Trial | None:
    """The trial if it ended by itself: one killed between its result and its end is done again (its cell is kept)."""
    slot, result = _slot(trial), trial.user_attrs.get("result")
    if slot is None or result is None or trial.state != _state(result["outcome"], pareto):
        return None
    return Trial(
        slot,
        result["outcome"],
        dict(trial.params),
        result["accuracy"],
        result["seconds"],
        result["cost"],
        result["cell"],
        result.get("reason", ""),
    )
