"""From an exception or a dead process to a status and one line of reason."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import torch

from bench.environment import ROOT
from bench.records import DIVERGED, ERROR, INTERRUPTED, OOM
from bench.sizes import format_size
from bench.train import Diverged

_SIZE = re.compile(r"(?:tried to allocate|unable to allocate)\s+([\d.]+)\s*(bytes|[KMGT]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_NO_MEMORY = re.compile(
    r"can't allocate memory|DefaultCPUAllocator|out of memory|bad_alloc|cannot allocate|STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_LAST_WORDS = re.compile(
    r"bad_alloc|Thread creation failed|can't start new thread|cannot allocate memory", re.IGNORECASE
)
# What oneDNN and numba say for lack of memory, but not for that alone.
_CRYPTIC = re.compile(r"could not create a (primitive|memory)|error return without exception set", re.IGNORECASE)
NEAR_LIMIT = 0.9  # of the memory limit: an abort above this is blamed on it


def describe_failure(
    error: BaseException, phase: str | None, memory_limit: int | None, memory_seen: int = 0
) -> tuple[str, str]:
    """Status and reason for what a cell raised; `memory_seen` is the most of its limit that it was seen to use."""
    where = f"during {phase}" if phase else "before the first phase"
    message = " ".join(str(error).split())
    if isinstance(error, Diverged):
        return DIVERGED, message
    if is_out_of_memory(error, memory_limit, memory_seen):
        limit = f", the limit is {format_size(memory_limit)}" if memory_limit is not None else ""
        size = requested_size(message)
        wanted = "memory ran out" if size is None else f"asked for {format_size(size)} more"
        return OOM, f"{wanted} {where}{limit}"
    return ERROR, strip_paths(f"{type(error).__name__} {where}: {message}")[:500]


def is_out_of_memory(error: BaseException, memory_limit: int | None, memory_seen: int = 0) -> bool:
    """Whether the exception, or one it was raised from, says that memory ran out."""
    cause: BaseException | None = error
    pressed = memory_limit is not None and memory_seen >= NEAR_LIMIT * memory_limit
    while cause is not None:
        if isinstance(cause, (MemoryError, torch.OutOfMemoryError)):
            return True
        text = str(cause) if isinstance(cause, (RuntimeError, OSError, SystemError)) else ""
        if _NO_MEMORY.search(text) or (memory_limit is not None and _LAST_WORDS.search(text)):
            return True
        if pressed and _CRYPTIC.search(text):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def requested_size(message: str) -> int | None:
    """The bytes that an allocator's message says it was asked for."""
    match = _SIZE.search(message)
    return None if match is None else int(float(match[1]) * _UNITS[match[2].lower()])


def describe_death(
    exit_code: int, phase: str | None, log: str, memory_limit: int | None, memory_seen: int, kernel_killed: bool
) -> tuple[str, str]:
    """Status and reason for a worker that ended without a word; `log` is the end of what it printed."""
    where = f"during {phase}" if phase else "before the first phase"
    if exit_code == -signal.SIGKILL and kernel_killed:
        return OOM, f"the kernel killed the worker {where}: the machine's memory ran out"
    if memory_limit is not None:
        pressed = memory_seen >= NEAR_LIMIT * memory_limit
        if _LAST_WORDS.search(log) or (exit_code == -signal.SIGABRT and pressed):
            return OOM, f"the worker ended itself {where} for lack of memory, the limit is {format_size(memory_limit)}"
    if exit_code == -signal.SIGKILL or exit_code == 255:  # 255: the fork server is gone and the worker with it
        return INTERRUPTED, f"the worker was killed {where}"
    if exit_code < 0:
        return ERROR, f"the worker died {where}: {signal.Signals(-exit_code).name}"
    return ERROR, f"the worker ended {where} with exit code {exit_code}"


_QUOTED_PATH = re.compile(r"""(?<=["'])/[^"'\n]+(?=["'])""")
_PATH = re.compile(r"(?<![\w./])/(?:(?:[\w.+@-]+/)+[\w.+@-]*|root\b)")
_HOMES = ("home", "Users")  # what lies in here is named after a user


def strip_paths(text: str) -> str:
    """Absolute paths become relative to the project or to site-packages, or only their last part is left.

    Where that is the name of a user, not even that.
    """
    return _PATH.sub(_shorten, _QUOTED_PATH.sub(_shorten, text))


def _shorten(match: re.Match[str]) -> str:
    path = Path(match[0])
    roots = [root for root in (ROOT, *map(Path, sys.path)) if root.is_absolute() and root in path.parents]
    if roots:  # the innermost: site-packages may lie within the project
        return path.relative_to(max(roots, key=lambda root: len(root.parts))).as_posix()
    return "…" if path.parent.name in _HOMES or path == Path("/root") else path.name
