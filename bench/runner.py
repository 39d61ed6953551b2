"""Plan minus ledger → executor → ledger: the parent process of a run.

Only this side knows the test labels. It draws the splits, hands each worker the labels of training and validation
nodes, scores what comes back and writes the record.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import sklearn.metrics  # noqa: F401  scoring the first cell would import it: half a second of overhead
from rich.console import Console

from bench.cells import Cell
from bench.claims import Claim, Claims
from bench.console import say
from bench.datasets.store import Stored
from bench.environment import code_version, environment
from bench.errors import UserError
from bench.executors import LOCAL, Event, Executor, Outcome
from bench.graph import UNKNOWN_LABEL, Split
from bench.ledger import Ledger, check_writable
from bench.metrics import score
from bench.predictions import Predictions, PredictionStore
from bench.prepared import private_folder
from bench.records import COST, OK, OOM, UNSUPPORTED, Record, is_capped, phase_seconds
from bench.registry import find_model, source_hash
from bench.reuse import PROTOCOL_REVISION, FindModel, find_reusable_under, pending, would_repeat
from bench.splits import draw_split, is_scored
from bench.worker import CellOptions, Job

OnEvent = Callable[[Event], None]
COST_NODES = 200_000  # nodes on which inference is measured where cost is the purpose, or all if there are fewer
TURNS = Path(tempfile.gettempdir()) / f"nagphormer-bench-{os.getuid()}"  # where cost cells of this machine line up


@dataclass(frozen=True, kw_only=True)
class RunOptions(CellOptions):
    """What a run does with its cells; nothing here is part of a cell's key."""

    retry: frozenset[str] = frozenset()  # statuses that are run again; `interrupted` always is
    redo: bool = False  # run everything again
    device: str = "cpu"  # or "cuda", "cuda:1": where cost is the purpose, only what was measured on it answers
    executor: str = LOCAL  # which of bench/executors
    purpose: str | None = None  # what the records are for, where that is not accuracy: then only such records answer
    private_arrays: bool = False  # nothing prepared is shared: what older code prepared would prove nothing of the new

    @property
    def for_each_cell(self) -> dict[str, Any]:
        """What a worker needs to know of it."""
        return {item.name: getattr(self, item.name) for item in fields(CellOptions)}

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
    todo, reused = pending(cells, ledger, options, find)
    judged = {id(record) for cell in todo for record in ledger.of(cell.key)}  # and found wanting
    run = _Run({cell.model for cell in todo}, stored, options, ledger, on_event, find)
    run.summary.records.update(reused)
    run.summary.earlier = len(reused)
    jobs = run.jobs(iter(todo), lambda cell, record: id(record) not in judged, in_order=False)
    return run.work_through(jobs, executor)


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
    run = _Run(models, stored, options, ledger, on_event, find)
    return run.work_through(run.jobs(cells, run.would_repeat, in_order=True), executor)


