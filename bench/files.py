"""Files that are whole or not there, whatever is killed or loses power meanwhile; and the room there is for them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from uuid import uuid4

from bench.errors import UserError


@contextlib.contextmanager
def failing_clearly(what: str, advice: str = "") -> Iterator[None]:
    """Let the system's refusal end in one line: what cannot be done, the reason, and what to do about it."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} ({error.strerror}){advice}") from error


def replace_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write beside, force it to the disk, rename: nobody ever reads half a file, before a power cut or after it."""
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


def force_to_disk(path: Path) -> None:
    """A file's content, or the names in a folder: either may be there after a power cut and the other not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_space(folder: Path) -> int:
    """Bytes that are free where this folder is or will be."""
    return shutil.disk_usage(next(place for place in (folder, *folder.absolute().parents) if place.exists())).free
