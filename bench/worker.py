"""One cell in its own process: load, prepare, train, predict, and tell the parent what came of it.

The process is forked from a server that has imported the big libraries and run nothing with them: a thread pool that
existed before the fork would be dead after it. What the worker is given holds no test label.
"""

from __future__ import annotations

import dataclasses
import importlib
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
import torch

from bench.cells import Cell
from bench.datasets.store import open_arrays
from bench.environment import usable_processors
from bench.executors.devices import capacity_of
from bench.executors.failures import describe_failure
from bench.executors.meter import LoadWatch, Meter
from bench.executors.process import fill_blas_buffers, lift_memory_limit, limit_memory, pin_to_processors, use_threads
from bench.graph import UNKNOWN_LABEL, Graph, Split
from bench.metrics import find_metric
from bench.model import Model
from bench.prepared import PrepareCache
from bench.records import OK, OOM, PART_OF_INFERENCE, UNSUPPORTED
from bench.registry import source_hash
from bench.sizes import format_size
from bench.train import Diverged, margins_of, train

Send = Callable[[str, Any], None]  # kind of message, content
# An estimate is believed only where it is beyond doubt: a try that fails for lack of memory fails soon.
DOUBT = 3  # times the limit; of a small graph, what threads and compiled code take cannot be estimated
PROGRESS_INTERVAL = 0.25  # seconds between two progress messages, unless the job wants all of them


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """How the cells of a run are run; nothing here is part of a cell's key."""

    threads: int = 1  # per worker
    memory_limit: int | None = None  # bytes above what the process has at its start
    time_limit: float | None = None  # seconds per cell; the executor's business
    cache_folder: Path | None = None  # prepared arrays that cells share; None: nothing is kept
    cache_limit: int = 40 * 2**30
    paths: tuple[str, ...] = ()  # where models outside the package are imported from
    believe_estimates: bool = True  # a cell that its model says will not fit is `oom` without being tried
    progress_interval: float = PROGRESS_INTERVAL  # seconds between two signs of life; 0: at every evaluation


@dataclass(frozen=True, eq=False)
class Job(CellOptions):
    """Everything a worker needs; it can be pickled, and says nothing about how or where it will be run."""

    cell: Cell
    module: str  # where the model's class is found
    class_name: str
    graph_folder: Path  # canonical arrays without labels
    labels: np.ndarray  # int64; known for training and validation nodes only
    split: Split
    device: str = "cpu"  # "cpu", "cuda" or "cuda:1"
    pinned: bool = False  # keep to as many processors as there are threads
    inference_nodes: int | None = None  # to measure inference on, where there are so many; None: val and test nodes
    source: str = ""  # the hash of the model's source that the record will name


def run_cell(job: Job, send: Send) -> dict[str, Any]:
    """Run the cell and return the worker's part of its record; never raises for what the cell itself does wrong."""
    device = job.device.partition(":")[0]  # of several GPUs the process sees one
    load = LoadWatch()
    if job.pinned:
        pin_to_processors(job.threads)
    use_threads(job.threads)
    _be_deterministic()
    fill_blas_buffers()
    meter = Meter(device, torch.cuda, on_phase=lambda name, measured: send("phase", (name, measured)))
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    start: dict[str, Any] = {
        "baseline_anonymous": meter.baseline_anonymous,
        "gpu": gpu,
        "capacity": capacity_of(device),
    }
    send("start", start)  # this and every phase go ahead of the result, for records of workers that do not live so long
    result = {**start, "phases": meter.phases}
    limit_memory(job.memory_limit, device)
    try:
        result.update(_steps(job, meter, device, send))
    except Exception as error:
        lift_memory_limit()
        seen = max((measured["peak_data"] or 0 for measured in meter.phases.values()), default=0)
        status, reason = describe_failure(error, meter.current, job.memory_limit, seen)
        result.update(status=status, reason=reason, error=error)
    result["load"] = {**load.look(), "usable": usable_processors()}  # after pinning: what the cell could use
    return result


