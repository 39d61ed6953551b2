"""Trials by dataset: the models that were run on a graph, and how two of them are compared there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bench.datasets.catalogue import Dataset, datasets
from bench.errors import UserError
from bench.metrics import titled
from bench.records import address
from bench.registry import models
from bench.report.comparisons import (
    BestGroup,
    PairedComparison,
    best_group,
    compare_on_fresh_splits,
    compare_on_frozen_split,
)
from bench.report.evidence import Evidence, Trials
from bench.report.statistics import MINIMUM_TRIALS, Refusal, SplitSizes

Sizes = SplitSizes | Refusal | None  # of re-drawn splits, or why they are not known; None on a frozen one


@dataclass(frozen=True)
class Setting:
    """Under which protocol a report's numbers were made."""

    mode: str = "fresh"
    lane: str = "author"


@dataclass(frozen=True)
class Results:
    """The trials of models on one dataset: a column of a table, a panel of a figure."""

    dataset: Dataset
    trials: Mapping[str, Trials]  # by model (or variant of one), those without a record too
    sizes: Sizes

    @property
    def title(self) -> str:
        return titled(self.dataset.title, self.dataset.metric)

    @property
    def good(self) -> list[Trials]:
        """Return the trials of the models that have a result."""
        return [trials for trials in self.trials.values() if trials.good]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return all records that a comparison of these models rests on."""
        return tuple(address(record) for trials in self.good for record in trials.good)

    @cached_property
    def aligned(self) -> dict[str, np.ndarray] | Refusal:
        """Model -> scores of the trials that all models with enough of them share, or why they cannot be compared."""
        scores = {name: t.by_seeds() for name, t in self.trials.items() if len(t.good) >= MINIMUM_TRIALS}
        if len(scores) < 2:
            return Refusal(f"fewer than two models have {MINIMUM_TRIALS} trials")
        shared = sorted(set.intersection(*(set(found) for found in scores.values())))
        if len(shared) < MINIMUM_TRIALS:
            return Refusal(f"the models share only {len(shared)} trials")
        return {model: np.array([found[seeds] for seeds in shared]) for model, found in scores.items()}

    @cached_property
    def leaders(self) -> BestGroup | Refusal:
        """Return the models that are not significantly worse than the best."""
        if isinstance(self.aligned, Refusal):
            return self.aligned
        return self.sizes if isinstance(self.sizes, Refusal) else best_group(self.aligned, self.sizes)


def results_of(evidence: Evidence, setting: Setting) -> list[Results]:
    """Return every dataset that has results under this split mode, with every model that has records on it.

    A model counts as it is, with the settings of the lane; where it was only run with others, those with the most
    trials stand in, and its trials name them.
    """
    conditions = [trials for trials in evidence.conditions() if trials.mode == setting.mode]
    found = []
    for dataset in evidence.datasets(setting.mode):
        trials: dict[str, Trials] = {}
        for name, model in models().items():
            others = [t for t in conditions if (t.model, t.dataset, t.rule) == (name, dataset.name, dataset.split_rule)]
            own = evidence.trials(model, dataset, mode=setting.mode, lane=setting.lane)
            if own.records:
                trials[name] = own
            elif others:
                trials[name] = max(others, key=lambda t: (len(t.good), t.variant))
        if trials:
            found.append(Results(dataset, trials, sizes_of(dataset, setting.mode)))
    return found


def sizes_of(dataset: Dataset, mode: str) -> Sizes:
    """Return what the corrected t needs to know about re-drawn splits, or why there is no test."""
    try:
        return None if mode == "frozen" else split_sizes(dataset)
    except UserError as error:
        return Refusal(str(error))


def split_sizes(dataset: Dataset) -> SplitSizes:
    """Test and training nodes under the dataset's rule; for uniform rules their ratio is all that matters."""
    shares = re.fullmatch(r"uniform-([\d.]+)/([\d.]+)/([\d.]+)", dataset.split_rule)
    if shares:
        return SplitSizes(test=round(float(shares[3])), train=round(float(shares[1])))
    counts = re.fullmatch(r"(?:per-class|total)-(\d+)/\d+", dataset.split_rule)
    if counts is None or dataset.paper is None:  # the number of nodes is known of catalogued graphs only
        raise UserError(
            f"{dataset.name}: for a comparison the shares of training and test nodes must be known, and the rule "
            f"{dataset.split_rule} does not say them; use a split_rule such as uniform-60/20/20, or --split frozen"
        )
    return SplitSizes(test=dataset.paper.nodes, train=int(counts[1]) * dataset.paper.classes)


def paired(first: Trials, second: Trials) -> tuple[np.ndarray, np.ndarray]:
    """The scores of the trials that both have, in the same order: trials are paired by their seeds."""
    ours, theirs = first.by_seeds(), second.by_seeds()
    shared = sorted(ours.keys() & theirs.keys())
    return np.array([ours[seeds] for seeds in shared]), np.array([theirs[seeds] for seeds in shared])


def compare_pairs(ours: np.ndarray, theirs: np.ndarray, sizes: Sizes) -> PairedComparison | Refusal:
    """Compare by the test that suits the splits: `sizes` where they are re-drawn."""
    if isinstance(sizes, Refusal):
        return sizes
    return compare_on_frozen_split(ours, theirs) if sizes is None else compare_on_fresh_splits(ours, theirs, sizes)


def model_title(name: str) -> str:
    known = models().get(name)
    return known.title or name if known else name


def dataset_title(name: str) -> str:
    known = datasets().get(name)
    return known.title if known else name


def each_once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