@dataclass(eq=False)
class _Run:
    """The parent's side of one run: makes jobs when they are wanted, and records out of what becomes of them."""

    models: Collection[str]
    stored: Mapping[str, Stored]
    options: RunOptions
    ledger: Ledger
    on_event: OnEvent
    find: FindModel
    summary: Summary = field(default_factory=Summary)

    def __post_init__(self) -> None:
        check_writable(self.ledger.results, "predictions", ".claims")
        self._claims = Claims(self.ledger.results)
        self._held: dict[str, Claim] = {}
        self._turn: Claim | None = None  # to measure on this machine
        self._told_to_wait = False
        self._begun: dict[str, float] = {}
        self._predictions = PredictionStore(self.ledger.results)
        shared = self.options.cache_folder
        self._own = private_folder(shared) if shared is not None and self.options.prepares_alone else None
        # asked now, not when the first record is written: by then a file may have been edited
        self._source = {name: source_hash(self.find(name)) for name in self.models}
        code_version()

    def work_through(self, jobs: Iterator[Job | None], executor: Executor) -> Summary:
        with _stop_on_signals() as stopped:
            try:
                for outcome in executor.run(jobs, self.on_event, stopped):
                    self.finish(outcome)
            finally:
                self.release_all()
            self.summary.interrupted = stopped()
        return self.summary

    def jobs(
        self, cells: Iterator[Cell | None], admits: Callable[[Cell, Record], bool], in_order: bool
    ) -> Iterator[Job | None]:
        """Yield jobs for cells that no admitted record answers; None while there is none.

        A cell that another run has claimed is waited for, for its record will answer: at once, or after all others.
        """
        while True:
            claimed_elsewhere = []
            for cell in cells:
                if cell is None:
                    yield None
                    continue
                while not (claimed := self._claim(cell)) and in_order:
                    yield None
                if not claimed:
                    claimed_elsewhere.append(cell)
                elif job := self._open(cell, admits):
                    yield job
            if not claimed_elsewhere:
                return
            yield None
            cells = iter(claimed_elsewhere)

    def _claim(self, cell: Cell) -> bool:
        """Take the cell, and where cost is measured this machine's turn; False while others hold one of them."""
        if self.options.purpose == COST and not self._take_turn(cell):
            return False
        claim = self._claims.take(cell.key, f"{cell.model}\t{cell.dataset}")
        if claim is None:
            self._end_turn()
            return False
        self._held[cell.key] = claim
        return True

    def _open(self, cell: Cell, admits: Callable[[Cell, Record], bool]) -> Job | None:
        """The job of a claimed cell; None, and the claim is released, where there is nothing to run."""
        self.ledger.refresh()
        admitted = [record for record in self.ledger.of(cell.key) if admits(cell, record)]
        record = find_reusable_under(admitted, self.options)
        if record is None:
            job = self._job(cell)
        else:
            job = None
            self.summary.records[cell.key] = record
            self.summary.elsewhere += 1
            self.on_event(Event("finished", cell, record=record, elsewhere=True))
        if job is None:
            self._release(cell)
        return job

    def would_repeat(self, cell: Cell, record: Record) -> bool:
        """Whether running the cell now would give this record, whose curve is still there."""
        if not would_repeat(record, cell, self.find(cell.model), self._source[cell.model], self.options):
            return False
        return record["status"] != OK or self._predictions.has(record["predictions"], record["key"])

    def _take_turn(self, cell: Cell) -> bool:
        """Whether this cell may start: on one machine the cost of one cell at a time is measured."""
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

    def _job(self, cell: Cell) -> Job | None:
        graph = self.stored[cell.dataset].graph
        self._begun[cell.key] = time.perf_counter()
        try:
            split = draw_split(cell.split_rule, graph.labels, graph.num_classes, cell.split_seed, graph.masks)
        except UserError as error:  # a matter of this dataset; the others go on
            self._keep(cell, Outcome(None, UNSUPPORTED, f"no split: {error}"))
            return None
        model = self.find(cell.model)
        measures_cost = self.options.purpose == COST
        job = Job(
            cell,
            model.__module__,
            model.__qualname__,
            self.stored[cell.dataset].folder,
            _without_test_labels(graph.labels, split),
            split,
            pinned=measures_cost,
            inference_nodes=COST_NODES if measures_cost else None,
            source=self._source[cell.model],
            **self.options.for_each_cell,
        )
        # where the cell finds prepared arrays, or keeps those that it needs for itself
        return job if self._own is None else replace(job, cache_folder=self._own / cell.key)

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
        record = _make_record(cell, outcome, limits, options.threads, self._source[cell.model])
        if outcome.status == OK and outcome.job is not None:
            split, labels = outcome.job.split, self.stored[cell.dataset].graph.labels
            result = outcome.result
            predictions = Predictions(result["val"], result["test"], *result.get("margins", ()))
            if is_scored(cell.split_rule):
                tested = outcome.result.get("tested")  # part of the test nodes, where cost is the purpose
                nodes = split.test if tested is None else tested
                record["metrics"]["test"] = score(labels[nodes], predictions.test, predictions.test_margins)
            else:  # nor kept: it cannot be looked at
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


def _make_record(
    cell: Cell, outcome: Outcome, limits: dict[str, float | None], threads: int, source: str
) -> dict[str, Any]:
    """Everything but the scores, the predictions' hash and the overhead, which are known last."""
    result, job = outcome.result, outcome.job
    record: dict[str, Any] = {
        "key": cell.key,
        "model": cell.model,
        "revision": cell.revision,
        "dataset": cell.dataset,
        "data": cell.data,
        "config": dict(cell.config),
        "split": {
            "rule": cell.split_rule,
            "seed": cell.split_seed,
            "fingerprint": None if job is None else job.split.fingerprint,
        },
        "seed": cell.seed,
        "labels": dict(cell.labels),
        "status": outcome.status,
        "reason": outcome.reason,
        "metrics": {},
        "training": _training(cell, result.get("training")),
        "phases": result["phases"],
        "overhead_seconds": 0.0,
        "baseline_anonymous": result.get("baseline_anonymous"),
        "parameters": result.get("parameters"),
        "choices": result.get("choices", {}),
        "limits": limits,
        "environment": environment(threads, outcome.device, result.get("gpu")),
        "load": result.get("load"),
        "source": source,
        "protocol": PROTOCOL_REVISION,
        "predictions": None,
        "started": outcome.started,
    }
    if outcome.log_tail:
        record["log"] = outcome.log_tail
    return record


def _training(cell: Cell, training: dict[str, Any] | None) -> dict[str, Any]:
    """How the training went, without its curve; `capped` where --max-epochs, not the recipe, ended it."""
    if training is None:
        return {}
    kept = {name: value for name, value in training.items() if name != "curve"}
    return {**kept, "capped": is_capped(training, cell.labels.get("cap") is not None)}


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
