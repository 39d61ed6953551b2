"""`run --study frontier`: the smallest memory limit that is enough for a model on a dataset, found by bisection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console

from bench.cells import Cell, capped
from bench.console import say, show_table
from bench.errors import UserError
from bench.executors import make_executor
from bench.executors.devices import capacity_of
from bench.ledger import Ledger, check_writable
from bench.planning.sharing import expected_memory
from bench.records import DIVERGED, FRONTIER, OK, OOM, Record, machine_of, memory_used
from bench.registry import find_model, source_hash
from bench.request import Plan, Request, exit_code
from bench.reuse import this_machine
from bench.runner import RunOptions, run_cells
from bench.sizes import format_size
from bench.table import describe_settings

FLOOR = 1_000_000  # bytes with which nothing can be loaded
PRECISION = 0.05  # how far apart the ends of the bracket may be, as a share
SHARE = 0.8  # of the memory that is free: the most that is tried
FITS = (OK, DIVERGED)  # how a cell ends that had memory enough
MEASURED = "measured"  # bench.prepared's word for a preparation that found nothing ready


@dataclass(frozen=True)
class Frontier:
    """What was tried and was not enough (bytes; 0 where nothing was), and what was enough (None where nothing was)."""

    too_little: int
    enough: int | None
    failure: Record | None = None  # the one with the largest budget that was not enough, or that failed otherwise
    probes: int = 0

    @property
    def complete(self) -> bool:
        """Whether the search came to its end; a run that fails for another reason than memory breaks it off."""
        return self.enough is not None and (self.failure is None or self.failure["status"] == OOM)


def find_frontier(probe: Callable[[int], Record], most: int, precision: float) -> Frontier:
    """Narrow the smallest budget that is enough down to a bracket whose ends differ by no more than `precision`.

    `probe` runs the cell within so many bytes. The first run's own peak is the first guess; from there the steps grow
    until both sides are known, then the bracket is halved on a logarithmic scale.
    """
    record, probes, failure = probe(most), 1, None
    if record["status"] not in FITS:
        return Frontier(most if record["status"] == OOM else 0, None, record, probes)
    low, high, step, too_little = FLOOR, most, 1 + precision, 0
    guess = memory_used(record) or 0
    while high > low * (1 + precision):
        budget = guess if low < guess < high else round((low * high) ** 0.5)
        record, probes = probe(budget), probes + 1
        if record["status"] in FITS:
            high, guess = budget, round(budget / step)
        elif record["status"] == OOM:
            low = too_little = budget
            guess, failure = round(budget * step), record
        else:
            return Frontier(too_little, high, record, probes)
        step = min(step * step, 2.0)
    return Frontier(too_little, high, failure, probes)


def search_frontiers(request: Request, plan: Plan, options: RunOptions, console: Console) -> int:
    """Find and show the frontier of every model and dataset that was asked for, up to --memory-limit."""
    most = options.memory_limit or _most_that_is_free(options.device)
    if most <= FLOOR:
        raise UserError(f"--memory-limit {request.memory_limit} is less than anything needs; write for example 16GB")
    if request.dry_run:
        raise UserError("how often a frontier is probed depends on what is found: leave out --dry-run")
    # with private arrays, since to find them ready takes no memory
    options = replace(options, redo=True, private_arrays=True, believe_estimates=False, purpose=None)
    search = Search(request.results / FRONTIER, options)
    found: list[tuple[Cell, Frontier]] = []
    for cell in plan.cells if request.max_epochs else map(long_enough, plan.cells):
        found.append((cell, find_frontier(partial(search.probe, plan, cell), most, PRECISION)))
        say(console, f"{cell.model} {cell.dataset}: {_outcome(found[-1][1])}")
    search.ledger.close()
    if found:
        _show(console, plan, found)
    return exit_code(plan, failed=not all(result.complete for _, result in found))


def _most_that_is_free(device: str) -> int:
    return int(SHARE * (psutil.virtual_memory().available if device == "cpu" else capacity_of(device)))


def long_enough(cell: Cell) -> Cell:
    """The cell, ended an epoch after its first evaluation.

    From then on an update has everything beside its activations: gradients, the optimiser's moments, the best state.
    """
    return capped(cell, cell.config["evaluate_every"] + 1)


@dataclass
class Search:
    """Runs a cell under a memory limit, unless an earlier run says how that ends."""

    results: Path
    options: RunOptions

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.results)

    def probe(self, plan: Plan, cell: Cell, budget: int) -> Record:
        """What came of the cell within this budget."""
        source, device = source_hash(find_model(cell.model)), self.options.device
        earlier = known(self.ledger.of(cell.key), budget, source, this_machine(device, self.options.threads))
        if earlier is not None:
            return earlier
        check_writable(self.results, "predictions", "logs")
        executor = make_executor(self.options.executor, self.results / "logs", 1, [device])
        options = replace(self.options, memory_limit=budget)
        summary = run_cells([cell], plan.stored, options, self.ledger, executor)
        self.ledger.refresh()
        if summary.interrupted:
            raise KeyboardInterrupt
        return summary.records[cell.key]


def known(records: Sequence[Record], budget: int, source: str, machine: str) -> Record | None:
    """An earlier run of this source on such a machine that fitted into no more, or ran out of memory with no less.

    Libraries choose their kernels, and so their workspace, by the processor. What a run without limits was seen to use
    is no proof: memory is looked at now and then, a limit always holds. Nor does one count that fitted because others
    had prepared its arrays.
    """
    for record in records:
        limit = record["limits"]["memory"]
        if record["source"] != source or machine_of(record) != machine or limit is None:
            continue
        alone = record["phases"].get("preprocess", {}).get("source", MEASURED) == MEASURED
        if (record["status"] in FITS and alone and limit <= budget) or (record["status"] == OOM and limit >= budget):
            return record
    return None


def _outcome(found: Frontier) -> str:
    enough = [] if found.enough is None else [f"{format_size(found.enough)} are enough"]
    if found.failure is not None and found.failure["status"] != OOM:
        tried = [*enough, *([f"{format_size(found.too_little)} are not"] if found.too_little else [])]
        within = format_size(found.failure["limits"]["memory"])
        ended = f"cannot be found: {found.failure['status']} within {within}: {found.failure['reason']}"
        return f"{ended} ({', '.join(tried)})" if tried else ended
    if found.failure is not None and not enough:
        return f"more than {format_size(found.too_little)} ({found.failure['reason']})"
    return f"{enough[0]}, " + (f"{format_size(found.too_little)} are not" if found.too_little else "less was not tried")


def _show(console: Console, plan: Plan, found: Sequence[tuple[Cell, Frontier]]) -> None:
    models = {model.name: model for model in plan.models}
    rows = []
    for cell, result in found:
        estimate = expected_memory(models[cell.model], plan.stored[cell.dataset].graph, cell)
        gigabytes = f"{result.enough / 1e9:.2f}" if result.complete and result.enough is not None else ""
        names = (cell.dataset, cell.model, describe_settings(cell), str(cell.config["max_epochs"]))
        rows.append((*names, gigabytes, _outcome(result), "" if estimate is None else f"{estimate / 1e9:.2f}"))
    header = ["dataset", "model", "settings", "epochs", "enough GB", "bracket", "model's own estimate GB"]
    show_table(console, header, rows)
    say(
        console,
        "Memory that a cell may take beyond what a worker has at its start; read-only file maps are free. "
        "Measured over so many epochs and one inference.",
    )
