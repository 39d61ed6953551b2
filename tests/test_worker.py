"""The worker's pieces that need no process of their own; whole cells are in test_runner.py."""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from running import ring_dataset, toy_cell
from toy_models import Announced, Choosy, Toy, ToyConfig

from bench import worker
from bench.environment import ROOT, code_version, environment
from bench.executors.failures import describe_death, describe_failure, requested_size, strip_paths
from bench.executors.process import see_one_gpu
from bench.graph import UNKNOWN_LABEL
from bench.registry import source_hash
from bench.splits import draw_split
from bench.train import Diverged
from bench.worker import Job, _import_model

GB = 10**9


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    stored = ring_dataset(tmp_path_factory.mktemp("data"))
    graph = stored["ring"].graph
    split = draw_split("uniform-60/20/20", graph.labels, 3, 0)
    labels = graph.labels.copy()
    labels[split.test] = UNKNOWN_LABEL
    return Job(toy_cell(stored), "toy_models", "Toy", stored["ring"].folder, labels, split)


def test_the_model_sees_training_labels_only(job: Job) -> None:
    graph = worker.open_arrays(job.graph_folder)
    assert (graph.labels == UNKNOWN_LABEL).all()
    seen = worker._with_training_labels(graph, job).labels
    assert np.flatnonzero(seen != UNKNOWN_LABEL).tolist() == job.split.train.tolist()
    assert (seen[job.split.train] == job.split.train % 3).all()  # how the ring's labels were made


def test_a_model_may_refuse_before_anything_is_spent(job: Job) -> None:
    graph, config = worker.open_arrays(job.graph_folder), ToyConfig()
    assert worker._refusal(Toy, graph, config, 1) is None
    assert worker._refusal(Announced, graph, config, None) is None  # no limit: it may try
    refused = worker._refusal(Announced, graph, config, 11 * GB)
    assert refused == {"status": "oom", "reason": "estimated: needs about 1000 TB, the limit is 11.0 GB"}
    modest = type("Modest", (Toy,), {"estimate_memory": classmethod(lambda cls, graph, config: 300_000_000)})
    assert worker._refusal(modest, graph, config, 100_000_000) is None  # three times the limit: it may be wrong
    assert worker._refusal(modest, graph, config, 99_000_000) is not None
    refused = worker._refusal(Choosy, graph, config, None)
    assert refused == {"status": "unsupported", "reason": "only graphs with a name of seven letters"}


class Fixed(Toy):
    """Predicts what it is told to."""

    def predict(self, nodes: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(nodes % 3, self.width).float() * self.scale

    width, scale = 3, 1.0


def test_predictions_are_arg_max_classes(job: Job) -> None:
    model = Fixed(worker.open_arrays(job.graph_folder), {"scaled": np.zeros((60, 8), np.float32)}, ToyConfig())
    assert worker._predict(model, job.split.test).argmax(1).tolist() == (job.split.test % 3).tolist()


@pytest.mark.parametrize(("classes", "dtype"), [(1, np.uint8), (3, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_predictions_are_kept_in_the_smallest_type(classes: int, dtype: type) -> None:
    kept = worker._compact(np.array([0, classes - 1]), classes)
    assert kept.dtype == dtype and kept.tolist() == [0, classes - 1]


def test_predicting_nan_is_divergence(job: Job) -> None:
    model = Fixed(worker.open_arrays(job.graph_folder), {"scaled": np.zeros((60, 8), np.float32)}, ToyConfig())
    model.scale = float("nan")
    with pytest.raises(Diverged, match="NaN"):
        worker._predict(model, job.split.test)


def test_progress_is_told_four_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0.0, 2.0, 0.01))  # an evaluation every 10 ms
    monkeypatch.setattr(worker.time, "perf_counter", lambda: next(clock))
    told = []
    on_epoch = worker._progress(lambda kind, content: told.append((kind, content)), 500)
    for epoch in range(1, 101):
        on_epoch(epoch, epoch / 1000)
    # an epoch, how many there may be, its accuracy, and when it ended
    assert told[:2] == [("progress", (1, 500, 0.001, 0.0)), ("progress", (26, 500, 0.026, 0.25))]
    assert len(told) == 4  # in this first second


# -- what failures are called -----------------------------------------------------------------------------------------


def _numpy_error() -> Exception:
    try:
        np.ones((2**40, 4), dtype=np.float64)
    except MemoryError as error:
        return error
    raise AssertionError("this machine has 32 TiB of memory")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (MemoryError(), "oom", "memory ran out during train, the limit is 8.00 GB"),
        (_numpy_error(), "oom", "asked for 35.2 TB more during train, the limit is 8.00 GB"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to "
                         "allocate 4000000000 bytes. Error code 12 (Cannot allocate memory)"),
            "oom",
            "asked for 4.00 GB more during train, the limit is 8.00 GB",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."),
            "oom",
            "asked for 2.15 GB more during train, the limit is 8.00 GB",
        ),
        (RuntimeError("std::bad_alloc"), "oom", "memory ran out during train, the limit is 8.00 GB"),
        (RuntimeError("can't start new thread"), "oom", "memory ran out during train, the limit is 8.00 GB"),
        (OSError(12, "Cannot allocate memory"), "oom", "memory ran out during train, the limit is 8.00 GB"),
        (Diverged("the loss became nan"), "diverged", "the loss became nan"),
        (RuntimeError("shapes do\nnot fit"), "error", "RuntimeError during train: shapes do not fit"),
        (ValueError("out of memory"), "error", "ValueError during train: out of memory"),  # nobody's allocator
    ],
)  # fmt: skip
def test_exceptions_become_a_status_and_a_reason(error: Exception, status: str, reason: str) -> None:
    assert describe_failure(error, "train", 8 * GB) == (status, reason)


