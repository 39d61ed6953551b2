"""A study: numbered slots, each of which is filled by one trial that ended by itself.

Optuna keeps the trials. A slot is the unit of the budget and of the seed: a trial whose driver was killed leaves its
slot free, and the next trial there gets the same settings. So restarts neither lose nor repeat anything, and several
drivers can share a study without a lock that would have to be shared too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from bench.cells import canonical_json
from bench.errors import UserError
from bench.records import DIVERGED, OK, OOM, PRUNED, TIMEOUT
from bench.text import counted
from bench.tuning.sampling import SlotSampler
from bench.tuning.storage import Presence, claim_of, open_storage

IDENTITY = "bench"  # the study attribute that says what is searched
STARTUP = 5  # complete trials before the first one is pruned
RUNNING = (TrialState.RUNNING,)
AVOIDED = (PRUNED, TIMEOUT, OOM, DIVERGED)  # outcomes from which the sampler learns what to avoid


@dataclass(frozen=True)
class Budget:
    """What a study may cost: trials that ended by themselves, hours that they took together, or both."""

    trials: int | None = None
    hours: float | None = None

    def __str__(self) -> str:
        parts = [counted(self.trials, "trial")] if self.trials is not None else []
        parts += [f"{self.hours:g} h"] if self.hours is not None else []
        return " or ".join(parts)

    def seconds_left(
        self, trials: Sequence[Trial], guess: float | None = None, jobs: int = 1, limit: float | None = None
    ) -> float | None:
        """Return how long the rest will take; None if unknown.

        A trial takes as long as those so far, or as guessed before the first, and no longer than a time limit.
        """
        used, bounds = sum(trial.seconds for trial in trials), []
        if self.hours is not None:
            bounds.append(3600 * self.hours - used)
        each = used / len(trials) if trials else guess
        if self.trials is not None and each is not None:
            bounds.append((self.trials - len(trials)) * min(each, limit or each))
        return max(0.0, min(bounds)) / jobs if bounds else None

    def share_used(self, trials: Sequence[Trial]) -> float:
        """Return how much of the budget these trials are, at most 1."""
        shares = [0.0]
        if self.trials:
            shares.append(len(trials) / self.trials)
        if self.hours:
            shares.append(sum(trial.seconds for trial in trials) / (3600 * self.hours))
        return min(1.0, max(shares))


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

    @property
    def score(self) -> float:
        """The accuracy, for comparisons among complete trials."""
        return self.accuracy or 0.0

    @property
    def percent(self) -> str:
        """The accuracy as it is shown."""
        return f"{100 * self.score:.2f} %"


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

    def __init__(self, name: str, sampler: SlotSampler, presence: Presence, study: optuna.Study) -> None:
        self.name, self.sampler, self.presence, self.study = name, sampler, presence, study

    @property
    def pareto(self) -> bool:
        return len(self.study.directions) > 1

    # -- what is there -----------------------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """The trials that count, by slot."""
        found = [_counted(trial, self.pareto) for trial in self.study.get_trials(deepcopy=False)]
        return sorted((trial for trial in found if trial is not None), key=lambda trial: trial.slot)

    def live_slots(self) -> set[int]:
        """The slots that living drivers are working on; what the dead left behind is marked as failed."""
        if running := self._running():
            self.presence.fail_dead(self.study, running)
        return {claim_of(trial)["slot"] for trial in self._running()}

    def _running(self) -> list[FrozenTrial]:
        return [trial for trial in self.study.get_trials(deepcopy=False, states=RUNNING) if claim_of(trial)]

    # -- the next one ------------------------------------------------------------------------------------------------

    def next_slot(self, budget: Budget) -> int | None:
        """The lowest slot that is free and within the budget."""
        live, done = self.live_slots(), self.trials()
        if budget.hours is not None and sum(trial.seconds for trial in done) >= 3600 * budget.hours:
            return None
        taken = live | {trial.slot for trial in done}
        slot = next(number for number in range(len(taken) + 1) if number not in taken)
        limits = [limit for limit in (budget.trials, self.sampler.size) if limit is not None]
        return slot if slot < min(limits, default=slot + 1) else None

    def ask(self, slot: int) -> Asked | None:
        """A trial for this slot; None if another driver was quicker.

        It waits, with its settings, slot and driver, until the driver has given a sign of life for it: a kill in
        between leaves nothing that runs.
        """
        settings = self.sampler.draw(slot, self.study, [trial.settings for trial in self.trials()])
        claim = {"slot": slot, "driver": self.presence.name}
        waiting = create_trial(
            state=TrialState.WAITING,
            params=settings,
            distributions=self.sampler.distributions,
            user_attrs={"claim": claim},
        )
        trial_id = self.study._storage.create_new_trial(self.study._study_id, waiting)
        self.presence.begin(trial_id)
        self.study._storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        asked = Asked(slot, optuna.Trial(self.study, trial_id))
        if not self._contested(slot, asked.trial.number):
            return asked
        self.give_back(asked)
        time.sleep(random.uniform(0.0, 0.5))  # two that gave way to each other must not meet again
        return None

    def _contested(self, slot: int, number: int) -> bool:
        """Whether another trial holds or has filled the slot. Each driver runs first and looks then: no two go on."""
        return any(
            other.number != number
            and claim_of(other).get("slot") == slot
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
        """Fill the slot; False if the trial was taken for dead meanwhile, so that another driver fills it."""
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
        """Leave the slot free: the trial does not count."""
        self.presence.end(asked.trial._trial_id)
        self.study.tell(asked.trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def close(self) -> None:
        self.presence.close()


class OtherStudy(UserError):
    """The storage has a study of this name that searches something else."""


def open_tuning(
    name: str, identity: Mapping[str, Any], sampler: SlotSampler, pareto: bool, url: str | None, journal: Path
) -> Tuning:
    """Create the study or go on with it; raises OtherStudy where the name is taken by one that searches otherwise."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage, presence = open_storage(url, journal)
    try:
        study = _open_study(storage, name, pareto)
        known = study.user_attrs.get(IDENTITY)
        if known is None and (study.get_trials(deepcopy=False) or study.directions != _directions(pareto)):
            raise UserError(f"the storage has a study '{name}' that `tune` did not make; choose another --name")
        if known is None:
            study.set_user_attr(IDENTITY, dict(identity))
        elif changes := differences({key: value for key, value in known.items() if key in identity}, identity):
            raise OtherStudy(f"the study {name} searches something else ({'; '.join(changes)})")
    except BaseException:
        presence.close()
        raise
    return Tuning(name, sampler, presence, study)


