"""`list`: every name it shows can be asked for, and a model shows its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from typer.testing import CliRunner, Result

from bench import registry
from bench.cli import app
from bench.commands.model_card import by_value, comments, type_in_words
from bench.model import Recipe


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@dataclass(frozen=True)
class OwnConfig(Recipe):
    """What a model's file may hold."""

    width: int = 8  # of the "layer"; a # inside
    kind: Literal[
        "round",
        "square",
    ] = "round"  # its shape
    patience: int = 7
    silent: float | None = None


def test_comments_are_those_of_the_field_or_of_the_one_that_it_replaces() -> None:
    found = comments(OwnConfig)
    assert found["width"] == 'of the "layer"; a # inside'
    assert found["kind"] == "its shape"
    assert found["patience"] == comments(Recipe)["patience"] and found["patience"].startswith("evaluations without")
    assert "silent" not in found


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "int"),
        (float | None, "float or none"),
        (Literal["a", "b"], "a, b"),
        (tuple[int, ...], "list of int"),
        (Literal["auto"] | int, "auto or int"),
    ],
)
def test_types_in_words(kind: Any, words: str) -> None:
    assert type_in_words(kind) == words


def test_values_of_a_lane() -> None:
    lane = {"x": {"width": 8, "flat": True}, "y": {"width": 8, "flat": False}, "z": {"width": 8, "flat": True}}
    assert by_value("width", lane) == "8"  # for all of them
    assert by_value("flat", lane) == "true (x, z), false (y)"
    assert by_value("depth", lane) == ""
    assert by_value("depth", {**lane, "z": {"depth": 3}}) == "3 (z)"


@pytest.mark.parametrize("name", list(registry.models()))
def test_every_model_shows_its_settings(name: str) -> None:
    model = registry.models()[name]
    result = bench("list", name.upper())
    assert result.exit_code == 0, result.output
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if line[0] == "|"]
    header, _, *rows = cells
    assert header[:3] == ["setting", "type", "default"] and header[-1] == "what it is"
    shown = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert set(shown) == set(model.Config.__dataclass_fields__)
    assert shown["patience"]["default"] == str(model.Config().patience)
    assert [lane for lane in model.settings if model.settings[lane] and lane not in header] == []
    assert [space for space in model.spaces if f"tune, {space}" not in header] == []


def test_a_group_a_dataset_and_a_study_show_their_rows() -> None:
    group = next(iter(registry.models().values())).group
    members = [model.name for model in registry.models().values() if model.group == group]
    rows = [line.split("|")[1].strip() for line in bench("list", group).stdout.splitlines() if line[0] == "|"]
    assert rows[2:] == members
    assert "| photo-twin " in bench("list", "Photo-Twin").stdout
    assert "| physics " not in bench("list", "photo").stdout
    assert "| hops " in bench("list", "hops").stdout


def test_an_unknown_setting_says_where_they_are_listed() -> None:
    first, second = list(registry.models())[:2]
    result = bench("run", "--models", first, "--set", "nosuch=1", "--dry-run")
    assert result.exit_code == 2 and result.stderr.endswith(f" `list {first}` shows them\n")
    result = bench("run", "--models", f"{first},{second}", "--set", "nosuch=1", "--dry-run")
    assert result.exit_code == 2 and result.stderr.endswith(" `list MODEL` shows them\n")
