"""`plan`: what is missing, what it will take, and what of it fits into a budget."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from bench.cells import Cell, capped
from bench.commands.cache import cache_in_use
from bench.commands.display import make_display
from bench.commands.run import Plan, Request, exit_code, expect, find_room_for, make_options, make_plan, share_machine
from bench.console import say, show_table
from bench.errors import UserError
from bench.executors.devices import resolve_devices
from bench.executors.local import LocalExecutor
from bench.ledger import Ledger, check_writable
from bench.planning.estimate import MANY_LOOKS, Estimator, Forecaster, at_least, inferred_nodes, tells_enough
from bench.planning.forecast import (
    PILOT,
    Column,
    Room,
    ends_of_rows,
    fill_between,
    judge,
    prepared_size,
    rows_of,
    space_warning,
    within_budget,
)
from bench.records import COST, OK, TIMEOUT, Record, wall_seconds
from bench.reuse import find_reusable
from bench.runner import COST_NODES, RunOptions, pending, run_cells
from bench.sizes import format_duration, format_size, parse_duration
from bench.splits import draw_split
from bench.table import describe_settings
from bench.text import counted

PILOTS = "pilots"  # a ledger of its own below the results: a training of two epochs is nobody's result
LOOKS = 2  # evaluations in a pilot: what lies between the first and the second is free of what is paid once


def plan_request(request: Request, budget: str | None, with_pilots: bool, pilot_limit: str) -> int:
    """Show what the request will take; trains nothing but pilots."""
    seconds = None if budget is None else parse_duration(budget)
    longest = parse_duration(pilot_limit)
    console, errors = Console(), Console(stderr=True)
    with cache_in_use():
        options = make_options(request)
        plan = make_plan(request, console, errors)
        options = replace(options, paths=plan.paths, purpose=plan.purpose)
        ledger = Ledger(request.results)
        todo, _ = pending(plan.cells, ledger, options)
        jobs, options = share_machine(request, plan, todo, options, resolve_devices(request.device))
        pilots = Pilots(request.results / PILOTS, replace(options, time_limit=longest))
        forecaster = Forecaster(ledger, options.threads, options.device, plan.purpose == COST, inference_of(plan))
        columns = expect(plan, todo, forecaster, errors)
        for record in pilots.ledger:
            if record["status"] == OK:
                forecaster.add(record)
        judge([column for column in columns if column.speed is None], forecaster, PILOT)
        unknown = [column for column in ends_of_rows(columns) if column.todo and column.speed is None]
        if unknown and with_pilots:
            pilots.judge(unknown, forecaster, plan, console)
        for row in rows_of(columns):
            fill_between(row)
        room = find_room_for(options)
    _show(console, columns, jobs, seconds, room)
    return exit_code(plan, {})


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
    """Short runs of cells about which nothing is known, with a ledger of their own."""

    results: Path
    options: RunOptions

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.results)

    def judge(self, columns: Sequence[Column], forecaster: Forecaster, plan: Plan, console: Console) -> None:
        """Run a pilot of each column, a longer one where the first was too short, and judge the columns by them."""
        say(console, f"{len(columns)} without a record on this machine: a pilot of {LOOKS} evaluations each")
        first = [pilot_of(column.todo[0], LOOKS) for column in columns]
        records = self._run(first, forecaster, plan, console)
        again: list[tuple[Column, Cell]] = []
        for column, pilot in zip(columns, first, strict=True):
            record = records[pilot.key]
            if record["status"] != OK:
                note_failure(column, record, forecaster)
            elif not tells_enough(record):
                again.append((column, pilot_of(column.todo[-1], MANY_LOOKS)))
        longer = self._run([pilot for _, pilot in again], forecaster, plan, console)
        for column, pilot in again:
            if longer[pilot.key]["status"] != OK:
                note_failure(column, longer[pilot.key], forecaster)
        for record in (*records.values(), *longer.values()):
            if record["status"] == OK:
                forecaster.add(record)
        judge(columns, forecaster, PILOT)

    def _run(self, cells: Sequence[Cell], forecaster: Forecaster, plan: Plan, console: Console) -> dict[str, Record]:
        """The records of these cells by key; what has been run here before is not run again."""
        records = {cell.key: record for cell in cells if (record := self._earlier(cell, forecaster)) is not None}
        missing = [cell for cell in cells if cell.key not in records]
        if not missing:
            return records
        check_writable(self.results, "predictions", "logs")
        executor = LocalExecutor(self.results / "logs", 1, [self.options.device])
        options = replace(self.options, redo=True)  # what the ledger has of them is from elsewhere
        with make_display(console, missing, Estimator(self.ledger), 1) as display:
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


def note_failure(column: Column, record: Record, forecaster: Forecaster) -> None:
    """What a pilot died of, and how long its cells will last: one that was too slow will take at least so long."""
    column.failure = f"{record['status']}: {record['reason']}"
    column.at_least = record["status"] == TIMEOUT
    column.failed_after = at_least(record, forecaster.epochs(column.first)) if column.at_least else wall_seconds(record)


def pilot_of(cell: Cell, looks: int) -> Cell:
    """The same cell, ended after so many evaluations."""
    return capped(cell, looks * cell.config["evaluate_every"])


# -- what is shown ----------------------------------------------------------------------------------------------------


def _show(console: Console, columns: Sequence[Column], jobs: int, budget: float | None, room: Room) -> None:
    """The longest first, then the sums, then what a budget leaves out."""
    waiting = sorted((column for column in columns if column.todo), key=lambda column: -(column.total or 0.0))
    done = sum(len(column.cells) - len(column.todo) for column in columns)
    todo = sum(len(column.todo) for column in waiting)
    if not columns:  # make_plan has said why
        return
    if not waiting:
        say(console, f"nothing to run: all {counted(done, 'cell')} are there")
        return
    show_table(
        console,
        ["dataset", "model", "settings", "to run", "each", "in all", "memory", "disk", "from"],
        map(_row, waiting),
    )
    for column in waiting:
        if column.failure:
            say(console, f"{column.first.model} {column.first.dataset}: its pilot ended as {column.failure}")
    unknown = sum(len(column.todo) for column in waiting if column.total is None)
    total = sum(column.total or 0.0 for column in waiting)
    about = "over" if any(column.at_least for column in waiting) else "about"
    say(
        console,
        f"{counted(todo, 'cell')} to run, {done} done: {about} {format_duration(total / jobs)}"
        + (f" with {jobs} at a time" if jobs > 1 else "")
        + (f", and {counted(unknown, 'cell')} about which nothing is known" if unknown else ""),
    )
    _show_space(console, waiting, room)
    if budget is not None:
        _show_budget(console, waiting, jobs, budget)


def _row(column: Column) -> tuple[str, ...]:
    speed = column.speed
    each, in_all = (
        "unknown" if seconds is None else ("over " if column.at_least else "") + format_duration(seconds)
        for seconds in (column.seconds, column.total)
    )
    return (
        column.first.dataset,
        column.first.model,
        describe_settings(column.first),
        f"{len(column.todo)} of {len(column.cells)}",
        each,
        in_all,
        "" if speed is None or speed.memory is None else format_size(speed.memory),
        "" if column.disk is None else format_size(column.disk),
        "failed pilot" if column.failure else column.basis,
    )


def _show_space(console: Console, columns: Sequence[Column], room: Room) -> None:
    """Memory at the peak, and what the prepared arrays take on disk beside what is free there."""
    known = [column.speed.memory for column in columns if column.speed and column.speed.memory]
    memory = format_size(max(known)) if known else "unknown"
    disk = format_size(prepared_size(columns, room.private))
    say(console, f"peak memory {memory}; prepared arrays {disk} ({format_size(room.free)} free)")
    warning = space_warning(columns, room)
    if warning:
        say(console, f"warning: {warning}")


def _show_budget(console: Console, columns: Sequence[Column], jobs: int, budget: float) -> None:
    chosen = {cell.key for cell in within_budget(columns, budget * jobs)}
    seconds = sum((column.seconds or 0.0) * sum(cell.key in chosen for cell in column.todo) for column in columns)
    say(
        console,
        f"within {format_duration(budget)}: {counted(len(chosen), 'cell')}, about {format_duration(seconds / jobs)}",
    )
    for column in columns:
        fits = sum(cell.key in chosen for cell in column.todo)
        if fits < len(column.todo):
            left = "left out" if not fits else f"{fits} of {len(column.todo)} trials fit"
            why = ", its pilot failed" if column.failure else ", time unknown" if column.seconds is None else ""
            say(
                console, f"  {column.first.model} {column.first.dataset} {describe_settings(column.first)}: {left}{why}"
            )
