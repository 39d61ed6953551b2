"""Amounts as people write them: bytes ("11GB", "512MiB") and seconds ("20m", "1h30m")."""

from __future__ import annotations

import math
import re

from bench.errors import UserError

MEGABYTE = 1e6
_BYTES = {"b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES[_letter] = _BYTES[f"{_letter}b"] = 1000**_power
    _BYTES[f"{_letter}ib"] = 1024**_power
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NUMBER = r"(\d+(?:\.\d+)?)"


def parse_size(text: str) -> int:
    """Bytes. KB, MB, GB are powers of 1000 (K, M, G likewise), KiB, MiB, GiB powers of 1024; one of them is needed."""
    match = re.fullmatch(rf"{_NUMBER}\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _BYTES or float(match[1]) == 0:
        without = "has no unit" if match is not None and not match[2] else "is not an amount of memory"
        raise UserError(f"'{text}' {without}; write for example 11GB, 1.5GiB or 800MB")
    return int(float(match[1]) * _BYTES[match[2]])


def parse_duration(text: str) -> float:
    """Seconds. A bare number is seconds; units are d, h, m, s, the larger before the smaller."""
    stripped = text.strip().lower()
    if re.fullmatch(_NUMBER, stripped):
        stripped += "s"
    match = re.fullmatch("".join(rf"(?:{_NUMBER}\s*{unit}\s*)?" for unit in _SECONDS), stripped)
    seconds = 0.0
    if match is not None:
        seconds = sum(float(number or 0) * unit for number, unit in zip(match.groups(), _SECONDS.values(), strict=True))
    if seconds == 0:
        raise UserError(f"'{text}' is not a length of time; write for example 90s, 20m or 1h30m")
    return seconds


def format_size(size: float) -> str:
    """Bytes in the largest unit that leaves at least one whole, three digits: 1.23 GB, 45.6 MB."""
    for unit, name in ((1000**4, "TB"), (1000**3, "GB"), (1000**2, "MB"), (1000, "kB")):
        if size >= unit:
            return f"{_three_digits(size / unit)} {name}"
    return f"{size:.0f} B"


def format_duration(seconds: float) -> str:
    """Seconds for reading: 0.42 s, 12.3 s, 4 min 05 s, 2 h 03 min."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    if seconds < 3570:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def megabytes(size: int | None) -> float | None:
    """For a table; None for what was not measured or not needed."""
    return size / MEGABYTE if size else None
