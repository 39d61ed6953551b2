"""Where a cell ran: processors that share a name are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import environment

CPUINFO = """processor\t: 0
cpu family\t: 25
model\t\t: {model}
model name\t: AMD EPYC
cache size\t: 1024 KB

processor\t: 1
cpu family\t: 99
model\t\t: 99
model name\t: not the first
"""


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "usable_processors", lambda: 2)


@pytest.mark.parametrize("model", [1, 17])
def test_generations_of_one_name_are_told_apart_by_their_numbers(model: int, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO.format(model=model))
    assert environment.processor(file) == f"AMD EPYC family 25 model {model} (2 logical processors)"


def test_where_the_system_says_less_the_platform_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    bare = tmp_path / "cpuinfo"
    bare.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    for file in (bare, tmp_path / "absent"):
        assert environment.processor(file) == "aarch64 (2 logical processors)"
