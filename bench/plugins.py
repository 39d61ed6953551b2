"""Plug-ins: models and datasets from outside the repository, brought in by `--plugin my_module`.

A plug-in is an ordinary module. Every class in it that derives from `bench.model.Model` and has a name becomes a model,
every class that derives from `bench.plugins.OwnDataset` and has a name becomes a dataset.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from bench.datasets.canonical import RawGraph, canonical_graph
from bench.datasets.catalogue import GROUPS, Dataset, datasets
from bench.datasets.sources import REVISION
from bench.errors import BadData, MissingData, UserError
from bench.graph import Graph
from bench.metrics import find_metric
from bench.registry import models_in, scan
from bench.settings import check_config
from bench.splits import parse_rule


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


@dataclass
class Plugins:
    """What came of loading plug-ins."""

    paths: tuple[str, ...] = ()  # where workers can import them from
    broken: list[str] = field(default_factory=list)  # one line per plug-in that cannot be used

    def known(self, names: str, find: Callable[[str], object]) -> tuple[str, list[str]]:
        """The names that `find` knows, and a line for each other: where a plug-in is broken, they may be its own.

        Where none is broken, all names stay, for `find` to refuse.
        """
        if not self.broken:
            return names, []
        kept, left_out = [], []
        for name in names.split(","):
            try:
                find(name)
                kept.append(name)
            except UserError as error:
                left_out.append(f"left out: {error}")
        if not kept:
            raise UserError(f"nothing is left to run; {self.broken[0]}")
        return ",".join(kept), left_out


def load_plugins(names: Sequence[str]) -> Plugins:
    """Import each module (by name, or by the path of its file) and register what it holds.

    One that fails is described in `broken` and leaves the others alone.
    """
    loaded = Plugins()
    for name in dict.fromkeys(names):
        try:
            module = _import(name)
            _register(module)
        except (Exception, SystemExit) as error:  # whatever a plug-in does wrong, it is that plug-in's problem only
            loaded.broken.append(f"the plug-in '{name}' cannot be used: {_in_words(error)}")
        else:
            loaded.paths += (str(_home(module)),)
    return loaded


def _in_words(error: BaseException) -> str:
    """What went wrong, in one line; a UserError says it all itself."""
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())


def _import(name: str) -> ModuleType:
    file = Path(name).expanduser()
    if file.suffix != ".py":
        if not all(part.isidentifier() for part in name.split(".")):
            raise UserError("name a module, such as my_module, or the path of its file, such as folder/my_module.py")
        return _import_from(Path.cwd(), name)
    if not file.is_file():
        raise UserError("there is no such file")
    module = _import_from(file.resolve().parent, file.stem)
    if Path(module.__file__ or "").resolve() != file.resolve():
        raise UserError(f"another module is already called '{file.stem}'; rename the file")
    return module


def _import_from(folder: Path, name: str) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()  # the file may be younger than Python's last look into the folder
    return importlib.import_module(name)


def _home(module: ModuleType) -> Path:
    """The folder from which the module can be imported under its name."""
    file = Path(module.__file__ or "").resolve()
    levels = module.__name__.count(".") + (file.name == "__init__.py")
    return file.parents[levels]


def _register(module: ModuleType) -> None:
    for model in models_in(module):
        check_config(model)
    found: list[Any] = [*_datasets_of(module)]
    for dataset in found:
        _add_dataset(dataset)
    found += scan().add_module(module)
    if not found:
        raise UserError(
            "it holds neither a model (a class that derives from bench.model.Model and has a name) nor a dataset "
            "(one that derives from bench.plugins.OwnDataset and has a name)"
        )


# -- datasets ---------------------------------------------------------------------------------------------------------


def _datasets_of(module: ModuleType) -> Iterator[Dataset]:
    for value in vars(module).values():
        if (
            inspect.isclass(value)
            and issubclass(value, OwnDataset)
            and value.__module__ == module.__name__
            and value.name
        ):
            yield _entry(value())


def _entry(own: OwnDataset) -> Dataset:
    """The catalogue's entry for a dataset of a plug-in."""
    parse_rule(own.split_rule)
    find_metric(own.metric)
    name = own.name.lower()

    whose = f"the dataset '{name}' of a plug-in"

    def load(root: Path | None) -> Graph:
        try:
            return canonical_graph(name, own.read(), whose)
        except (BadData, MissingData):
            raise
        except (Exception, SystemExit) as error:
            raise BadData(f"{whose} cannot be read: {_in_words(error)}") from error

    def stamp(root: Path | None) -> str:
        try:
            return f"plug-in r{REVISION} {own.stamp()}"
        except (Exception, SystemExit) as error:
            raise BadData(f"{whose} cannot be used, its stamp fails: {_in_words(error)}") from error

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
            "symmetric union, unweighted, duplicates merged, self-loops and feature values as the plug-in has",
        ),
        checked="shapes, index ranges, finite features and labels; a dataset of your own has no published counts",
    )


def _add_dataset(dataset: Dataset) -> None:
    known = datasets()
    taken = {*GROUPS, *known, *(alias for other in known.values() for alias in other.aliases)}
    for name in (dataset.name, *dataset.aliases):
        if name in taken:
            raise UserError(f"there is a dataset or a group called '{name}' already; choose another name")
    known[dataset.name] = dataset
