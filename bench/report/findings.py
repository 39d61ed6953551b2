"""Every study's trials, looked up once and shared by tables, figures, scorecard and claims; how two are compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bench.datasets.catalogue import Dataset, datasets, resolve
from bench.errors import UserError
from bench.records import address
from bench.registry import models
from bench.report.comparisons import PairedComparison, compare_on_fresh_splits, compare_on_frozen_split
from bench.report.evidence import Evidence, Trials
from bench.report.statistics import MINIMUM_TRIALS, Refusal, SplitSizes, pooled_spread
from bench.studies import EMBEDDED, Study, studies

ACCURACY_STUDIES = ("accuracy-small", "accuracy-large")  # whose columns are the paper's two main tables


@dataclass(frozen=True)
class Setting:
    """Under which protocol a report's numbers were made."""

    mode: str = "fresh"
    lane: str = "author"


@dataclass(frozen=True)
class Pooled:
    """The spread over trials that the models of a dataset have in common, and what it rests on."""

    std: float
    keys: tuple[str, ...]


class Findings:
    """What the ledger says about every column of cells that some study has."""

    def __init__(self, evidence: Evidence, setting: Setting) -> None:
        self.evidence, self.setting = evidence, setting
        self._trials: dict[tuple[str, str, str, str], Trials] = {}
        for study in studies().values():
            for model, dataset, variant in study.combinations():
                self._trials[study.name, model.name, dataset.name, variant.label] = evidence.trials(
                    model, dataset, variant.settings, variant.label, setting.mode, setting.lane, study
                )

    def trials(self, study: str, model: str, dataset: str, variant: str = "") -> Trials | None:
        """What is known about a column of cells; None where the study has no such cells."""
        return self._trials.get((study, model, dataset, variant))

    def of_model(self, study: str, model: str, dataset: str) -> Trials:
        """The model as it is: as the study has it or, where the study leaves it out, by itself."""
        known = self.trials(study, model, dataset)
        mode, lane = self.setting.mode, self.setting.lane
        return known or self.evidence.trials(models()[model], datasets()[dataset], mode=mode, lane=lane)

    def of_study(self, study: str, dataset: str | None = None) -> list[Trials]:
        return [
            trials for (name, _, place, _), trials in self._trials.items() if name == study and dataset in (None, place)
        ]

    def sizes(self, dataset: str) -> SplitSizes | None:
        """What the corrected t needs to know about re-drawn splits; None on a frozen one."""
        return None if self.setting.mode == "frozen" else split_sizes(datasets()[dataset])

    def aligned(self, study: str, dataset: str) -> dict[str, np.ndarray] | Refusal:
        """Model -> accuracies of the trials that all models with enough of them share, or why nobody can say."""
        scores = {t.model: t.by_seeds() for t in self.of_study(study, dataset) if len(t.good) >= MINIMUM_TRIALS}
        if len(scores) < 2:
            return Refusal(f"fewer than two models have {MINIMUM_TRIALS} trials")
        shared = sorted(set.intersection(*(set(found) for found in scores.values())))
        if len(shared) < MINIMUM_TRIALS:
            return Refusal(f"the models share only {len(shared)} trials")
        return {model: np.array([found[seeds] for seeds in shared]) for model, found in scores.items()}

    def columns(self, study: Study) -> list[Dataset]:
        """The datasets of a study's table: those of the paper, and what only we ran it on where somebody has."""
        ours = resolve(",".join(filter(None, [study.extra, EMBEDDED])))
        tried = {trials.dataset for trials in self.of_study(study.name) if trials.records}
        return [*resolve(study.datasets), *(dataset for dataset in ours if dataset.name in tried)]

    def in_table(self, study: str) -> list[Trials]:
        """The trials that stand in a study's table."""
        names = {dataset.name for dataset in self.columns(studies()[study])}
        return [trials for trials in self.of_study(study) if trials.dataset in names]

    def column_keys(self, study: str, dataset: str) -> tuple[str, ...]:
        """All records of a table's column: what a comparison of its models rests on."""
        return tuple(address(record) for trials in self.of_study(study, dataset) for record in trials.good)

    @cached_property
    def pooled(self) -> dict[str, Pooled]:
        """Dataset -> the spread over fresh trials, pooled over the models of the accuracy studies.

        Fresh ones whatever the report is about: where all trials share a test set, no spread has its luck in it.
        """
        fresh = self if self.setting.mode == "fresh" else Findings(self.evidence, replace(self.setting, mode="fresh"))
        by_dataset: dict[str, list[Trials]] = {}
        for study in ACCURACY_STUDIES:
            for trials in fresh.of_study(study):
                by_dataset.setdefault(trials.dataset, []).append(trials)
        found = {}
        for dataset, several in by_dataset.items():
            used = [trials for trials in several if len(trials.good) > 1]
            std = pooled_spread(trials.accuracies for trials in used)
            if std is not None:
                found[dataset] = Pooled(std, tuple(address(record) for trials in used for record in trials.good))
        return found


def split_sizes(dataset: Dataset) -> SplitSizes:
    """Test and training nodes under the dataset's rule; for uniform rules their ratio is all that matters."""
    shares = re.fullmatch(r"uniform-([\d.]+)/([\d.]+)/([\d.]+)", dataset.split_rule)
    if shares:
        return SplitSizes(test=round(float(shares[3])), train=round(float(shares[1])))
    if dataset.paper is None:  # the other rules belong to the paper's large graphs
        raise UserError(
            f"{dataset.name}: for a comparison the shares of training and test nodes must be known, and the rule "
            f"{dataset.split_rule} does not say them; use a split_rule such as uniform-60/20/20, or --split frozen"
        )
    per_class = int(re.findall(r"\d+", dataset.split_rule)[0])
    return SplitSizes(test=dataset.paper.nodes, train=per_class * dataset.paper.classes)


def paired(first: Trials, second: Trials) -> tuple[np.ndarray, np.ndarray]:
    """The accuracies of the trials that both have, in the same order: trials are paired by their seeds."""
    ours, theirs = first.by_seeds(), second.by_seeds()
    shared = sorted(ours.keys() & theirs.keys())
    return np.array([ours[seeds] for seeds in shared]), np.array([theirs[seeds] for seeds in shared])


def compare_pairs(ours: np.ndarray, theirs: np.ndarray, sizes: SplitSizes | None) -> PairedComparison | Refusal:
    """By the test that suits the splits: `sizes` where they are re-drawn."""
    return compare_on_frozen_split(ours, theirs) if sizes is None else compare_on_fresh_splits(ours, theirs, sizes)


def model_title(name: str) -> str:
    return models()[name].title or name


def column_title(study: Study, dataset: str) -> str:
    """The dataset's title in this study; a graph on which the paper did not run it is named as such."""
    ours = {each.name for each in resolve(study.extra)} if study.extra else set()
    return f"{dataset_title(dataset)} (not in the paper)" if dataset in ours else dataset_title(dataset)


def dataset_title(name: str) -> str:
    return datasets()[name].title
