"""Prepared arrays that cells share: computed once, kept on disk, memory-mapped by the cells that need them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import scipy

from bench.files import free_space, locked, new_folder
from bench.sizes import format_size
from bench.source_code import code_of

Arrays = Mapping[str, np.ndarray]


@dataclass
class PrepareCache:
    """A folder of array bundles, each under a hash of what it depends on; the least recently used go first.

    `folder=None` keeps nothing: every bundle is computed afresh and stays in memory.
    """

    folder: Path | None = None
    limit: int = 40 * 2**30  # bytes
    on_wait: Callable[[bool], None] = lambda waits: None  # told when others have to be waited for, and when no longer
    measured: float = 0.0  # seconds spent computing here
    reused: float = 0.0  # seconds that others had spent on what was found here
    waited: float = 0.0  # seconds until others were done with what was then found here
    hits: int = field(default=0)
    on_disk: int = 0  # bytes that were handed out as maps of files
    in_memory: int = 0  # bytes that were not: nothing is kept, or there was no room
    _in_use: set[Path] = field(default_factory=set, init=False, repr=False)  # entries that were handed out as maps

    def get(self, what: str, depends_on: Mapping[str, Any], compute: Callable[[], Arrays]) -> dict[str, np.ndarray]:
        """The arrays named `what` for these dependencies (plain JSON values), computed only if no cell did before.

        What other code or another library computed is not found: a result must not rest on it under a new name.
        """
        if self.folder is None:
            return self._stays_in_memory(self._compute(compute)[0])
        entry = self.folder / f"{what}-{_digest(what, depends_on, code_of(compute))}"
        start = time.perf_counter()
        with locked(self.folder / ".locks" / entry.name, self.on_wait):
            self.waited += time.perf_counter() - start
            return self._get(entry, {"what": what, "depends_on": dict(depends_on)}, compute)

    def _get(self, entry: Path, facts: dict[str, Any], compute: Callable[[], Arrays]) -> dict[str, np.ndarray]:
        found = _open(entry)
        if found is not None:
            self.hits += 1
            self.reused += found[1]
            return self._mapped(entry, found[0])
        arrays, seconds = self._compute(compute)
        if self._make_room(_size(arrays)):
            _write(entry, arrays, {**facts, "seconds": seconds})
            stored = _open(entry)
            if stored is not None:  # unless another process has evicted it already: the map, and the memory back
                return self._mapped(entry, stored[0])
        else:
            size = format_size(_size(arrays))
            print(f"warning: no room on disk for {facts['what']} ({size}): it stays in memory")
        return self._stays_in_memory(arrays)

    def _mapped(self, entry: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._in_use.add(entry)
        self.on_disk += _size(arrays)
        return arrays

    def _stays_in_memory(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.in_memory += _size(arrays)
        return arrays

    @property
    def source(self) -> str:
        """Whether what was handed out had been measured here, reused, or both."""
        if not self.hits:
            return "measured"
        return "partly reused" if self.measured else "reused"

    def _compute(self, compute: Callable[[], Arrays]) -> tuple[dict[str, np.ndarray], float]:
        start = time.perf_counter()
        arrays = {name: np.ascontiguousarray(array) for name, array in compute().items()}
        seconds = time.perf_counter() - start
        self.measured += seconds
        return arrays, seconds

    def _make_room(self, size: int) -> bool:
        """Evict the least recently used entries until `size` fits the limit and the disk; False where it never will.

        What this very cell uses stays: its maps would hold the space on the disk all the same.
        """
        if self.folder is None:
            return False
        _remove_abandoned(self.folder)
        entries = sorted(list_entries(self.folder), key=lambda entry: entry.used)
        spare = [entry for entry in entries if entry.path not in self._in_use]
        room = self.limit - sum(entry.size for entry in entries)
        gain = sum(entry.size for entry in spare)
        if size > min(room, free_space(self.folder)) + gain:
            return False  # and nothing was evicted in vain
        for entry in spare:
            if size <= min(room, free_space(self.folder)):
                break
            shutil.rmtree(entry.path, ignore_errors=True)
            room += entry.size
        return size <= min(room, free_space(self.folder))


@dataclass(frozen=True)
class Entry:
    """One bundle in the cache, for `bench cache` to show."""

    path: Path
    what: str
    depends_on: dict[str, Any]
    seconds: float
    size: int
    used: float


def list_entries(folder: Path) -> list[Entry]:
    """All finished bundles below a cache folder."""
    entries = []
    for info in sorted(folder.glob("[!.]*/entry.json")):  # drafts have a dot
        try:
            facts = json.loads(info.read_text())
            size = sum(file.stat().st_size for file in info.parent.iterdir())
            used = info.stat().st_mtime
        except (OSError, ValueError):
            continue  # another process is evicting it right now
        entries.append(Entry(info.parent, facts["what"], facts["depends_on"], facts["seconds"], size, used))
    return entries


def _size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def _digest(what: str, depends_on: Mapping[str, Any], code: str) -> str:
    text = json.dumps([what, dict(depends_on), code, np.__version__, scipy.__version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _open(entry: Path) -> tuple[dict[str, np.ndarray], float] | None:
    """The bundle's arrays and the seconds they once took; None where it is absent or damaged."""
    try:
        facts = json.loads((entry / "entry.json").read_text())
        arrays = {name: np.asarray(np.load(entry / f"{name}.npy", mmap_mode="r")) for name in facts["arrays"]}
        os.utime(entry / "entry.json")
        return arrays, float(facts["seconds"])
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None


def _write(entry: Path, arrays: Arrays, facts: dict[str, Any]) -> None:
    try:
        with new_folder(entry) as draft:
            for name, array in arrays.items():
                np.save(draft / f"{name}.npy", array, allow_pickle=False)
            (draft / "entry.json").write_text(json.dumps({**facts, "arrays": sorted(arrays)}))
            if entry.exists() and _open(entry) is None:  # damaged: a folder that is not empty would stop the rename
                shutil.rmtree(entry, ignore_errors=True)
    except OSError as error:  # another process was faster, or the disk is full: the arrays are in memory anyway
        if not (entry / "entry.json").exists():
            print(f"warning: prepared arrays could not be kept: {error.strerror}")


def _remove_abandoned(folder: Path) -> None:
    """Drafts of writers that were killed; one that is a day old has no writer any more."""
    for draft in folder.glob(".*-*"):
        with contextlib.suppress(OSError):  # its writer has just renamed it
            if time.time() - draft.stat().st_mtime > 86_400:
                shutil.rmtree(draft, ignore_errors=True)


def private_folder(shared: Path) -> Path:
    """Below a shared cache, where this process keeps what no other process may find; the caller removes it in the end.

    What processes of this machine that were killed have left behind goes first.
    """
    host = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # several machines may share a home folder
    for left in shared.glob(f".own-{host}-*"):
        process = int(left.name.rpartition("-")[2])
        if process == os.getpid() or not psutil.pid_exists(process):
            shutil.rmtree(left, ignore_errors=True)
    return shared / f".own-{host}-{os.getpid()}"


def as_tensor(array: np.ndarray) -> Any:
    """A tensor over the array's own memory; read-only maps are fine because models never write into them."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
