"""What code says without being run: its meaning as a hash, and the names that a file binds."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HARNESS = "bench"
IRRELEVANT = {"spaces", "estimate_memory", "estimate_disk"}  # parts of a model that no finished cell depends on


def code_of(function: Callable[..., Any]) -> str:
    """A hash of the code that a function or a callable object is made of, empty where it has no file.

    The file may have been edited since it was loaded, so a long-lived process asks early (executors/loaded.py).
    """
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    file = None if code is None else Path(code.co_filename)
    return hash_file(file, function.__module__.rpartition(".")[0]) if file is not None and file.is_file() else ""


@functools.cache
def hash_file(start: Path, package: str) -> str:
    """Of this file of this package and of the files of the package that it imports."""
    folder, waiting, seen = start.parent, [start], {}
    while waiting:
        file = waiting.pop()
        name = file.relative_to(folder).as_posix()
        if name in seen:
            continue
        tree = ast.parse(file.read_bytes())
        waiting += [found for found in map(folder.joinpath, _imported(tree, package)) if found.is_file()]
        seen[name] = _dump(_what_counts(tree))
    return hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest()[:20]


def _dump(tree: ast.Module) -> str:
    """The tree as Python 3.11 writes it, so that the hash of a file is the same on every version."""
    if sys.version_info >= (3, 13):
        return ast.dump(tree, show_empty=True).replace(", type_params=[]", "")
    return ast.dump(tree).replace(", type_params=[]", "")  # which 3.12 brought


def _imported(tree: ast.Module, package: str) -> list[str]:
    """File names, relative to the package's folder, that import statements anywhere in the file may mean."""
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, [package if node.level else "", node.module or ""]))
            modules += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    if package:
        inside = [module.removeprefix(f"{package}.") for module in modules if module.startswith(f"{package}.")]
    else:  # a file outside the packages: what lies beside it, unless that is the harness
        inside = [module for module in modules if module.partition(".")[0] != HARNESS]
    return [module.replace(".", "/") + ending for module in inside for ending in (".py", "/__init__.py")]


def _what_counts(tree: ast.Module) -> ast.Module:
    """Drop what cannot change a result: docstrings, wherever they stand, search spaces and estimates of size."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [item for item in body if not _irrelevant(item)]  # type: ignore[attr-defined]
    return tree


def _irrelevant(item: ast.stmt) -> bool:
    if isinstance(item, ast.Expr):
        return isinstance(getattr(item.value, "value", None), str)
    if isinstance(item, ast.ImportFrom):
        return item.module == "bench.space"
    targets = getattr(item, "targets", [getattr(item, "target", None)])
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return bool(IRRELEVANT & {*names, getattr(item, "name", "")})


Bound = ast.expr | ast.ClassDef | tuple[str, str] | None


def bindings(body: Sequence[ast.stmt]) -> dict[str, Bound]:
    """Name → the expression, the class, or the module and name of the import that it is bound to.

    ValueError where a statement does more than bind names: only running it could tell what comes of that.
    """
    found: dict[str, Bound] = {}
    for statement in body:
        match statement:
            case ast.ClassDef(name=name):
                found[name] = statement
            case ast.FunctionDef(name=name):
                found[name] = None
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found |= {alias.asname or alias.name: (module, alias.name) for alias in names}
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                found |= {target.id: value for target, value in zip(targets, values, strict=True)}  # type: ignore
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                found |= {} if value is None else {name: value}
            case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case _:
                raise ValueError(f"line {statement.lineno} does more than bind names")
    return found
