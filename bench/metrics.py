"""What predictions are judged by: a registry of metrics. A dataset names its primary one.

scikit-learn is imported where it is used: workers that stop by accuracy do without it. So is numpy: names of metrics,
of datasets and of settings are checked without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.text import nearest

if TYPE_CHECKING:
    import numpy as np

ACCURACY = "accuracy"


@dataclass(frozen=True, eq=False)
class Predicted:
    """True classes of some nodes, the predicted ones and, for two classes, how much more the second one scored."""

    truth: np.ndarray
    classes: np.ndarray
    margins: np.ndarray | None = None


@dataclass(frozen=True)
class Metric:
    """A name, how tables print it, and a fraction between 0 and 1 for predictions."""

    name: str
    title: str
    compute: Callable[[Predicted], float]
    needs_scores: bool = False  # predicted classes are not enough
    num_classes: int | None = None  # the only number of classes that it is defined for
    higher_is_better: bool = True


def _balanced_accuracy(nodes: Predicted) -> float:
    from sklearn.metrics import recall_score

    return float(recall_score(nodes.truth, nodes.classes, **_over_present_classes(nodes)))


def _macro_f1(nodes: Predicted) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(nodes.truth, nodes.classes, **_over_present_classes(nodes)))


def _over_present_classes(nodes: Predicted) -> dict[str, Any]:
    """Average over the classes that occur in the truth.

    A class that the set does not contain has neither recall nor F1, and predicting it is an error of the class it was
    taken from.
    """
    import numpy as np

    return {"labels": np.unique(nodes.truth), "average": "macro", "zero_division": 0.0}


def _roc_auc(nodes: Predicted) -> float:
    """Return how often a node of the second class scores higher than one of the first; half where one is absent."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    if len(np.unique(nodes.truth)) < 2:
        return 0.5
    return float(roc_auc_score(nodes.truth, nodes.margins))


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(ACCURACY, "accuracy", lambda nodes: float((nodes.truth == nodes.classes).mean())),
        Metric("balanced_accuracy", "balanced accuracy", _balanced_accuracy),
        Metric("macro_f1", "macro-F1", _macro_f1),
        Metric("roc_auc", "ROC AUC", _roc_auc, needs_scores=True, num_classes=2),
    )
}


def find_metric(name: str, num_classes: int | None = None) -> Metric:
    """Return the metric of this name; refuse one that labels of so many classes do not suit."""
    metric = METRICS.get(name)
    if metric is None:
        raise UserError(f"there is no metric '{name}' (known: {', '.join(METRICS)}).{nearest(name, METRICS)}")
    if num_classes is not None and metric.num_classes not in (None, num_classes):
        raise UserError(
            f"the metric {name} is for {metric.num_classes} classes and the labels have {num_classes}; choose another"
        )
    return metric


def titled(title: str, metric: str) -> str:
    """Return a dataset's title, with its metric where that is not accuracy."""
    return title if metric == ACCURACY else f"{title} ({find_metric(metric).title})"


def score(truth: np.ndarray, classes: np.ndarray, margins: np.ndarray | None = None) -> dict[str, float]:
    """Return every metric that the predictions allow, as fractions by name."""
    if len(truth) == 0:
        raise ValueError("there is nothing to score: the set has no nodes")
    nodes = Predicted(truth, classes, margins)
    possible = (metric for metric in METRICS.values() if margins is not None or not metric.needs_scores)
    return {metric.name: metric.compute(nodes) for metric in possible}
