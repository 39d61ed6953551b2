"""Tuned settings as a lane: where `run` and `report` find them, and what must be said about them.

`<results>/tuned/<model>-<dataset>.toml` is written by `tune` (bench/tuning/winners.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import reference
from bench.cells import Cell
from bench.datasets.catalogue import Dataset
from bench.datasets.store import Stored
from bench.errors import UserError
from bench.files import read_toml
from bench.model import Model
from bench.settings import TUNED_LANES
from bench.splits import draw_split


@dataclass(frozen=True)
class Winner:
    """A tuned lane's entry for one model and dataset."""

    settings: Mapping[str, Any]
    found: Mapping[str, Any]  # where the settings come from
    budget: Mapping[str, Any]  # what it took to find them

    @property
    def line(self) -> str:
        """The budget in one sentence."""
        return (
            f"{self.found['model']} on {self.found['dataset']}: {self.budget['trials']} trials "
            f"({self.budget['outcomes']}) in {self.budget['hours']:.2f} h, sampler {self.found['sampler']}, "
            f"space {self.found['space']}, seed {self.found['seed']}"
        )


def winner_path(results: Path, lane: str, model: str, dataset: str) -> Path:
    return results / lane / f"{model}-{dataset}.toml"


def find_winner(results: Path, lane: str, model: str, dataset: Dataset | str) -> Winner | None:
    """What a tuned lane has for a model on a dataset: in these results, else in the reference.

    A twin uses its original's, a user's file goes by its name.
    """
    if lane not in TUNED_LANES:
        return None
    names = [dataset] if isinstance(dataset, str) else [dataset.name, dataset.settings_name]
    for folder in (results, reference.REFERENCE):
        for name in dict.fromkeys(filter(None, names)):
            path = winner_path(folder, lane, model, name)
            if path.is_file():
                return _read(path)
    return None


def _read(path: Path) -> Winner:
    try:
        content = read_toml(path)
        return Winner(content["settings"], content["found"], content["budget"])
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} is not what `tune` writes ({error}); remove it and tune again") from error


Winners = Mapping[tuple[str, str], Winner]  # by names of model and dataset


def find_winners(
    results: Path, lane: str, columns: Iterable[tuple[type[Model], Dataset, Mapping[str, Any]]]
) -> dict[tuple[str, str], Winner]:
    """What a tuned lane has for these; empty for every other lane."""
    found = {(model.name, data.name): find_winner(results, lane, model.name, data) for model, data, _ in columns}
    return {place: winner for place, winner in found.items() if winner is not None}


def budget_lines(winners: Winners) -> list[str]:
    """What each of the tuned settings cost; a table without this says little."""
    return [f"tuned: {winner.line}" for winner in winners.values()]


def warning_lines(
    winners: Winners, cells: Sequence[Cell], stored: Mapping[str, Stored], models: Iterable[type[Model]]
) -> list[str]:
    """Where model or data have changed since, and where the tuning has seen nodes that are tested now."""
    revisions = {model.name: model.revision for model in models}
    lines = [
        f"{model} on {dataset}: the model's revision has changed since its settings were tuned; tune again"
        for (model, dataset), winner in winners.items()
        if winner.found["revision"] != revisions[model]
    ]
    lines += [
        f"{model} on {dataset}: its settings were tuned on other data that was called {dataset} too; tune again"
        for (model, dataset), winner in winners.items()
        if winner.found["dataset"] == dataset  # not a twin, which has its original's
        and dataset in stored
        and winner.found["data"] != stored[dataset].graph.fingerprint
    ]
    by_place: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        by_place[cell.model, cell.dataset].append(cell)
    for place, winner in winners.items():
        share = np.mean([seen_share(winner, cell, stored[cell.dataset]) for cell in by_place[place]] or [0.0])
        if share > 0:
            lines.append(
                f"{place[0]} on {place[1]}: the tuning had seen the labels of {share:.0%} of these test nodes; "
                "--split sealed tests on nodes that it never saw"
            )
    return lines


def seen_share(winner: Winner, cell: Cell, stored: Stored) -> float:
    """How much of a cell's test set the tuning had trained or validated on."""
    graph, found = stored.graph, winner.found
    if found["data"] != graph.fingerprint:
        return 0.0
    tuned = draw_split(found["split"], graph.labels, graph.num_classes, found["seed"], graph.masks)
    tested = draw_split(cell.split_rule, graph.labels, graph.num_classes, cell.split_seed, graph.masks).test
    return float(np.isin(tested, np.concatenate([tuned.train, tuned.val])).mean())
