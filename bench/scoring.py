"""Scores of predicted classes; only the parent process, which knows the test labels, calls this."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import f1_score, recall_score


def score(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Accuracy, balanced accuracy and macro-F1 as fractions.

    The last two are means over the classes that occur in `truth`: a class that the set does not contain has neither
    recall nor F1, and predicting it is an error of the class it was taken from.
    """
    if len(truth) == 0:
        raise ValueError("there is nothing to score: the set has no nodes")
    present = np.unique(truth)
    means = {"labels": present, "average": "macro", "zero_division": 0.0}
    return {
        "accuracy": float(np.mean(truth == predicted)),
        "balanced_accuracy": float(recall_score(truth, predicted, **means)),
        "macro_f1": float(f1_score(truth, predicted, **means)),
    }
