"""Which settings a trial gets: a pure function of the seed, the trial's slot and what came of earlier slots."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from bench.errors import UserError
from bench.space import Domain, Log, Space, Whole
from bench.text import nearest

SAMPLERS = ("tpe", "random", "grid")
LARGEST_GRID = 1_000_000  # points that are listed and shuffled
ATTEMPTS = 20  # draws for a slot before it may repeat another one's settings; the later half of them are at random
KNOWN = (TrialState.COMPLETE, TrialState.PRUNED)  # trials that TPE learns from


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """A space as Optuna writes it down."""
    return {name: _distribution(domain) for name, domain in space.items()}


def _distribution(domain: Domain) -> BaseDistribution:
    if isinstance(domain, tuple):
        return CategoricalDistribution(domain)
    if isinstance(domain, Whole):
        return IntDistribution(domain.low, domain.high)
    return FloatDistribution(domain.low, domain.high, log=isinstance(domain, Log))


def describe(domain: Domain) -> str:
    """A domain in words; two that differ have different words."""
    if isinstance(domain, tuple):
        return ", ".join(map(str, domain))
    kind = {"Whole": "whole numbers", "Even": "between", "Log": "log scale"}[type(domain).__name__]
    return f"{kind} {domain.low} to {domain.high}"


class SlotSampler:
    """Gives slot 0 the settings that are tried first, if any, and asks a sampler that is new for each slot otherwise.

    A sampler that lives on would give other settings after a restart than without one; one that is created again with
    the same seed would repeat itself.
    """

    def __init__(self, name: str, seed: int, space: Space, first: Mapping[str, Any] | None) -> None:
        if name not in SAMPLERS:
            raise UserError(f"there is no sampler '{name}'; choose {', '.join(SAMPLERS)}.{nearest(name, SAMPLERS)}")
        self.name, self.seed, self.first = name, seed, first
        self.distributions = distributions(space)
        self._grid = _grid(space, seed, first) if name == "grid" else None

    @property
    def size(self) -> int | None:
        """How many different settings there are to try; None where the sampler does not run out."""
        return None if self._grid is None else len(self._grid)

    def draw(self, slot: int, study: optuna.Study, known: Collection[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return a slot's settings, from TPE such as are not `known` if it finds any.

        TPE comes back to what was good, and the same trial again would cost its time and say nothing. Random draws stay
        as they fall: what is said about them afterwards takes them for independent.
        """
        if self._grid is not None:
            return self._grid[slot]
        if slot == 0 and self.first is not None:
            return dict(self.first)
        copy = optuna.create_study(directions=study.directions)  # in memory: a draw that is not used leaves no trace
        if self.name == "tpe":
            copy.add_trials(study.get_trials(deepcopy=False, states=KNOWN))
        for attempt in range(ATTEMPTS if self.name == "tpe" else 1):
            copy.sampler = self._sampler(slot, attempt)
            settings = copy.ask(self.distributions).params
            if settings not in known:
                break
        return settings

    def _sampler(self, slot: int, attempt: int) -> BaseSampler:
        entropy = [self.seed, slot, attempt] if attempt else [self.seed, slot]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        if self.name == "random" or attempt >= ATTEMPTS // 2:
            return RandomSampler(seed=seed)
        return TPESampler(seed=seed, constant_liar=False)  # the liar learns from what is running: dead drivers' too


def _grid(space: Space, seed: int, first: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Every point of a finite space in a shuffled order, so that a part of it is a fair part."""
    choices: dict[str, list[Any]] = {}
    for name, domain in space.items():
        if isinstance(domain, Whole):
            choices[name] = list(range(domain.low, domain.high + 1))
        elif isinstance(domain, tuple):
            choices[name] = list(domain)
        else:
            raise UserError(f"a grid needs a finite space, but {name} is any number ({describe(domain)}); use tpe")
    size = math.prod(map(len, choices.values()))
    if size > LARGEST_GRID:
        raise UserError(f"the grid of this space has {size:,} points; use tpe or random, or fix settings with --set")
    points = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    random.Random(seed).shuffle(points)
    if first is not None:
        points.remove(dict(first))
        points.insert(0, dict(first))
    return points
