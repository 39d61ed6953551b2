"""Our archive beside the user's results: `results/reference/` is read, `results/own/` is written.

Maintainers add to the archive with `--results results/reference`. Everybody else sees it as a column beside their own.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.environment import ROOT
from bench.errors import UserError
from bench.ledger import Ledger
from bench.records import OK, Record, machine_of, score_of
from bench.reuse import is_current
from bench.text import counted

if TYPE_CHECKING:
    from bench.cells import Cell

REFERENCE = ROOT / "results" / "reference"
OWN = Path("results") / "own"
Condition = tuple[str, int, str, str, str, str]  # model, revision, data, split rule, split mode, configuration


def is_reference(results: Path) -> bool:
    """Whether this folder is the archive itself."""
    return results.resolve() == REFERENCE.resolve()


def folder_to_read(named: Path | None) -> Path:
    """Return the folder that the user named, else the own results if there are any, else the reference."""
    own = any((OWN / "ledger").glob("*.jsonl"))
    results = named or (OWN if own else Path(os.path.relpath(REFERENCE)))
    if not results.is_dir():
        raise UserError(f"there is no results folder '{results}'; name one with --results, or run something first")
    return results


def open_reference(results: Path) -> tuple[Ledger | None, str]:
    """Return the reference's ledger, or None and a line that says why there is none.

    No ledger and no line where `results` is the reference itself.
    """
    if is_reference(results):
        return None, ""
    if not REFERENCE.is_dir():
        return None, "there are no reference results (results/reference is missing): yours are shown alone"
    try:
        list(REFERENCE.iterdir())  # where reading is not allowed, looking for files by pattern would find none
        return Ledger(REFERENCE), ""
    except (OSError, UserError) as error:
        reason = getattr(error, "strerror", None) or error
        return None, f"the reference results cannot be read ({reason}): yours are shown alone"


class Reference:
    """Finished reference trials by condition: everything that a key holds but the seeds and a cap on epochs."""

    def __init__(self, ledger: Ledger | None) -> None:
        self._by_condition: dict[Condition, list[Record]] = defaultdict(list)
        keys = dict.fromkeys(record["key"] for record in ledger or ())
        for key in keys:
            record = ledger.newest(key) if ledger else None
            if record and record["status"] == OK and is_current(record) and not record.get("purpose"):
                self._by_condition[_condition_of_record(record)].append(record)

    def trials(self, cell: Cell) -> list[Record]:
        """Return the trials of the cell's condition, those of the longest training where a cap shortened some."""
        return self._longest(_condition_of_cell(cell))

    def trials_like(self, record: Record) -> list[Record]:
        """Return the trials of a record's condition, likewise."""
        return self._longest(_condition_of_record(record))

    def _longest(self, condition: Condition) -> list[Record]:
        found = self._by_condition.get(condition, [])
        longest = max((record["config"]["max_epochs"] for record in found), default=0)
        return [record for record in found if record["config"]["max_epochs"] == longest]

    def agreement(self, cells: Sequence[Cell], records: Mapping[str, Record]) -> str:
        """Say whether finished cells of one condition agree with the reference trials of the same seeds.

        Equal predictions agree; so do accuracies that differ by no more than the reference's trials spread.
        """
        trials = {record["key"]: record for record in self.trials(cells[0])}
        pairs = [(own, trials[key]) for key, own in records.items() if key in trials and own["status"] == OK]
        if not pairs:
            return ""
        where = f"{cells[0].model} on {cells[0].dataset}: "
        equal = sum(own["predictions"] == other["predictions"] for own, other in pairs)
        if equal == len(pairs):
            return f"{where}{counted(equal, 'trial')} predict{'s' * (equal == 1)} every node as the reference does"
        apart = max(abs(_accuracy(own) - _accuracy(other)) for own, other in pairs)
        alike = all(machine_of(own) == machine_of(other) for own, other in pairs)
        machine = "the same kind of processor" if alike else "another processor"
        text = f"up to {apart:.2f} points from the reference trials of the same seeds, on {machine}"
        spread = statistics.stdev(map(_accuracy, trials.values())) if len(trials) > 1 else None
        if spread is None:
            return f"{where}{text}; one reference trial has no spread to judge by"
        verdict = "agrees" if apart <= spread else "DIFFERS"
        return f"{where}{verdict}: {text} (they spread by {spread:.2f})"


def _accuracy(record: Record) -> float:
    return score_of(record, "test")


def _condition_of_record(record: Record) -> Condition:
    split = record["split"]["rule"], str(record["labels"].get("mode", "fresh"))
    return record["model"], record["revision"], record["data"], *split, _without_cap(record["config"].items())


def _condition_of_cell(cell: Cell) -> Condition:
    split = cell.split_rule, str(cell.labels.get("mode", "fresh"))
    return cell.model, cell.revision, cell.data, *split, _without_cap(cell.config.items())


def _without_cap(config: Iterable[tuple[str, object]]) -> str:
    from bench.cells import canonical_json  # not above: `--help` needs this module, and cells need numpy

    return canonical_json({name: value for name, value in config if name != "max_epochs"})
