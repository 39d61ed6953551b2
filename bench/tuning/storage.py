"""Where a study lives, and how one process learns that another has died.

The journal file is for one machine: a driver holds a lock as long as it lives, and the kernel releases it. A database
is for several: a driver writes heartbeats, and a trial without one for a while is taken for dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import secrets
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import optuna
import sqlalchemy.exc
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, fail_stale_trials
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import make_url

from bench.claims import Claims
from bench.errors import UserError

HEARTBEAT = 20  # seconds
GRACE = 120  # seconds without a heartbeat until a driver is taken for dead
CONNECT_TIMEOUT = 10  # seconds that a database server has to answer
ATTEMPTS = 5  # to create the tables, which another process may be doing at the same moment


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's warnings that heartbeats are experimental and meant for its own loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", message="Heartbeat of storage")
        yield


class Journal(BaseJournalBackend):
    """Optuna's journal format, one JSON object per line, written so that a kill at any moment harms nobody.

    Optuna's own file backend leaves its lock behind when it is killed, and writes on after half a line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets = [0]  # where each line starts that was read so far, and the next one
        path.touch()

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        with self._failing_clearly("read"), self.path.open("rb") as file:
            file.seek(self._offsets[log_number_from])
            whole, _, _ = file.read().rpartition(b"\n")  # without what another process is writing just now
        del self._offsets[log_number_from + 1 :]
        for line in whole.split(b"\n") if whole else []:
            self._offsets.append(self._offsets[-1] + len(line) + 1)
            try:
                yield json.loads(line)
            except ValueError:
                number = len(self._offsets) - 1
                raise UserError(
                    f"line {number} of {self.path.name} cannot be read; restore the file, or start anew with --name"
                ) from None

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with self._failing_clearly("written"), self.path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.truncate(_end_of_last_line(file))
            file.seek(0, os.SEEK_END)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def _failing_clearly(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"the journal {self.path.name} cannot be {done} ({error.strerror}); finished records are kept: restore "
                "it or make room, and the same command goes on from here"
            ) from error


def _end_of_last_line(file: Any) -> int:
    """Where the next line belongs; behind it is at most what somebody was killed while writing."""
    end = int(file.seek(0, os.SEEK_END))
    while end > 0:
        start = max(0, end - 4096)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


class Presence(Protocol):
    """This driver's sign of life, and a look at the others'."""

    name: str

    def begin(self, trial_id: int) -> None: ...

    def end(self, trial_id: int) -> None: ...

    def fail_dead(self, study: optuna.Study, running: list[FrozenTrial]) -> None:
        """Mark trials whose driver has died as failed."""
        ...

    def close(self) -> None: ...


class Locks:
    """Presence on one machine: a lock file per driver."""

    def __init__(self, folder: Path) -> None:
        self._claims = Claims(folder)
        self._claims.sweep()
        self.name = secrets.token_hex(8)
        while (claim := self._claims.take(self.name, "tune")) is None:
            time.sleep(0.01)  # another driver is sweeping and took the new file for a dead one's
        self._claim = claim

    def begin(self, trial_id: int) -> None:
        pass

    def end(self, trial_id: int) -> None:
        pass

    def fail_dead(self, study: optuna.Study, running: list[FrozenTrial]) -> None:
        alive = {"", *self._claims.held()}  # "": a trial so young that its driver has not signed it yet
        for trial in running:
            if driver_of(trial) not in alive:
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def close(self) -> None:
        self._claim.release()


class Heartbeats:
    """Presence across machines: a thread that tells the database every few seconds which trials are being worked on."""

    def __init__(self, storage: RDBStorage) -> None:
        self.name = secrets.token_hex(8)  # says nothing about the machine
        self._storage, self._trials, self._closed = storage, set[int](), threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._closed.wait(self._storage.heartbeat_interval):
            for trial_id in list(self._trials):
                # a server that is away may be back for the next beat; the main thread will find out and complain
                with contextlib.suppress(StorageInternalError, sqlalchemy.exc.SQLAlchemyError):
                    self._storage.record_heartbeat(trial_id)

    def begin(self, trial_id: int) -> None:
        self._storage.record_heartbeat(trial_id)
        self._trials.add(trial_id)

    def end(self, trial_id: int) -> None:
        self._trials.discard(trial_id)

    def fail_dead(self, study: optuna.Study, running: list[FrozenTrial]) -> None:
        with quiet():
            fail_stale_trials(study)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


def driver_of(trial: FrozenTrial) -> str:
    """The name of the driver that works on this trial, or has; "" before it could say so."""
    return str(trial.user_attrs.get("claim", {}).get("driver", ""))


def open_storage(url: str | None, journal: Path) -> tuple[BaseStorage, Presence]:
    """The journal file, or the database behind a URL, and a way to be seen and to see others there."""
    if url is not None:
        storage = _open_database(url)
        return storage, Heartbeats(storage)
    try:
        journal.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(Journal(journal)), Locks(journal.parent)
    except OSError as error:
        raise UserError(f"{journal} cannot be written ({error.strerror}); choose another --results folder") from error


def _open_database(url: str) -> RDBStorage:
    try:
        parsed = make_url(url)
    except sqlalchemy.exc.ArgumentError:
        raise UserError(
            f"'{url}' is not a storage; write for example postgresql://user:password@host/database"
        ) from None
    if parsed.drivername == "postgresql" and importlib.util.find_spec("psycopg"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    arguments = {"connect_timeout": CONNECT_TIMEOUT} if parsed.drivername.startswith("postgresql") else {}
    shown = parsed.render_as_string(hide_password=True)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with quiet():
                return RDBStorage(
                    parsed.render_as_string(hide_password=False),
                    engine_kwargs={"connect_args": arguments, "pool_pre_ping": True},
                    heartbeat_interval=HEARTBEAT,
                    grace_period=GRACE,
                )
        except (ImportError, sqlalchemy.exc.NoSuchModuleError, sqlalchemy.exc.OperationalError) as error:
            raise UserError(f"the storage {shown} cannot be reached: {_first_line(error)}") from error
        except (RuntimeError, sqlalchemy.exc.SQLAlchemyError) as error:
            if attempt == ATTEMPTS:
                raise UserError(f"the storage {shown} cannot be used: {_first_line(error)}") from error
            time.sleep(0.2 * attempt)
    raise AssertionError("the last attempt returns or raises")


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).strip().split("\n")[0].split())
