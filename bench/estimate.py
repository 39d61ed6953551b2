"""How long cells will take, judged by what earlier records of the same model and dataset say."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from bench.plan import Cell
from bench.records import OK, Record, wall_seconds


class Estimator:
    """Seconds per cell from finished records; None where nothing comparable has run."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._known: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        if record["status"] == OK:
            self._known[record["model"], record["dataset"]].append(record)

    def seconds(self, cell: Cell) -> float | None:
        """The median over records with the same configuration, else with the same last epoch, else over all."""
        known = self._known.get((cell.model, cell.dataset), [])
        same_config = [record for record in known if record["config"] == cell.config]
        same_length = [record for record in known if record["config"]["max_epochs"] == cell.config["max_epochs"]]
        comparable = same_config or same_length or known
        return statistics.median(map(wall_seconds, comparable)) if comparable else None

    def total(self, cells: Iterable[Cell], jobs: int = 1) -> float | None:
        """Seconds for all of them; cells nothing is known about count as the mean of the others."""
        each = [self.seconds(cell) for cell in cells]
        known = [seconds for seconds in each if seconds is not None]
        if not known:
            return None if each else 0.0
        return statistics.mean(known) * len(each) / jobs
