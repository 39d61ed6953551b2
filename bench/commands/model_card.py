"""`list MODEL`: every setting of a model, what it means, what its authors chose, and what `tune` may choose."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from rich.console import Console

from bench.console import say, show_table
from bench.model import Model
from bench.settings import AUTHOR_LANE, DEFAULT_LANE, TUNED_LANE, field_types
from bench.text import as_typed, settings_as_typed
from bench.tuning.sampling import describe


def show_model(console: Console, model: type[Model]) -> None:
    """Who it is, a table of its settings, and how to choose others."""
    aliases = f", also called {', '.join(model.aliases)}" if model.aliases else ""
    say(console, f"{model.name} ({model.title or model.name}){aliases}; group {model.group or '-'}; {model.paper}")
    lanes = {lane: chosen for lane, chosen in model.settings.items() if chosen}
    header = ["setting", "type", "default", *lanes, *(f"tune, {space}" for space in model.spaces), "what it is"]
    meanings, defaults = comments(model.Config), model.Config()
    rows = []
    for name, kind in field_types(model).items():
        chosen = [by_value(name, datasets) for datasets in lanes.values()]
        spaces = [describe(space[name]) if name in space else "" for space in model.spaces.values()]
        default = as_typed(getattr(defaults, name))
        rows.append((name, type_in_words(kind), default, *chosen, *spaces, meanings.get(name, "")))
    show_table(console, header, rows)
    for line in _explanations(model, lanes):
        say(console, line)


def _explanations(model: type[Model], lanes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    lines = [f"{lane}: for {', '.join(datasets)}" for lane, datasets in lanes.items()]
    if AUTHOR_LANE not in lanes:
        lines.append(f"{AUTHOR_LANE}: nothing published, so all datasets have the defaults")
    known = ", ".join(dict.fromkeys([AUTHOR_LANE, DEFAULT_LANE, TUNED_LANE, *lanes]))
    example = settings_as_typed({"patience": model.Config().patience})
    return [
        *lines,
        f"`run --settings LANE` chooses a lane ({known}); a dataset that it leaves out has the defaults.",
        f"`run --set KEY=VALUE`, such as --set {example}, sets one; `tune` searches what its columns name.",
    ]


def by_value(name: str, datasets: Mapping[str, Mapping[str, Any]]) -> str:
    """What a lane sets this to, and for which datasets, unless for all that it has: `16 (pubmed), 64 (photo, cs)`."""
    having: dict[str, list[str]] = {}
    for dataset, settings in datasets.items():
        if name in settings:
            having.setdefault(as_typed(settings[name]), []).append(dataset)
    if len(having) == 1 and sum(map(len, having.values())) == len(datasets):
        return next(iter(having))
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in having.items())


def type_in_words(kind: Any) -> str:
    """A setting's type as a user would say it: the choices, or the kind of number."""
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"list of {type_in_words(get_args(kind)[0])}"
    if get_args(kind):  # a union
        return " or ".join(map(type_in_words, get_args(kind)))
    return "none" if kind is type(None) else str(getattr(kind, "__name__", kind))


def comments(kind: type[Any]) -> dict[str, str]:
    """The comment behind each field of a dataclass, or the one behind the same field of a class that it extends."""
    found: dict[str, str] = {}
    for part in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(part):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(part))
        except (OSError, TypeError):  # it was not written in a file
            continue
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        said = {token.end[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
        for item in ast.walk(ast.parse(source)):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.end_lineno in said:
                found[item.target.id] = said[item.end_lineno]
    return found
