"""How long cells will take, judged by what earlier records of the same model and dataset say."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from bench.plan import Cell, canonical_json
from bench.records import OK, Record, wall_seconds


class Estimator:
    """Seconds per cell from finished records; None where nothing comparable has run."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
        self._by_key: dict[str, float | None] = {}  # answers already worked out: a display asks often
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        if record["status"] == OK:
            for likeness in _likenesses(record["model"], record["dataset"], record["config"]):
                self._times[likeness].append(wall_seconds(record))
            self._by_key.clear()

    def seconds(self, cell: Cell) -> float | None:
        """The median over records with the same configuration, else with the same last epoch, else over all."""
        if cell.key not in self._by_key:
            likenesses = _likenesses(cell.model, cell.dataset, cell.config)
            times = next((self._times[likeness] for likeness in likenesses if likeness in self._times), None)
            self._by_key[cell.key] = statistics.median(times) if times else None
        return self._by_key[cell.key]

    def total(self, cells: Iterable[Cell], jobs: int = 1) -> float | None:
        """Seconds for all of them; cells nothing is known about count as the mean of the others."""
        each = [self.seconds(cell) for cell in cells]
        known = [seconds for seconds in each if seconds is not None]
        if not known:
            return None if each else 0.0
        return statistics.mean(known) * len(each) / jobs


def _likenesses(model: str, dataset: str, config: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What cells of similar length have in common, the closest likeness first."""
    return [(model, dataset, canonical_json(config)), (model, dataset, config["max_epochs"]), (model, dataset)]
