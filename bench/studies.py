"""Studies: named lists of cells that `run` works through. The paper's are in bench/paper/studies.toml."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.files import read_toml
from bench.records import FRONTIER
from bench.text import as_typed

if TYPE_CHECKING:
    from bench.datasets.catalogue import Dataset
    from bench.model import Model

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
        """The datasets that it runs on by default."""
        return ",".join(filter(None, [self.datasets, self.extra]))

    def combinations(
        self, datasets: str | None = None, models: str | None = None, split_ratio: str | None = None
    ) -> Iterator[tuple[type[Model], Dataset, Variant]]:
        """Model, dataset and variant of every condition, dataset by dataset.

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

    @property
    def columns(self) -> int:
        """How many conditions there are by default; imports no model."""
        from bench.datasets.catalogue import resolve
        from bench.registry import select_cards

        return len(resolve(self.everywhere)) * sum(len(select_cards(variant.models)) for variant in self.variants)

    def _models(self, variant: Variant, wanted: str | None) -> list[type[Model]]:
        """The variant's models, or those of them that are wanted; where nothing is varied, any model will do."""
        from bench.registry import resolve_models

        if wanted is None:
            return resolve_models(variant.models)
        chosen = resolve_models(wanted)
        if len(self.variants) == 1:
            return chosen
        return [model for model in resolve_models(variant.models) if model in chosen]


OWN_STUDIES = {
    FRONTIER: Study(
        FRONTIER,
        about="the smallest memory limit within which a model runs, up to --memory-limit",
        shows="",
        datasets=EMBEDDED,
        variants=(Variant("", "all"),),
        trials=1,
        purpose=FRONTIER,
    )
}


def read_studies(file: Path) -> dict[str, Study]:
    """Return the studies of a TOML file by name, in its order."""
    return {name: _study(name, entry) for name, entry in read_toml(file).items()}


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
    return ", ".join(f"{key}={as_typed(value)}" for key, value in chosen.items())
