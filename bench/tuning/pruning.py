"""When a trial is not worth finishing: its best validation accuracy so far is held against the others' at a few rungs.

The rungs are 32, 64, 128, ... evaluations. A trial below the median of the complete ones is ended there. One that its
own stopping rule ended earlier stands at the later rungs with its best. Everything depends on the curves and nothing on
the clock, so a study that is restarted, or finds a cell in the ledger, decides as it would have.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import optuna
from optuna.exceptions import UpdateFinishedTrialError

from bench.model import Recipe

FIRST_RUNG = 32
LOST = "another driver took this trial for dead and does it again"


def rungs(evaluations: int) -> list[int]:
    """Numbers of evaluations at which a training of at most this many is judged; the last one is never among them."""
    found, rung = [], FIRST_RUNG
    while rung < evaluations:
        found.append(rung)
        rung *= 2
    return found


def most_evaluations(recipe: Recipe) -> int:
    """How often a training looks at the validation nodes if it lasts to its end."""
    return -(-recipe.max_epochs // recipe.evaluate_every)


class Judge:
    """Follows the validation curve of one trial."""

    def __init__(self, trial: optuna.Trial, evaluations: int) -> None:
        self._trial, self._left = trial, rungs(evaluations)
        self.seen, self.best = 0, 0.0

    def see(self, accuracy: float) -> str | None:
        """Take in one evaluation; returns why the trial should end here, if it should."""
        self.seen += 1
        self.best = max(self.best, float(np.float32(accuracy)))  # as stored curves have it
        if not self._left or self.seen != self._left[0]:
            return None
        if not self._report(self._left.pop(0)):
            return LOST
        if not self._trial.should_prune():
            return None
        return f"pruned: {100 * self.best:.2f} % after {self.seen} evaluations is below the median"

    def follow(self, curve: Iterable[float]) -> str | None:
        """The same for a curve that is already known."""
        for accuracy in curve:
            reason = self.see(accuracy)
            if reason is not None:
                return reason
        return None

    def complete(self) -> None:
        """Stand at the remaining rungs with what was reached."""
        while self._left and self._report(self._left.pop(0)):
            pass

    def _report(self, rung: int) -> bool:
        """Stand at a rung; False if the trial was taken for dead meanwhile, so that another driver does it again."""
        try:
            self._trial.report(self.best, rung)
        except UpdateFinishedTrialError:
            return False
        return True
