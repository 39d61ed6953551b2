"""Model files become names: found, not listed, so that a new model is one new file and nothing else.

Names are known from what the files say (bench/cards.py); a file is imported when its model is wanted.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from bench.cards import INTERFACE, Card, read_cards
from bench.errors import UserError
from bench.source_code import hash_file
from bench.text import nearest

if TYPE_CHECKING:
    from bench.model import Model

PACKAGE = "models"
EVERYTHING = "all"


@dataclass
class Registry:
    """What one package of model files holds."""

    package: str
    cards: dict[str, Card] = field(default_factory=dict)  # by the model's name, in the order of the files
    names: dict[str, Card] = field(default_factory=dict)  # every name and alias, simplified
    broken: dict[str, str] = field(default_factory=dict)  # file stem → why it cannot be imported, one line

    @property
    def models(self) -> dict[str, type[Model]]:
        """Name → class of every model that can be imported; imports them all."""
        found: dict[str, type[Model]] = {}
        for name, card in list(self.cards.items()):
            with contextlib.suppress(UserError):
                found[name] = self.load(card)
        return found

    @property
    def groups(self) -> dict[str, list[Card]]:
        groups: dict[str, list[Card]] = {EVERYTHING: list(self.cards.values())}
        for card in self.cards.values():
            if card.group:
                groups.setdefault(simplify(card.group), []).append(card)
        return groups

    def add_file(self, stem: str, folder: Path) -> None:
        """Register the models of a file; only one whose cards cannot be read is imported."""
        self.add(read_cards(folder / f"{stem}.py", self.package) or self._import_cards(stem))

    def add_module(self, module: ModuleType) -> list[type[Model]]:
        """Register the model classes that are written in this module, all or none, and return them."""
        found = models_in(module)
        self.add(map(Card.of, found))
        return found

    def add(self, cards: Iterable[Card]) -> None:
        """Register models, all or none."""
        before = dict(self.cards), dict(self.names)
        try:
            for card in cards:
                self._add(card)
            for group in self.groups.keys() & self.names.keys():
                raise UserError(
                    f"{_file(self.names[group])} registers a model called '{group}', which is a group's name"
                )
        except UserError:
            self.cards, self.names = before
            raise

    def _add(self, card: Card) -> None:
        names = dict.fromkeys(map(simplify, (card.name, *card.aliases)), card)
        for name in names:
            other = self.names.get(name, card)
            if other != card:
                raise UserError(f"{_file(other)} and {_file(card)} both register a model called '{name}'; rename one")
        self.names.update(names)
        self.cards[card.name] = card

    # -- by name, without an import ----------------------------------------------------------------------------------

    def card(self, name: str) -> Card:
        """The card behind a name or an alias."""
        wanted = simplify(name)
        if wanted in self.names:
            return self.names[wanted]
        for stem, reason in self.broken.items():
            if simplify(stem) == wanted.replace("+", "plus"):
                raise UserError(reason)
        known = [*self.cards, *(alias for card in self.cards.values() for alias in card.aliases), *self.groups]
        guess = nearest(name, known) or f" Known: {', '.join(self.cards)}."
        raise UserError(f"unknown model '{name}'.{guess} `python -m bench list models` shows them all")

    def select(self, names: str) -> list[Card]:
        """The cards behind names, aliases and groups, separated by commas; each once, in the order asked for."""
        groups, chosen = self.groups, dict[str, Card]()
        for name in filter(None, (part.strip() for part in names.split(","))):
            found = groups[simplify(name)] if simplify(name) in groups else [self.card(name)]
            chosen |= {card.name: card for card in found}
        if not chosen:
            raise UserError(f"no model is named in '{names}'; known: {', '.join(self.cards)}")
        return list(chosen.values())

    # -- classes -----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> type[Model]:
        return self.load(self.card(name))

    def resolve(self, names: str) -> list[type[Model]]:
        """The classes behind names, aliases and groups; of a group, those that can be imported."""
        named = [self.names.get(simplify(name)) for name in names.split(",")]
        chosen = []
        for card in self.select(names):
            try:
                chosen.append(self.load(card))
            except UserError:
                if card in named:
                    raise
        if not chosen:
            raise UserError(f"no model of '{names}' can be imported; {next(iter(self.broken.values()))}")
        return chosen

    def load(self, card: Card) -> type[Model]:
        """Import a model; one that cannot be is noted, leaves its groups, and a UserError says why."""
        try:
            return card.load()
        except Exception as error:  # whatever a model file does wrong, it is that file's problem only
            self.cards.pop(card.name, None)
            raise UserError(self._note(card.module.rpartition(".")[2], error)) from None

    def _import_cards(self, stem: str) -> list[Card]:
        try:
            module = importlib.import_module(f"{self.package}.{stem}")
        except Exception as error:  # likewise
            self._note(stem, error)
            return []
        return [Card.of(model) for model in models_in(module)]

    def _note(self, stem: str, error: Exception) -> str:
        text = " ".join(str(error).split())
        self.broken[stem] = f"{self.package}/{stem}.py cannot be imported: {type(error).__name__}: {text}"
        return self.broken[stem]


@functools.cache
def scan(package: str = PACKAGE) -> Registry:
    """Look at every file of the package; one that is broken is noted and leaves the others alone."""
    registry = Registry(package)
    for folder in importlib.import_module(package).__path__:
        for entry in pkgutil.iter_modules([folder]):
            if not entry.name.startswith("_"):
                registry.add_file(entry.name, Path(folder))
    return registry


def models_in(module: ModuleType) -> list[type[Model]]:
    """The model classes that are written in this module; an inherited name is its parent's, not its own."""
    if INTERFACE not in sys.modules:  # who writes a model imports it
        return []
    from bench.model import Model

    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Model)
        and value.__module__ == module.__name__
        and vars(value).get("name")
    ]


def models() -> dict[str, type[Model]]:
    """Name → class of every model that can be imported; imports them all."""
    return scan().models


def select_cards(names: str) -> list[Card]:
    """Cards from a comma-separated list of names, aliases and groups; refuses unknown ones, and imports no model."""
    return scan().select(names)


def find_model(name: str) -> type[Model]:
    """The model of this name or alias, whatever its case; imports no other."""
    return scan().find(name)


def resolve_models(names: str) -> list[type[Model]]:
    """Models from a comma-separated list of names, aliases and groups; imports no others."""
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


def _file(card: Card) -> str:
    return card.module.replace(".", "/") + ".py"
