"""`plan`: what is missing, what it will take, and what of it fits into a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from bench.commands.cache import cache_in_use
from bench.commands.run import Plan, Request, exit_code, make_options, make_plan
from bench.console import say, show_table
from bench.data.store import cache_root
from bench.devices import resolve_devices
from bench.display import make_display
from bench.estimate import MANY_LOOKS, Estimator, Forecaster, at_least, tells_enough
from bench.executors.local import LocalExecutor
from bench.forecast import (
    PILOT,
    RECORDS,
    Column,
    ends_of_rows,
    fill_between,
    free_space,
    judge,
    make_columns,
    prepared_size,
    rows_of,
    space_warning,
    within_budget,
)
from bench.ledger import Ledger, check_writable
from bench.plan import Cell
from bench.records import OK, TIMEOUT, Record, wall_seconds
from bench.runner import RunOptions, pending, run_cells
from bench.sizes import format_duration, format_size, parse_duration
from bench.studies import COST
from bench.summary import describe_settings

PILOTS = "pilots"  # a ledger of its own below the results: a training of two epochs is nobody's result
LOOKS = 2  # evaluations in a pilot: what lies between the first and the second is free of what is paid once


def plan_request(request: Request, budget: str | None, with_pilots: bool, pilot_limit: str) -> int:
    """Show what the request will take; trains nothing but pilots."""
    seconds = None if budget is None else parse_duration(budget)
    longest = parse_duration(pilot_limit)
    console, errors = Console(), Console(stderr=True)
    with cache_in_use():
        options, device = make_options(request), resolve_devices(request.device)[0]
        plan = make_plan(request, console, errors)
        ledger = Ledger(request.results)
        todo, _ = pending(plan.cells, ledger, replace(options, purpose=plan.purpose))
        columns = make_columns(plan.cells, todo)
        pilots = Pilots(request.results / PILOTS, replace(options, time_limit=longest, paths=plan.paths), device)
        forecaster = Forecaster([*ledger, *pilots.ledger], options.threads, device, plan.purpose == COST)
        unknown = judge(columns, forecaster, RECORDS)
        if unknown and with_pilots:
            pilots.judge([column for column in ends_of_rows(columns) if column in unknown], forecaster, plan, console)
        for row in rows_of(columns):
            fill_between(row)
    _show(console, columns, request.jobs, seconds)
    return exit_code(plan, {})


# -- pilots -----------------------------------------------------------------------------------------------------------


@dataclass
class Pilots:
    """Short runs of cells about which nothing is known, with a ledger of their own."""

    results: Path
    options: RunOptions
    device: str = "cpu"

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.results)

    def judge(self, columns: Sequence[Column], forecaster: Forecaster, plan: Plan, console: Console) -> None:
        """Run a pilot of each column, a longer one where the first was too short, and judge the columns by them."""
        say(console, f"{len(columns)} without a record on this machine: a pilot of {LOOKS} evaluations each")
        first = [pilot_of(column.todo[0], LOOKS) for column in columns]
        records = self._run(first, plan, console)
        short = []
        for column, pilot in zip(columns, first, strict=True):
            record = records[pilot.key]
            if record["status"] != OK:
                column.failure = f"{record['status']}: {record['reason']}"
                column.at_least = record["status"] == TIMEOUT
                column.failed_after = (
                    at_least(record, forecaster.epochs(column.first)) if column.at_least else wall_seconds(record)
                )
            elif not tells_enough(record):
                short.append(pilot_of(column.todo[-1], MANY_LOOKS))
        records |= self._run(short, plan, console)
        for record in records.values():
            if record["status"] == OK:
                forecaster.add(record)
        judge(columns, forecaster, PILOT)

    def _run(self, cells: Sequence[Cell], plan: Plan, console: Console) -> dict[str, Record]:
        """The records of these cells by key; what has been run before is not run again."""
        if not cells:
            return {}
        check_writable(self.results, "predictions", "logs")
        executor = LocalExecutor(self.results / "logs", 1, [self.device])
        with make_display(console, cells, Estimator(self.ledger), 1) as display:
            summary = run_cells(cells, plan.stored, self.options, self.ledger, executor, display.on_event)
        self.ledger.close()
        if summary.interrupted:
            raise KeyboardInterrupt
        return summary.records


def pilot_of(cell: Cell, looks: int) -> Cell:
    """The same cell, ended after so many evaluations."""
    epochs = min(cell.config["max_epochs"], looks * cell.config["evaluate_every"])
    return replace(cell, config={**cell.config, "max_epochs": epochs}, labels={**cell.labels, "cap": epochs})


# -- what is shown ----------------------------------------------------------------------------------------------------


def _show(console: Console, columns: Sequence[Column], jobs: int, budget: float | None) -> None:
    """The longest first, then the sums, then what a budget leaves out."""
    waiting = sorted((column for column in columns if column.todo), key=lambda column: -(column.total or 0.0))
    done = sum(len(column.cells) - len(column.todo) for column in columns)
    todo = sum(len(column.todo) for column in waiting)
    if not waiting:
        say(console, f"nothing to run: all {done} cells are there")
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
    say(
        console,
        f"{todo} cells to run, {done} done: about {format_duration(total / jobs)}"
        + (f" with {jobs} at a time" if jobs > 1 else "")
        + (f", and {unknown} cells about which nothing is known" if unknown else ""),
    )
    _show_space(console, waiting)
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
        "" if speed is None or speed.disk is None else format_size(speed.disk),
        "failed pilot" if column.failure else column.basis,
    )


def _show_space(console: Console, columns: Sequence[Column]) -> None:
    """Memory at the peak, and what the prepared arrays take on disk beside what is free there."""
    memory = max((column.speed.memory or 0.0 for column in columns if column.speed), default=0.0)
    free = free_space(cache_root())
    disk = format_size(prepared_size(columns))
    say(console, f"peak memory {format_size(memory)}; prepared arrays {disk} ({format_size(free)} free)")
    warning = space_warning(columns, free)
    if warning:
        say(console, f"warning: {warning}")


def _show_budget(console: Console, columns: Sequence[Column], jobs: int, budget: float) -> None:
    chosen = {cell.key for cell in within_budget(columns, budget * jobs)}
    seconds = sum((column.seconds or 0.0) * sum(cell.key in chosen for cell in column.todo) for column in columns)
    say(console, f"within {format_duration(budget)}: {len(chosen)} cells, about {format_duration(seconds / jobs)}")
    for column in columns:
        fits = sum(cell.key in chosen for cell in column.todo)
        if fits < len(column.todo):
            left = "left out" if not fits else f"{fits} of {len(column.todo)} trials fit"
            why = ", time unknown" if column.seconds is None else ""
            say(
                console, f"  {column.first.model} {column.first.dataset} {describe_settings(column.first)}: {left}{why}"
            )
