"""Plug-ins: models and datasets from outside the repository, brought in by `--plugin my_module`.

A plug-in is an ordinary module. Every class in it that derives from `bench.model.Model` and has a name becomes a model,
every class that derives from `bench.plugins.OwnDataset` and has a name becomes a dataset.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.datasets.canonical import RawGraph
from bench.datasets.catalogue import add_dataset
from bench.datasets.own import OwnDataset, datasets_in, in_words
from bench.errors import UserError
from bench.metrics import find_metric
from bench.registry import models_in, scan
from bench.settings import check_config
from bench.splits import parse_rule

__all__ = ["OwnDataset", "Plugins", "RawGraph", "load_plugins"]


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
            loaded.broken.append(f"the plug-in '{name}' cannot be used: {in_words(error)}")
        else:
            loaded.paths += (str(_home(module)),)
    return loaded


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
    found: list[Any] = [*datasets_in(module)]
    for dataset in found:
        parse_rule(dataset.split_rule)
        find_metric(dataset.metric)
        add_dataset(dataset)
    found += scan().add_module(module)
    if not found:
        raise UserError(
            "it holds neither a model (a class that derives from bench.model.Model and has a name) nor a dataset "
            "(one that derives from bench.plugins.OwnDataset and has a name)"
        )
