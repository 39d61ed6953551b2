"""From a study's trials to what is said about them: the best, the cheapest that is about as good, the curve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.records import OK
from bench.tuning.study import Trial

NEARLY = 0.002  # of accuracy: 0.2 points


def complete(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.outcome == OK and trial.accuracy is not None and trial.cost is not None]


def best(trials: Sequence[Trial]) -> Trial | None:
    """The most accurate trial on the validation nodes, the first one of equals."""
    return max(complete(trials), key=lambda trial: (trial.accuracy, -trial.slot), default=None)


def cheapest(trials: Sequence[Trial], within: float = NEARLY) -> Trial | None:
    """The trial that took the fewest seconds among those whose accuracy is at most this far below the best."""
    top = best(trials)
    if top is None or top.accuracy is None:
        return None
    good = [trial for trial in complete(trials) if trial.accuracy >= top.accuracy - within - 1e-12]  # type: ignore[operator]
    return min(good, key=lambda trial: (trial.cost, trial.slot))


def front(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that no other one beats in accuracy and seconds both, the cheapest first."""
    found: list[Trial] = []
    for trial in sorted(complete(trials), key=lambda trial: (trial.cost, -(trial.accuracy or 0.0), trial.slot)):
        if not found or (trial.accuracy or 0.0) > (found[-1].accuracy or 0.0):
            found.append(trial)
    return found


def best_so_far(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that were better than all before them, in the order of their slots."""
    found: list[Trial] = []
    for trial in sorted(complete(trials), key=lambda trial: trial.slot):
        if not found or (trial.accuracy or 0.0) > (found[-1].accuracy or 0.0):
            found.append(trial)
    return found


def outcomes(trials: Sequence[Trial]) -> str:
    """Trials by outcome, such as 14 complete, 5 pruned, 1 oom."""
    counts = Counter("complete" if trial.outcome == OK else trial.outcome for trial in trials)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
