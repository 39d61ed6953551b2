"""Where each model's settings come from and where it departs from its official code, in the words of its own file."""

from __future__ import annotations

import inspect
import re
import sys

from bench.model import Model
from bench.registry import models
from bench.report.table import Entry, Table, entry

SETTINGS, DIFFERENCES = "Settings:", "Where this knowingly differs"


def origin_table(order: list[str]) -> Table:
    """A row per model, as its file describes it."""
    return Table(
        "models",
        "Models: where their settings come from, and where they knowingly differ from the official code",
        ("Method", "Settings", "Differences"),
        tuple(_row(models()[name]) for name in order),
        (
            "What the head of each model's file says. Where defaults were chosen on a graph, fresh splits of that "
            "graph test nodes that had a say in the choice; sealed ones do not.",
        ),
    )


def _row(model: type[Model]) -> tuple[Entry, ...]:
    text = inspect.getdoc(sys.modules[model.__module__]) or ""
    note = f"the head of {model.__module__.replace('.', '/')}.py"
    quoted = (Entry(part, note=note) for part in (settings_of(text), " ".join(differences_of(text))))
    return entry(model.title or model.name), *quoted


def settings_of(text: str) -> str:
    """The paragraph on settings."""
    found = re.search(rf"^{SETTINGS}(.*?)(?=\n\s*\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def differences_of(text: str) -> list[str]:
    """The points of the list of differences, each on one line."""
    found = re.search(rf"^{DIFFERENCES}[^\n]*\n((?:[ \t]+\S[^\n]*\n?)*)", text, re.MULTILINE)  # up to a blank line
    points = re.split(r"^\s*\*\s+", found[1], flags=re.MULTILINE) if found else []
    return [" ".join(point.split()) for point in points if point.strip()]