def _steps(job: Job, meter: Meter, device: str, send: Send) -> dict[str, Any]:
    sys.path[:0] = [path for path in job.paths if path not in sys.path]
    model_class = _import_model(job)
    config = model_class.Config(**job.cell.config)
    with meter.phase("load"):
        graph = _with_training_labels(open_arrays(job.graph_folder), job)
        refusal = _refusal(model_class, graph, config, job.memory_limit if job.believe_estimates else None)
    if refusal is not None:
        return refusal

    cache = PrepareCache(job.cache_folder, job.cache_limit, on_wait=lambda waits: send("waiting", waits))
    with meter.phase("preprocess") as facts:
        _seed(job.cell.seed)
        # What is cached must not depend on the number of threads: BLAS sums in another order with more of them.
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            prepared = model_class.prepare(graph, job.split, config, job.cell.seed, cache)
        facts.update(source=cache.source, reused_seconds=cache.reused, waited_seconds=cache.waited)
        facts.update(prepared_bytes=cache.on_disk, prepared_in_memory=cache.in_memory)
        _seed(job.cell.seed)  # again: a preparation that was found in the cache has drawn no random numbers
        model = model_class(graph, prepared, config).to(device)
    del prepared

    with meter.phase("train") as facts:
        tell, evaluations = _progress(send, config.max_epochs, job.progress_interval), _Evaluations()
        training = train(model, job.split, torch.from_numpy(job.labels), config, evaluations.before(tell))
        facts.update(first_evaluation=evaluations.first, last_evaluation=evaluations.last)
    asked, others = _inference_sample(job)
    nodes = np.concatenate([asked.val, asked.test, others])
    if job.inference_nodes is not None and len(nodes) < graph.num_nodes:
        # A tenth of them first: two sizes tell what a node takes from what the graph takes, however few are asked for.
        with meter.phase(PART_OF_INFERENCE) as facts:
            facts["nodes"] = len(_predict(model, nodes[::10]))
    with meter.phase("infer") as facts:
        facts["nodes"] = len(nodes)
        scores = _predict(model, nodes)
        classes = _compact(scores.argmax(1).cpu().numpy(), graph.num_classes)
    ends = np.cumsum([len(asked.val), len(asked.test)])
    val, test, _ = np.split(classes, ends)
    margins = np.split(margins_of(scores), ends)[:2] if find_metric(config.metric).needs_scores else [None, None]
    return {
        "status": OK,
        "reason": "",
        "training": dataclasses.asdict(training),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "choices": {str(name): str(choice) for name, choice in model.choices().items()},
        "val": val,
        "test": test,
        "margins": margins,
        "tested": asked.test if len(asked.test) < len(job.split.test) else None,
    }


def _import_model(job: Job) -> type[Model]:
    """The model's class; what the fork server has not imported may have been edited since the run began."""
    is_new = job.module not in sys.modules
    model_class: type[Model] = getattr(importlib.import_module(job.module), job.class_name)
    if is_new and job.source and source_hash(model_class) != job.source:
        raise RuntimeError(f"the file of {job.cell.model} was changed during the run; run again for the new version")
    return model_class


def _with_training_labels(graph: Graph, job: Job) -> Graph:
    """What the model sees: validation labels are the training loop's alone."""
    labels = np.full(graph.num_nodes, UNKNOWN_LABEL, dtype=np.int64)
    labels[job.split.train] = job.labels[job.split.train]
    return graph.with_labels(labels)


def _refusal(model: type[Model], graph: Graph, config: Any, limit: int | None) -> dict[str, Any] | None:
    """Why it is not worth starting, if the model itself says so."""
    reason = model.unsupported(graph, config)
    if reason is not None:
        return {"status": UNSUPPORTED, "reason": reason}
    estimate = model.estimate_memory(graph, config)
    if limit is not None and estimate is not None and estimate > DOUBT * limit:
        return {
            "status": OOM,
            "reason": f"estimated: needs about {format_size(estimate)}, the limit is {format_size(limit)}",
        }
    return None


class _Evaluations:
    """Epoch and seconds, since training began, of the first and the last look at the validation nodes.

    The time between them is free of what the first epochs pay once: compilation, threads, memory that is touched first.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.first: tuple[int, float] | None = None
        self.last: tuple[int, float] | None = None

    def before(self, tell: Callable[[int, float], None]) -> Callable[[int, float], None]:
        def on_epoch(epoch: int, val_accuracy: float) -> None:
            self.last = (epoch, time.perf_counter() - self._began)
            self.first = self.first or self.last
            tell(epoch, val_accuracy)

        return on_epoch


def _inference_sample(job: Job) -> tuple[Split, np.ndarray]:
    """The split, with part of the test nodes where these are more than were asked for, and training nodes to make up.

    The latter are predicted only so that inference is measured on enough nodes.
    """
    split, wanted = job.split, job.inference_nodes
    if wanted is None:
        return split, split.train[:0]
    room = max(wanted - len(split.val), 1)
    if len(split.test) > room:
        chosen = np.random.default_rng(job.cell.seed).choice(len(split.test), room, replace=False)
        return dataclasses.replace(split, test=split.test[np.sort(chosen)]), split.train[:0]
    return split, split.train[: room - len(split.test)]


def _predict(model: Model, nodes: np.ndarray) -> torch.Tensor:
    """Scores of the classes, node by node."""
    model.eval()
    with torch.no_grad():
        scores = model.predict(torch.from_numpy(nodes))
        if bool(scores.isnan().any()):
            raise Diverged("the model predicts NaN")
    return scores


def _compact(classes: np.ndarray, num_classes: int) -> np.ndarray:
    """The same in the smallest type that holds every class."""
    return classes.astype(np.min_scalar_type(max(num_classes - 1, 1)))


def _progress(send: Send, max_epochs: int, interval: float = PROGRESS_INTERVAL) -> Callable[[int, float], None]:
    last = -interval

    def on_epoch(epoch: int, val_accuracy: float) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= interval:
            last = now
            send("progress", (epoch, max_epochs, val_accuracy, now))

    return on_epoch


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _be_deterministic() -> None:
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms() would import the compiler: seconds
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
