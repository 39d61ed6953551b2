"""What a model lets `tune` choose from: for each setting a tuple of choices or a range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Whole:
    """Whole numbers from low to high, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class Even:
    """Real numbers between low and high, all equally likely."""

    low: float
    high: float


@dataclass(frozen=True)
class Log:
    """Real numbers between low and high, equally likely on a logarithmic scale."""

    low: float
    high: float


Domain = tuple[Any, ...] | Whole | Even | Log
Space = Mapping[str, Domain]  # setting -> what it may be


def admits(domain: Domain, value: Any) -> bool:
    """Whether a search in this domain can find the value."""
    if isinstance(domain, tuple):
        return value in domain
    if isinstance(domain, Whole) and value != int(value):
        return False
    return domain.low <= value <= domain.high
