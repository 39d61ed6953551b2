from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.claims import Claims

HOLD = """
import sys, time
from pathlib import Path
from bench.claims import Claims
claim = Claims(Path(sys.argv[1])).take("cell", "net\\tphoto")
print("held" if claim else "refused", flush=True)
time.sleep(60)
"""


def test_a_cell_is_claimed_once_until_released(tmp_path: Path) -> None:
    first, second = Claims(tmp_path), Claims(tmp_path)
    claim, other = first.take("cell", "mine"), second.take("other", "theirs")
    assert claim is not None and other is not None
    assert second.take("cell", "also theirs") is None
    assert first.held() == {"cell": "mine", "other": "theirs"}
    claim.release()
    assert first.held() == {"other": "theirs"}
    again = second.take("cell", "theirs")
    assert again is not None
    again.release()
    other.release()
    assert list((tmp_path / ".claims").iterdir()) == []


def test_the_kernel_frees_the_claims_of_the_dead(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert Claims(tmp_path).take("cell", "gcn\tcs") is None
        assert Claims(tmp_path).held() == {"cell": "net\tphoto"}
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (tmp_path / ".claims" / "cell").exists()  # its file stays behind, and does not count
    assert Claims(tmp_path).held() == {}
    claim = Claims(tmp_path).take("cell", "gcn\tcs")  # shorter than what the dead one noted
    assert claim is not None
    assert Claims(tmp_path).held() == {"cell": "gcn\tcs"}
    claim.release()


def test_a_name_that_is_no_text_is_noted_all_the_same(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")  # a file's name in an old encoding
    claim = Claims(tmp_path).take("cell", f"net\t{name}")
    assert claim is not None
    assert Claims(tmp_path).held() == {"cell": f"net\t{name}"}
    claim.release()


def test_a_full_disk_costs_the_note_and_not_the_claim(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        claim = Claims(tmp_path).take("cell", "net\tphoto")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert claim is not None
    assert Claims(tmp_path).held() == {"cell": ""}
    claim.release()


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last holder may unlink the file between our open and our lock; a third process then locks a new file."""
    path = tmp_path / ".claims" / "cell"
    real_flock = fcntl.flock
    locked: list[int] = []

    def flock(handle: int, operation: int) -> None:
        if not locked:
            path.unlink()
        locked.append(handle)
        real_flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    claim = Claims(tmp_path).take("cell", "mine")
    assert claim is not None
    assert len(locked) == 2
    assert path.read_text() == "mine"
    assert Claims(tmp_path).take("cell", "theirs") is None
    claim.release()
