"""Where a study lives, and how one process learns that another has died.

The journal file is for one machine: a driver holds a lock as long as it lives, and the kernel releases it. A database
is for several: a driver writes heartbeats, and a trial without one for a while is taken for dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import secrets
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import optuna
import sqlalchemy.exc
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, fail_stale_trials
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import make_url

from bench.claims import Claims
from bench.errors import UserError
from bench.files import failing_clearly

HEARTBEAT = 20  # seconds
GRACE = 120  # seconds without a heartbeat until a driver is taken for dead
CONNECT_TIMEOUT = 10  # seconds that a database server has to answer
ATTEMPTS = 5  # to create the tables, which another process may be doing at the same moment


class Journal(JournalFileBackend):
    """Optuna's journal file, written so that a kill at any moment harms nothing, and with errors in one line."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), JournalLock(path))
        self._name = path.name

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        number = log_number_from
        with self._to_be("read"):
            try:
                for log in super().read_logs(log_number_from):
                    number += 1
                    yield log
            except ValueError:
                raise UserError(
                    f"line {number + 1} of {self._name} cannot be read; restore the file, or start anew with --name"
                ) from None

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with self._to_be("written"):
            super().append_logs(logs)

    def _to_be(self, done: str) -> contextlib.AbstractContextManager[None]:
        advice = "; finished records are kept: restore it or make room, and the same command goes on from here"
        return failing_clearly(f"the journal {self._name} cannot be {done}", advice)


class JournalLock(JournalFileOpenLock):
    """A lock that the kernel releases when its holder dies; Optuna's own would stay behind."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def acquire(self) -> bool:
        """Wait for the lock, and remove what another process was killed while writing."""
        self._file: IO[bytes] = self._path.open("r+b")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - 1))
        if self._file.read() not in (b"\n", b""):
            self._file.seek(0)
            self._file.truncate(self._file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._file.close()


class Presence:
    """This driver's sign of life, and a look at the others'."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)  # says nothing about the machine

    def begin(self, trial_id: int) -> None:
        """Show that this driver works on a trial."""

    def end(self, trial_id: int) -> None:
        """Show that it does no more."""

    def fail_dead(self, study: optuna.Study, running: list[FrozenTrial]) -> None:
        """Mark trials whose driver has died as failed."""

    def close(self) -> None:
        """End the sign of life."""


class Locks(Presence):
    """Presence on one machine: a lock file per driver."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._claims = Claims(folder)
        self._claims.sweep()
        while (claim := self._claims.take(self.name, "tune")) is None:
            time.sleep(0.01)  # another driver is sweeping and took the new file for a dead one's
        self._claim = claim

    def fail_dead(self, study: optuna.Study, running: list[FrozenTrial]) -> None:
        alive = self._claims.held()
        for trial in running:
            if claim_of(trial)["driver"] not in alive:
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def close(self) -> None:
        self._claim.release()


class Heartbeats(Presence):
    """Presence across machines: a thread that tells the database every few seconds which trials are being worked on.

    Optuna's thread, one per trial, would end with the first beat that a server which is away does not take.
    """

    def __init__(self, storage: RDBStorage) -> None:
        super().__init__()
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
        fail_stale_trials(study)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


def claim_of(trial: FrozenTrial) -> dict[str, Any]:
    """Slot and driver of a trial; nothing for one that `tune` did not make."""
    return dict(trial.user_attrs.get("claim", {}))


def open_storage(url: str | None, journal: Path) -> tuple[BaseStorage, Presence]:
    """The journal file, or the database behind a URL, and a way to be seen and to see others there."""
    if url is not None:
        storage = _open_database(url)
        return storage, Heartbeats(storage)
    with failing_clearly(f"{journal} cannot be written", "; choose another --results folder"):
        journal.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(Journal(journal)), Locks(journal.parent)


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
    warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats are
    for attempt in range(1, ATTEMPTS + 1):
        try:
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


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Let a storage that fails on the way end in one line; all that was finished is kept."""
    try:
        yield
    except (StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
        raise UserError(
            f"the storage failed ({_first_line(error)}); finished records are kept, the same command goes on from here"
        ) from error


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).strip().split("\n")[0].split())
