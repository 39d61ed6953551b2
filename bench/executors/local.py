"""Cells as processes on this machine, forked from a server that has the big imports behind it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path
from typing import Any

from bench.environment import ROOT
from bench.executors import EndCell, Event, Outcome, utc_now
from bench.executors.deadline import Deadline
from bench.executors.failures import describe_death, strip_paths
from bench.executors.meter import read_memory
from bench.executors.process import die_with_parent, keep_locks_private, leave_terminal, log_to, see_one_gpu
from bench.records import ERROR, INTERRUPTED, PRUNED, TIMEOUT
from bench.registry import PACKAGE
from bench.sizes import format_duration
from bench.worker import Job, run_cell

POLL = 0.25  # seconds between two looks at deadlines
IDLE = 1.0  # seconds until an empty-handed job source is asked again
EXIT_GRACE_SECONDS = 2.0  # seconds a worker has to leave after its result has arrived
TAIL = 3000  # characters of a failed worker's log that go into its record
PRELOAD_IF_USED = ("torch_geometric", "sklearn")  # slow to import, so only where some model here needs them

_context = multiprocessing.get_context("forkserver")


class LocalExecutor:
    """At most `jobs` workers at once; with several GPUs each worker sees one of them."""

    def __init__(self, logs: Path, jobs: int = 1, devices: Sequence[str] = ("cpu",)) -> None:
        self.logs, self.jobs, self.devices = logs, jobs, tuple(devices)

    def run(
        self, jobs: Iterator[Job | None], on_event: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> Iterator[Outcome]:
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            _warm_up()
        except (EOFError, ConnectionError):  # the server was killed
            if stopped():
                return
            raise KeyboardInterrupt from None
        running: list[_Worker] = []
        more = True
        try:
            while not stopped():
                waiting = False
                while more and not waiting and len(running) < self.jobs and not stopped():
                    try:
                        job = next(jobs)
                    except StopIteration:
                        more = False
                        break
                    waiting = job is None
                    if job is not None:
                        running.append(_Worker(self._placed(job, running), self.logs, on_event))
                if not running:
                    if not more:
                        return
                    _nap(IDLE, stopped)
                    continue
                _wait_for(running)
                for worker in [worker for worker in running if worker.look()]:
                    running.remove(worker)
                    yield worker.outcome(beside_others=bool(running))
            for worker in list(running):
                running.remove(worker)
                yield worker.interrupt()
        finally:
            for worker in running:
                worker.kill()

    def _placed(self, job: Job, running: list[_Worker]) -> Job:
        """The job on the device that has the fewest workers."""
        used = [worker.job.device for worker in running]
        return replace(job, device=min(self.devices, key=used.count))


class _Worker:
    """The parent's view of one worker process."""

    def __init__(self, job: Job, logs: Path, on_event: Callable[[Event], None]) -> None:
        self.job, self._on_event = job, on_event
        self._log = logs / f"{job.cell.key}.log"
        self._started = utc_now()
        self._deadline = Deadline(job.time_limit, job.cell.config)
        self._phase: str | None = None
        self._phase_began = 0.0
        self._partial: dict[str, Any] = {"phases": {}}  # what is known so far of a result that may never come
        self._progress = ""
        self._result: dict[str, Any] | None = None
        self._verdict: tuple[str, str] | None = None  # status and reason where the parent decides
        self._memory_seen = 0
        self._kernel_kills = _kernel_kills()
        self._reader, writer = _context.Pipe(duplex=False)
        self._process = _context.Process(target=_main, args=(job, writer, self._log), daemon=True)
        self._process.start()
        writer.close()
        self._memory_at_start = self._memory()
        on_event(Event("started", job.cell))

    @property
    def handles(self) -> list[Any]:
        return [self._reader, self._process.sentinel]

    def look(self) -> bool:
        """Take in what has arrived; True when the worker has come to its end."""
        ended = not self._process.is_alive()  # before reading: what it said last is then already in the pipe
        try:
            while not self._decided and self._reader.poll():
                self._take(*self._reader.recv())
        except (EOFError, OSError):
            self._process.join()  # the other end is closed: it has died or is about to
            ended = True
        self._memory_seen = max(self._memory_seen, self._memory() - self._memory_at_start)
        if self._deadline.passed() and not ended and not self._decided:
            self._verdict = (TIMEOUT, self._at(f"stopped after {format_duration(self.job.time_limit or 0)}"))
            ended = True
        return ended or self._decided

    @property
    def _decided(self) -> bool:
        return self._result is not None or self._verdict is not None

    def _take(self, kind: str, content: Any) -> None:
        if kind == "result":
            self._result = content
        elif kind == "start":
            self._partial |= content
        elif kind == "waiting":
            self._deadline.waits(content)
        elif kind == "phase":
            self._phase, measured = content
            if measured is not None:
                self._partial["phases"][self._phase] = measured
            else:
                self._phase_began = time.perf_counter()
                self._on_event(Event("phase", self.job.cell, phase=self._phase))
        else:
            epoch, max_epochs, accuracy, when = content  # by a clock that all processes of a machine share
            self._progress = f", epoch {epoch} of {max_epochs}"
            try:
                self._on_event(Event("progress", self.job.cell, self._phase or "", epoch, max_epochs, accuracy))
            except EndCell as reason:
                self._verdict = (PRUNED, self._at(str(reason)))
            else:
                if missed := self._deadline.will_miss_deadline(epoch, when):
                    self._verdict = (TIMEOUT, self._at(missed))

    def _at(self, what: str) -> str:
        return f"{what} during {self._phase}{self._progress}" if self._phase else f"{what} before the first phase"

    def interrupt(self) -> Outcome:
        """End it now; what it has just told still counts."""
        self.look()
        if not self._decided:
            self._verdict = (INTERRUPTED, self._at("interrupted"))
        return self.outcome()

    def outcome(self, beside_others: bool = False) -> Outcome:
        """What came of the job; the process is gone when this returns."""
        if self._result is not None:
            self._process.join(EXIT_GRACE_SECONDS)
        self.kill()
        result = self._result or self._unfinished()
        status, reason = self._verdict or (result.get("status"), result.get("reason"))
        if status is None:
            if beside_others and self._memory_seen:  # what the machine has was not this cell's alone
                result["capacity"] = min(result.get("capacity", self._memory_seen), self._memory_seen)
            status, reason = describe_death(
                self._process.exitcode or 0,
                self._phase,
                self._read_log(),
                self.job.memory_limit,
                self._memory_seen,
                kernel_killed=_kernel_kills() > self._kernel_kills,
            )
        tail = self._read_log() if status == ERROR else ""
        return Outcome(self.job, status, reason or "", self._started, self.job.device, result, tail)

    def _unfinished(self) -> dict[str, Any]:
        """What is known without the worker's own account; the phase it was in lasted until now."""
        if self._phase is not None and self._phase not in self._partial["phases"]:
            self._partial["phases"][self._phase] = {
                "seconds": time.perf_counter() - self._phase_began,
                "compile_seconds": 0.0,
                "peak_resident": None,
                "peak_anonymous": None,
                "peak_data": None,
            }
        return self._partial

    def kill(self) -> None:
        if self._process.is_alive() and self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # and whatever it has started itself
        self._process.join()
        self._reader.close()

    def _memory(self) -> int:
        memory = read_memory(f"/proc/{self._process.pid}/status")
        return 0 if memory is None else memory.data

    def _read_log(self) -> str:
        try:
            return strip_paths(self._log.read_text(errors="replace")[-TAIL:])
        except OSError:
            return ""


