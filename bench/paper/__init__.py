"""The paper as data: what it prints, what it claims, and where it slips. Nothing here is measured by us.

* One CSV file per table, one printed number per line, in the paper's order and with the digits it prints:
  - `table` is the paper's LaTeX label;
  - `row` is the model under our registry's name (empty in the table of datasets, which has no models);
  - `variant` is the label that our study of the same numbers has in studies.toml (`+LNA`, `structural_encoding=false`);
    the paper's +LNA, +GNA and +NrAug are NAGphormer+ with one or both halves of the augmentation;
  - `column` is always the dataset under our catalogue's name, however the table is turned or spells it;
  - `measure` is accuracy, gain (both in points of a hundred), nodes, edges, features, classes, memory_mb or seconds;
  - `status` is `oom` where the paper prints OOM instead of a number; `bold` is 1 where it prints bold. It underlines
    nothing.
* `claims.toml`: statements that the paper makes, in our words, each in a form that can be checked; the models that
  they are about; and what the paper is called.
* `slips.toml`: where the text contradicts itself, its tables or the official code. The data above keep what is printed
  in the tables and take nothing from a slip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from bench.datasets.catalogue import resolve
from bench.errors import UserError
from bench.text import nearest
from bench.toml import read_toml

FOLDER = Path(__file__).parent
CLAIMS_FILE = FOLDER / "claims.toml"
SLIPS_FILE = FOLDER / "slips.toml"

TABLES = {  # the paper's label -> our file, in the paper's order: Table 1 to Table 6
    "tab:dataset": "datasets.csv",
    "tab:normal-data": "accuracy_small.csv",
    "tab:large-data": "accuracy_large.csv",
    "tab:ab-str": "structural_encoding.csv",
    "tab:DA_result": "augmentation.csv",
    "tab:cost": "cost.csv",
}
_WORDS = ("table", "row", "variant", "column", "measure", "status")


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


@dataclass(frozen=True)
class Slip:
    """A place where the paper's text is wrong, contradicts itself or says less than one needs."""

    id: str
    kind: str  # one of SLIP_KINDS
    where: str
    printed: str  # what stands there, in our words
    right: str  # what is right, or what the tables or the official code say

    def __post_init__(self) -> None:
        if self.kind not in SLIP_KINDS:
            raise ValueError(f"there is no kind '{self.kind}' (known: {', '.join(SLIP_KINDS)})")


SLIP_KINDS = {
    "misprint": "a wrong number, name, caption or index",
    "text-tables": "the text says more than the paper's own tables show",
    "text-text": "two places of the paper contradict each other",
    "text-code": "the official code does something else",
    "silent": "the paper leaves out what a reader needs to repeat it",
}


def published(table: str | None = None) -> pd.DataFrame:
    """The numbers that the paper prints: those of one table (its LaTeX label), or all."""
    if table is not None and table not in TABLES:
        raise UserError(f"the paper has no table '{table}' (it has {', '.join(TABLES)}).{nearest(table, TABLES)}")
    wanted = TABLES.values() if table is None else [TABLES[table]]
    return pd.concat([_read_table(FOLDER / file) for file in wanted], ignore_index=True)


def published_accuracy(model: str, dataset: str) -> str:
    """What the paper's two accuracy tables print for a model on a dataset, nothing where they have no such cell."""
    numbers = published()
    tables = numbers["table"].isin(["tab:normal-data", "tab:large-data"]) & (numbers["measure"] == "accuracy")
    found = numbers[tables & (numbers["row"] == model) & (numbers["column"] == dataset)]
    if found.empty:
        return ""
    first = found.iloc[0]
    return str(first["status"]).upper() or f"{first['mean']:.2f} ± {first['std']:.2f}"


def claims(file: Path = CLAIMS_FILE) -> list[Claim]:
    """The paper's claims in the order of its sections."""
    return _read_entries(file, "claim", _claim)


def control(file: Path = CLAIMS_FILE) -> str:
    """The model that the paper is about: all others are compared with it."""
    return str(read_toml(file)["control"])


def proposed(file: Path = CLAIMS_FILE) -> tuple[str, ...]:
    """The models that are the paper's own."""
    return tuple(str(name) for name in read_toml(file)["proposed"])


def citation(file: Path = CLAIMS_FILE) -> str:
    """Who wrote it, what it is called, where it stands."""
    paper = read_toml(file)["paper"]
    return f"{', '.join(paper['authors'])}: {paper['title']} ({paper['published']})"


def slips(file: Path = SLIPS_FILE) -> list[Slip]:
    """The paper's slips."""
    return _read_entries(file, "slip", lambda entry: Slip(**_checked(Slip, entry)))


def _read_table(file: Path) -> pd.DataFrame:
    frame = pd.read_csv(
        file,
        dtype={**dict.fromkeys(_WORDS, str), "mean": float, "std": float},
        keep_default_na=False,  # an empty variant is "", not NaN …
        na_values={"mean": [""], "std": [""]},  # … but a number that is not printed is
    )
    return frame.astype({"bold": bool})


def _claim(entry: dict[str, Any]) -> Claim:
    claim = Claim(**_checked(Claim, entry))
    return replace(claim, datasets=tuple(dataset.name for dataset in resolve(",".join(claim.datasets))))


Entry = TypeVar("Entry", Claim, Slip)


def _read_entries(file: Path, heading: str, build: Callable[[dict[str, Any]], Entry]) -> list[Entry]:
    """The [[heading]] entries of a TOML file, each checked; whatever is wrong is said with file and entry."""
    try:
        entries = read_toml(file).get(heading)
    except (OSError, ValueError) as error:
        raise UserError(f"{file.name} cannot be read: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{file.name} has no [[{heading}]] entries")
    built: dict[str, Entry] = {}
    for number, entry in enumerate(entries, start=1):
        name = f"{file.name}, {heading} {entry.get('id') or f'number {number}'}"
        try:
            item = build(entry)
        except (ValueError, UserError) as error:
            raise UserError(f"{name}: {error}") from error
        if item.id in built:
            raise UserError(f"{name}: this id is used twice")
        built[item.id] = item
    return list(built.values())


def _checked(kind: type[Claim] | type[Slip], entry: dict[str, Any]) -> dict[str, Any]:
    """The entry's values in the types that the dataclass declares."""
    declared = {field.name: field for field in fields(kind)}
    for name in entry:
        if name not in declared:
            raise ValueError(f"there is no field '{name}'.{nearest(name, declared)}")
    for name, field in declared.items():
        if name not in entry and field.default is MISSING:
            raise ValueError(f"the field '{name}' is missing")
    return {name: _typed(name, str(declared[name].type), value) for name, value in entry.items()}


def _typed(name: str, declared: str, value: Any) -> str | float | tuple[str, ...]:
    if declared == "str" and isinstance(value, str) and value:
        return value
    if declared == "tuple[str, ...]" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if declared == "float | None" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    wanted = {"str": "a text", "tuple[str, ...]": "a list of texts"}.get(declared, "a number")
    raise ValueError(f"'{name}' must be {wanted}, not {value!r}")
