"""What a process may have of its machine: the memory of its container, and cores rather than their halves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.executors.devices import _container_limit
from bench.executors.process import spread_out


def test_the_tightest_control_group_on_the_way_up_counts(tmp_path: Path) -> None:
    own, inner = tmp_path / "own", tmp_path / "groups" / "outer" / "inner"
    inner.mkdir(parents=True)
    own.write_text("0::/outer/inner\n")
    assert _container_limit(tmp_path / "groups", own) == sys.maxsize
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("8000000000\n")
    assert _container_limit(tmp_path / "groups", own) == 8_000_000_000
    (inner / "memory.max").write_text("5000000000\n")
    assert _container_limit(tmp_path / "groups", own) == 5_000_000_000
    (tmp_path / "memory.max").write_text("1\n")  # above the root: nobody's group
    assert _container_limit(tmp_path / "groups", own) == 5_000_000_000
    assert _container_limit(tmp_path / "groups", tmp_path / "not Linux") == sys.maxsize


def test_control_groups_of_the_first_version(tmp_path: Path) -> None:
    (tmp_path / "groups" / "memory").mkdir(parents=True)
    (tmp_path / "groups" / "memory" / "memory.limit_in_bytes").write_text("3000000000\n")
    (tmp_path / "own").write_text("12:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n")  # a container sees its own root
    assert _container_limit(tmp_path / "groups", tmp_path / "own") == 3_000_000_000


@pytest.mark.parametrize(
    ("core", "order"),
    [
        (lambda processor: str(processor // 2), [0, 2, 4, 1, 3, 5]),  # neighbours are halves of one core
        (lambda processor: str(processor % 3), [0, 1, 2, 3, 4, 5]),
        (str, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_every_core_comes_before_the_second_half_of_any(core: object, order: list[int]) -> None:
    assert spread_out({5, 3, 1, 0, 2, 4}, core) == order  # type: ignore[arg-type]
