"""Until when a cell has to be done, and from when on it is certain that it will not be.

A training that cannot end in time is not worth its time: an hour of tuning has room for six trials that are cut off
after ten minutes, and for many more if each is given up once its pace is known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from bench.sizes import format_duration
from bench.train import least_epochs

_FASTER = 2.0  # how much faster than so far the rest may turn out: other work on the machine ends
_WATCHED = 0.05  # of the limit: a pace that was seen for less may be a hiccup


class Deadline:
    """The end of a cell's time limit; None is no limit. Time spent waiting for others does not count."""

    def __init__(
        self, limit: float | None, config: Mapping[str, Any], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._limit, self._clock = limit, clock
        self._end = math.inf if limit is None else clock() + limit
        self._least = least_epochs(config)
        self._first: tuple[int, float] | None = None  # epoch and time; what comes before it is warming up
        self._waiting_since: float | None = None

    def passed(self) -> bool:
        return self._waiting_since is None and self._clock() > self._end

    def waits(self, waiting: bool) -> None:
        """Told when the cell begins to wait for what another one is preparing, and when it has it."""
        if waiting:
            self._waiting_since = self._clock()
        elif self._waiting_since is not None:
            self._end += self._clock() - self._waiting_since
            self._waiting_since = None

    def will_miss_deadline(self, epoch: int, now: float) -> str | None:
        """Told of an epoch and when it ended; returns why the cell cannot end in time, once that is certain.

        `now` is the cell's own time, not that of hearing of it: the listener may have been busy or suspended.
        """
        if self._first is None or self._limit is None:
            self._first = epoch, now
            return None
        epochs, seconds = epoch - self._first[0], now - self._first[1]
        if epochs < 1 or seconds < _WATCHED * self._limit:
            return None
        if now + max(0, self._least - epoch) * seconds / epochs / _FASTER <= self._end:
            return None
        pace = f"an epoch takes {seconds / epochs:.1f} s and training at least {self._least} of them"
        return f"{pace}, which does not fit into {format_duration(self._limit)} (estimated); given up"