def _directions(pareto: bool) -> list[StudyDirection]:
    return [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE] if pareto else [StudyDirection.MAXIMIZE]


def _open_study(storage: BaseStorage, name: str, pareto: bool) -> optuna.Study:
    pruner = optuna.pruners.NopPruner() if pareto else optuna.pruners.MedianPruner(n_startup_trials=STARTUP)
    try:  # asking first leaves no trace in a journal
        return optuna.load_study(study_name=name, storage=storage, pruner=pruner)
    except KeyError:
        directions = _directions(pareto)  # and another driver may be quicker
        return optuna.create_study(
            storage=storage, pruner=pruner, study_name=name, directions=directions, load_if_exists=True
        )


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


def _state(outcome: str, pareto: bool) -> TrialState:
    """Optuna's word for an outcome; what it calls pruned ranks below all that is complete (not in two dimensions)."""
    if outcome == OK:
        return TrialState.COMPLETE
    return TrialState.PRUNED if outcome in AVOIDED and not pareto else TrialState.FAIL


def _counted(trial: FrozenTrial, pareto: bool) -> Trial | None:
    """The trial if it ended by itself: one killed between its result and its end is done again (its cell is kept)."""
    claim, result = claim_of(trial), trial.user_attrs.get("result")
    if not claim or result is None or trial.state != _state(result["outcome"], pareto):
        return None
    return Trial(slot=claim["slot"], settings=dict(trial.params), **result)
