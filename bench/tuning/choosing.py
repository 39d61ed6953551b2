"""From a study's trials to what is said about them: the best, the cheapest that is about as good, the curve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from bench.records import OK
from bench.tuning.study import Trial

NEARLY = 0.002  # of accuracy: 0.2 points


def complete(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that were trained to their end."""
    return [trial for trial in trials if trial.outcome == OK]


def best(trials: Sequence[Trial]) -> Trial | None:
    """The most accurate trial on the validation nodes, the first one of equals."""
    return max(complete(trials), key=lambda trial: (trial.accuracy, -trial.slot), default=None)


def cheapest(trials: Sequence[Trial], within: float = NEARLY) -> Trial | None:
    """The trial that took the fewest seconds among those whose accuracy is at most this far below the best."""
    found = complete(trials)
    least = max((trial.score for trial in found), default=0.0) - within - 1e-12
    return min((trial for trial in found if trial.score >= least), key=lambda t: (t.cost, t.slot), default=None)


def front(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that no other one beats in accuracy and seconds both, the cheapest first."""
    return _better_than_all_before(sorted(complete(trials), key=lambda trial: (trial.cost, -trial.score, trial.slot)))


def best_so_far(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that were better than all before them, in the order of their slots."""
    return _better_than_all_before(sorted(complete(trials), key=lambda trial: trial.slot))


def _better_than_all_before(trials: Iterable[Trial]) -> list[Trial]:
    found: list[Trial] = []
    for trial in trials:
        if not found or trial.score > found[-1].score:
            found.append(trial)
    return found


def outcomes(trials: Sequence[Trial]) -> str:
    """Trials by outcome, such as 14 complete, 5 pruned, 1 oom."""
    counts = Counter("complete" if trial.outcome == OK else trial.outcome for trial in trials)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
