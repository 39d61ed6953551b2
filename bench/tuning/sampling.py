"""Which settings a trial gets: a pure function of the seed, the trial's slot and what came of earlier slots."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial

from bench.errors import UserError
from bench.space import Domain, Log, Space, Whole
from bench.text import nearest

SAMPLERS = ("tpe", "random", "grid")
LARGEST_GRID = 1_000_000  # points that are listed and shuffled
ATTEMPTS = 20  # draws for a slot before it may repeat another one's settings; the later half of them are at random


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


class SlotSampler(BaseSampler):
    """Gives slot 0 the settings that are tried first, if any, and asks a sampler that is new for each slot otherwise.

    A sampler that lives on would give other settings after a restart than without one; one that is created again with
    the same seed would repeat itself.
    """

    def __init__(self, name: str, seed: int, space: Space, first: Mapping[str, Any] | None) -> None:
        if name not in SAMPLERS:
            raise UserError(f"there is no sampler '{name}'; choose {', '.join(SAMPLERS)}.{nearest(name, SAMPLERS)}")
        self.name, self.seed, self.first = name, seed, first
        self._grid = _grid(space, seed, first) if name == "grid" else None
        self._at_slot(0)

    @property
    def size(self) -> int | None:
        """How many different settings there are to try; None where the sampler does not run out."""
        return None if self._grid is None else len(self._grid)

    @property
    def attempts(self) -> int:
        """How often a slot is drawn until its settings are new.

        TPE comes back to what was good, and the same trial again would cost its time and say nothing. Random draws stay
        as they fall: what is said about them afterwards takes them for independent.
        """
        return ATTEMPTS if self.name == "tpe" else 1

    def _at_slot(self, slot: int, attempt: int = 0) -> None:
        self.slot = slot
        entropy = [self.seed, slot, attempt] if attempt else [self.seed, slot]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        self._sampler: BaseSampler = RandomSampler(seed=seed)
        if (
            self.name == "tpe" and attempt < ATTEMPTS // 2
        ):  # without the liar, with whom trials count that are running, or whose driver was killed
            self._sampler = TPESampler(seed=seed, constant_liar=False)
        self._fixed = self.first if slot == 0 else None
        if self._grid is not None:
            self._fixed = self._grid[slot]

    def prepare(self, slot: int, attempt: int = 0) -> None:
        """Get ready for the trial that is asked for next."""
        self._at_slot(slot, attempt)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if self._fixed is not None else self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {} if self._fixed is not None else self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if self._fixed is not None:
            return self._fixed[param_name]
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)


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