def test_memory_that_ran_out_underneath_another_exception_is_still_that() -> None:
    outer = RuntimeError("the eigensolver failed")
    outer.__cause__ = MemoryError()
    assert describe_failure(outer, None, None) == ("oom", "memory ran out before the first phase")


def test_a_thread_that_cannot_start_without_a_memory_limit_is_an_error() -> None:
    assert describe_failure(RuntimeError("can't start new thread"), "train", None)[0] == "error"


@pytest.mark.parametrize(
    "error",
    [RuntimeError("could not create a primitive"), SystemError("<kernel> error return without exception set")],
)
def test_what_may_be_lack_of_memory_is_blamed_on_the_limit_where_it_is_near(error: Exception) -> None:
    assert describe_failure(error, "infer", 8 * GB, 7_900_000_000)[0] == "oom"
    assert describe_failure(error, "infer", 8 * GB, 1_000_000_000)[0] == "error"
    assert describe_failure(error, "infer", None, 7_900_000_000)[0] == "error"


@pytest.mark.parametrize(
    ("exit_code", "log", "limit", "seen", "kernel", "status"),
    [
        (-signal.SIGKILL, "", None, 0, False, "interrupted"),
        (-signal.SIGKILL, "", None, 0, True, "oom"),
        (-signal.SIGABRT, "", None, 0, False, "error"),
        (-signal.SIGABRT, "", 8 * GB, 7.5 * GB, False, "oom"),
        (-signal.SIGABRT, "", 8 * GB, 3 * GB, False, "error"),
        (-signal.SIGABRT, "terminate called after throwing 'std::bad_alloc'", 8 * GB, 3 * GB, False, "oom"),
        (1, "libgomp: Thread creation failed: Resource temporarily unavailable", 8 * GB, 0, False, "oom"),
        (1, "libgomp: Thread creation failed: Resource temporarily unavailable", None, 0, False, "error"),
        (-signal.SIGSEGV, "", 8 * GB, 0, False, "error"),
        (3, "", None, 0, False, "error"),
        (255, "", None, 0, False, "interrupted"),  # the fork server is gone
    ],
)
def test_deaths_become_a_status(
    exit_code: int, log: str, limit: int | None, seen: int, kernel: bool, status: str
) -> None:
    found, reason = describe_death(exit_code, "train", log, limit, seen, kernel)
    assert found == status
    assert "during train" in reason and "\n" not in reason


def test_requested_sizes() -> None:
    assert requested_size("Unable to allocate 7.50 GiB for an array with shape (1, 2)") == 7.5 * 2**30
    assert requested_size("you tried to allocate 12 bytes") == 12
    assert requested_size("no size here") is None


def test_absolute_paths_are_stripped() -> None:
    inside = ROOT / "bench" / "train.py"
    library = Path(torch.__file__)
    text = (
        f"File \"{inside}\", line 3\n  {library}:7: warning\nopened '/home/jane doe/x/data.npz' and /var/tmp/a-b/c.txt"
    )
    assert strip_paths(text) == (
        "File \"bench/train.py\", line 3\n  torch/__init__.py:7: warning\nopened 'data.npz' and c.txt"
    )
    users = "no '/home/alice' or /Users/bob, no /home/alice/ nor '/root' nor /root: see /home/alice/x and /root/y.txt"
    assert strip_paths(users) == "no '…' or …, no … nor '…' nor …: see x and y.txt"
    harmless = "see https://example.org/a/b, and/or 1/2 of shape (3, 4), tree/root, /rooted, /home"
    assert strip_paths(harmless) == harmless


# -- where it runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [("cuda:1", None, "1"), ("cuda:1", "4,6", "6"), ("cuda", "4,6", "4,6"), ("cpu", None, None)],
)
def test_a_worker_sees_one_gpu(
    device: str, visible: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    see_one_gpu(device)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == device.startswith("cuda")


def test_the_environment_names_versions_but_no_place(tmp_path: Path) -> None:
    found = environment(2, "cpu", None)
    assert found["torch"] == version("torch") and found["numpy"] == np.__version__
    assert found["threads"] == 2 and found["device"] == "cpu" and found["gpu"] is None
    libraries = {"torch", "numpy", "scipy", "numba", "torch_geometric", "dgl"}
    assert set(found) == libraries | {"python", "processor", "gpu", "threads", "device", "code", "load_average"}
    assert str(ROOT) not in str(found)
    assert code_version(tmp_path).startswith("version ")  # no repository: the package's own version


def test_a_file_that_was_edited_during_the_run_is_not_recorded_under_its_old_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edited_meanwhile.py").write_text("class Own:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    job: Any = SimpleNamespace(
        module="edited_meanwhile", class_name="Own", source="of the version before", cell=SimpleNamespace(model="own")
    )
    with pytest.raises(RuntimeError, match="the file of own was changed during the run; run again"):
        _import_model(job)
    known = _import_model(job)  # what was imported before the run began is what the hash is of
    assert known.__name__ == "Own"
    job.source = source_hash(known)
    monkeypatch.delitem(sys.modules, "edited_meanwhile")
    assert _import_model(job).__name__ == "Own"
