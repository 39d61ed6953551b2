"""Model files become names: found, not listed, so that a new model is one new file and nothing else."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from bench.errors import UserError
from bench.model import Model
from bench.source_code import hash_file
from bench.text import nearest

PACKAGE = "models"
EVERYTHING = "all"


@dataclass
class Registry:
    """What one package of model files holds."""

    package: str
    models: dict[str, type[Model]] = field(default_factory=dict)  # name → class, in the order of the files
    names: dict[str, type[Model]] = field(default_factory=dict)  # every name and alias, simplified
    broken: dict[str, str] = field(default_factory=dict)  # file stem → why it cannot be imported, one line

    @property
    def groups(self) -> dict[str, list[type[Model]]]:
        groups: dict[str, list[type[Model]]] = {EVERYTHING: list(self.models.values())}
        for model in self.models.values():
            if model.group:
                groups.setdefault(simplify(model.group), []).append(model)
        return groups

    def add(self, model: type[Model]) -> None:
        names = dict.fromkeys(map(simplify, (model.name, *model.aliases)), model)
        for name in names:
            other = self.names.get(name, model)
            if other is not model:
                raise UserError(f"{_file(other)} and {_file(model)} both register a model called '{name}'; rename one")
        self.names.update(names)
        self.models[model.name] = model

    def add_module(self, module: ModuleType) -> list[type[Model]]:
        """Register the model classes that are written in this module, all or none, and return them."""
        found = models_in(module)
        before = dict(self.models), dict(self.names)
        try:
            for model in found:
                self.add(model)
            self.check_groups()
        except UserError:
            self.models, self.names = before
            raise
        return found

    def check_groups(self) -> None:
        for group in self.groups.keys() & self.names.keys():
            raise UserError(f"{_file(self.names[group])} registers a model called '{group}', which is a group's name")

    def find(self, name: str) -> type[Model]:
        wanted = simplify(name)
        if wanted in self.names:
            return self.names[wanted]
        for stem, reason in self.broken.items():
            if simplify(stem) == wanted.replace("+", "plus"):
                raise UserError(reason)
        known = [*self.models, *(alias for model in self.models.values() for alias in model.aliases), *self.groups]
        guess = nearest(name, known) or f" Known: {', '.join(self.models)}."
        raise UserError(f"unknown model '{name}'.{guess} `python -m bench list models` shows them all")

    def resolve(self, names: str) -> list[type[Model]]:
        """Names, aliases and groups, separated by commas; each model once, in the order asked for."""
        chosen: dict[str, type[Model]] = {}
        for name in filter(None, (part.strip() for part in names.split(","))):
            group = self.groups.get(simplify(name))
            for model in [self.find(name)] if group is None else group:
                chosen[model.name] = model
        if not chosen:
            raise UserError(f"no model is named in '{names}'; known: {', '.join(self.models)}")
        return list(chosen.values())


@functools.cache
def scan(package: str = PACKAGE) -> Registry:
    """Import every file of the package; one that cannot be imported is noted and leaves the others alone."""
    registry = Registry(package)
    for entry in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if entry.name.startswith("_"):
            continue
        try:
            module = importlib.import_module(f"{package}.{entry.name}")
        except Exception as error:  # whatever a model file does wrong, it is that file's problem only
            text = " ".join(str(error).split())
            registry.broken[entry.name] = (
                f"{package}/{entry.name}.py cannot be imported: {type(error).__name__}: {text}"
            )
            continue
        registry.add_module(module)
    return registry


def models_in(module: ModuleType) -> list[type[Model]]:
    """The model classes that are written in this module."""
    return [value for value in vars(module).values() if _is_model_of(module.__name__, value)]


def _is_model_of(module: str, value: object) -> TypeGuard[type[Model]]:
    """A model class written in this module; an inherited name is its parent's, not its own."""
    return (
        inspect.isclass(value)
        and issubclass(value, Model)
        and value.__module__ == module
        and bool(vars(value).get("name"))
    )


def models() -> dict[str, type[Model]]:
    """Name → class of every model that could be imported."""
    return scan().models


def find_model(name: str) -> type[Model]:
    """The model of this name or alias, whatever its case."""
    return scan().find(name)


def resolve_models(names: str) -> list[type[Model]]:
    """Models from a comma-separated list of names, aliases and groups."""
    return scan().resolve(names)


def simplify(name: str) -> str:
    """Names are compared without case, blanks, hyphens, underscores and full stops; a plus counts."""
    return "".join(letter for letter in name.casefold() if letter not in " -_.")


def is_plugin(model: type[Model]) -> bool:
    """Whether the model is not one of the package's, so that no golden cell watches over it."""
    return model.__module__.partition(".")[0] != PACKAGE


def source_hash(model: type[Model]) -> str:
    """A hash of what the model's code means: its file and the files of its package it imports, without prose."""
    return hash_file(Path(inspect.getfile(model)), model.__module__.rpartition(".")[0])


def _file(model: type[Model]) -> str:
    return model.__module__.replace(".", "/") + ".py"
