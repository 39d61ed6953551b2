"""The journal after a kill, and storages that cannot be reached."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.storages.journal import JournalFileBackend

from bench.errors import UserError
from bench.tuning.storage import Journal, open_storage

LINES = [{"op": number, "text": "x" * (number * 7 % 23)} for number in range(8)]
WHOLE = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in LINES).encode()


@given(st.integers(0, len(WHOLE)))
@settings(max_examples=60)
def test_a_kill_in_the_middle_of_a_line_costs_that_line_alone(
    tmp_path_factory: pytest.TempPathFactory, end: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "study.journal"
    path.write_bytes(WHOLE[:end])
    kept = LINES[: WHOLE[:end].count(b"\n")]
    journal = Journal(path)
    assert list(journal.read_logs(0)) == kept
    journal.append_logs([{"op": "next"}])
    assert list(journal.read_logs(len(kept))) == [{"op": "next"}]
    assert list(Journal(path).read_logs(0)) == [*kept, {"op": "next"}]
    assert list(JournalFileBackend(str(path)).read_logs(0)) == [*kept, {"op": "next"}]  # as the dashboard reads it


def test_two_that_write_in_turns_read_each_other(tmp_path: Path) -> None:
    first, second = Journal(tmp_path / "study.journal"), Journal(tmp_path / "study.journal")
    first.append_logs(LINES[:2])
    assert list(second.read_logs(0)) == LINES[:2]
    second.append_logs(LINES[2:3])
    first.append_logs(LINES[3:5])
    assert list(first.read_logs(0)) == LINES[:5]
    assert list(second.read_logs(2)) == LINES[2:5]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    path.write_bytes(b'{"op": 1}\nnonsense\n{"op": 2}\n')
    with pytest.raises(UserError, match=r"line 2 of study\.journal cannot be read"):
        list(Journal(path).read_logs(0))


def test_a_journal_that_somebody_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "study.journal")
    journal.append_logs(LINES[:1])
    (tmp_path / "study.journal").unlink()
    with pytest.raises(UserError, match=r"study\.journal cannot be written \(No such file"):
        journal.append_logs(LINES[1:])
    with pytest.raises(UserError, match=r"study\.journal cannot be read \(No such file"):
        list(journal.read_logs(0))


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "study.journal")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left.*the same command goes on from here"):
        journal.append_logs(LINES)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nonsense", "'nonsense' is not a storage"),
        ("abacus://host/name", "abacus://host/name cannot be reached"),
        ("postgresql://me:secret@127.0.0.1:1/x", r"\*\*\*@127.0.0.1:1/x cannot be reached"),
    ],
)
def test_a_storage_that_is_not_there(url: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        open_storage(url, tmp_path / "unused")
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "tuning").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        open_storage(None, tmp_path / "tuning" / "study.journal")
