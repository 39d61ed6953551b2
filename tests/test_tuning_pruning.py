"""Rungs and the judge who stands at them."""

from __future__ import annotations

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import ToyConfig

from bench.tuning.pruning import LOST, Judge, most_evaluations, rungs


@pytest.mark.parametrize(
    ("evaluations", "expected"), [(31, []), (32, []), (33, [32]), (64, [32]), (500, [32, 64, 128, 256])]
)
def test_rungs(evaluations: int, expected: list[int]) -> None:
    assert rungs(evaluations) == expected


@pytest.mark.parametrize(("epochs", "every", "expected"), [(100, 1, 100), (100, 10, 10), (101, 10, 11), (5, 10, 1)])
def test_evaluations_of_a_recipe(epochs: int, every: int, expected: int) -> None:
    assert most_evaluations(ToyConfig(max_epochs=epochs, evaluate_every=every)) == expected


def study_of(*finals: float) -> optuna.Study:
    """Complete trials whose accuracy never changed, and a median pruner that needs five of them."""
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=5))
    for final in finals:
        trial = study.ask()
        judge = Judge(trial, 100)
        assert judge.follow([final] * 20) is None
        judge.complete()
        study.tell(trial, final)
    return study


def test_a_trial_below_the_median_ends_at_the_rung_and_not_before() -> None:
    judge = Judge(study_of(0.5, 0.6, 0.7, 0.8, 0.9).ask(), 100)
    assert all(judge.see(0.65) is None for _ in range(31))
    assert judge.see(0.65) == "pruned: 65.00 % after 32 evaluations is below the median"


@pytest.mark.parametrize(("finals", "mine"), [((0.5, 0.6, 0.7, 0.8, 0.9), 0.75), ((0.9, 0.9, 0.9, 0.9), 0.1)])
def test_a_trial_above_the_median_or_among_the_first_goes_on(finals: tuple[float, ...], mine: float) -> None:
    judge = Judge(study_of(*finals).ask(), 100)
    assert judge.follow([mine] * 100) is None


def test_what_counts_is_the_best_so_far() -> None:
    judge = Judge(study_of(0.5, 0.6, 0.7, 0.8, 0.9).ask(), 100)
    assert judge.follow([0.2, 0.75, *[0.1] * 98]) is None


def test_one_that_ended_early_stands_at_later_rungs_with_its_best() -> None:
    study = study_of(0.5, 0.6)
    assert [trial.intermediate_values for trial in study.trials] == [
        {32: pytest.approx(0.5), 64: pytest.approx(0.5)},
        {32: pytest.approx(0.6), 64: pytest.approx(0.6)},
    ]


def test_a_trial_that_another_driver_took_for_dead_ends_at_the_next_rung() -> None:
    study = study_of(0.5)
    trial = study.ask()
    judge, known, early = (Judge(trial, 100) for _ in range(3))
    study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    assert all(judge.see(0.9) is None for _ in range(31))
    assert judge.see(0.9) == LOST
    assert known.follow([0.9] * 40) == LOST
    assert early.follow([0.9] * 20) is None
    early.complete()
    assert study.trials[-1].intermediate_values == {}


@given(st.lists(st.integers(0, 1000).map(lambda right: right / 1000), max_size=90))
@settings(max_examples=30)
def test_a_stored_curve_is_judged_as_it_was_when_it_happened(curve: list[float]) -> None:
    """Stored curves have single precision: the judge must not see the difference."""
    import numpy as np

    study = study_of(0.5, 0.6, 0.7, 0.8, 0.9)
    live, stored = Judge(study.ask(), 90), Judge(study.ask(), 90)
    verdict = next((reason for accuracy in curve if (reason := live.see(accuracy))), None)
    assert stored.follow(np.asarray(curve, dtype=np.float32)) == verdict
    assert study.trials[-1].intermediate_values == study.trials[-2].intermediate_values
