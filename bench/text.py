"""Words for messages: the nearest known name to a mistyped one, settings and paths as one types them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message, " Did you mean 'photo'?", or nothing where no known name is close."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=3, cutoff=0.6)
    close.sort(key=lambda name: sorted(name) != sorted(word.lower()))  # letters that changed places come first
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


def counted(number: int, noun: str) -> str:
    """A number of things: 1 cell, 2 cells."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def as_typed(value: Any) -> str:
    """A value as --set takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(as_typed, value)) if isinstance(value, tuple | list) else str(value)


def settings_as_typed(settings: Mapping[str, Any]) -> str:
    """Settings as --set takes them, one after the other."""
    return " ".join(f"{name}={as_typed(value)}" for name, value in settings.items())


def shown(path: Path) -> str:
    """A path as one would type it here: below the current folder from there on, otherwise as it was given."""
    below = path.absolute()
    return str(below.relative_to(Path.cwd()) if below.is_relative_to(Path.cwd()) else path)
