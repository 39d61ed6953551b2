"""What to run: cells, and the key under which the ledger knows each of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.metrics import ACCURACY
from bench.splits import rule_for, seeds_for
from bench.text import settings_as_typed

if TYPE_CHECKING:
    from bench.datasets.catalogue import Dataset
    from bench.model import Model
    from bench.settings import Resolved

_SEEDS = 2**32  # how many seeds numpy's legacy generator, which draws the splits, can tell apart


@dataclass(frozen=True)
class Cell:
    """One model trained once on one split of one graph; two cells with the same key are the same work."""

    model: str
    revision: int
    dataset: str  # how the user named the graph; the key knows it by content only
    data: str  # fingerprint of the graph
    config: Mapping[str, Any]  # the configuration, plain JSON values; see Resolved.values
    split_rule: str
    split_seed: int
    seed: int  # initialisation, batch order, dropout, samplers
    labels: Mapping[str, Any]  # why it was asked for: settings, mode, trial, set, cap; never part of the key

    @cached_property
    def key(self) -> str:
        content = {
            "model": self.model,
            "revision": self.revision,
            "data": self.data,
            "config": dict(self.config),
            "split_rule": self.split_rule,
            "split_seed": self.split_seed,
            "seed": self.seed,
        }
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:20]

    @property
    def changes(self) -> str:
        """What the user or a study set beside the lane, as --set takes it."""
        return settings_as_typed(self.labels.get("set", {}))


def capped(cell: Cell, epochs: int) -> Cell:
    """The same cell, ended after so many epochs."""
    epochs = min(cell.config["max_epochs"], epochs)
    return replace(cell, config={**cell.config, "max_epochs": epochs}, labels={**cell.labels, "cap": epochs})


def canonical_json(content: Any) -> str:
    """One text per value: sorted keys, no blanks, floats as `repr` prints them, no NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Protocol:
    """What all cells of one request share: how often, from which seed on, and which splits."""

    trials: int = 10
    seed: int = 0
    mode: str = "fresh"  # fresh | frozen | sealed

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _SEEDS - self.trials:
            raise UserError(
                f"the seed must lie between 0 and {_SEEDS - self.trials} (2^32 less the number of trials), "
                f"not {self.seed}"
            )
        seeds_for(self.mode, self.seed, self.trials - 1)  # refuses a mode that does not exist


def config_on(dataset: Dataset, resolved: Resolved) -> dict[str, Any]:
    """The configuration of a cell on this dataset, whose metric is part of it unless it is the usual one."""
    return {**resolved.values, **({"metric": dataset.metric} if dataset.metric != ACCURACY else {})}


def make_cells(
    model: type[Model], dataset: Dataset, fingerprint: str, resolved: Resolved, protocol: Protocol
) -> list[Cell]:
    """The trials of one model on one dataset."""
    rule = rule_for(dataset.split_rule, protocol.mode)
    config = config_on(dataset, resolved)
    cells = []
    for trial in range(protocol.trials):
        split_seed, seed = seeds_for(protocol.mode, protocol.seed, trial)
        labels = {**resolved.labels, "mode": protocol.mode, "trial": trial}
        cells.append(
            Cell(model.name, model.revision, dataset.name, fingerprint, config, rule, split_seed, seed, labels)
        )
    return cells
