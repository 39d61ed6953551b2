"""What the ledger knows, arranged for tables and figures: the trials of one variant of one model on one dataset."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.cells import canonical_json, config_on
from bench.datasets.catalogue import Dataset, datasets, recorded_dataset
from bench.lanes import find_winner
from bench.ledger import Ledger
from bench.model import Model
from bench.records import INTERRUPTED, OK, Record, address, is_capped, metric_of, newest, score_of
from bench.registry import models
from bench.reuse import is_current
from bench.settings import resolve_settings
from bench.splits import base_rule, is_scored, rule_for
from bench.text import as_typed, settings_as_typed

# What tables and figures read, beyond what the ledger itself asks of a record; numbers where it says so.
_FIELDS = (
    "model", "revision", "dataset", "data", "config.max_epochs", "split.rule", "split.seed", "seed", "labels", "reason",
    "metrics", "training", "limits.memory", "limits.time", "environment.processor", "environment.gpu",
    "environment.threads", "source", "predictions",
)  # fmt: skip
_NUMBERS_OF_OK = (
    "metrics.val.accuracy", "training.epochs", "phases.preprocess.seconds", "phases.train.seconds",
    "phases.infer.seconds",
)  # fmt: skip
_TEST_ACCURACY = "metrics.test.accuracy"  # which a tuning trial has not
_NOTHING = object()
_NAMED = 3  # keys that a warning names; the ledger has the others


@dataclass(frozen=True)
class Trials:
    """All records of one variant of a model on a dataset, under one split mode and one settings lane."""

    model: str
    dataset: str
    rule: str  # of the splits, without the mode
    variant: str  # what is set beside the lane, or how a study calls that
    mode: str
    lane: str  # the lane that was found: a model without settings for this dataset runs with its defaults
    records: tuple[Record, ...] = ()  # the standing record of each cell (of measurements, on each machine), by seeds
    reference: bool = False  # whether they are the archive's, not the user's
    command: str = ""  # what would fill it
    epochs: float = 0  # the configuration's own limit: what ended earlier was capped
    config: str = ""  # the configuration without that limit, as canonical JSON

    @property
    def good(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record["status"] == OK)

    @property
    def keys(self) -> tuple[str, ...]:  # under which a report finds the records again
        return tuple(map(address, self.records))

    @property
    def accuracies(self) -> list[float]:
        """Return the test scores in per cent, by the dataset's metric."""
        return [score_of(record, "test") for record in self.good]

    @property
    def failures(self) -> Counter[str]:
        """Outcomes other than a result."""
        return Counter(record["status"] for record in self.records if record["status"] != OK)

    @property
    def capped(self) -> int:
        """How many were ended by a limit on epochs that is not the configuration's own."""
        return sum(is_capped(record["training"], record["config"]["max_epochs"] < self.epochs) for record in self.good)

    def by_seeds(self) -> dict[tuple[int, int], float]:
        """(split seed, init seed) -> test score in per cent: what pairs trials of two models."""
        return {_seeds(record): accuracy for record, accuracy in zip(self.good, self.accuracies, strict=True)}


