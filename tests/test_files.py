"""What survives a power cut: contents are on the disk before their names are, and names before anybody goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.files import replace_file
from bench.ledger import Ledger
from bench.predictions import Predictions, PredictionStore


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was forced to the disk, with its size if it is a file, and what got its name, in this order."""
    happened: list[tuple[Any, ...]] = []
    fsync, replace = os.fsync, Path.replace

    def forced(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        happened.append(("folder", path) if path.is_dir() else ("file", path, path.stat().st_size))
        fsync(descriptor)

    def named(path: Path, target: Path) -> Path:
        happened.append(("named", target))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", forced)
    monkeypatch.setattr(Path, "replace", named)
    return happened


def test_a_file_is_forced_to_the_disk_before_and_its_folder_after_it_gets_its_name(
    tmp_path: Path, diary: list[tuple[Any, ...]]
) -> None:
    path = tmp_path.resolve() / "new" / "file"
    replace_file(path, lambda file: file.write(b"12345"))
    assert [(what[0], *what[2:]) for what in diary] == [("file", 5), ("named",), ("folder",)]
    assert [diary[1][1], diary[2][1]] == [path, path.parent] and path.read_bytes() == b"12345"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def half(file: Any) -> None:
        file.write(b"ha")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace_file(path, half)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_record_is_whole_on_the_disk_when_append_returns(tmp_path: Path, diary: list[tuple[Any, ...]]) -> None:
    ledger, sizes = Ledger(tmp_path.resolve()), []
    for key in ("a", "b"):
        ledger.append({"key": key, "status": "ok"})
        [path] = (tmp_path / "ledger").iterdir()
        sizes.append(path.stat().st_size)
    path = path.resolve()
    assert diary == [("folder", path.parent), ("file", path, sizes[0]), ("file", path, sizes[1])]


def test_predictions_are_on_the_disk_before_a_record_can_name_them(
    tmp_path: Path, diary: list[tuple[Any, ...]]
) -> None:
    classes = np.zeros(3, np.uint8)
    store = PredictionStore(tmp_path.resolve())
    path = store.path(store.save(Predictions(classes, classes), "cell", [(1.0, 1.0, 0.5)]))
    assert [(what[0], *what[2:]) for what in diary] == [("file", path.stat().st_size), ("named",), ("folder",)]
    assert diary[1][1] == path
