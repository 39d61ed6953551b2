"""Plan minus ledger → executor → ledger: the parent process of a run.

Only this side knows the test labels. It draws the splits, hands each worker the labels of training and validation
nodes, scores what comes back and writes the record.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import sklearn.metrics  # noqa: F401  scoring the first cell would import it: half a second of overhead
import torch
from rich.console import Console

from bench.cells import Cell
from bench.claims import Claim, Claims
from bench.console import say
from bench.datasets.store import Stored
from bench.environment import code_version, processor
from bench.errors import UserError
from bench.executors import LOCAL, Event, Executor, Outcome
from bench.executors.devices import capacity_of
from bench.graph import UNKNOWN_LABEL, Split
from bench.ledger import Ledger, check_writable
from bench.metrics import score
from bench.model import Model
from bench.predictions import Predictions, PredictionStore
from bench.prepared import private_folder
from bench.recording import make_record
from bench.records import COST, ERROR, OK, OOM, UNSUPPORTED, Record, machine_of, phase_seconds, under_load
from bench.registry import find_model, is_plugin, source_hash
from bench.reuse import find_reusable, is_current, may_be_mended
from bench.splits import draw_split, is_scored
from bench.worker import PROGRESS_INTERVAL, Job

OnEvent = Callable[[Event], None]
FindModel = Callable[[str], type[Model]]
COST_NODES = 200_000  # nodes on which inference is measured where cost is the purpose, or all if there are fewer
TURNS = Path(tempfile.gettempdir()) / f"nagphormer-bench-{os.getuid()}"  # where cost cells of this machine line up


@dataclass(frozen=True)
class RunOptions:
    """How cells are run; nothing here is part of a cell's key."""

    memory_limit: int | None = None  # bytes
    time_limit: float | None = None  # seconds per cell
    retry: frozenset[str] = frozenset()  # statuses that are run again; `interrupted` always is
    redo: bool = False  # run everything again
    threads: int = 1  # per worker
    device: str = "cpu"  # or "cuda", "cuda:1": where cost is the purpose, only what was measured on it answers
    executor: str = LOCAL  # which of bench/executors
    cache_folder: Path | None = None  # prepared arrays that cells share; None: nothing is kept
    cache_limit: int = 40 * 2**30
    paths: tuple[str, ...] = ()  # where models outside the package are imported from
    believe_estimates: bool = True  # a cell that its model says will not fit is `oom` without being tried
    purpose: str | None = None  # what the records are for, where that is not accuracy: then only such records answer
    progress_interval: float = PROGRESS_INTERVAL  # seconds between two signs of life; 0: at every evaluation
    private_arrays: bool = False  # nothing prepared is shared: what older code prepared would prove nothing of the new

    @property
    def prepares_alone(self) -> bool:
        """Whether every cell prepares all it needs; one whose cost is measured has to."""
        return self.private_arrays or self.purpose == COST


@dataclass
class Summary:
    """What a run did and where every cell that was asked for stands now."""

    records: dict[str, Record] = field(default_factory=dict)  # by key: new ones and those that were there already
    earlier: int = 0  # cells that needed no run
    ran: int = 0
    elsewhere: int = 0  # cells that another run on the same folder did meanwhile
    interrupted: bool = False


def pending(
    cells: Sequence[Cell], ledger: Ledger, options: RunOptions, find: FindModel = find_model
) -> tuple[list[Cell], dict[str, Record]]:
    """The cells that have to be run, each once, and the records that answer for the others.

    An error of other code than the present is no answer: the file may have been mended.
    """
    todo: dict[str, Cell] = {}
    answered: dict[str, Record] = {}
    for cell in cells:
        record = _answer(ledger.of(cell.key), options)
        mended = record is not None and may_be_mended(record, source_hash(find(cell.model)))
        if record is None or options.redo or mended or record["status"] in options.retry:
            todo[cell.key] = cell
        else:
            answered[cell.key] = record
    return list(todo.values()), answered


