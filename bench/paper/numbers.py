"""What the paper prints, as data. Nothing here is measured by us.

* One CSV file per table, one printed number per line, in the paper's order and with the digits it prints:
  - `table` is the paper's LaTeX label;
  - `row` is the model under our registry's name (empty in the table of datasets, which has no models);
  - `variant` is the label that our study of the same numbers has in studies.toml (`+LNA`, `structural_encoding=false`);
    the paper's +LNA, +GNA and +NrAug are NAGphormer+ with one or both halves of the augmentation;
  - `column` is always the dataset under our catalogue's name, however the table is turned or spells it;
  - `measure` is accuracy, gain (both in points of a hundred), nodes, edges, features, classes, memory_mb or seconds;
  - `status` is `oom` where the paper prints OOM instead of a number; `bold` is 1 where it prints bold. It underlines
    nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench.errors import UserError
from bench.files import read_toml
from bench.registry import models
from bench.text import nearest

FOLDER = Path(__file__).parent
CLAIMS_FILE = FOLDER / "claims.toml"  # which says what the paper is called, too
TABLES = {  # the paper's label -> our file, in the paper's order: Table 1 to Table 6
    "tab:dataset": "datasets.csv",
    "tab:normal-data": "accuracy_small.csv",
    "tab:large-data": "accuracy_large.csv",
    "tab:ab-str": "structural_encoding.csv",
    "tab:DA_result": "augmentation.csv",
    "tab:cost": "cost.csv",
}
Place = tuple[str, str, str]  # model, variant, dataset
_WORDS = ("table", "row", "variant", "column", "measure", "status")


@dataclass(frozen=True)
class Printed:
    """An accuracy as the paper prints it."""

    text: str = ""
    mean: float = math.nan
    std: float = math.nan

    @property
    def note(self) -> str:
        return f"the paper has {self.text}" if self.text else ""


def published(table: str | None = None) -> pd.DataFrame:
    """The numbers that the paper prints: those of one table (its LaTeX label), or all."""
    if table is not None and table not in TABLES:
        raise UserError(f"the paper has no table '{table}' (it has {', '.join(TABLES)}).{nearest(table, TABLES)}")
    wanted = TABLES.values() if table is None else [TABLES[table]]
    return pd.concat([_read_table(FOLDER / file) for file in wanted], ignore_index=True)


def printed(table: str) -> dict[Place, Printed]:
    """The accuracies of one of the paper's tables; OOM is a text without a number."""
    numbers = published(table)
    return {
        (line.row, line.variant, line.column): Printed(
            line.status.upper() or f"{line.mean:.2f}" + ("" if math.isnan(line.std) else f" ± {line.std:.2f}"),
            line.mean,
            line.std,
        )
        for line in numbers[numbers["measure"] == "accuracy"].itertuples()
    }


def published_accuracy(model: str, dataset: str) -> str:
    """What the paper's two accuracy tables print for a model on a dataset, nothing where they have no such cell."""
    found = (printed(table).get((model, "", dataset)) for table in ("tab:normal-data", "tab:large-data"))
    return next((cell.text for cell in found if cell), "")


def model_order(table: str) -> list[str]:
    """Models as the paper lists them, then those that it does not have."""
    listed = dict.fromkeys(published(table)["row"])
    return [name for name in listed if name in models()] + [name for name in models() if name not in listed]


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


def _read_table(file: Path) -> pd.DataFrame:
    frame = pd.read_csv(
        file,
        dtype={**dict.fromkeys(_WORDS, str), "mean": float, "std": float},
        keep_default_na=False,  # an empty variant is "", not NaN …
        na_values={"mean": [""], "std": [""]},  # … but a number that is not printed is
    )
    return frame.astype({"bold": bool})
