"""Which devices workers may use, from what the user wrote."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from bench.errors import UserError


def count_gpus() -> int:
    """GPUs that torch can use here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def capacity_of(device: str) -> int:
    """Bytes of memory that a cell on this device can have at the very most."""
    if device == "cpu":
        import psutil

        return min(int(psutil.virtual_memory().total), _container_limit())
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory)


def _container_limit(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that the control groups of this process allow it, or more than any machine has."""
    limits = [sys.maxsize]
    with contextlib.suppress(OSError):  # not Linux, or nothing to see: then there is no limit that could be known
        for line in own.read_text().splitlines():
            _, controllers, inside = line.split(":", 2)
            base, name = (root, "memory.max") if not controllers else (root / controllers, "memory.limit_in_bytes")
            group = base / inside.lstrip("/")
            for folder in (group, *group.parents):  # a limit of a group holds for all below it
                file = folder / name
                if folder.is_relative_to(base) and file.is_file() and (text := file.read_text().strip()).isdigit():
                    limits.append(int(text))
    return min(limits)


def resolve_devices(text: str, gpus: Callable[[], int] = count_gpus) -> list[str]:
    """`auto`, `cpu`, `cuda` (all GPUs) or a list such as `cuda:0,cuda:1`; each once, checked against what is there."""
    names = list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    if names == ["cpu"]:
        return names
    available = [f"cuda:{index}" for index in range(gpus())]
    if names == ["auto"]:
        return available or ["cpu"]
    if not names or not all(name == "cuda" or name.startswith("cuda:") for name in names):
        raise UserError(f"'{text}' is not a device; use auto, cpu, cuda, or a list such as cuda:0,cuda:1")
    if not available:
        raise UserError(f"--device {text}: torch finds no GPU here; use --device cpu")
    if "cuda" in names:
        return available
    for name in names:
        if name not in available:
            raise UserError(f"--device {text}: there is no {name}; torch finds {', '.join(available)}")
    return names