def _answer(records: Sequence[Record], options: RunOptions) -> Record | None:
    """The record that makes another run needless; what it costs has to be known for this machine."""
    machine = this_machine(options.device, options.threads) if options.purpose == COST else None
    # asked only where it matters: on a GPU it has to be woken for that
    capacity = capacity_of(options.device) if any(record["status"] == OOM for record in records) else None
    limits = options.memory_limit, options.time_limit
    return find_reusable(records, *limits, options.purpose, machine, capacity, options.device)


@functools.cache
def this_machine(device: str, threads: int) -> str:
    """What `machine_of` says of records that are made here."""
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return machine_of({"environment": {"processor": processor(), "gpu": gpu, "threads": threads}})


def run_cells(
    cells: Sequence[Cell],
    stored: Mapping[str, Stored],
    options: RunOptions,
    ledger: Ledger,
    executor: Executor,
    on_event: OnEvent = lambda event: None,
    find: FindModel = find_model,
) -> Summary:
    """Run what the ledger does not answer yet. `stored` holds the graph of every dataset the cells name."""
    check_writable(ledger.results, "predictions", ".claims")
    todo, answered = pending(cells, ledger, options, find)
    run = _Run({cell.model for cell in todo}, stored, options, ledger, on_event, find)
    run.summary.records.update(answered)
    run.summary.earlier = len(answered)
    return _work_through(run, run.jobs(todo), executor)


def run_stream(
    cells: Iterator[Cell | None],
    models: Collection[str],
    stored: Mapping[str, Stored],
    options: RunOptions,
    ledger: Ledger,
    executor: Executor,
    on_event: OnEvent = lambda event: None,
    find: FindModel = find_model,
) -> Summary:
    """Run cells of these models one after another: the next may depend on earlier results.

    `cells` gives None while there is nothing to run but may be later. Of every cell a "finished" event is heard, also
    of one that the ledger answers.
    """
    check_writable(ledger.results, "predictions", ".claims")
    run = _Run(models, stored, options, ledger, on_event, find)
    return _work_through(run, run.stream_jobs(cells), executor)


def _work_through(run: _Run, jobs: Iterator[Job | None], executor: Executor) -> Summary:
    with _stop_on_signals() as stopped:
        try:
            for outcome in executor.run(jobs, run.on_event, stopped):
                run.finish(outcome)
        finally:
            run.release_all()
        run.summary.interrupted = stopped()
    return run.summary


