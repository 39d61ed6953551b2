"""When training ends and which state is kept: the rules by name. A new rule is a class and its name, both in here.

No torch here: names and settings are looked up without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

Stop = Literal["ranked", "loss", "accuracy", "both", "window", "never"]  # what a recipe may name


@dataclass(frozen=True)
class Evaluation:
    """One look at the validation nodes; the loss is a mean over nodes, whatever the batch size."""

    score: float  # the metric, higher is better
    loss: float


class StoppingRule(Protocol):
    """Judges evaluations in order: is this the best state so far, and is it time to stop?"""

    def better(self, now: Evaluation) -> bool: ...

    def finished(self, now: Evaluation) -> bool: ...


class Ranked:
    """The score first, loss breaks ties; patience is renewed when either is at least as good as its own best."""

    def __init__(self, patience: int) -> None:
        self.patience = self.left = patience
        self.best: tuple[float, float] = (-math.inf, math.inf)  # of the remembered state
        self.highest, self.lowest_loss = -math.inf, math.inf

    def better(self, now: Evaluation) -> bool:
        wins = (now.score, -now.loss) > (self.best[0], -self.best[1])
        if wins:
            self.best = (now.score, now.loss)
        return wins

    def finished(self, now: Evaluation) -> bool:
        progress = now.score >= self.highest or now.loss <= self.lowest_loss
        self.left = self.patience if progress else self.left - 1
        self.highest = max(self.highest, now.score)
        self.lowest_loss = min(self.lowest_loss, now.loss)
        return self.left <= 0


class LowestLoss:
    """The lowest loss is best; training ends after `patience` evaluations without a new low."""

    def __init__(self, patience: int) -> None:
        self.patience, self.since, self.lowest = patience, 0, math.inf

    def better(self, now: Evaluation) -> bool:
        wins = now.loss < self.lowest
        self.since = 0 if wins else self.since + 1
        self.lowest = min(self.lowest, now.loss)
        return wins

    def finished(self, now: Evaluation) -> bool:
        return self.since >= self.patience


class HighestAccuracy:
    """The highest score is best (the later of equals); training ends after `patience` lower ones in a row."""

    def __init__(self, patience: int) -> None:
        self.patience, self.since, self.highest = patience, 0, -math.inf

    def better(self, now: Evaluation) -> bool:
        wins = now.score >= self.highest
        self.since = 0 if wins else self.since + 1
        self.highest = max(self.highest, now.score)
        return wins

    def finished(self, now: Evaluation) -> bool:
        return self.since >= self.patience


class BothAtOnce:
    """A state is best when neither score nor loss is worse than ever before; patience as in `Ranked`."""

    def __init__(self, patience: int) -> None:
        self.patience, self.since = patience, 0
        self.highest, self.lowest_loss = -math.inf, math.inf

    def better(self, now: Evaluation) -> bool:
        as_high, as_low = now.score >= self.highest, now.loss <= self.lowest_loss
        self.since = 0 if as_high or as_low else self.since + 1
        self.highest = max(self.highest, now.score)
        self.lowest_loss = min(self.lowest_loss, now.loss)
        return as_high and as_low

    def finished(self, now: Evaluation) -> bool:
        return self.since >= self.patience


class RisingLoss(LowestLoss):
    """The lowest loss is best; training ends when the loss exceeds the mean of the previous `patience` losses."""

    def __init__(self, patience: int) -> None:
        super().__init__(patience)
        self.losses: list[float] = []

    def finished(self, now: Evaluation) -> bool:
        window = self.losses[-self.patience :]
        self.losses.append(now.loss)
        return len(window) == self.patience and now.loss > sum(window) / len(window)


class FixedLength(HighestAccuracy):
    """The highest score is best; training always runs to its last epoch."""

    def finished(self, now: Evaluation) -> bool:
        return False


STOPPING_RULES: dict[str, Callable[[int], StoppingRule]] = {
    "ranked": Ranked,
    "loss": LowestLoss,
    "accuracy": HighestAccuracy,
    "both": BothAtOnce,
    "window": RisingLoss,
    "never": FixedLength,
}