def _main(job: Job, writer: connection.Connection, log: Path) -> None:
    """Where a worker's life begins and ends."""
    die_with_parent()
    leave_terminal()
    keep_locks_private()
    log_to(log)
    see_one_gpu(job.device)
    result = run_cell(job, lambda kind, content: writer.send((kind, content)))
    error = result.pop("error", None)
    if error is not None:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    writer.send(("result", result))


def _warm_up() -> None:
    """Start the fork server and wait until its imports are done, so that no cell is charged for them.

    It imports the models too: a model that is edited during a long run changes the next run, not the rest of this one.
    """
    wanted = [name for name in sys.modules if name in PRELOAD_IF_USED or name.startswith(f"{PACKAGE}.")]
    _context.set_forkserver_preload(["bench.executors.preload", *wanted, "bench.executors.loaded"])
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),  # to find bench
        # Idle OpenMP threads that spin for long cost a shared machine dearly (measured: 17 s instead of 0.6 s for 60
        # epochs), those that never spin cost a quiet one (4.3 s instead of 2.7 s for 20): a short spin is good at both.
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "10000"),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with _interrupts_blocked():
            forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    probe = _context.Process(target=_nothing, daemon=True)
    probe.start()
    probe.join()
    if probe.exitcode != 0:
        raise EOFError("the fork server has ended")


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """What is started in here never sees a Ctrl-C, not even while it imports; ours waits until we leave."""
    resource_tracker.ensure_running()  # the server's start would do this too, and unblocks the signal on the way
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing() -> None:
    pass


def _wait_for(running: list[_Worker]) -> None:
    connection.wait([handle for worker in running for handle in worker.handles], timeout=POLL)


def _nap(seconds: float, stopped: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped():
        time.sleep(0.1)


def _kernel_kills() -> int:
    """How many processes the kernel has killed for lack of memory since it started."""
    with contextlib.suppress(OSError):  # not Linux: nothing is counted
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
