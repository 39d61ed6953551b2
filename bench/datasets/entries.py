"""The entries of the catalogue: nine datasets of the paper (entries.toml), a twin of each, and the embedded digits.

What reads or generates them is imported when it is used, so that names are known at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.datasets.catalogue import Dataset, PaperStatistics
from bench.datasets.sources import Layout, load_files, stamp_files
from bench.files import read_toml

if TYPE_CHECKING:
    from bench.datasets.canonical import RawGraph
    from bench.graph import Graph

TABLE = read_toml(Path(__file__).with_suffix(".toml"))
_SYMMETRIC = "symmetric union, unweighted, duplicates merged, self-loops as shipped"
_UNSEEN = "no copy was at hand when this was written: the reader was tested on small files of the documented format"
_SEEN = "counts, features and labels were compared with the paper and with published facts on the real files"


def _real(name: str, entry: Mapping[str, Any]) -> Dataset:
    paper = PaperStatistics(**entry["paper"])
    layouts = tuple(map(_layout, entry["layouts"]))
    rule, fingerprint = entry.get("split_rule", "uniform-60/20/20"), entry.get("fingerprint")
    return Dataset(
        name=name,
        title=entry["title"],
        groups=("small" if rule.startswith("uniform") else "large", "all"),
        split_rule=rule,
        settings_name=name,
        load=partial(load_files, name, layouts, paper.classes),
        stamp=partial(stamp_files, layouts),
        aliases=tuple(entry["aliases"]),
        paper=paper,
        layouts=layouts,
        obtain=entry.get("obtain", ""),
        conventions=(_SYMMETRIC, *entry["conventions"]),
        checked=_SEEN if fingerprint else _UNSEEN,
        fingerprint=fingerprint,
    )


def _layout(entry: Mapping[str, Any]) -> Layout:
    files, sha256 = tuple(entry["files"]), tuple(entry.get("sha256", ()))
    return Layout(tuple(entry["folders"]), files, _reader(entry["read"]), entry.get("url", ""), sha256)


def _reader(name: str) -> Callable[[list[Path]], RawGraph]:
    """Return a reader of this room, named module.function, that is imported when it reads."""
    module, _, function = name.partition(".")

    def read(paths: list[Path]) -> RawGraph:
        found: RawGraph = getattr(importlib.import_module(f"bench.datasets.{module}"), function)(paths)
        return found

    return read


def _twin_of(dataset: Dataset) -> Dataset:
    name = f"{dataset.name}-twin"
    return replace(
        dataset,
        name=name,
        title=f"{dataset.title} (twin)",
        groups=tuple(f"{group}-twin" for group in dataset.groups),
        load=partial(_load_twin, name),
        stamp=_stamp_twin,
        aliases=tuple(f"{alias}-twin" for alias in dataset.aliases),
        is_twin=True,
        layouts=(),
        obtain="",
        conventions=(f"generated: the counts of {dataset.title}; costs measured on it stand, accuracies do not",),
        checked="the generator's tests hold it to the counts",
        fingerprint=None,
    )


def _load_twin(name: str, root: Path | None) -> Graph:
    from bench.datasets import twins
    from bench.datasets.canonical import check_graph

    return check_graph(twins.generate_twin(name), name)


def _stamp_twin(root: Path | None) -> str:
    from bench.datasets import twins

    return f"twin v{twins.GENERATOR_VERSION}"


def _load_digits(root: Path | None) -> Graph:
    from bench.datasets.digits import load_digits_graph

    return load_digits_graph()


def _stamp_digits(root: Path | None) -> str:
    from bench.datasets.digits import stamp_digits

    return stamp_digits()


_REAL = tuple(_real(name, entry) for name, entry in TABLE.items())
_DIGITS = Dataset(
    name="digits",
    title="Digits (k-NN graph)",
    groups=(),
    split_rule="uniform-60/20/20",
    settings_name="digits",
    load=_load_digits,
    stamp=_stamp_digits,
    aliases=("digit",),
    conventions=(
        "scikit-learn's 1,797 handwritten digits, pixel values divided by 16",
        "an edge where one image is among the 8 nearest of the other; ties go to the lower number",
    ),
    fingerprint="6f845eec78d3cb4ad226ef47c3fdbdd2",
    checked="embedded: not a dataset of the paper",
)

ENTRIES: tuple[Dataset, ...] = (*_REAL, *(_twin_of(dataset) for dataset in _REAL), _DIGITS)
