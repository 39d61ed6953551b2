"""What one study searches: a model, a dataset, a space, and all that must stay the same while it lasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from bench.cells import Cell, config_on
from bench.datasets.catalogue import Dataset
from bench.datasets.store import Stored
from bench.errors import UserError
from bench.graph import UNKNOWN_LABEL
from bench.metrics import ACCURACY
from bench.model import Model
from bench.settings import AUTHOR_LANE, Resolved, resolve_settings
from bench.space import Space, admits
from bench.splits import sealed_nodes, tuning_rule
from bench.text import nearest
from bench.tuning.sampling import describe

OBJECTIVES = {"accuracy": ("accuracy",), "accuracy,seconds": ("accuracy", "seconds")}


@dataclass(frozen=True)
class Search:
    """The identity of a study, and the cell of each of its trials."""

    model: type[Model]
    dataset: Dataset
    data: str  # fingerprint of the graph
    space_name: str = "wide"
    fixed: Mapping[str, Any] = field(default_factory=dict)  # the user's --set
    sampler: str = "tpe"
    objective: tuple[str, ...] = ("accuracy",)
    seed: int = 0  # of the sampler, the split and the training
    prune: bool = True
    max_epochs: int | None = None
    memory_limit: int | None = None
    time_limit: float | None = None
    machine: str = ""  # where seconds are an objective: those of two machines cannot be compared

    @cached_property
    def space(self) -> Space:
        """What is left to choose; refuses a fixed value that the space does not have."""
        space = self.model.spaces.get(self.space_name)
        if space is None:
            known = ", ".join(self.model.spaces) or "none"
            raise UserError(
                f"{self.model.name} has no space '{self.space_name}' (it has: {known})."
                f"{nearest(self.space_name, self.model.spaces)}"
            )
        for name, value in self.fixed.items():
            if name in space and not admits(space[name], value):
                raise UserError(
                    f"--set {name}={value} is outside the space '{self.space_name}' of {self.model.name}: "
                    f"{describe(space[name])}"
                )
        left = {name: domain for name, domain in space.items() if name not in self.fixed}
        if not left:
            raise UserError(f"--set leaves nothing to search in the space '{self.space_name}' of {self.model.name}")
        return left

    @property
    def pareto(self) -> bool:
        """Whether seconds are an objective too."""
        return len(self.objective) > 1

    @property
    def name(self) -> str:
        """How the study is called if the user does not say."""
        parts = [self.model.name, self.dataset.name, self.space_name, self.sampler]
        parts += ["pareto"] if self.pareto else []
        return "-".join([*parts, f"s{self.seed}"])

    def resolve(self, settings: Mapping[str, Any]) -> Resolved:
        """The full configuration: the authors' where they say nothing else, the user's, then these settings."""
        chosen = {**self.fixed, **settings}
        return resolve_settings(self.model, self.dataset.settings_name, AUTHOR_LANE, chosen, self.max_epochs)

    @cached_property
    def first(self) -> dict[str, Any] | None:
        """The published settings as a point of the space, or None where it does not have them."""
        config = self.resolve({}).config
        point = {name: getattr(config, name) for name in self.space}
        return point if all(admits(self.space[name], value) for name, value in point.items()) else None

    @property
    def first_line(self) -> str:
        published = self.resolve({})
        lane, values = published.labels["settings"], vars(published.config)
        if self.first is not None:
            return f"trial 0 has the {lane} settings"
        outside = [f"{name}={values[name]}" for name, domain in self.space.items() if not admits(domain, values[name])]
        return f"the {lane} settings lie outside this space and are not tried ({', '.join(outside)})"

    def cell(self, settings: Mapping[str, Any], slot: int, study: str) -> Cell:
        """The trial as a cell: trained and validated on the sealed split's nodes, never scored on its test nodes."""
        resolved = self.resolve(settings)
        labels = {**resolved.labels, "mode": "tuning", "trial": slot, "study": study}
        labels["objective"] = ",".join(self.objective)
        model, rule, config = self.model, tuning_rule(self.dataset.split_rule), config_on(self.dataset, resolved)
        name = self.dataset.name
        return Cell(model.name, model.revision, name, self.data, config, rule, self.seed, self.seed, labels)

    def identity(self) -> dict[str, Any]:
        """All that two runs of one study must agree on, as plain values; not its limits, and not the code."""
        base = {name: value for name, value in self.resolve({}).values.items() if name not in self.space}
        return {
            "model": self.model.name,
            "revision": self.model.revision,
            "dataset": self.dataset.name,
            "data": self.data,
            "split": tuning_rule(self.dataset.split_rule),
            "space": {name: describe(domain) for name, domain in self.space.items()},
            "setting": {name: list(value) if isinstance(value, tuple) else value for name, value in base.items()},
            "sampler": self.sampler,
            "objective": ",".join(self.objective),
            "seed": self.seed,
            **({"metric": self.dataset.metric} if self.dataset.metric != ACCURACY else {}),
            **({"machine": self.machine} if self.machine else {}),
        }


def sealed_away(stored: Stored) -> Stored:
    """The graph without the labels of its sealed nodes, which are read with the others and dropped here."""
    labels = stored.graph.labels.copy()
    labels[sealed_nodes(len(labels), stored.graph.masks)] = UNKNOWN_LABEL
    return replace(stored, graph=stored.graph.with_labels(labels))