class Evidence:
    """The standing records of a ledger, found by what was run."""

    def __init__(self, ledger: Ledger, reference: Ledger | None = None) -> None:
        """Where a reference is given, it stands in for what the ledger has no trial of."""
        self.results, self.reference = ledger.results, reference
        self.folders = [self.results] if reference is None else [self.results, reference.results]
        self.warnings = list(ledger.warnings)
        self.own = self._standing(ledger)
        addresses = set(map(address, self.own))
        others = [record for record in self._standing(reference or ()) if address(record) not in addresses]
        self.records = sorted([*self.own, *others], key=lambda record: record["key"])
        self._own_addresses = frozenset(addresses)
        self._by_work: dict[tuple[str, str, str, str, str | None], list[Record]] = defaultdict(list)
        self._arrange()

    def _standing(self, records: Iterable[Record]) -> list[Record]:
        """The record that stands for each cell, of those that a report can read."""
        repeats: dict[str, list[Record]] = defaultdict(list)
        for each in self._usable(records):
            repeats[address(each)].append(each)
        self._name_repeated(repeats.values())
        return [record for records in repeats.values() if (record := newest(records)) is not None]

    def _usable(self, records: Iterable[Record]) -> Iterator[Record]:
        """Records that have what a report reads; the others are named: an older version may have written less."""
        lacking: dict[str, list[str]] = defaultdict(list)
        for record in records:
            missing = _lacks(record)
            if missing is None:
                yield record
            else:
                lacking[missing].append(str(record["key"]))
        for field, keys in sorted(lacking.items()):
            named = ", ".join(keys[:_NAMED]) + (", …" if len(keys) > _NAMED else "")
            self.warnings.append(f"{len(keys)} record(s) without a usable '{field}' are left out: {named}")

    def _name_repeated(self, repeats: Iterable[list[Record]]) -> None:
        """Name the cells whose results differ; those that were run again and gave the same are proofs, not news."""
        differing = [records for records in repeats if len(_results(records)) > 1]
        if differing:
            names = Counter(f"{records[0]['model']} on {records[0]['dataset']}" for records in differing)
            where = ", ".join(f"{name} ({count})" for name, count in sorted(names.items()))
            self.warnings.append(
                f"{len(differing)} cell(s) were run again and predicted differently, on another machine or with other "
                f"code (test accuracies up to {max(map(_apart, differing)):.2f} points apart); the newest of each "
                f"counts: {where}"
            )

    def _arrange(self) -> None:
        data = self._one_version_of_each_dataset()
        known = models()
        for record in self.records:
            model = known.get(record["model"])
            if model is None:
                continue
            current = record["revision"] == model.revision and is_current(record)
            if current and record["data"] == data[record["dataset"]]:
                config, purpose = _without_cap(record["config"]), record.get("purpose")
                self._by_work[model.name, record["dataset"], record["split"]["rule"], config, purpose].append(record)
        for work, records in self._by_work.items():
            own = [record for record in records if address(record) in self._own_addresses]
            self._by_work[work] = own or records
        unknown = Counter(record["model"] for record in self.records if record["model"] not in known)
        for name, count in sorted(unknown.items()):
            self.warnings.append(f"{count} record(s) of '{name}', which is not a model here, are left out")

    def _one_version_of_each_dataset(self) -> dict[str, str]:
        """Dataset -> the fingerprint of its content, which is the newest record's where the catalogue does not know it.

        Records of other contents under the same name are left out, and named.
        """
        contents: dict[str, Counter[str]] = defaultdict(Counter)
        newest: dict[str, str] = {}
        for record in sorted(self.records, key=lambda record: record["started"]):
            newest[record["dataset"]] = record["data"]
            contents[record["dataset"]][record["data"]] += 1
        known = {name: dataset.fingerprint for name, dataset in datasets().items() if dataset.fingerprint}
        shown = {name: known.get(name, newest[name]) for name in contents}
        for name, found in sorted(contents.items()):
            kind = "the dataset's own content" if name in known else "the newest content"
            others = ", ".join(f"{count} of {data[:8]}" for data, count in sorted(found.items()) if data != shown[name])
            if others:
                self.warnings.append(
                    f"{name}: only records of {kind}, {shown[name][:8]}, are shown; left out: {others}"
                )
        return shown

    def trials(
        self,
        model: type[Model],
        dataset: Dataset,
        settings: Mapping[str, Any] | None = None,
        variant: str = "",
        mode: str = "fresh",
        lane: str = "author",
        purpose: str | None = None,
        study: str = "",
    ) -> Trials:
        """The trials that were run with these settings; with a cap only where none was finished without.

        A cell that was stopped by hand has no outcome and is not among them. Those made for a purpose, where one is
        given; `study` is what makes such records.
        """
        winner = find_winner(self.results, lane, model.name, dataset)
        tuned = winner.settings if winner else None
        resolved = resolve_settings(model, dataset.settings_name, lane, settings, tuned=tuned)
        rule, config = rule_for(dataset.split_rule, mode), _without_cap(config_on(dataset, resolved))
        work = (model.name, dataset.name, rule, config, purpose)
        outcomes = (record for record in self._by_work.get(work, ()) if record["status"] != INTERRUPTED)
        wanted = resolved.config.max_epochs
        which = [*([f"--study {study}"] if purpose else []), f"--models {model.name}", f"--datasets {dataset.name}"]
        found = _longest([r for r in outcomes if _of_mode(r, mode) and r["config"]["max_epochs"] <= wanted])
        return Trials(
            model.name,
            dataset.name,
            dataset.split_rule,
            variant,
            mode,
            resolved.labels["settings"],
            tuple(sorted(found, key=_seeds)),
            any(address(record) not in self._own_addresses for record in found),
            run_command(mode, lane, which, None if purpose else settings),  # a study with a purpose has its own
            wanted,
            config,
        )

    def conditions(self) -> list[Trials]:
        """Return the trials of every condition that was run for its scores, as the labels of its records name it."""
        found = []
        for (model, dataset, rule, config, purpose), records in self._by_work.items():
            outcomes: dict[str, list[Record]] = defaultdict(list)
            for record in records:
                if purpose is None and is_scored(rule) and record["status"] != INTERRUPTED:
                    outcomes[str(record["labels"].get("mode", "fresh"))].append(record)
            for mode, several in outcomes.items():
                kept = tuple(sorted(_longest(several), key=_seeds))
                labels = kept[0]["labels"]
                variant, lane = settings_as_typed(labels.get("set", {})), str(labels.get("settings", ""))
                reference = any(address(record) not in self._own_addresses for record in kept)
                cap = math.inf if labels.get("cap") is not None else 0
                found.append(
                    Trials(model, dataset, base_rule(rule), variant, mode, lane, kept, reference, "", cap, config)
                )
        return sorted(found, key=lambda t: (t.dataset, t.model, t.lane, t.variant, t.mode, t.rule, t.config))

    def datasets(self, mode: str) -> list[Dataset]:
        """Return the datasets with results under this split mode, each under every rule; the catalogue's come first."""
        rules = {
            (dataset, base_rule(rule)): metric_of(records[0])
            for (_, dataset, rule, _, purpose), records in self._by_work.items()
            if purpose is None and is_scored(rule) and rule == rule_for(base_rule(rule), mode)
        }
        order = list(datasets())
        return [
            recorded_dataset(name, rule, metric)
            for (name, rule), metric in sorted(
                rules.items(), key=lambda item: (order.index(item[0][0]) if item[0][0] in order else len(order), item)
            )
        ]


