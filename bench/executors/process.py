"""What a worker process does to itself before the cell: die with its parent, log to a file, keep to its limits."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from bench.executors.meter import read_memory

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """See to it that this process does not outlive the one that asked for it.

    The kernel kills us when our parent, the fork server, ends; the server ends when no process holds its "alive" pipe.
    Every child gets a copy of that pipe, so we must drop ours, and only after asking for the signal: until then
    our copy keeps the server alive and the order cannot go wrong.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def keep_locks_private() -> None:
    """A library's process-wide locks are to be anonymous: named ones would outlive a worker that is killed."""
    multiprocessing.set_start_method("fork", force=True)


def leave_terminal() -> None:
    """Ctrl-C is the parent's to handle, and should memory run out, we are the one to go, not the parent."""
    os.setpgid(0, 0)
    with contextlib.suppress(OSError):  # not Linux, or not allowed: then the kernel decides
        Path("/proc/self/oom_score_adj").write_text("500")


def log_to(path: Path) -> None:
    """Everything printed from here on, by Python or by a library, goes to the cell's log."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    faulthandler.enable()


def see_one_gpu(device: str) -> None:
    """Of the GPUs that the parent may use, leave this process the one its device names."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic matrix products
    if index:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[int(index)] if visible else index


def pin_to_processors(count: int) -> None:
    """Stay on `count` of the processors that this process may use, where the system can be told so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, spread_out(os.sched_getaffinity(0), _core)[:count])


def spread_out(processors: Iterable[int], core: Callable[[int], str]) -> list[int]:
    """The first processor of every core before the second of any: two of one core are no faster than one and a bit."""
    seen: Counter[str] = Counter()
    order = []
    for processor in sorted(processors):
        order.append((seen[core(processor)], processor))
        seen[core(processor)] += 1
    return [processor for _, processor in sorted(order)]


def _core(processor: int) -> str:
    """What processors of one core have in common."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    return siblings.read_text() if siblings.exists() else str(processor)


def use_threads(threads: int) -> None:
    """The same number of threads for every library that has a pool."""
    import numba
    import threadpoolctl
    import torch

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)  # for libraries that are loaded later
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    threadpoolctl.threadpool_limits(threads)


def limit_memory(limit: int | None, device: str) -> None:
    """Let allocations fail once the process has grown by `limit` bytes; file-backed read-only maps do not count."""
    if limit is None:
        return
    if device == "cuda":
        import torch

        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
        return
    memory = read_memory()
    if memory is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = memory.data + limit
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def fill_blas_buffers() -> None:
    """OpenBLAS asks for its workspace at the first product, and asks for ever where a limit forbids it: ask now.

    numpy and scipy each bring a copy of the library. Before anything is measured, so that no cell is charged for it.
    """
    import numpy as np
    from scipy.linalg import blas

    square = np.ones((256, 256))  # large enough for every thread to take part
    square @ square
    blas.dgemm(1.0, square, square)


def lift_memory_limit() -> None:
    """A worker that ran out of memory needs a little to say so."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
