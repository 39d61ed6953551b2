from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UserError
from bench.metrics import METRICS, find_metric, score


def assert_scores(result: dict[str, float], **expected: float) -> None:
    """Compare the metrics that are named; one that needs no scores is never left out."""
    assert {name: result[name] for name in expected} == pytest.approx(expected)
    assert result.keys() == {name for name, metric in METRICS.items() if not metric.needs_scores}


def test_values_worked_out_by_hand() -> None:
    result = score(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1], dtype=np.uint8))
    assert_scores(result, accuracy=3 / 4, balanced_accuracy=5 / 6, macro_f1=11 / 15)


def test_a_class_that_the_set_does_not_contain_is_no_class_of_its_own() -> None:
    # class 2 is predicted once but never true: recalls 1/2 and 1, F1 2/3 and 1
    result = score(np.array([0, 0, 1]), np.array([0, 2, 1]))
    assert_scores(result, accuracy=2 / 3, balanced_accuracy=3 / 4, macro_f1=5 / 6)


def test_a_class_that_is_never_predicted_counts_as_zero() -> None:
    result = score(np.array([0, 1]), np.array([0, 0]))
    assert_scores(result, accuracy=1 / 2, balanced_accuracy=1 / 2, macro_f1=1 / 3)


def test_an_empty_set_has_no_score() -> None:
    with pytest.raises(ValueError, match="no nodes"):
        score(np.array([], dtype=int), np.array([], dtype=int))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40), st.permutations(range(5)))
def test_renaming_the_classes_changes_nothing(pairs: list[tuple[int, int]], names: list[int]) -> None:
    truth, predicted = np.array(pairs).T
    renamed = np.array(names)
    assert score(renamed[truth], renamed[predicted]) == pytest.approx(score(truth, predicted))


def test_roc_auc_counts_the_pairs_that_are_in_order() -> None:
    """Of 2 x 3 pairs (first class, second class), five have the second class higher and one is a tie."""
    truth, margins = np.array([0, 0, 1, 1, 1]), np.array([-2.0, 0.5, 0.5, 1.0, 3.0])
    result = score(truth, (margins > 0).astype(int), margins)
    assert result["roc_auc"] == pytest.approx((5 + 0.5) / 6)
    assert score(truth, truth, -margins)["roc_auc"] == pytest.approx(1 - 5.5 / 6)
    assert "roc_auc" not in score(truth, truth)  # classes alone do not tell


def test_a_metric_is_refused_where_it_does_not_suit_the_labels() -> None:
    assert find_metric("roc_auc", 2).needs_scores
    with pytest.raises(UserError, match="the metric roc_auc is for 2 classes and the labels have 3"):
        find_metric("roc_auc", 3)
    with pytest.raises(UserError, match="there is no metric 'auroc'"):
        find_metric("auroc")
