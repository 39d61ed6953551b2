"""One measurement: a process with nothing else in it, watched from outside while it runs."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.datasets.store import cache_root
from bench.environment import ROOT
from bench.executors.meter import read_memory

INTERVAL = 0.02  # seconds between two looks at the process
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Failed(Exception):
    """The measured process ended without a result; the message is the last line it wrote."""


@dataclass(frozen=True)
class Measurement:
    """What one process took."""

    values: dict[str, Any]  # what it says of itself
    peak_resident: int  # bytes, whole process
    peak_anonymous: int  # bytes

    @property
    def before(self) -> float:
        """Seconds before the first training step."""
        return float(self.values["before"])

    @property
    def per_epoch(self) -> float:
        """Seconds per epoch: the median over epochs after the first, which also warms up."""
        epochs = self.values["epochs"]
        return statistics.median(epochs[1:] or epochs)


def measure(task: dict[str, Any], threads: int) -> Measurement:
    """Run the task in its own process with its own empty folder for prepared arrays."""
    with scratch_folder() as folder:
        task = {**task, "threads": threads, "cache": str(folder / "prepared")}
        (folder / "task.json").write_text(json.dumps(task))
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            command = [sys.executable, "-m", "perf.child", str(folder / "task.json")]
            child = subprocess.Popen(command, cwd=ROOT, env=environment(threads), stdout=out, stderr=err)
            resident, anonymous = _watch(child)
        if child.returncode != 0:
            raise Failed(_last_line(folder / "err") or f"ended by signal {-child.returncode}")
        values = json.loads(_last_line(folder / "out"))
    return Measurement(values, max(resident, values["peak_resident"]), anonymous)


def _watch(child: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Wait for the process; the largest resident and anonymous memory seen meanwhile."""
    resident = anonymous = 0
    try:
        while child.poll() is None:
            memory = read_memory(f"/proc/{child.pid}/status")
            if memory is not None:
                resident, anonymous = max(resident, memory.resident_peak), max(anonymous, memory.anonymous)
            time.sleep(INTERVAL)
        return resident, anonymous
    finally:
        if child.poll() is None:  # we are being interrupted: leave nothing running
            child.kill()
            child.wait()


def environment(threads: int) -> dict[str, str]:
    """The same number of threads for every library of a measured process."""
    return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder on the disk where a user's prepared arrays would lie as well."""
    cache_root().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="perf-", dir=cache_root()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
