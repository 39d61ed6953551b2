"""Seconds and bytes, phase by phase: what a cell cost and where."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from numba.core import event as numba_event

STATUS_FILE = "/proc/self/status"
RESET_FILE = "/proc/self/clear_refs"
Measured = dict[str, Any]  # what was measured in a phase: seconds and bytes, None where it cannot be known


@dataclass(frozen=True)
class Memory:
    """What the kernel says about a process, in bytes."""

    resident_peak: int  # high-water mark since the last reset
    anonymous: int  # resident memory that no file backs
    file_backed: int  # resident pages of files and of shared memory
    data: int  # private writable address space: what RLIMIT_DATA counts


def read_memory(file: str | None = None) -> Memory | None:
    """The memory of this process (or of another, by its status file); None where there is no such file."""
    try:
        lines = Path(file or STATUS_FILE).read_bytes().splitlines()
    except OSError:
        return None
    values = {name: rest.split() for name, _, rest in (line.partition(b":") for line in lines)}
    try:
        peak, anonymous, files, shared, data = (
            int(values[name][0]) * 1024 for name in (b"VmHWM", b"RssAnon", b"RssFile", b"RssShmem", b"VmData")
        )
    except (KeyError, IndexError, ValueError):
        return None  # a process that is ending has no memory lines any more
    return Memory(peak, anonymous, files + shared, data)


class Sampler:
    """A thread that remembers the largest amounts of memory seen since the last `reset`."""

    def __init__(self, interval: float = 0.02) -> None:
        self._interval = interval
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.anonymous = self.file_backed = self.data = 0
        threading.Thread(target=self._loop, name="memory sampler", daemon=True).start()

    def _loop(self) -> None:
        while not self._ended.wait(self._interval):
            self.look()

    def end(self) -> None:
        self._ended.set()

    def look(self) -> Memory | None:
        memory = read_memory()
        if memory is not None:
            with self._lock:
                self.anonymous = max(self.anonymous, memory.anonymous)
                self.file_backed = max(self.file_backed, memory.file_backed)
                self.data = max(self.data, memory.data)
        return memory

    def reset(self) -> None:
        with self._lock:
            self.anonymous = self.file_backed = self.data = 0
        self.look()


class LoadWatch:
    """How busy the machine is besides this process, from now until `look`.

    Load averages look a minute back and count this benchmark's own earlier cells; processor time does neither.
    """

    def __init__(self) -> None:
        self._load, self._busy, self._own, self._began = _load_average(), _busy(), _own(), time.perf_counter()

    def look(self) -> dict[str, Any]:
        """Load averages at both ends, and how many processors others kept busy in between."""
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        others = max(0.0, (_busy() - self._busy) - (_own() - self._own)) / elapsed
        processors = psutil.cpu_count() or 1
        return {
            "start": self._load,
            "end": _load_average(),
            "others": round(min(others, processors), 3),
            "processors": processors,
        }


def _load_average() -> float:
    return round(os.getloadavg()[0], 2)


def _busy() -> float:
    """Seconds that all processors of the machine have worked since it started; stolen ones count."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # already within user and nice
    return sum(times) - idle - guests


def _own() -> float:
    """Processor seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Meter:
    """`with meter.phase("train") as facts: ...` fills `meter.phases["train"]`, also where the block raises.

    What the block puts into `facts` stands there beside what was measured.

    Make it before a memory limit is set: its sampling thread needs a stack. `cuda` is a module like torch.cuda, and
    is only looked at when the device is a CUDA one.
    """

    def __init__(
        self, device: str = "cpu", cuda: Any = None, on_phase: Callable[[str, Measured | None], None] | None = None
    ) -> None:
        self._cuda = cuda if device.startswith("cuda") else None
        self._on_phase = on_phase or (lambda name, measured: None)
        self._sampler = Sampler()
        self._peak_is_of_phase = False
        self.phases: dict[str, Measured] = {}
        self.current: str | None = None
        memory = read_memory()
        self.baseline_anonymous = None if memory is None else memory.anonymous
        self._baseline_data = 0 if memory is None else memory.data

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[Measured]:
        facts: Measured = {}
        self.current = name
        self._on_phase(name, None)
        self._reset_peaks()
        compiling = numba_event.TimingListener()  # counts the outermost of nested compilations only
        start = time.perf_counter()
        try:
            with numba_event.install_listener("numba:compile", compiling):
                yield facts
                if self._cuda is not None:
                    self._cuda.synchronize()
        finally:
            elapsed = time.perf_counter() - start
            compile_seconds = compiling.duration if compiling.done else 0.0
            measured: Measured = {"seconds": elapsed - compile_seconds, "compile_seconds": compile_seconds}
            self.phases[name] = measured | self._peaks() | facts
            self._on_phase(name, self.phases[name])
        self.current = None  # after a failure it keeps naming the phase that failed

    def close(self) -> None:
        """Stop sampling; what was measured stays."""
        self._sampler.end()

    def _reset_peaks(self) -> None:
        self._peak_is_of_phase = False
        with contextlib.suppress(OSError):  # not on every system, not for every user
            Path(RESET_FILE).write_bytes(b"5")
            self._peak_is_of_phase = True
        self._sampler.reset()
        if self._cuda is not None:
            self._cuda.synchronize()
            self._cuda.reset_peak_memory_stats()

    def _peaks(self) -> Measured:
        memory = self._sampler.look()
        peaks: Measured = {"peak_resident": None, "peak_anonymous": None, "peak_data": None}
        if memory is not None:
            peaks["peak_anonymous"] = self._sampler.anonymous
            peaks["peak_data"] = self._sampler.data - self._baseline_data  # growth, as the memory limit counts it
        if memory is not None and self._peak_is_of_phase:
            # Code that holds the interpreter's lock starves the sampler; the kernel's high-water mark sees all,
            # but counts file pages too.
            between_samples = memory.resident_peak - self._sampler.file_backed
            peaks["peak_resident"] = memory.resident_peak
            peaks["peak_anonymous"] = max(self._sampler.anonymous, between_samples)
        if self._cuda is not None:
            peaks["peak_allocated"] = int(self._cuda.max_memory_allocated())
            peaks["peak_reserved"] = int(self._cuda.max_memory_reserved())
            free, total = self._cuda.mem_get_info()
            peaks["device_used"] = int(total - free)  # by everybody, at the end of the phase
        return peaks
