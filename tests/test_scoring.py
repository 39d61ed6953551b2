from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scoring import score


def test_values_worked_out_by_hand() -> None:
    result = score(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1], dtype=np.uint8))
    assert result == pytest.approx({"accuracy": 3 / 4, "balanced_accuracy": 5 / 6, "macro_f1": 11 / 15})


def test_a_class_that_the_set_does_not_contain_is_no_class_of_its_own() -> None:
    # class 2 is predicted once but never true: recalls 1/2 and 1, F1 2/3 and 1
    result = score(np.array([0, 0, 1]), np.array([0, 2, 1]))
    assert result == pytest.approx({"accuracy": 2 / 3, "balanced_accuracy": 3 / 4, "macro_f1": 5 / 6})


def test_a_class_that_is_never_predicted_counts_as_zero() -> None:
    result = score(np.array([0, 1]), np.array([0, 0]))
    assert result == pytest.approx({"accuracy": 1 / 2, "balanced_accuracy": 1 / 2, "macro_f1": 1 / 3})


def test_an_empty_set_has_no_score() -> None:
    with pytest.raises(ValueError, match="no nodes"):
        score(np.array([], dtype=int), np.array([], dtype=int))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40), st.permutations(range(5)))
def test_renaming_the_classes_changes_nothing(pairs: list[tuple[int, int]], names: list[int]) -> None:
    truth, predicted = np.array(pairs).T
    renamed = np.array(names)
    assert score(renamed[truth], renamed[predicted]) == pytest.approx(score(truth, predicted))