class _Run:
    """The parent's side of one run: makes jobs when they are wanted, and records out of what becomes of them."""

    def __init__(
        self,
        models: Collection[str],
        stored: Mapping[str, Stored],
        options: RunOptions,
        ledger: Ledger,
        on_event: OnEvent,
        find: FindModel,
    ) -> None:
        self.stored, self.options, self.ledger = stored, options, ledger
        self.on_event, self.find = on_event, find
        self.summary = Summary()
        self._claims = Claims(ledger.results)
        self._held: dict[str, Claim] = {}
        self._turn: Claim | None = None  # to measure on this machine
        self._told_to_wait = False
        self._begun: dict[str, float] = {}
        self._appeared: dict[str, list[Record]] = {}  # records that were not there when the run was planned
        self._predictions = PredictionStore(ledger.results)
        shared = options.cache_folder
        self._own = private_folder(shared) if shared is not None and options.prepares_alone else None
        # asked now, not when the first record is written: by then somebody may have edited a file
        self._source = {name: source_hash(find(name)) for name in models}
        code_version()

    def jobs(self, todo: Sequence[Cell]) -> Iterator[Job | None]:
        """Jobs for the cells that nobody else is running; None while only claimed ones are left."""
        waiting = todo
        while waiting:
            claimed_elsewhere = []
            for cell in waiting:
                while self.options.purpose == COST and not self._take_turn(cell):
                    yield None
                claim = self._claims.take(cell.key, f"{cell.model}\t{cell.dataset}")
                if claim is None:
                    self._end_turn()
                    claimed_elsewhere.append(cell)
                    continue
                self._held[cell.key] = claim
                job = None if self._done_elsewhere(cell) else self._job(cell)
                if job is None:
                    self._release(cell)
                else:
                    yield job
            waiting = claimed_elsewhere
            if waiting:
                yield None

    def stream_jobs(self, cells: Iterator[Cell | None]) -> Iterator[Job | None]:
        """Yield jobs for the cells of a stream; None while there is none."""
        for cell in cells:
            if cell is None:
                yield None
                continue
            while (claim := self._claims.take(cell.key, f"{cell.model}\t{cell.dataset}")) is None:
                yield None  # the same cell is running, here or elsewhere: its record will answer for this one
            self._held[cell.key] = claim
            self.ledger.refresh()
            standing = _answer(self.ledger.of(cell.key), self.options)
            answer = [standing] if standing is not None and self._may_answer(cell, standing) else []
            job = None if self._answered(cell, answer) else self._job(cell)
            if job is None:
                self._release(cell)
            else:
                yield job

    def _take_turn(self, cell: Cell) -> bool:
        """Whether this cell may start: on one machine one cell at a time has its cost measured, whoever runs them."""
        if self._turn is not None:
            return False  # a cell of ours is at work
        turns = Claims(TURNS)
        self._turn = turns.take(COST, f"{cell.model} on {cell.dataset}")
        if self._turn is None and not self._told_to_wait:
            self._told_to_wait = True
            say(Console(stderr=True), f"waiting: another run measures {turns.held().get(COST, 'cost')} on this machine")
        return self._turn is not None

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.release()
            self._turn = None

    def _may_answer(self, cell: Cell, record: Record) -> bool:
        """Whether running the cell now would give this; an error may be mended, a plug-in or a file have changed."""
        if record["status"] == ERROR or not is_current(record):
            return False
        if record["source"] != self._source[cell.model] and is_plugin(self.find(cell.model)):
            return False
        if record["status"] != OK:
            return True
        if "seconds" in cell.labels.get("objective", "") and not self._measured_alike(record):
            return False
        return self._has_curve(record)

    def _measured_alike(self, record: Record) -> bool:
        """Whether its seconds can be held against those of cells that run now."""
        here = this_machine(self.options.device, self.options.threads)
        return machine_of(record) == here and under_load(record) is False

    def _has_curve(self, record: Record) -> bool:
        """Whether predictions and curve can be read; a damaged file is put aside, so that it can be written again."""
        try:
            self._predictions.load(record["predictions"])
        except UserError:
            self._predictions.put_aside(record["predictions"])
            return False
        try:
            self._predictions.curve(record["predictions"], record["key"])
        except UserError:  # of another cell with the same predictions
            return False
        return True

    def _done_elsewhere(self, cell: Cell) -> bool:
        """Whether another process has finished this cell since the run was planned."""
        for new in self.ledger.refresh():
            self._appeared.setdefault(new["key"], []).append(new)
        return self._answered(cell, self._appeared.get(cell.key, []))

    def _answered(self, cell: Cell, records: Sequence[Record]) -> bool:
        record = _answer(records, self.options)
        if record is None:
            return False
        self.summary.records[cell.key] = record
        self.summary.elsewhere += 1
        self.on_event(Event("finished", cell, record=record, elsewhere=True))
        return True

    def _job(self, cell: Cell) -> Job | None:
        graph = self.stored[cell.dataset].graph
        self._begun[cell.key] = time.perf_counter()
        try:
            split = draw_split(cell.split_rule, graph.labels, graph.num_classes, cell.split_seed, graph.masks)
        except UserError as error:  # a matter of this dataset; the others go on
            self._keep(cell, Outcome(None, UNSUPPORTED, f"no split: {error}"))
            return None
        model = self.find(cell.model)
        return Job(
            cell,
            model.__module__,
            model.__qualname__,
            self.stored[cell.dataset].folder,
            _without_test_labels(graph.labels, split),
            split,
            threads=self.options.threads,
            memory_limit=self.options.memory_limit,
            time_limit=self.options.time_limit,
            cache_folder=self._cache_folder(cell),
            cache_limit=self.options.cache_limit,
            paths=self.options.paths,
            progress_interval=self.options.progress_interval,
            believe_estimates=self.options.believe_estimates,
            pinned=self.options.purpose == COST,
            inference_nodes=COST_NODES if self.options.purpose == COST else None,
            source=self._source[cell.model],
        )

    def _cache_folder(self, cell: Cell) -> Path | None:
        """Where the cell finds prepared arrays, or keeps those that it needs for itself."""
        return self.options.cache_folder if self._own is None else self._own / cell.key

    def finish(self, outcome: Outcome) -> None:
        """Score, store and record what came of a job, then let go of its cell."""
        assert outcome.job is not None
        self._keep(outcome.job.cell, outcome)
        if self._own is not None:
            shutil.rmtree(self._own / outcome.job.cell.key, ignore_errors=True)
        self._release(outcome.job.cell)

    def _keep(self, cell: Cell, outcome: Outcome) -> None:
        options = self.options
        limits = {"memory": _memory_limit(outcome, options.memory_limit), "time": options.time_limit}
        record = make_record(cell, outcome, limits, options.threads, self._source[cell.model])
        if outcome.status == OK and outcome.job is not None:
            split, labels = outcome.job.split, self.stored[cell.dataset].graph.labels
            result = outcome.result
            predictions = Predictions(result["val"], result["test"], *result.get("margins", ()))
            if is_scored(cell.split_rule):
                tested = outcome.result.get("tested")  # part of the test nodes, where cost is the purpose
                nodes = split.test if tested is None else tested
                record["metrics"]["test"] = score(labels[nodes], predictions.test, predictions.test_margins)
            else:  # nor kept: nobody can be tempted to look
                predictions = Predictions(predictions.val, predictions.test[:0], predictions.val_margins)
            record["metrics"]["val"] = score(labels[split.val], predictions.val, predictions.val_margins)
            curve = outcome.result["training"]["curve"]
            record["predictions"] = self._predictions.save(predictions, cell.key, curve)
        record["overhead_seconds"] = time.perf_counter() - self._begun.pop(cell.key) - phase_seconds(record)
        if options.purpose is not None:
            record["purpose"] = options.purpose
        self.ledger.append(record)
        self.summary.records[cell.key] = record
        self.summary.ran += 1
        self.on_event(Event("finished", cell, record=record))

    def _release(self, cell: Cell) -> None:
        self._held.pop(cell.key).release()
        self._end_turn()

    def release_all(self) -> None:
        self._end_turn()
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
        for claim in self._held.values():
            claim.release()
        self._held.clear()


def _memory_limit(outcome: Outcome, asked: int | None) -> int | None:
    """What was asked for; where memory ran out, no more than there was: a larger machine may still have enough."""
    capacity = outcome.result.get("capacity")
    if outcome.status != OOM or capacity is None:
        return asked
    return int(capacity) if asked is None else min(asked, int(capacity))


def _without_test_labels(labels: np.ndarray, split: Split) -> np.ndarray:
    """What a worker may know: the labels of training and validation nodes."""
    known = np.full(len(labels), UNKNOWN_LABEL, dtype=np.int64)
    for nodes in (split.train, split.val):
        known[nodes] = labels[nodes]
    return known


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C (or SIGTERM) asks for an orderly end, so that no record is torn; the second one insists."""
    asked = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():  # only the main thread may catch signals
        yield asked.is_set
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
