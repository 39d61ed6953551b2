"""Which datasets exist, under which names, and what the paper says of each; numpy is imported to read one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.datasets.sources import Layout, stamp_paths
from bench.errors import UserError
from bench.metrics import ACCURACY
from bench.text import nearest, shown

if TYPE_CHECKING:
    from bench.graph import Graph

GROUPS = ("small", "large", "all", "small-twin", "large-twin", "all-twin")
_OWN_RULE = "uniform-60/20/20"


@dataclass(frozen=True)
class PaperStatistics:
    """A row of the paper's table of datasets, and what its edge count counts."""

    nodes: int
    edges: int
    features: int
    classes: int
    edges_mean: str  # in words
    counting: str = "entries"  # "entries": as stored here; "undirected": each once, no loops; "unknown": one of the two


@dataclass(frozen=True)
class Dataset:
    """One entry of the catalogue; everything that the harness knows about a dataset before reading it."""

    name: str
    title: str  # as tables print it
    groups: tuple[str, ...]
    split_rule: str
    settings_name: str  # under which name models keep the authors' settings; "" has none
    load: Callable[[Path | None], Graph]  # the folder that holds the raw files, where there are any
    stamp: Callable[[Path | None], str | None]  # cheap identity of the input; None where it is not there
    aliases: tuple[str, ...] = ()
    paper: PaperStatistics | None = None
    is_twin: bool = False
    layouts: tuple[Layout, ...] = ()  # how its raw files may lie in a data folder; () needs no data folder
    obtain: str = ""  # where a person gets the files that cannot be downloaded automatically
    conventions: tuple[str, ...] = ()  # what was done to the raw files, in sentences
    checked: str = ""  # what was verified about this entry, and when not, why not
    fingerprint: str | None = None  # of the canonical arrays; None where the files were never at hand
    own_file: Path | None = None  # a user's file
    metric: str = ACCURACY  # what its predictions are judged by, see bench/metrics.py

    @property
    def twin(self) -> str:
        """The group of generated graphs that can stand in for this dataset's group, or ""."""
        real = [group for group in self.groups if group in ("small", "large")]
        return f"{real[0]}-twin" if real else ""


@cache
def datasets() -> dict[str, Dataset]:
    """Return all catalogued datasets by name: the entries, and what other files of this folder hold."""
    from bench.datasets.entries import ENTRIES

    found = {dataset.name: dataset for dataset in ENTRIES}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if "OwnDataset)" in file.read_text(encoding="utf-8"):  # the others need not be parsed
            from bench.datasets.own import datasets_of_file

            for dataset in datasets_of_file(file):
                add_dataset(dataset, found)
    return found


def add_dataset(dataset: Dataset, known: dict[str, Dataset] | None = None) -> None:
    """Add an entry to the catalogue; refuse one whose name is taken."""
    known = datasets() if known is None else known
    taken = _names(known)
    for name in (dataset.name, *dataset.aliases):
        if name in taken:
            raise UserError(f"there is a dataset or a group called '{name}' already; choose another name")
    known[dataset.name] = dataset


def _names(known: dict[str, Dataset]) -> list[str]:
    """Whatever stands for a dataset or a group."""
    return [*known, *GROUPS, *(alias for dataset in known.values() for alias in dataset.aliases)]


def resolve(names: str, split_ratio: str | None = None) -> list[Dataset]:
    """The datasets behind a list such as `photo,large,my.npz`, each once, in the order asked for.

    `split_ratio` (for example 50/25/25) takes the place of every dataset's own rule.
    """
    found: dict[str, Dataset] = {}
    for word in filter(None, (part.strip() for part in names.split(","))):
        for dataset in _find(word):
            other = found.setdefault(dataset.name, dataset)
            if other.own_file != dataset.own_file:
                raise UserError(f"two files would both be called '{dataset.name}'; rename one of them")
    if not found:
        raise UserError("no dataset was named; `python -m bench list datasets` shows them all")
    if not split_ratio:
        return list(found.values())
    from bench.splits import uniform_rule

    return [replace(dataset, split_rule=uniform_rule(split_ratio)) for dataset in found.values()]


def _find(word: str) -> list[Dataset]:
    known = datasets()
    lower = word.lower()
    if lower in GROUPS:
        return [dataset for dataset in known.values() if lower in dataset.groups]
    for dataset in known.values():
        if lower == dataset.name or lower in dataset.aliases:
            return [dataset]
    if lower.endswith(".npz") or "/" in word or "\\" in word:
        return [own_dataset(Path(word).expanduser())]
    raise UserError(
        f"there is no dataset or group '{word}'.{nearest(word, _names(known))} "
        "`python -m bench list datasets` shows them all; a file of your own is named by its path, such as my/graph.npz."
    )


def recorded_dataset(name: str, split_rule: str, metric: str) -> Dataset:
    """Return the catalogue's entry under this split rule; for a graph that only records know, one without files."""
    known = datasets().get(name)
    if known is None:
        return Dataset(name, name, (), split_rule, "", load=_not_here, stamp=lambda root: None, metric=metric)
    usual = split_rule.startswith(known.split_rule)  # public splits have their hash behind the rule's name
    title = known.title if usual else f"{known.title}, {split_rule}"
    return replace(known, title=title, split_rule=split_rule, metric=metric)


def _not_here(root: Path | None) -> Graph:
    raise UserError("only records of this graph are here; name its file by its path")


def own_dataset(path: Path) -> Dataset:
    """A user's npz file. It is keyed by content; its name is only what tables call it."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    # a user's photo.npz must not be taken for Photo itself
    name = path.name if path.stem.lower() in _names(datasets()) else path.stem
    return Dataset(
        name=name,
        title=name,
        groups=(),
        split_rule=_OWN_RULE,
        settings_name="",
        load=partial(_load_own, name, path),
        stamp=partial(_stamp_own, path),
        conventions=("symmetric union, unweighted, duplicates merged, self-loops and feature values as in the file",),
        checked="shapes, index ranges, finite features and labels; a file of your own has no published counts",
        own_file=path.resolve(),
    )


def _load_own(name: str, path: Path, root: Path | None) -> Graph:
    from bench.datasets.canonical import canonical_graph
    from bench.datasets.npz import read_graph_npz

    return canonical_graph(name, read_graph_npz([path]), shown(path))


def _stamp_own(path: Path, root: Path | None) -> str | None:
    return stamp_paths([path]) if path.is_file() else None
