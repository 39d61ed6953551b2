"""What model files say of their models, read without running them: names are known before torch is imported."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bench import recipe
from bench.source_code import Bound, bindings

if TYPE_CHECKING:
    from bench.model import Model

INTERFACE = "bench.model"  # where model files import Model, Recipe and read_settings from


@dataclass(frozen=True)
class Card:
    """What the harness knows of a model before importing it; attributes are called as those of the class."""

    module: str  # where the class is written, and its name there
    class_name: str
    keys: tuple[str, ...]  # the fields of its Config: what --set may set
    name: str = ""
    title: str = ""
    aliases: tuple[str, ...] = ()
    group: str = ""
    paper: str = ""
    revision: int = 1
    settings: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: type[Model]) -> Card:
        """The card of a class that has been imported."""
        facts = {fact: getattr(model, fact) for fact in FACTS}
        keys = tuple(getattr(model.Config, "__dataclass_fields__", ()))
        return cls(model.__module__, model.__name__, keys, **facts)

    def load(self) -> type[Model]:
        """Import the class."""
        model: type[Model] = getattr(importlib.import_module(self.module), self.class_name)
        return model


FACTS = tuple(item.name for item in fields(Card))[3:]  # what is an attribute of the class
RECIPE_KEYS = tuple(item.name for item in fields(recipe.Recipe))


def read_cards(file: Path, package: str) -> list[Card]:
    """The cards of a model file; none where it has no model, or where only importing it can tell."""
    try:
        return ModelFile(file, package).cards()
    except Exception:  # whatever cannot be read is imported, and the import says what is wrong
        return []


class ModelFile:
    """A file of a package of models: which classes it writes, and what constants are worth."""

    def __init__(self, file: Path, package: str) -> None:
        self.file, self.package = file, package
        self.bound = bindings(ast.parse(file.read_bytes()).body)

    def cards(self) -> list[Card]:
        """A card for each model class with its own name, in the order of the file."""
        classes = [node for node in self.bound.values() if isinstance(node, ast.ClassDef)]
        named = [self.facts(node.name) for node in classes if "name" in bindings(node.body)]
        return [Card(**facts) for facts in named if facts.get("name")]

    def facts(self, name: str) -> dict[str, Any]:
        """What a model class says of itself, and what its parents do; nothing of a class that is no model."""
        base, line = self.lineage(name)
        if base != "Model":
            return {}
        facts: dict[str, Any] = {
            "module": f"{self.package}.{self.file.stem}",
            "class_name": name,
            "keys": RECIPE_KEYS,
        }
        for file, part in reversed(line):  # what a class says counts more than what its parent does
            body = bindings(part.body)
            facts |= {fact: file.value(body[fact]) for fact in FACTS if fact in body}
            if "Config" in body:
                facts["keys"] = file.keys_of(body["Config"])
        return facts

    def lineage(self, name: str) -> tuple[str, list[tuple[ModelFile, ast.ClassDef]]]:
        """A class, its parent and so on with their files, and the class of the harness that they come from."""
        match self.bound[name]:
            case ast.ClassDef(bases=[ast.Name(id=parent)], keywords=[]) as node:
                base, line = self.lineage(parent)
                return base, [(self, node), *line]
            case (module, base) if module == INTERFACE:
                return base, []
            case (module, original):
                return self.sibling(module).lineage(original)
        raise ValueError(f"only importing {self.file.name} tells what {name} is")

    def keys_of(self, config: Bound) -> tuple[str, ...]:
        """The fields of a Config class, those of Recipe first."""
        assert isinstance(config, ast.Name)
        _, line = self.lineage(config.id)
        own = [item.target for _, node in reversed(line) for item in node.body if isinstance(item, ast.AnnAssign)]
        return tuple(dict.fromkeys([*RECIPE_KEYS, *(target.id for target in own if isinstance(target, ast.Name))]))

    def value(self, node: Bound) -> Any:
        """What an expression is worth that needs no name from elsewhere; it is evaluated as an import would."""
        assert isinstance(node, ast.expr)
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in self.bound}
        known = {"__file__": str(self.file), **{name: self.constant(name) for name in names}}
        return eval(compile(ast.Expression(node), self.file, "eval"), known)

    def constant(self, name: str) -> Any:
        """What a name is worth; of a model class, the attributes that are facts."""
        match self.bound[name]:
            case ast.expr() as node:
                return self.value(node)
            case ast.ClassDef():
                return SimpleNamespace(**self.facts(name))
            case (module, original) if module == INTERFACE:
                return getattr(recipe, original)
            case (module, original):
                return self.sibling(module).constant(original)
        raise ValueError(f"only importing {self.file.name} tells what {name} is")

    def sibling(self, module: str) -> ModelFile:
        package, _, stem = module.rpartition(".")
        if package != self.package:
            raise ValueError(f"{module} is not a file of {self.package}")
        return ModelFile(self.file.with_name(f"{stem}.py"), package)
