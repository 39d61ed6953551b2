"""What `run` must say about settings that were tuned: what they cost, and whether the test nodes were still unseen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.cells import Cell
from bench.datasets.catalogue import Dataset
from bench.datasets.store import Stored
from bench.model import Model
from bench.splits import draw_split
from bench.tuning.winners import Winner, find_winner

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
