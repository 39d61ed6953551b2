"""Which records still speak for the present source of their model.

A record names the source that it came from. It is current if that is the present one, or if the present one has been
seen to give the same: a cell of the same model, data and configuration ran under both and predicted all nodes alike.
So a model can be made faster and keep its records; running one cell of each configuration again (`--redo --trials 1`)
is the proof, and the ledger holds it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping

from bench.records import Record

Work = tuple[str, str, int, str]  # model, data, revision, configuration: what has to be proved as a whole


class Sources:
    """The sources that each piece of work may have come from."""

    def __init__(self, records: Iterable[Record], present: Mapping[str, str]) -> None:
        """`present` holds the source of each model as it is now."""
        self._present = present
        agreeing: dict[Work, dict[tuple[str, str], set[str]]] = defaultdict(lambda: defaultdict(set))
        for record in records:
            if record.get("predictions"):
                agreeing[_work(record)][record["key"], record["predictions"]].add(record["source"])
        self._current = {work: self._closure(work, same.values()) for work, same in agreeing.items()}

    def is_stale(self, record: Record) -> bool:
        """Whether the present source may give something else."""
        source = record.get("source")
        if source == self._present.get(record["model"]):
            return False
        return "config" not in record or source not in self._current.get(_work(record), ())

    def _closure(self, work: Work, agreeing: Iterable[set[str]]) -> set[str]:
        """Every source that the present one agrees with, directly or through others."""
        current, left = {self._present.get(work[0], "")}, list(agreeing)
        while joined := [sources for sources in left if sources & current]:
            left = [sources for sources in left if sources not in joined]
            current.update(*joined)
        return current


def _work(record: Record) -> Work:
    return record["model"], record["data"], record["revision"], json.dumps(record["config"], sort_keys=True)
