"""Datasets of one's own: a class with a name and a `read`, in a plug-in or in a file of this folder."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from bench.datasets.catalogue import Dataset
from bench.datasets.sources import REVISION
from bench.errors import BadData, MissingData, UserError
from bench.source_code import bindings

if TYPE_CHECKING:
    from bench.datasets.canonical import RawGraph
    from bench.graph import Graph


class OwnDataset:
    """A dataset of your own: set the name, write `read`."""

    name: ClassVar[str] = ""  # how users type it
    title: ClassVar[str] = ""  # how tables print it
    aliases: ClassVar[tuple[str, ...]] = ()
    split_rule: ClassVar[str] = "uniform-60/20/20"  # "masks" for those that `read` gives; see bench/splits.py
    metric: ClassVar[str] = "accuracy"  # or roc_auc, …: what it is judged, stopped and tuned by, see bench/metrics.py
    settings_name: ClassVar[str] = ""  # a dataset whose published settings suit this one, if there is any

    def read(self) -> RawGraph:
        """Adjacency (scipy sparse), features (numpy or scipy sparse), labels; symmetrised and checked afterwards."""
        raise NotImplementedError("a dataset of your own needs a method read")

    def stamp(self) -> str:
        """Changes whenever `read` would give something else; as it stands, whenever the plug-in's file changes."""
        return hashlib.sha256(Path(inspect.getfile(type(self))).read_bytes()).hexdigest()[:24]


FACTS = ("name", "title", "aliases", "split_rule", "metric", "settings_name")  # literals, read without importing


def datasets_of_file(file: Path) -> Iterator[Dataset]:
    """Yield the entries of a file of this folder from what it says; it is imported when one of them is read."""
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.ClassDef) and "OwnDataset" in map(ast.unparse, node.bases):
            said = bindings(node.body)
            facts = {name: ast.literal_eval(said[name]) for name in FACTS if name in said}  # type: ignore[arg-type]
            stand_in: type[OwnDataset] = type(node.name, (OwnDataset,), facts)
            make = partial(_import_and_make, f"bench.datasets.{file.stem}", node.name)
            yield _entry_of(stand_in, make, f"the dataset '{stand_in.name.lower()}'")


def _import_and_make(module: str, name: str) -> OwnDataset:
    own: OwnDataset = getattr(importlib.import_module(module), name)()
    return own


def datasets_in(module: ModuleType) -> Iterator[Dataset]:
    """Yield the catalogue's entry of each dataset class that is written in this module."""
    for value in vars(module).values():
        is_own = inspect.isclass(value) and issubclass(value, OwnDataset) and value.__module__ == module.__name__
        if is_own and value.name:
            yield _entry_of(value, value, f"the dataset '{value.name.lower()}' of a plug-in")


def _entry_of(own: type[OwnDataset], make: Callable[[], OwnDataset], whose: str) -> Dataset:
    """Return the catalogue's entry of a class; `make` gives an instance, `whose` it is stands in messages."""
    name = own.name.lower()

    def load(root: Path | None) -> Graph:
        from bench.datasets.canonical import canonical_graph

        try:
            return canonical_graph(name, make().read(), whose)
        except (BadData, MissingData):
            raise
        except (Exception, SystemExit) as error:
            raise BadData(f"{whose} cannot be read: {in_words(error)}") from error

    def stamp(root: Path | None) -> str:
        try:
            return f"plug-in r{REVISION} {make().stamp()}"
        except (Exception, SystemExit) as error:
            raise BadData(f"{whose} cannot be used, its stamp fails: {in_words(error)}") from error

    return Dataset(
        name=name,
        title=own.title or own.name,
        groups=(),
        split_rule=own.split_rule,
        settings_name=own.settings_name,
        metric=own.metric,
        load=load,
        stamp=stamp,
        aliases=tuple(alias.lower() for alias in own.aliases),
        conventions=(
            "symmetric union, unweighted, duplicates merged, self-loops and feature values as `read` gives them",
        ),
        checked="shapes, index ranges, finite features and labels; a dataset of your own has no published counts",
    )


def in_words(error: BaseException) -> str:
    """Say what went wrong in one line; a UserError says it all itself."""
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())
