"""Claims: who works on which cell right now, so that several runs share one results folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class Claim:
    """A lock on one cell, held until `release` or until the kernel sees its holder die."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path, self._handle = path, handle

    def release(self) -> None:
        self._path.unlink(missing_ok=True)  # while still holding it: no other process's file can be hit
        os.close(self._handle)


class Claims:
    """The folder of lock files, one per cell that some process is working on."""

    def __init__(self, results: Path) -> None:
        self.folder = results / ".claims"

    def take(self, key: str, note: str) -> Claim | None:
        """The claim on this cell, or None where another process holds it; `note` tells others whose cell it is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / key
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return None
            if _same_file(path, handle):
                _write(handle, note)
                return Claim(path, handle)
            os.close(handle)  # its last holder removed the file between our open and our lock: try the next one

    def held(self) -> dict[str, str]:
        """Key → note of what living processes hold at this moment; files that the dead left behind do not count."""
        notes = {}
        for path in sorted(self.folder.glob("*")):
            try:
                file = path.open("rb")
            except FileNotFoundError:
                continue
            with file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    notes[path.name] = os.fsdecode(file.read())
        return notes

    def sweep(self) -> None:
        """Remove the files that the dead left behind."""
        for path in self.folder.glob("*"):
            claim = self.take(path.name, "")
            if claim is not None:
                claim.release()


def _write(handle: int, note: str) -> None:
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same, and only `status` reads notes
        os.ftruncate(handle, 0)  # a dead holder may have left its own
        os.write(handle, os.fsencode(note))  # a dataset may be named after a file


def _same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
