"""Every study's trials, looked up once and shared by tables, figures, scorecard and claims."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from bench.datasets.catalogue import Dataset, datasets, resolve
from bench.paper.studies import studies
from bench.records import address
from bench.registry import models
from bench.report.evidence import Evidence, Trials, run_command
from bench.report.results import Results, Setting, Sizes, dataset_title, sizes_of
from bench.report.statistics import pooled_spread
from bench.studies import EMBEDDED, Study

ACCURACY_STUDIES = ("accuracy-small", "accuracy-large")  # whose columns are the paper's two main tables


@dataclass(frozen=True)
class Pooled:
    """The spread over trials that the models of a dataset have in common, and what it rests on."""

    std: float
    keys: tuple[str, ...]


class TrialIndex:
    """What the ledger says about every condition that some study has."""

    def __init__(self, evidence: Evidence, setting: Setting) -> None:
        self.evidence, self.setting = evidence, setting
        self._trials: dict[tuple[str, str, str, str], Trials] = {}
        for study in studies().values():
            for model, dataset, variant in study.combinations():
                self._trials[study.name, model.name, dataset.name, variant.label] = evidence.trials(
                    model, dataset, variant.settings, variant.label, *self._protocol, study.purpose, study.name
                )

    @property
    def _protocol(self) -> tuple[str, str]:
        return self.setting.mode, self.setting.lane

    def trials(self, study: str, model: str, dataset: str, variant: str = "") -> Trials | None:
        """What is known about a condition; None where the study does not have it."""
        return self._trials.get((study, model, dataset, variant))

    def of_model(self, study: str, model: str, dataset: str) -> Trials:
        """The model as it is: as the study has it or, where the study leaves it out, alone."""
        known = self.trials(study, model, dataset)
        return known or self.evidence.trials(models()[model], datasets()[dataset], None, "", *self._protocol)

    def of_study(self, study: str, dataset: str | None = None) -> list[Trials]:
        return [
            trials for (name, _, place, _), trials in self._trials.items() if name == study and dataset in (None, place)
        ]

    def sizes(self, dataset: str) -> Sizes:
        return sizes_of(datasets()[dataset], self.setting.mode)

    def columns(self, study: Study) -> list[Dataset]:
        """The datasets of a study's table: those of the paper, and what only we ran it on where that was done."""
        ours = resolve(",".join(filter(None, [study.extra, EMBEDDED])))
        tried = {trials.dataset for trials in self.of_study(study.name) if trials.records}
        return [*resolve(study.datasets), *(dataset for dataset in ours if dataset.name in tried)]

    def results(self, study: Study) -> list[Results]:
        """The columns of a study that varies nothing."""
        return [
            Results(dataset, {t.model: t for t in self.of_study(study.name, dataset.name)}, self.sizes(dataset.name))
            for dataset in self.columns(study)
        ]

    @cached_property
    def published(self) -> list[Results]:
        """The columns of the paper's two main tables, without graphs that only we use."""
        found = [each for study in ACCURACY_STUDIES for each in self.results(studies()[study])]
        return [each for each in found if each.dataset.paper is not None]

    def in_table(self, study: Study) -> list[Trials]:
        """The trials that stand in a study's table."""
        names = {dataset.name for dataset in self.columns(study)}
        return [trials for trials in self.of_study(study.name) if trials.dataset in names]

    def fill_command(self, study: str) -> str:
        """What runs all that is missing of a study."""
        return run_command(*self._protocol, [f"--study {study}"])

    @cached_property
    def pooled(self) -> dict[str, Pooled]:
        """Dataset -> the spread over fresh trials, pooled over the models of the accuracy studies.

        Fresh ones whatever the report is about: where all trials share a test set, no spread has its luck in it.
        """
        fresh = self if self.setting.mode == "fresh" else TrialIndex(self.evidence, replace(self.setting, mode="fresh"))
        found = {}
        for study in ACCURACY_STUDIES:
            for each in fresh.results(studies()[study]):
                used = [trials for trials in each.good if len(trials.good) > 1]
                std = pooled_spread(trials.accuracies for trials in used)
                if std is not None:
                    keys = tuple(address(record) for trials in used for record in trials.good)
                    found[each.dataset.name] = Pooled(std, keys)
        return found


def column_title(study: Study, dataset: str) -> str:
    """The dataset's title in this study; a graph on which the paper did not run it is named as such."""
    ours = {each.name for each in resolve(study.extra)} if study.extra else set()
    return f"{dataset_title(dataset)} (not in the paper)" if dataset in ours else dataset_title(dataset)
