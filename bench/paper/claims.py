"""What the paper claims, in our words, each in a form that can be checked (claims.toml)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bench.datasets.catalogue import resolve
from bench.errors import UserError
from bench.files import read_toml
from bench.paper.numbers import CLAIMS_FILE, TABLES
from bench.text import nearest


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Entry = TypeVar("Entry", bound=HasId)


@dataclass(frozen=True)
class Kind:
    """One way in which a claim can be checked."""

    means: str  # in words; "the model" is each of the claim's models, and all must comply
    measure: str  # which numbers it looks at
    needs: tuple[str, ...] = ()  # fields without which a claim of this kind makes no sense


# The closed vocabulary of claims.toml. A model that did not finish is left out of a comparison: it is not beaten.
KINDS = {
    "best": Kind("no other row of the study is above the model", "accuracy"),
    "beats": Kind("the model is above every one of `versus`", "accuracy", ("versus",)),
    "gain": Kind(
        "the model's `variant` is above each of its own `versus_variants`", "accuracy", ("variant", "versus_variants")
    ),
    "gain_varies": Kind(
        "the gain of `variant` is not the same on all datasets", "accuracy", ("variant", "versus_variants")
    ),
    "change_below": Kind(
        "along the sweep highest and lowest are less than `threshold` points apart",
        "accuracy",
        ("settings", "threshold"),
    ),
    "holds_at_end": Kind(
        "the sweep's last value is not significantly below the sweep's best value", "accuracy", ("settings",)
    ),
    "degrades": Kind("accuracy falls as the setting grows", "accuracy", ("settings",)),
    "rises": Kind("accuracy rises as the setting grows, averaged over other settings", "accuracy", ("settings",)),
    "best_value_differs": Kind(
        "the best value of the settings is not the same on all datasets", "accuracy", ("settings",)
    ),
    "same_trend": Kind(
        "along the sweep the model moves with each of `versus` (rank correlation)", "accuracy", ("versus", "settings")
    ),
    "faster": Kind(
        "each of `versus` takes at least `threshold` times the model's seconds", "seconds", ("versus", "threshold")
    ),
    "memory_below": Kind("the model needs less than `threshold` MB", "memory_mb", ("threshold",)),
    # the paper prints OOM in place of an accuracy
    "oom": Kind("the model does not fit into `threshold` MB", "accuracy", ("threshold",)),
}


@dataclass(frozen=True)
class Claim:
    """A statement that the paper makes, and the form in which it can be checked."""

    id: str
    section: str  # of the paper, with the table or figure where the statement is about one
    says: str  # the statement in our words
    kind: str  # one of KINDS
    study: str  # the study of ours whose records decide it
    models: tuple[str, ...]
    datasets: tuple[str, ...]  # the file may name groups; here every dataset stands by its own name
    table: str = ""  # the label of the table that prints the numbers; "" where only text or a figure speaks of them
    variant: str = ""  # of the models, as the study labels it
    versus: tuple[str, ...] = ()  # the other models
    versus_variants: tuple[str, ...] = ()  # of the other models, or of the same model where `versus` is empty
    settings: tuple[str, ...] = ()  # what a sweep varies
    threshold: float | None = None  # points, ratio or MB, see KINDS
    holds_on: str = "all"  # of the datasets: "all", or "most" (more than half) where the paper says no more than that
    reading: str = ""  # what had to be chosen to make soft words checkable

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"there is no kind '{self.kind}' (known: {', '.join(KINDS)}).{nearest(self.kind, KINDS)}")
        missing = [name for name in KINDS[self.kind].needs if getattr(self, name) in ("", (), None)]
        if missing:
            raise ValueError(f"a claim of kind '{self.kind}' needs {' and '.join(missing)}")
        if self.table and self.table not in TABLES:
            raise ValueError(f"the paper has no table '{self.table}'.{nearest(self.table, TABLES)}")
        if self.holds_on not in ("all", "most"):
            raise ValueError(f"holds_on is all or most, not '{self.holds_on}'")

    @property
    def measure(self) -> str:
        """Which of the published numbers it is about."""
        return KINDS[self.kind].measure

    @property
    def opponents(self) -> list[tuple[str, str]]:
        """Model and variant of everything in `versus`."""
        return [(model, variant) for model in self.versus for variant in self.versus_variants or ("",)]


def claims(file: Path = CLAIMS_FILE) -> list[Claim]:
    """The paper's claims in the order of its sections."""
    return read_entries(file, "claim", _claim)


def _claim(**fields: Any) -> Claim:
    claim = Claim(**fields)
    return replace(claim, datasets=tuple(dataset.name for dataset in resolve(",".join(claim.datasets))))


def read_entries(file: Path, heading: str, build: Callable[..., Entry]) -> list[Entry]:
    """Return what `build` makes of the [[heading]] entries; whatever is wrong is said with file and entry."""
    try:
        entries = read_toml(file)[heading]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file.name} cannot be read, or has no [[{heading}]] entries: {error}") from error
    built: dict[str, Entry] = {}
    for number, entry in enumerate(entries, start=1):
        name = f"{file.name}, {heading} {entry.get('id') or f'number {number}'}"
        try:
            item = build(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
        except (TypeError, ValueError, UserError) as error:
            raise UserError(f"{name}: {error}") from error
        if item.id in built:
            raise UserError(f"{name}: this id is used twice")
        built[item.id] = item
    return list(built.values())
