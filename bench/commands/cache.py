"""`cache`: what is kept on disk to save time, how large it is, and how to be rid of it."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

from rich.console import Console

from bench.console import say, show_table
from bench.datasets.store import cache_root
from bench.errors import UserError
from bench.files import failing_clearly
from bench.prepared import list_entries
from bench.sizes import format_duration, format_size

DERIVED = ("prepared", "graphs", "labels", "stamps")  # all that can be computed again; downloaded files are not


def show_cache() -> None:
    """Every entry with its size, and the totals."""
    console, root = Console(), cache_root()
    rows = [
        (f"prepared/{entry.path.name}", format_size(entry.size), format_duration(entry.seconds), _day(entry.used))
        for entry in list_entries(root / "prepared")
    ]
    for info in sorted((root / "graphs").glob("*/graph.json")):
        rows.append((f"graphs/{info.parent.name}", format_size(_size(info.parent)), "", _day(info.stat().st_mtime)))
    if rows:
        show_table(console, ["entry", "size", "took", "last used"], rows)
    total = sum(_size(root / name) for name in DERIVED)
    say(console, f"{root}: {format_size(total)} that can be computed again (`cache clear` removes it)")
    downloaded = _size(root / "raw")
    if downloaded:
        say(console, f"{root / 'raw'}: {format_size(downloaded)} of raw data files, which `cache clear` leaves alone")


def clear_cache() -> None:
    """Remove everything derived, unless a run needs it."""
    root = cache_root()
    total = sum(_size(root / name) for name in DERIVED)
    with _lock_file(root) as lock:
        try:
            if lock is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"the cache in {root} is in use by a run; clear it when that has ended") from None
        for name in DERIVED:
            folder = root / name
            with failing_clearly(f"the cache folder {folder} cannot be removed"):
                if folder.exists():
                    shutil.rmtree(folder)
    say(Console(), f"cleared {format_size(total)} from {root}")


@contextlib.contextmanager
def cache_in_use() -> Iterator[None]:
    """Keep the cache from being cleared meanwhile; the kernel ends this for a run that is killed."""
    with _lock_file(cache_root()) as lock:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def _lock_file(root: Path) -> Iterator[IO[str] | None]:
    """None where it cannot be written: then nothing can be removed either, and what needs the cache will say so."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = (root / ".in-use").open("a")
    except OSError:
        yield None
        return
    with file:
        yield file


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.exists() else 0


def _day(timestamp: float) -> str:
    return f"{datetime.fromtimestamp(timestamp):%Y-%m-%d %H:%M}"
