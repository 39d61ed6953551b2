"""Files that are whole or not there, whatever is killed or loses power meanwhile; locks, room on the disk, TOML."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from bench.errors import UserError


@contextlib.contextmanager
def failing_clearly(what: str, advice: str = "") -> Iterator[None]:
    """Let the system's refusal end in one line: what cannot be done, the reason, and what to do about it."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} ({error.strerror}){advice}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def replace_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write beside, force it to the disk, rename: no reader ever sees half a file, before a power cut or after it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{uuid4().hex}")
    try:
        with draft.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    force_to_disk(path.parent)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A draft to fill, which then gets its name: a reader sees a whole folder or none."""
    draft = path.with_name(f".{path.name}-{uuid4().hex}")
    draft.mkdir(parents=True)
    try:
        yield draft
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def force_to_disk(path: Path) -> None:
    """A file's content, or the names in a folder: either may be there after a power cut and the other not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[bool], None] = lambda waits: None) -> Iterator[None]:
    """One process at a time; the others wait, and `on_wait` is told. The kernel frees the lock of the dead.

    What is locked is a folder that is there, or a file that is made for it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait(True)
            fcntl.flock(handle, fcntl.LOCK_EX)
            on_wait(False)
        yield
    finally:
        os.close(handle)


def free_space(folder: Path) -> int:
    """Bytes that are free where this folder is or will be."""
    return shutil.disk_usage(next(place for place in (folder, *folder.absolute().parents) if place.exists())).free
