"""What is kept of a study when it ends: its trials, the winner and where it comes from, which settings mattered."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna

from bench.environment import code_version, library_version
from bench.lanes import Winner
from bench.registry import source_hash
from bench.sizes import format_duration, format_size
from bench.text import counted
from bench.tuning.choosing import complete, outcomes
from bench.tuning.search import Search
from bench.tuning.study import Budget, Trial, Tuning
from bench.tuning.winners import write_study

FEWEST = 4  # complete trials, below which nothing can be said of what mattered


def write_trials(results: Path, search: Search, name: str, budget: Budget, trials: list[Trial]) -> None:
    """All trials of the study in one file that the report reads."""
    study = {
        "name": name,
        "space": search.space_name,
        "budget": asked_for(budget, trials),
        "published_first": search.first is not None,
        "pruning": search.prune,
        "identity": search.identity(),
    }
    write_study(results / "tuning" / f"{name}.json", study, [_row(trial) for trial in trials])


def _row(trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.slot,
        "outcome": trial.outcome,
        "val_accuracy": trial.accuracy,
        "seconds": round(trial.seconds, 3),
        "train_seconds": None if trial.cost is None else round(trial.cost, 3),
        "cell": trial.cell,
        "settings": dict(trial.settings),
    }


def make_winner(search: Search, name: str, budget: Budget, trials: list[Trial], chosen: Trial) -> Winner:
    """The chosen trial's settings, with their provenance and what they cost."""
    return Winner(_settings(search, chosen), _found(search, name, chosen), _spent(search, budget, trials))


def _settings(search: Search, chosen: Trial) -> Mapping[str, Any]:
    """What was searched, and all else that differs from the model's defaults: the lane stands by itself, uncapped."""
    config = replace(search, max_epochs=None).resolve(chosen.settings).config
    defaults = vars(search.model.Config())
    return {name: value for name, value in vars(config).items() if name in search.space or value != defaults[name]}


def _found(search: Search, name: str, chosen: Trial) -> dict[str, Any]:
    return {
        "model": search.model.name,
        "dataset": search.dataset.name,
        "study": name,
        "space": search.space_name,
        "sampler": search.sampler,
        "objective": ",".join(search.objective),
        "pruning": search.prune,
        "seed": search.seed,
        "max_epochs": search.max_epochs or "the recipe's",
        "trial": chosen.slot,
        "cell": chosen.cell,
        "val_accuracy": chosen.accuracy,
        "train_seconds": round(chosen.cost or 0.0, 3),
        "split": search.identity()["split"],
        "data": search.data,
        "revision": search.model.revision,
        "source": source_hash(search.model),
        "code": code_version(),
        "python": platform.python_version(),
        "torch": library_version("torch"),
        "optuna": library_version("optuna"),
    }


def asked_for(budget: Budget, trials: list[Trial]) -> str:
    """The budget in words; a study that had already had more says so."""
    seconds = sum(trial.seconds for trial in trials)
    over = budget.trials is not None and len(trials) > budget.trials
    if budget.hours is not None and trials:  # the trial that ran when the hours were over was finished
        over = over or seconds - trials[-1].seconds >= 3600 * budget.hours
    more = f" (more was there: {counted(len(trials), 'trial')} in {seconds / 3600:.2g} h)"
    return f"{budget}{more if over else ''}"


def _spent(search: Search, budget: Budget, trials: list[Trial]) -> dict[str, Any]:
    seconds = sum(trial.seconds for trial in trials)
    return {
        "asked": asked_for(budget, trials),
        "trials": len(trials),
        "outcomes": outcomes(trials),
        "hours": round(seconds / 3600, 4),
        "seconds": round(seconds, 1),
        "time_limit": "none" if search.time_limit is None else format_duration(search.time_limit),
        "memory_limit": "none" if search.memory_limit is None else format_size(search.memory_limit),
    }


def importance(tuning: Tuning, trials: list[Trial]) -> dict[str, float]:
    """How much each setting mattered for the accuracy, the most important first; empty where that cannot be told."""
    found = complete(trials)
    if len(found) < FEWEST or len({trial.accuracy for trial in found}) < 2:
        return {}
    target = (lambda trial: -trial.values[0]) if tuning.pareto else None  # Optuna takes it that less is better
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PedAnovaImportanceEvaluator computes")  # and says so every time
        return optuna.importance.get_param_importances(tuning.study, target=target)
