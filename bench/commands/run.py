"""`run`: from what was typed to cells, from cells to records, from records to the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.commands.cache import cache_in_use
from bench.console import say, show_table, waiting_for
from bench.data.catalogue import Dataset, resolve
from bench.data.passports import passport
from bench.data.store import Stored, cache_root, open_dataset
from bench.devices import resolve_devices
from bench.display import make_display
from bench.environment import usable_processors
from bench.errors import EXIT_FAILED_CELLS, EXIT_MISSING_DATA, EXIT_OK, EXIT_USER_ERROR, BadData, MissingData
from bench.estimate import Estimator
from bench.executors.local import LocalExecutor
from bench.ledger import Ledger, check_writable
from bench.model import Model
from bench.plan import Cell, Protocol, make_cells
from bench.records import OK, Record, parse_statuses
from bench.registry import scan, source_hash
from bench.runner import RunOptions, pending
from bench.runner import run_cells as run_pending
from bench.settings import DEFAULT_LANE, check_lane, parse_overrides, resolve_settings
from bench.sizes import format_duration, parse_duration, parse_size
from bench.summary import Context, caption, summarise


@dataclass(frozen=True)
class Request:
    """What was typed, word for word."""

    models: str = "all"
    datasets: str = "digits"
    trials: int = 10
    seed: int = 0
    split: str = "fresh"
    split_ratio: str | None = None
    settings: str = "author"
    overrides: tuple[str, ...] = ()
    max_epochs: int | None = None
    jobs: int = 1
    threads: int | None = None
    device: str = "auto"
    data: Path | None = None
    results: Path = Path("results")
    memory_limit: str | None = None
    time_limit: str | None = None
    retry: str | None = None
    stale: bool = False
    redo: bool = False
    dry_run: bool = False


@dataclass
class Plan:
    """What the request means on this machine."""

    models: list[type[Model]]
    datasets: list[Dataset]
    cells: list[Cell] = field(default_factory=list)
    stored: dict[str, Stored] = field(default_factory=dict)  # by dataset name
    missing: list[str] = field(default_factory=list)  # one line per dataset that is not here
    bad: list[str] = field(default_factory=list)  # one line per dataset whose files are damaged


def run_request(request: Request) -> int:
    """Run what is missing, show the table, return the exit code."""
    with cache_in_use():
        return _run_request(request)


def _run_request(request: Request) -> int:
    console, errors = Console(), Console(stderr=True)
    options = _options(request)
    devices = resolve_devices(request.device)
    plan = _plan(request, console, errors)
    ledger = Ledger(request.results)
    estimator = Estimator(ledger)
    todo, answered = pending(plan.cells, ledger, options)
    for warning in ledger.warnings:
        say(errors, f"warning: {warning}")
    if request.dry_run:
        _show_cells(console, plan.cells, {cell.key for cell in todo}, estimator, request.jobs)
        return _exit_code(plan, answered)
    if not plan.cells:
        return _exit_code(plan, {})

    records, interrupted = dict(answered), False
    say(console, _opening_line(plan.cells, todo, estimator, request))
    if todo:
        check_writable(request.results, "predictions", "logs")
        executor = LocalExecutor(request.results / "logs", request.jobs, devices)
        with make_display(console, todo, estimator, request.jobs) as display:
            summary = run_pending(plan.cells, plan.stored, options, ledger, executor, display.on_event)
        ledger.close()
        records, interrupted = summary.records, summary.interrupted
    _show_summary(console, plan, records, request)
    if interrupted:
        raise KeyboardInterrupt
    return _exit_code(plan, records)


def _options(request: Request) -> RunOptions:
    return RunOptions(
        memory_limit=None if request.memory_limit is None else parse_size(request.memory_limit),
        time_limit=None if request.time_limit is None else parse_duration(request.time_limit),
        retry=frozenset() if request.retry is None else parse_statuses(request.retry),
        stale=request.stale,
        redo=request.redo,
        threads=request.threads or max(1, usable_processors() // request.jobs),
        cache_folder=cache_root() / "prepared",
    )


# -- what was asked for ---------------------------------------------------------------------------------------------


def _plan(request: Request, console: Console, errors: Console) -> Plan:
    registry = scan()
    for reason in registry.broken.values():
        say(errors, f"warning: {reason}")
    plan = Plan(registry.resolve(request.models), resolve(request.datasets, request.split_ratio))
    protocol = Protocol(request.trials, request.seed, request.split)
    check_lane(request.settings, plan.models)
    overrides, notes = parse_overrides(request.overrides, plan.models)
    resolved = {
        (dataset.name, model.name): resolve_settings(
            model, dataset.settings_name, request.settings, overrides[model.name], request.max_epochs
        )
        for dataset in plan.datasets
        for model in plan.models
    }
    for dataset in plan.datasets:
        _open(plan, dataset, request, console, errors)
    for dataset in plan.datasets:
        if dataset.name in plan.stored:
            fingerprint = plan.stored[dataset.name].graph.fingerprint
            for model in plan.models:
                plan.cells += make_cells(model, dataset, fingerprint, resolved[dataset.name, model.name], protocol)
    for line in [*notes, *fallback_lines(plan.cells, request.settings)]:
        say(console, line)
    return plan


def _open(plan: Plan, dataset: Dataset, request: Request, console: Console, errors: Console) -> None:
    """Open a dataset, or note in one line why it stays out; the others go on."""
    try:
        with waiting_for(console, f"opening {dataset.title}"):
            stored = open_dataset(dataset, request.data, cache_root())
    except MissingData as error:
        plan.missing.append(f"missing: {error}")
        say(errors, plan.missing[-1])
    except BadData as error:
        plan.bad.append(f"bad data: {error}")
        say(errors, plan.bad[-1])
    else:
        plan.stored[dataset.name] = stored
        warning = passport(dataset, stored).warning
        if warning:
            say(errors, f"warning: {warning}")


def fallback_lines(cells: Sequence[Cell], lane: str) -> list[str]:
    """Say once which models have nothing in the lane asked for; models that lack the same datasets share a line."""
    datasets_of: dict[str, dict[str, None]] = defaultdict(dict)  # dicts as ordered sets
    for cell in cells:
        if lane != DEFAULT_LANE and cell.labels["settings"] == DEFAULT_LANE:
            datasets_of[cell.model][cell.dataset] = None
    models_without: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for model, datasets in datasets_of.items():
        models_without[tuple(datasets)].append(model)
    return [
        f"no {lane} settings for {', '.join(datasets)}: {', '.join(models)} with default settings, and labelled so"
        for datasets, models in models_without.items()
    ]


# -- what is shown --------------------------------------------------------------------------------------------------


def _opening_line(cells: Sequence[Cell], todo: Sequence[Cell], estimator: Estimator, request: Request) -> str:
    if not todo:
        which = f"all {len(cells)} cells are" if len(cells) > 1 else "the one cell is"
        return f"nothing to run: {which} in {request.results}/"
    done = f"{len(cells) - len(todo)} done, " if len(todo) < len(cells) else ""
    return f"{_count(cells)}: {done}{len(todo)} to run, {_about(estimator.total(todo, request.jobs))}"


def _count(cells: Sequence[Cell]) -> str:
    return f"{len(cells)} cell" if len(cells) == 1 else f"{len(cells)} cells"


def _about(seconds: float | None) -> str:
    return "time unknown" if seconds is None else f"about {format_duration(seconds)}"


def _show_cells(console: Console, cells: Sequence[Cell], todo: set[str], estimator: Estimator, jobs: int) -> None:
    rows = []
    for cell in cells:
        seconds = estimator.seconds(cell)
        estimate = "unknown" if seconds is None else f"{seconds:.1f}"
        state = ("to do", estimate) if cell.key in todo else ("done", "")
        rows.append((cell.key, cell.dataset, cell.model, str(cell.labels["trial"]), cell.labels["settings"], *state))
    show_table(console, ["key", "dataset", "model", "trial", "settings", "state", "estimated s"], rows)
    waiting = [cell for cell in cells if cell.key in todo]
    say(console, f"{_count(cells)}, {len(waiting)} to do, {_about(estimator.total(waiting, jobs))}")


def _show_summary(console: Console, plan: Plan, records: dict[str, Record], request: Request) -> None:
    sources: dict[str, Any] = {model.name: source_hash(model) for model in plan.models}
    context = Context(
        model_titles={model.name: model.title or model.name for model in plan.models},
        dataset_titles={dataset.name: dataset.title for dataset in plan.datasets},
        twins={dataset.name for dataset in plan.datasets if dataset.is_twin},
        stale={key for key, record in records.items() if record["source"] != sources[record["model"]]},
    )
    frame = summarise(plan.cells, records, context)
    show_table(console, list(frame.columns), frame.itertuples(index=False))
    for line in [*caption(frame, request.split, request.settings, f"{request.results}/"), *plan.missing, *plan.bad]:
        say(console, line)


def _exit_code(plan: Plan, records: dict[str, Record]) -> int:
    if plan.bad:
        return EXIT_USER_ERROR
    if plan.missing:
        return EXIT_MISSING_DATA
    return EXIT_FAILED_CELLS if any(record["status"] != OK for record in records.values()) else EXIT_OK
