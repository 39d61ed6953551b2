"""Where a cell ran: versions, processor, code. Nothing here names a machine, a user or a path."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from bench import __version__

LIBRARIES = ("torch", "numpy", "scipy", "numba", "torch_geometric", "dgl")
ROOT = Path(__file__).resolve().parent.parent  # the folder that holds the packages bench and models
CODE = ("bench", "models", "pyproject.toml")  # what makes the code version dirty; results do not


def environment(threads: int, device: str, gpu: str | None) -> dict[str, Any]:
    """The `environment` part of a record."""
    return {
        "python": platform.python_version(),
        **{library: library_version(library) for library in LIBRARIES},
        "processor": processor(),
        "gpu": gpu,
        "threads": threads,
        "device": device,
        "code": code_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


@functools.cache
def library_version(name: str) -> str | None:
    """Read from the package's metadata, so that asking does not import it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model and the number of logical processors this process may use.

    Virtual machines call several generations by one name, which differ in speed and, by their instructions, in
    rounding: the numbers of family and model tell them apart.
    """
    facts: dict[str, str] = {}
    if cpuinfo.exists():
        lines = (line.partition(":") for line in cpuinfo.read_text().partition("\n\n")[0].splitlines())
        facts = {name.strip(): value.strip() for name, _, value in lines}
    model = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{name} {facts[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    return f"{' '.join([model, *numbers])} ({usable_processors()} logical processors)"


def usable_processors() -> int:
    """Logical processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def code_version(root: Path = ROOT) -> str:
    """The commit (marked where the code differs from it) of the repository this package lies in, or its version."""
    commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD") if (root / ".git").exists() else None
    if not commit:
        return f"version {__version__}"
    changes = _git(root, "status", "--porcelain", "--", *CODE)
    return commit if changes == "" else f"{commit}+dirty"


def _git(root: Path, *arguments: str) -> str | None:
    """Git's answer, or None where there is no git or it refuses."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
