"""What is measured and what it must reach."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil

from bench.datasets.catalogue import resolve
from bench.datasets.store import Stored, cache_root, open_dataset
from bench.environment import ROOT
from bench.graph import UNKNOWN_LABEL, Graph
from bench.settings import resolve_settings
from bench.sizes import format_size
from bench.splits import draw_split
from models.nagphormer import NAGphormer
from perf.measure import Failed, Measurement, environment, measure, scratch_folder
from perf.table import Row

GB, GiB = 1e9, 2**30
WARM_UP_NODES = 8  # per part of the split: enough to compile everything, too few to take time


class Skipped(Exception):
    """The case cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Options:
    """What the command line says about all cases."""

    data: Path | None
    threads: int
    epochs: int | None = None  # None: each case's own
    rounds: int | None = None
    say: Callable[[str], None] = print


class Case(Protocol):
    """Something that `python -m perf NAME` measures."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    def run(self, options: Options) -> list[Row]: ...


# -- NAGphormer against the reference ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Versus:
    """Author settings on one dataset; reference and ours take turns, each time in a separate process."""

    name: str
    epochs: int
    rounds: int = 1
    per_epoch: float | None = None  # targets: reference / ours, at least
    before: float | None = None
    memory: float | None = None

    @property
    def about(self) -> str:
        return f"author settings on {self.name}: {self.epochs} epochs, {self.rounds} round(s), reference and ours"

    def run(self, options: Options) -> list[Row]:
        stored = open_data(self.name, options)
        [dataset] = resolve(self.name)
        config = asdict(resolve_settings(NAGphormer, dataset.settings_name).config)
        _check_memory(stored.graph, config)
        with scratch_folder() as folder:
            task = {"case": self.name, "folder": str(stored.folder), "rule": dataset.split_rule, "config": config}
            task["model"] = NAGphormer.name
            split = {"split": str(write_split(folder / "split.npz", stored.graph, dataset.split_rule))}
            few = {"split": str(write_split(folder / "few.npz", stored.graph, dataset.split_rule, WARM_UP_NODES))}
            options.say(f"{self.name}: warming up")
            measure({**task, **few, "kind": "ours", "epochs": 1}, options.threads)
            return self._rows(self._take_turns({**task, **split, "epochs": options.epochs or self.epochs}, options))

    def _take_turns(self, task: dict[str, Any], options: Options) -> dict[str, list[Measurement]]:
        taken: dict[str, list[Measurement]] = {"reference": [], "ours": []}
        rounds = options.rounds or self.rounds
        for number in range(1, rounds + 1):
            for kind, measurements in taken.items():
                result = measure({**task, "kind": kind}, options.threads)
                measurements.append(result)
                options.say(f"{self.name}: {kind}, round {number} of {rounds}: {describe(result)}")
        return taken

    def _rows(self, taken: dict[str, list[Measurement]]) -> list[Row]:
        def row(measure: str, value: Callable[[Measurement], float], target: float | None) -> Row:
            reference, ours = (statistics.median(map(value, taken[kind])) for kind in ("reference", "ours"))
            return Row(self.name, measure, ours, reference, target)

        return [
            row("seconds per epoch", lambda taken: taken.per_epoch, self.per_epoch),
            row("seconds before the first step", lambda taken: taken.before, self.before),
            row("peak memory, GB", lambda taken: taken.peak_resident / GB, self.memory),
            row("peak anonymous memory, GB", lambda taken: taken.peak_anonymous / GB, None),
        ]


def describe(result: Measurement) -> str:
    """A measurement in one line."""
    values = result.values
    notes = [f"{name} {choice}" for name, choice in values.get("choices", {}).items()]
    if values.get("compiled", 0.0) > 0.05:
        notes.append(f"{values['compiled']:.1f} s of it compiling: measure again")
    return (
        f"{result.before:.2f} s, then {result.per_epoch:.3f} s per epoch, {format_size(result.peak_resident)}, "
        f"validation accuracy {values['accuracy']:.4f}" + "".join(f", {note}" for note in notes)
    )


def reference_bytes(nodes: int, features: int, config: dict[str, Any]) -> int:
    """What the reference holds while it trains: features without and with encoding, and all tokens twice."""
    width = features + config["encoding_size"]
    return 4 * nodes * (features + width + 2 * (config["hops"] + 1) * width) + GiB


def _check_memory(graph: Graph, config: dict[str, Any]) -> None:
    wanted, there = reference_bytes(graph.num_nodes, graph.num_features, config), psutil.virtual_memory().available
    if wanted > there:
        raise Skipped(f"the reference needs about {format_size(wanted)} of memory, {format_size(there)} are available")


def open_data(name: str, options: Options) -> Stored:
    options.say(f"{name}: opening the data")
    [dataset] = resolve(name)
    return open_dataset(dataset, options.data, cache_root())


def write_split(path: Path, graph: Graph, rule: str, few: int | None = None) -> Path:
    """The split of seed 0 (or a few nodes of each of its parts), and the labels without those of test nodes."""
    split = draw_split(rule, graph.labels, graph.num_classes, seed=0)
    labels = np.array(graph.labels)
    labels[split.test] = UNKNOWN_LABEL
    np.savez(path, train=split.train[:few], val=split.val[:few], test=split.test[:few], labels=labels)
    return path


# -- the harness itself ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overhead:
    """What the harness adds to a cell: everything outside load, preprocess, train and infer."""

    name: str = "overhead"
    trials: int = 3
    seconds: float = 1

    @property
    def about(self) -> str:
        return f"overhead per cell of `bench run`: the largest of {self.trials} cells of gcn on digits"

    def run(self, options: Options) -> list[Row]:
        options.say(f"{self.name}: running {self.trials} cells")
        with scratch_folder() as folder:
            run_digits(
                folder, "gcn", options.threads, "--trials", self.trials, "--max-epochs", 5, "--threads", options.threads
            )
            lines = [
                line for path in (folder / "results" / "ledger").iterdir() for line in path.read_text().splitlines()
            ]
        overheads = [json.loads(line)["overhead_seconds"] for line in lines]
        return [Row(self.name, "seconds per cell", max(overheads), limit=self.seconds)]


@dataclass(frozen=True)
class Sharing:
    """What it gains to run several cells of a small graph at the same time, as `run` does by default."""

    name: str = "sharing"
    models: str = "gat,graphormer,gt,grandplus,nagphormer,nodeformer,san"
    epochs: int = 20

    @property
    def about(self) -> str:
        return f"two cells each of {self.models} on digits: one at a time with all threads, and as `run` does it"

    def run(self, options: Options) -> list[Row]:
        epochs = ("--max-epochs", options.epochs or self.epochs)
        with scratch_folder() as folder:
            options.say(f"{self.name}: warming up")
            run_digits(folder / "first", self.models, options.threads, "--trials", 1, "--max-epochs", 1)
            options.say(f"{self.name}: one at a time")
            alone = run_digits(folder / "alone", self.models, options.threads, "--trials", 2, "--jobs", 1, *epochs)
            options.say(f"{self.name}: as `run` does it")
            shared = run_digits(folder / "shared", self.models, options.threads, "--trials", 2, *epochs)
        return [Row(self.name, "seconds", shared, alone, ratio_target=1.0)]


def run_digits(folder: Path, models: str, threads: int, *arguments: object) -> float:
    """`bench run` on digits with its results in this folder; returns the seconds."""
    command = [sys.executable, "-m", "bench", "run", "--models", models, "--datasets", "digits", *map(str, arguments)]
    command += ["--results", str(folder / "results")]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=environment(threads), capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
    return time.perf_counter() - start


NAGPHORMER_CASES: tuple[Case, ...] = (
    Versus("photo", epochs=10, rounds=3, per_epoch=1.1),
    Versus("computer", epochs=3, rounds=2, per_epoch=1.1),
    Versus("pubmed", epochs=2, per_epoch=0.95),
    Versus("cs", epochs=2, per_epoch=1.3, before=10, memory=2),
    Versus("physics", epochs=2, per_epoch=2.5, before=10, memory=10),
    Overhead(),
    Sharing(),
)
