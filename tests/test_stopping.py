"""Learning-rate schedules by their published numbers, and the stopping rules by hand and against a literal twin."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.model import Recipe
from bench.stopping import STOPPING_RULES, Evaluation, Ranked, StoppingRule
from bench.train import Plateau, learning_rate


def evaluation(correct: int, loss: float) -> Evaluation:
    return Evaluation(correct / 100, loss)


def judge(rule: StoppingRule, sequence: list[tuple[int, float]]) -> tuple[int, int | None]:
    """1-based: the evaluation that was remembered, and the one after which the rule stopped (None: never)."""
    best = 0
    for at, (correct, loss) in enumerate(sequence, 1):
        if rule.better(evaluation(correct, loss)):
            best = at
        if rule.finished(evaluation(correct, loss)):
            return best, at
    return best, None


# -- learning rate ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peak", [1e-3, 1e-2])
def test_the_published_schedule(peak: float) -> None:
    recipe = Recipe(
        learning_rate=peak,
        schedule="warmup-linear",
        warmup_updates=400,
        decay_updates=1000,
        final_learning_rate=1e-4,
    )
    assert learning_rate(recipe, 1) == pytest.approx(peak / 400)
    assert learning_rate(recipe, 200) == pytest.approx(peak / 2)
    assert learning_rate(recipe, 400) == pytest.approx(peak)
    assert learning_rate(recipe, 700) == pytest.approx((peak + 1e-4) / 2)
    assert learning_rate(recipe, 999) == pytest.approx(1e-4 + (peak - 1e-4) / 600)
    assert learning_rate(recipe, 1000) == learning_rate(recipe, 5000) == 1e-4


def test_a_peak_equal_to_the_final_rate_decays_flat() -> None:
    recipe = Recipe(
        learning_rate=1e-4,
        schedule="warmup-linear",
        warmup_updates=400,
        decay_updates=1000,
        final_learning_rate=1e-4,
    )
    assert {round(learning_rate(recipe, update), 12) for update in range(400, 1100)} == {1e-4}


def test_a_constant_rate_and_no_warm_up() -> None:
    assert learning_rate(Recipe(learning_rate=0.3), 10**6) == 0.3
    recipe = Recipe(learning_rate=1.0, schedule="warmup-linear", warmup_updates=0, decay_updates=10)
    assert [learning_rate(recipe, update) for update in (1, 5, 10)] == pytest.approx([0.9, 0.5, 0.0])


def test_a_cosine_after_a_linear_warm_up() -> None:
    recipe = Recipe(
        learning_rate=1.0, schedule="warmup-cosine", warmup_updates=10, decay_updates=40, final_learning_rate=0.2
    )
    # cos 60° = 1/2 after a third of the decay, 0 after half of it, -1/2 after two thirds
    expected = {5: 0.5, 10: 1.0, 20: 0.2 + 0.8 * 0.75, 25: 0.2 + 0.8 * 0.5, 30: 0.2 + 0.8 * 0.25, 40: 0.2, 99: 0.2}
    assert {update: learning_rate(recipe, update) for update in expected} == pytest.approx(expected)


def test_a_plateau_lowers_the_rate_and_ends_training_when_it_is_too_low() -> None:
    recipe = Recipe(learning_rate=1.0, schedule="plateau", final_learning_rate=0.2, plateau_patience=1)
    plateau = Plateau(recipe)
    seen = []
    for loss in (5.0, 4.0, 3.9999, 4.1, 3.0, 3.0, 3.0, 3.1, 3.1):  # 3.9999 is lower by too little to count
        seen.append((plateau.observe(loss), plateau.factor))
    assert seen == [(False, 1.0)] * 3 + [(False, 0.5)] * 3 + [(False, 0.25)] * 2 + [(True, 0.125)]
    assert learning_rate(recipe, 7) == 1.0  # what the plateau takes off comes on top


@given(st.lists(st.floats(0.1, 9.0), max_size=60), st.integers(1, 4))
def test_a_plateau_is_the_one_of_torch(losses: list[float], patience: int) -> None:
    recipe = Recipe(learning_rate=1.0, schedule="plateau", plateau_patience=patience, plateau_factor=0.5)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    twin = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=patience, eps=0.0)
    plateau = Plateau(recipe)
    for loss in losses:
        plateau.observe(loss)
        twin.step(loss)
        assert plateau.factor == optimizer.param_groups[0]["lr"]


def test_other_schedules_have_no_plateau() -> None:
    plateau = Plateau(Recipe(final_learning_rate=1.0, learning_rate=0.5))
    assert not any(plateau.observe(1.0) for _ in range(100))
    assert plateau.factor == 1.0


# -- stopping rules ---------------------------------------------------------------------------------------------------


class LiteralRanked:
    """Section 2.4 of the facts, sentence by sentence."""

    def __init__(self, patience: int) -> None:
        self.max_patience = self.patience = patience
        self.best_accuracy: int | None = None
        self.best_loss: float | None = None
        self.remembered: tuple[int, float] | None = None

    def better(self, now: Evaluation) -> bool:
        replace_it = (
            self.remembered is None
            or now.score > self.remembered[0]
            or (now.score == self.remembered[0] and now.loss < self.remembered[1])
        )
        if replace_it:
            self.remembered = (now.score, now.loss)
        return replace_it

    def finished(self, now: Evaluation) -> bool:
        accuracy_holds = self.best_accuracy is None or now.score >= self.best_accuracy
        loss_holds = self.best_loss is None or now.loss <= self.best_loss
        if accuracy_holds:
            self.best_accuracy = now.score
        if loss_holds:
            self.best_loss = now.loss
        if accuracy_holds or loss_holds:
            self.patience = self.max_patience
        else:
            self.patience -= 1
        return self.patience == 0


looks = st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5])), max_size=40)


@given(looks, st.integers(1, 5))
def test_ranked_is_its_literal_twin(sequence: list[tuple[int, float]], patience: int) -> None:
    assert judge(Ranked(patience), sequence) == judge(LiteralRanked(patience), sequence)


@pytest.mark.parametrize(
    ("rule", "patience", "sequence", "expected"),
    [
        ("ranked", 9, [(5, 0.5), (5, 0.4)], (2, None)),  # a tie in accuracy, lower loss: replaced
        ("ranked", 9, [(5, 0.5), (5, 0.5)], (1, None)),  # equal in both: kept
        ("ranked", 9, [(5, 0.5), (6, 0.9)], (2, None)),  # more accurate at a higher loss: replaced
        ("ranked", 9, [(5, 0.5), (4, 0.1)], (1, None)),  # less accurate at a lower loss: kept
        ("ranked", 2, [(5, 0.5), (4, 0.6), (5, 0.9), (4, 0.6), (4, 0.6)], (1, 5)),  # equal accuracy renews
        ("ranked", 2, [(5, 0.5), (4, 0.6), (1, 0.5), (4, 0.6), (4, 0.6)], (1, 5)),  # equal loss renews
        ("ranked", 1, [(5, 0.5), (4, 0.4), (4, 0.45)], (1, 3)),  # the lowest loss is not the remembered state's
        ("loss", 2, [(1, 0.5), (9, 0.5), (9, 0.6)], (1, 3)),  # accuracy counts for nothing, a tie is no progress
        ("loss", 2, [(1, 0.5), (1, 0.6), (1, 0.4), (1, 0.6)], (3, None)),
        ("accuracy", 2, [(5, 0.5), (5, 0.9), (4, 0.1), (4, 0.1)], (2, 4)),  # the later of equals
        ("accuracy", 2, [(5, 0.5), (4, 0.1), (5, 0.5), (4, 0.1)], (3, None)),
        ("window", 3, [(1, 0.75), (1, 0.5), (1, 0.25), (1, 0.5)], (3, None)),  # equal to the mean of three
        ("window", 3, [(1, 0.75), (1, 0.5), (1, 0.25), (1, 0.51)], (3, 4)),
        ("window", 2, [(1, 0.1), (1, 0.9), (1, 0.4), (1, 0.6)], (1, None)),  # older losses have left the window
        ("window", 3, [(1, 0.1), (1, 0.9), (1, 0.9)], (1, None)),  # the window is not full yet
        ("both", 9, [(5, 0.5), (5, 0.5), (6, 0.6), (5, 0.4)], (2, None)),  # ties count, one alone does not
        ("both", 2, [(5, 0.5), (6, 0.6), (5, 0.5), (6, 0.5), (5, 0.6), (6, 0.9), (5, 0.6), (5, 0.6)], (4, 8)),
        ("never", 1, [(5, 0.5), (4, 0.6), (3, 0.7), (5, 0.8), (4, 0.9)], (4, None)),
    ],
)
def test_stopping_rules_by_hand(
    rule: str, patience: int, sequence: list[tuple[int, float]], expected: tuple[int, int | None]
) -> None:
    assert judge(STOPPING_RULES[rule](patience), sequence) == expected


def test_every_rule_that_a_recipe_may_name_exists() -> None:
    assert set(get_args(get_type_hints(Recipe)["stop"])) == STOPPING_RULES.keys()
