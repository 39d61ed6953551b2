"""`run`: from a request to records, from records to the table; with `--dry-run`, to what they will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import psutil
from rich.console import Console

from bench.cells import Cell
from bench.commands.cache import cache_in_use
from bench.commands.display import make_display
from bench.commands.forecast import Looks, expect, find_room_for, show_forecast
from bench.commands.frontier import search_frontiers
from bench.commands.outcome import elsewhere_line, opening_line, show_summary
from bench.commands.paper import find_study
from bench.console import say, warn
from bench.environment import processor, usable_processors
from bench.errors import UserError
from bench.executors import make_executor
from bench.executors.devices import resolve_devices
from bench.ledger import Ledger, check_writable
from bench.planning.estimate import Forecaster
from bench.planning.forecast import space_warning
from bench.planning.sharing import are_small, cells_at_once
from bench.records import COST, FRONTIER, OK, Record
from bench.reference import Reference, open_reference
from bench.registry import source_hash
from bench.request import Plan, Request, exit_code, make_options, make_plan
from bench.reuse import older_code_line, pending
from bench.runner import RunOptions
from bench.runner import run_cells as run_pending
from bench.sizes import parse_duration


def run_request(request: Request) -> int:
    """Run what is missing, show the table, return the exit code."""
    looks = _parse_looks(request)
    with cache_in_use():
        return _run_request(request, looks)


def _parse_looks(request: Request) -> Looks:
    if not request.dry_run and (request.pilots or request.budget is not None):
        raise UserError("--pilots and --budget say what a run would take: they go with --dry-run")
    budget = None if request.budget is None else parse_duration(request.budget)
    return Looks(request.pilots, parse_duration(request.pilot_limit), budget)


def _run_request(request: Request, looks: Looks) -> int:
    console, errors = Console(), Console(stderr=True)
    options = make_options(request)
    devices = resolve_devices(request.device)
    study = None if request.study is None else find_study(request.study)
    plan = make_plan(request, console, errors, study)
    if not plan.cells:
        return exit_code(plan, failed=False)
    options = replace(options, paths=plan.paths, purpose=plan.purpose)
    if plan.purpose == FRONTIER:
        return search_frontiers(request, plan, options, console)
    ledger = Ledger(request.results)
    archive, reason = open_reference(request.results)
    if reason:
        say(errors, f"note: {reason}")
    todo, answered = pending(plan.cells, ledger, options)
    if request.reuse_reference and archive is not None:
        todo, more = pending(todo, archive, options)
        answered |= more
    jobs, options = share_machine(request, plan, todo, options, devices)
    warn(errors, *ledger.warnings)
    known = ledger if archive is None else [*ledger, *archive]
    estimator = Forecaster(known)
    if request.dry_run:
        show_forecast(request, plan, todo, jobs, options, looks, known, console, errors)
    else:
        conditions = expect(plan, todo, Forecaster(known, options.threads, devices[0]), errors)
        if warning := space_warning(conditions, find_room_for(options)):
            warn(errors, warning)
        say(console, opening_line(plan.cells, todo, estimator, request.results, jobs))
    present = {model.name: source_hash(model) for model in plan.models}
    for line in (older_code_line(answered.values(), present), elsewhere_line(answered.values(), processor())):
        if line:
            say(console, line)
    if request.dry_run:
        return exit_code(plan, any_failed(answered))

    records, interrupted = dict(answered), False
    if todo:
        check_writable(request.results, "predictions", "logs")
        executor = make_executor(options.executor, request.results / "logs", jobs, devices)
        with make_display(console, todo, estimator, jobs) as display:
            summary = run_pending(todo, plan.stored, options, ledger, executor, display.on_event)
        ledger.close()
        records, interrupted = {**answered, **summary.records}, summary.interrupted
    show_summary(console, plan, records, request, Reference(archive))
    if interrupted:
        raise KeyboardInterrupt
    return exit_code(plan, any_failed(records))


def any_failed(records: Mapping[str, Record]) -> bool:
    """Whether a cell ended otherwise than well."""
    return any(record["status"] != OK for record in records.values())


def share_machine(
    request: Request, plan: Plan, todo: Sequence[Cell], options: RunOptions, devices: Sequence[str]
) -> tuple[int, RunOptions]:
    """How many cells run at the same time, and the options with their threads; what was typed holds."""
    if request.jobs is not None or request.threads is not None or plan.purpose == COST:
        return request.jobs or 1, options
    processors = usable_processors()
    if options.device != "cpu":
        return len(devices), replace(options, threads=max(1, processors // len(devices)))
    graphs = {name: stored.graph for name, stored in plan.stored.items()}
    if not are_small(graphs.values()):
        return 1, replace(options, threads=processors)
    # One thread each, however many cells are left and whatever memory is free: threads change the last bits of a sum.
    jobs = cells_at_once(todo, plan.models, graphs, processors, psutil.virtual_memory().available, options.memory_limit)
    return jobs, replace(options, threads=1)
