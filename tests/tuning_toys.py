"""For the tests of tuning: a toy with a search space, and an executor that only imagines how a training goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import ring_dataset
from toy_models import Toy

from bench.datasets.catalogue import Dataset, resolve
from bench.datasets.store import Stored
from bench.executors import EndCell, Event, Outcome
from bench.ledger import Ledger
from bench.model import Model
from bench.predictions import PredictionStore
from bench.runner import RunOptions, Summary, run_stream
from bench.space import Whole
from bench.tuning.driver import Driver
from bench.tuning.sampling import SlotSampler
from bench.tuning.search import Search, sealed_away
from bench.tuning.study import Budget, Trial, Tuning, open_tuning
from bench.worker import Job


class Tunable(Toy):
    name = "tunable"
    spaces = {  # noqa: RUF012
        "wide": {"learning_rate": (0.001, 0.01, 0.05), "dropout": (0.0, 0.25, 0.5), "batch_size": Whole(4, 40)}
    }


def find(name: str) -> type[Model]:
    assert name == Tunable.name
    return Tunable


class KilledHere(BaseException):
    """Stands for kill -9: nobody cleans up after it."""


def imagined_accuracy(config: dict[str, Any]) -> float:
    """Twelve validation nodes, so twelfths: any function of the settings will do."""
    return ((7 * config["batch_size"] + int(1000 * config["learning_rate"]) + int(4 * config["dropout"])) % 11 + 1) / 12


class Imagined:
    """An executor for which a training takes no time: its best accuracy is known, its curve rises to it.

    `fate` tells the status of a job, and behind a colon the reason; `seconds` how long it trains.
    At the job number `dies_at`, counted from 1, the driver is killed.
    """

    def __init__(
        self,
        fate: Callable[[Job], str] = lambda job: "ok",
        dies_at: int = 0,
        seconds: Callable[[dict[str, Any]], float] = lambda config: config["max_epochs"] / 10,
    ) -> None:
        self.fate, self.dies_at, self.seconds = fate, dies_at, seconds
        self.jobs: list[Job] = []

    def run(
        self, jobs: Iterator[Job | None], on_event: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> Iterator[Outcome]:
        while not stopped():
            try:
                job = next(jobs)
            except StopIteration:
                return
            if job is None:
                time.sleep(0.01)
                continue
            self.jobs.append(job)
            on_event(Event("started", job.cell))
            yield self._outcome(job, on_event)

    def _outcome(self, job: Job, on_event: Callable[[Event], None]) -> Outcome:
        config = dict(job.cell.config)
        best, epochs = imagined_accuracy(config), config["max_epochs"]
        status, _, reason = self.fate(job).partition(":")
        curve = [(1.0, 1.0, best * epoch / epochs) for epoch in range(1, epochs + 1)]
        if len(self.jobs) == self.dies_at:
            raise KilledHere
        if status != "ok":
            return Outcome(job, status, reason or f"it was {status}", result={"phases": _phases(5.0)})
        try:
            for epoch, (_, _, accuracy) in enumerate(curve, start=1):
                on_event(Event("progress", job.cell, "train", epoch, epochs, accuracy))
        except EndCell as reason:
            return Outcome(job, "pruned", str(reason), result={"phases": _phases(epoch / 10)})
        truth = job.labels[job.split.val]
        val = truth.astype(np.uint8)
        wrong = round((1 - best) * len(truth))
        val[:wrong] = (truth[:wrong] + 1) % 3
        training = {"epochs": epochs, "stopped_by": "max_epochs", "curve": curve}
        test = np.zeros(len(job.split.test), np.uint8)
        result = {"phases": _phases(self.seconds(config)), "training": training, "val": val, "test": test}
        return Outcome(job, "ok", "", result=result)


def _phases(seconds: float) -> dict[str, Any]:
    phase = {"compile_seconds": 0.0, "peak_resident": None, "peak_anonymous": None, "peak_data": None}
    preprocess = {"seconds": 1.0, "reused_seconds": 2.0, **phase}
    return {"preprocess": preprocess, "train": {"seconds": seconds, **phase}}


class Silent:
    """A listener that remembers what it was told about trials."""

    def __init__(self) -> None:
        self.heard: list[tuple[Trial | None, str]] = []

    def on_event(self, event: Event) -> None:
        pass

    def on_trials(self, trials: list[Trial], last: Trial | None, note: str) -> None:
        self.heard.append((last, note))


def ring_search(data: Path, **options: Any) -> tuple[Search, Stored]:
    """A search on the ring of 60 nodes, and the ring without its sealed labels."""
    stored = ring_dataset(data)["ring"]
    [dataset] = resolve(str(data / "ring.npz"))
    return make_search(dataset, stored, **options), sealed_away(stored)


def make_search(dataset: Dataset, stored: Stored, **options: Any) -> Search:
    search = Search(Tunable, dataset, stored.graph.fingerprint, **{"prune": False, "sampler": "random", **options})
    return replace(search, dataset=replace(dataset, name="ring"))


def open_study(search: Search, results: Path, url: str | None = None, name: str = "toys") -> Tuning:
    sampler = SlotSampler(search.sampler, search.seed, search.space, search.first)
    return open_tuning(name, search.identity(), sampler, search.pareto, url, results / "tuning" / "toys.journal")


def kill_while_asking(tuning: Tuning, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver die when it has written down its trial, and has not yet shown that it works on it."""

    def die(trial_id: int) -> None:
        raise KilledHere

    monkeypatch.setattr(tuning.presence, "begin", die)
    with pytest.raises(KilledHere):
        tuning.ask(0)
    tuning.close()


def drive(
    search: Search,
    stored: Stored,
    results: Path,
    budget: Budget,
    executor: Any = None,
    listener: Silent | None = None,
    url: str | None = None,
) -> list[Trial]:
    """Fill a study's slots and return the trials that count; a KilledHere leaves behind what a killed process would."""
    tuning = open_study(search, results, url)
    driver = Driver(search, tuning, budget, PredictionStore(results), listener or Silent())
    try:
        run_driver(driver, search, stored, results, executor or Imagined())
        return tuning.trials()
    finally:
        tuning.close()


def run_driver(driver: Driver, search: Search, stored: Stored, results: Path, executor: Any) -> Summary:
    options = RunOptions(progress_interval=0.0, cache_folder=results / "prepared")
    graphs = {search.dataset.name: stored}
    names = [search.model.name]
    return run_stream(driver.cells(), names, graphs, options, Ledger(results), executor, driver.on_event, find)
