"""Who may know whom: the harness names no model, and no model asks which dataset it has."""

from __future__ import annotations

import ast
from pathlib import Path

import bench
import models
from bench.datasets.catalogue import datasets
from bench.registry import scan, simplify

HARNESS, MODELS = Path(str(bench.__file__)).parent, Path(str(models.__file__)).parent


def prose(tree: ast.AST) -> set[ast.AST]:
    """Docstrings and other strings that stand alone."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def words(tree: ast.AST, known: set[str]) -> list[tuple[int, str]]:
    """Lines and strings that are one of the known names, however they are written."""
    left_out = prose(tree)
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node not in left_out
        and simplify(node.value) in known
    ]


def questions(tree: ast.AST, known: set[str]) -> list[int]:
    """Lines on which something is compared with the name of a dataset, or a graph's name with anything."""
    asked: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            asked.append(node)
        elif isinstance(node, ast.Match):
            asked += [node.subject, *node.cases]
    return sorted(
        {
            part.lineno
            for node in asked
            for part in ast.walk(node)
            if (isinstance(part, ast.Constant) and isinstance(part.value, str) and simplify(part.value) in known)
            or (
                isinstance(part, ast.Attribute)
                and part.attr == "name"
                and isinstance(part.value, ast.Name)
                and part.value.id == "graph"
            )
        }
    )


def test_these_tests_see_what_they_look_for() -> None:
    code = '"""About gcn."""\nif model == "GCN":\n    pass\nx = {"gcn+": 1}\n'
    assert words(ast.parse(code), {"gcn"}) == [(2, "GCN")]
    code = (
        'if graph.name in special:\n    pass\nmatch which:\n    case "photo":\n        pass\nsettings = {"photo": 1}\n'
    )
    assert questions(ast.parse(code), {"photo"}) == [1, 4]


def test_the_harness_names_no_model() -> None:
    known = set(scan().names)
    assert {"gcn", "nagphormer+", "grand+"} <= known
    found = {
        path.relative_to(HARNESS).as_posix(): named
        for path in sorted(HARNESS.rglob("*.py"))
        if (named := words(ast.parse(path.read_text()), known))
    }
    assert found == {}


def test_no_model_asks_which_dataset_it_has() -> None:
    known = {simplify(name) for entry in datasets().values() for name in (entry.name, *entry.aliases)}
    assert {"photo", "amazon2m"} <= known
    found = {
        path.name: asked
        for path in sorted(MODELS.glob("*.py"))
        if (asked := questions(ast.parse(path.read_text()), known))
    }
    assert found == {}
