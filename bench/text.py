"""Words for messages: the nearest known name to a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message, " Did you mean 'photo'?", or nothing where no known name is close."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=3, cutoff=0.6)
    close.sort(key=lambda name: sorted(name) != sorted(word.lower()))  # letters that changed places come first
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


def counted(number: int, noun: str) -> str:
    """A number of things: 1 cell, 2 cells."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
