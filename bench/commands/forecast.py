"""`run --dry-run`: what is missing, what it will take, and what of it fits into a budget."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from bench.cells import Cell, capped
from bench.commands.display import make_display
from bench.console import say, show_table, warn
from bench.errors import UserError
from bench.executors import make_executor
from bench.ledger import Ledger, check_writable
from bench.planning.estimate import MANY_LOOKS, Forecaster, at_least, inferred_nodes, tells_enough
from bench.planning.forecast import (
    PILOT,
    RECORDS,
    Condition,
    Room,
    ask_models,
    ends_of_rows,
    fill_between,
    find_room,
    judge,
    make_conditions,
    prepared_size,
    rows_of,
    space_warning,
    within_budget,
)
from bench.records import COST, OK, TIMEOUT, Record, wall_seconds
from bench.request import Plan, Request
from bench.reuse import find_reusable
from bench.runner import COST_NODES, RunOptions, run_cells
from bench.sizes import format_duration, format_size
from bench.splits import draw_split
from bench.table import describe_settings
from bench.text import counted

PILOTS = "pilots"  # a separate ledger below the results: a training of two epochs is no result
LOOKS = 2  # evaluations in a pilot: what lies between the first and the second is free of what is paid once


@dataclass(frozen=True)
class Looks:
    """How closely a dry run looks."""

    pilots: bool  # run a few epochs of what has no record on this machine
    longest: float  # seconds per pilot
    budget: float | None  # seconds to fill


def show_forecast(
    request: Request,
    plan: Plan,
    todo: Sequence[Cell],
    jobs: int,
    options: RunOptions,
    looks: Looks,
    known: Iterable[Record],
    console: Console,
    errors: Console,
) -> None:
    """Show what the request will take; trains nothing but pilots."""
    pilots = Pilots(request.results / PILOTS, replace(options, time_limit=looks.longest))
    forecaster = Forecaster(known, options.threads, options.device, plan.purpose == COST, inference_of(plan))
    conditions = expect(plan, todo, forecaster, errors)
    for record in pilots.ledger:
        if record["status"] == OK:
            forecaster.add(record)
    judge([condition for condition in conditions if condition.speed is None], forecaster, PILOT)
    unknown = [condition for condition in ends_of_rows(conditions) if condition.todo and condition.speed is None]
    if unknown and looks.pilots:
        pilots.judge(unknown, forecaster, plan, console)
    for row in rows_of(conditions):
        fill_between(row)
    _show(console, conditions, jobs, looks.budget, find_room_for(options))
    if unknown and not looks.pilots:
        say(console, "--pilots runs a few epochs of what has no record on this machine, to tell how long it takes")


def expect(plan: Plan, todo: Sequence[Cell], forecaster: Forecaster, errors: Console) -> list[Condition]:
    """The conditions of the plan, judged by records and asked what they will keep on disk."""
    conditions = make_conditions(plan.cells, todo)
    judge(conditions, forecaster, RECORDS)
    warn(errors, *ask_models(conditions, plan.models, plan.stored).values())
    return conditions


def find_room_for(options: RunOptions) -> Room:
    """Where cells with these options keep their prepared arrays."""
    assert options.cache_folder is not None
    return find_room(options.cache_folder, options.cache_limit, options.prepares_alone)


def inference_of(plan: Plan) -> Callable[[Cell], int | None]:
    """How many nodes a cell of this plan predicts at its end; None where its split cannot be drawn, so nothing runs."""

    @functools.cache
    def count(dataset: str, rule: str) -> int | None:
        graph = plan.stored[dataset].graph
        try:
            # the sizes do not depend on the seed
            split = draw_split(rule, graph.labels, graph.num_classes, 0, graph.masks)
        except UserError:
            return None
        return inferred_nodes(split, COST_NODES if plan.purpose == COST else None)

    return lambda cell: count(cell.dataset, cell.split_rule)


# -- pilots -----------------------------------------------------------------------------------------------------------


@dataclass
class Pilots:
    """Short runs of cells about which nothing is known, with a separate ledger."""

    results: Path
    options: RunOptions

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.results)

    def judge(self, conditions: Sequence[Condition], forecaster: Forecaster, plan: Plan, console: Console) -> None:
        """Run a pilot of each condition, a longer one where the first was too short, and judge by them."""
        say(console, f"{len(conditions)} without a record on this machine: a pilot of {LOOKS} evaluations each")
        first = [pilot_of(condition.todo[0], LOOKS) for condition in conditions]
        records = self._run(first, forecaster, plan, console)
        again: list[tuple[Condition, Cell]] = []
        for condition, pilot in zip(conditions, first, strict=True):
            record = records[pilot.key]
            if record["status"] != OK:
                note_failure(condition, record, forecaster)
            elif not tells_enough(record):
                again.append((condition, pilot_of(condition.todo[-1], MANY_LOOKS)))
        longer = self._run([pilot for _, pilot in again], forecaster, plan, console)
        for condition, pilot in again:
            if longer[pilot.key]["status"] != OK:
                note_failure(condition, longer[pilot.key], forecaster)
        for record in (*records.values(), *longer.values()):
            if record["status"] == OK:
                forecaster.add(record)
        judge(conditions, forecaster, PILOT)

    def _run(self, cells: Sequence[Cell], forecaster: Forecaster, plan: Plan, console: Console) -> dict[str, Record]:
        """The records of these cells by key; what has been run here before is not run again."""
        records = {cell.key: record for cell in cells if (record := self._earlier(cell, forecaster)) is not None}
        missing = [cell for cell in cells if cell.key not in records]
        if not missing:
            return records
        check_writable(self.results, "predictions", "logs")
        executor = make_executor(self.options.executor, self.results / "logs", 1, [self.options.device])
        options = replace(self.options, redo=True)  # what the ledger has of them is from elsewhere
        with make_display(console, missing, Forecaster(self.ledger), 1) as display:
            summary = run_cells(missing, plan.stored, options, self.ledger, executor, display.on_event)
        self.ledger.close()
        self.ledger.refresh()
        if summary.interrupted:
            raise KeyboardInterrupt
        return records | summary.records

    def _earlier(self, cell: Cell, forecaster: Forecaster) -> Record | None:
        """The pilot of this cell that tells what it takes here, with as many threads and on such a device."""
        options = self.options
        local = [record for record in self.ledger.of(cell.key) if forecaster.is_from_here(record)]
        return find_reusable(local, options.memory_limit, options.time_limit, options.purpose)


def note_failure(condition: Condition, record: Record, forecaster: Forecaster) -> None:
    """What a pilot died of, and how long its cells will last: one that was too slow will take at least so long."""
    condition.failure = f"{record['status']}: {record['reason']}"
    condition.at_least = record["status"] == TIMEOUT
    condition.failed_after = (
        at_least(record, forecaster.epochs(condition.first)) if condition.at_least else wall_seconds(record)
    )


def pilot_of(cell: Cell, looks: int) -> Cell:
    """The same cell, ended after so many evaluations."""
    return capped(cell, looks * cell.config["evaluate_every"])


# -- what is shown ----------------------------------------------------------------------------------------------------


def _show(console: Console, conditions: Sequence[Condition], jobs: int, budget: float | None, room: Room) -> None:
    """The longest first, then the sums, then what a budget leaves out."""
    waiting = sorted(
        (condition for condition in conditions if condition.todo), key=lambda condition: -(condition.total or 0.0)
    )
    done = sum(len(condition.cells) - len(condition.todo) for condition in conditions)
    todo = sum(len(condition.todo) for condition in waiting)
    if not conditions:  # make_plan has said why
        return
    if not waiting:
        say(
            console,
            f"nothing to run: {'all ' if done > 1 else ''}{counted(done, 'cell')} {'are' if done > 1 else 'is'} there",
        )
        return
    show_table(
        console,
        ["dataset", "model", "settings", "to run", "each", "in all", "memory", "disk", "from"],
        map(_row, waiting),
    )
    for condition in waiting:
        if condition.failure:
            say(console, f"{condition.first.model} {condition.first.dataset}: its pilot ended as {condition.failure}")
    unknown = sum(len(condition.todo) for condition in waiting if condition.total is None)
    total = sum(condition.total or 0.0 for condition in waiting)
    about = "over " if any(condition.at_least for condition in waiting) else "about "
    time = about + format_duration(total / jobs) if unknown < todo else "time unknown"
    say(
        console,
        f"{counted(todo, 'cell')} to run, {done} done: {time}"
        + (f" with {jobs} at a time" if jobs > 1 else "")
        + (f", and {counted(unknown, 'cell')} about which nothing is known" if unknown else ""),
    )
    _show_space(console, waiting, room)
    if budget is not None:
        _show_budget(console, waiting, jobs, budget)


def _row(condition: Condition) -> tuple[str, ...]:
    speed = condition.speed
    each, in_all = (
        "unknown" if seconds is None else ("over " if condition.at_least else "") + format_duration(seconds)
        for seconds in (condition.seconds, condition.total)
    )
    return (
        condition.first.dataset,
        condition.first.model,
        describe_settings(condition.first),
        f"{len(condition.todo)} of {len(condition.cells)}",
        each,
        in_all,
        "" if speed is None or speed.memory is None else format_size(speed.memory),
        "" if condition.disk is None else format_size(condition.disk),
        "failed pilot" if condition.failure else condition.basis,
    )


def _show_space(console: Console, conditions: Sequence[Condition], room: Room) -> None:
    """Memory at the peak, and what the prepared arrays take on disk beside what is free there."""
    known = [condition.speed.memory for condition in conditions if condition.speed and condition.speed.memory]
    memory = format_size(max(known)) if known else "unknown"
    disk = format_size(prepared_size(conditions, room.private))
    say(console, f"peak memory {memory}; prepared arrays {disk} ({format_size(room.free)} free)")
    warning = space_warning(conditions, room)
    if warning:
        warn(console, warning)


def _show_budget(console: Console, conditions: Sequence[Condition], jobs: int, budget: float) -> None:
    chosen = {cell.key for cell in within_budget(conditions, budget * jobs)}
    seconds = sum(
        (condition.seconds or 0.0) * sum(cell.key in chosen for cell in condition.todo) for condition in conditions
    )
    say(
        console,
        f"within {format_duration(budget)}: {counted(len(chosen), 'cell')}, about {format_duration(seconds / jobs)}",
    )
    for condition in conditions:
        fits = sum(cell.key in chosen for cell in condition.todo)
        if fits < len(condition.todo):
            left = "left out" if not fits else f"{fits} of {len(condition.todo)} trials fit"
            why = ", its pilot failed" if condition.failure else ", time unknown" if condition.seconds is None else ""
            first = condition.first
            say(console, f"  {first.model} {first.dataset} {describe_settings(first)}: {left}{why}")