def _results(records: Iterable[Record]) -> set[str]:
    """The different results among finished records of one cell."""
    return {canonical_json([record["predictions"], record["metrics"]]) for record in records if record["status"] == OK}


def _apart(records: Iterable[Record]) -> float:
    """How far the test accuracies of one cell's records lie apart, in points; a tuning trial has none."""
    found = [
        score_of(record, "test") for record in records if record["status"] == OK and is_scored(record["split"]["rule"])
    ]
    return max(found) - min(found) if found else 0.0


def _of_mode(record: Record, mode: str) -> bool:
    """Fresh trials draw split and initialisation from one seed; frozen ones share the split of seed 0."""
    split_seed, seed = _seeds(record)
    return split_seed == 0 if mode == "frozen" else split_seed == seed


def _seeds(record: Record) -> tuple[int, int]:
    return record["split"]["seed"], record["seed"]


def _longest(records: list[Record]) -> list[Record]:
    """Those of the longest training, of which a cap shortened the others; what failed counts where nothing finished."""
    finished = [record for record in records if record["status"] == OK]
    longest = max((record["config"]["max_epochs"] for record in finished or records), default=0)
    return [record for record in records if record["config"]["max_epochs"] == longest]


def _without_cap(config: Mapping[str, Any]) -> str:
    return canonical_json({name: value for name, value in config.items() if name != "max_epochs"})


def _lacks(record: Record) -> str | None:
    """The first field that is not there, or not a number where it must be one."""
    numbers: tuple[str, ...] = ()
    if record["status"] == OK:
        numbers = (*_NUMBERS_OF_OK, *([_TEST_ACCURACY] if is_scored(record["split"]["rule"]) else []))
    for path in (*_FIELDS, *numbers):
        value: Any = record
        for name in path.split("."):
            value = value.get(name, _NOTHING) if isinstance(value, Mapping) else _NOTHING
        if value is _NOTHING or (path in numbers and not isinstance(value, (int, float))):
            return path
    return None


def run_command(mode: str, lane: str, which: Sequence[str], settings: Mapping[str, Any] | None = None) -> str:
    """Return the command that runs what is missing; `which` says what that is, as options of `run`."""
    options = [*which]
    options += [f"--split {mode}"] if mode != "fresh" else []
    options += [f"--settings {lane}"] if lane != "author" else []
    options += [f"--set {key}={as_typed(value)}" for key, value in (settings or {}).items()]
    return " ".join(["python -m bench run", *options])
