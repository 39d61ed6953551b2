"""Studies: named lists of cells, read from studies.toml, that `run` works through and `report` draws."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.text import nearest
from bench.toml import read_toml

if TYPE_CHECKING:
    from bench.datasets.catalogue import Dataset
    from bench.model import Model

FILE = Path(__file__).with_suffix(".toml")
EMBEDDED = "digits"  # needs no data: every study can be rehearsed on it


@dataclass(frozen=True)
class Variant:
    """One way to run a model: what is set differently, and how tables and figures call it."""

    label: str
    models: str  # names, aliases or groups
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """Variants of models on datasets; a cell that two studies share is one cell."""

    name: str
    about: str
    shows: str  # the paper's table or figure
    datasets: str
    variants: tuple[Variant, ...]
    extra: str = ""  # datasets on which only we run it
    varied: tuple[str, ...] = ()  # the settings that a sweep varies
    base: str = ""  # the variant over which the others gain something
    trials: int | None = None  # where it is not as many as usual
    purpose: str | None = None  # what its records are for, where that is not accuracy
    reference: str = ""  # the model by whose costs those of the others are divided

    @property
    def everywhere(self) -> str:
        """The datasets that it runs on when nobody says otherwise."""
        return ",".join(filter(None, [self.datasets, self.extra]))

    def combinations(
        self, datasets: str | None = None, models: str | None = None, split_ratio: str | None = None
    ) -> Iterator[tuple[type[Model], Dataset, Variant]]:
        """Model, dataset and variant of every column of cells, dataset by dataset.

        Unless `datasets` are named, all on which there may be records: those of the study and the embedded graph.
        """
        from bench.datasets.catalogue import resolve

        columns = [(model, variant) for variant in self.variants for model in self._models(variant, models)]
        if not columns:
            own = ", ".join(dict.fromkeys(model.name for item in self.variants for model in self._models(item, None)))
            raise UserError(f"the study {self.name} varies settings of {own}; '{models}' has none of them")
        for dataset in resolve(datasets or f"{self.everywhere},{EMBEDDED}", split_ratio):
            for model, variant in columns:
                yield model, dataset, variant

    def _models(self, variant: Variant, wanted: str | None) -> list[type[Model]]:
        """The variant's models, or those of them that are wanted; where nothing is varied, any model will do."""
        from bench.registry import resolve_models

        if wanted is None:
            return resolve_models(variant.models)
        chosen = resolve_models(wanted)
        if len(self.variants) == 1:
            return chosen
        return [model for model in resolve_models(variant.models) if model in chosen]


@functools.cache
def studies() -> dict[str, Study]:
    """All studies by name, in the file's order."""
    return {name: _study(name, entry) for name, entry in read_toml(FILE).items()}


def find_study(name: str) -> Study:
    """The study of this name."""
    known = studies()
    found = known.get(name.strip().lower())
    if found is None:
        raise UserError(f"unknown study '{name}' (known: {', '.join(known)}).{nearest(name, known)}")
    return found


def _study(name: str, entry: Mapping[str, Any]) -> Study:
    vary, fixed = entry.get("vary", {}), entry.get("set", {})
    if "variant" in entry:
        variants = [
            Variant(item["label"], item["model"], {**fixed, **item.get("set", {})}) for item in entry["variant"]
        ]
    else:
        variants = [
            Variant(_label(chosen), entry["models"], {**fixed, **chosen})
            for chosen in (dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values()))
        ]
    return Study(
        name,
        entry["about"],
        entry["shows"],
        entry["datasets"],
        tuple(variants),
        extra=entry.get("extra", ""),
        varied=tuple(vary),
        base=entry.get("base", ""),
        trials=entry.get("trials"),
        purpose=entry.get("purpose"),
        reference=entry.get("reference", ""),
    )


def _label(chosen: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in chosen.items()
    )
