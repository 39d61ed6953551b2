"""Two drivers on one PostgreSQL server, which the test starts on loopback; one of them is killed.

Skipped, with the reason, where there is no server to start or no driver to reach it: nothing is installed here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from running import ring_dataset

from bench.ledger import Ledger
from bench.tuning.storage import open_storage

HERE = Path(__file__).parent
TRIALS = 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def server_programs() -> Path | None:
    """The folder of initdb and postgres: on the path, or where Debian keeps them."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of a fresh database."""
    programs = server_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server here (looked for initdb on the path and in /usr/lib/postgresql)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed (it is in the extra `dev`)")
    home = Path(tempfile.mkdtemp(prefix="bench-postgres-"))
    user: dict[str, Any] = {"cwd": home}
    if os.getuid() == 0:  # as whom the server refuses to run
        user |= {"user": "nobody", "group": "nogroup"}
        shutil.chown(home, "nobody", "nogroup")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data, log = home / "data", home / "log"
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={home} -c fsync=off"
    control = [programs / "pg_ctl", "-D", data, "-w"]

    def call(*command: str | Path) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **user)

    try:
        call(programs / "initdb", "-D", data, "-U", "bench", "--auth=trust", "--no-sync")
        call(*control, "-l", log, "-o", options, "start")
        try:
            yield f"postgresql://bench@127.0.0.1:{port}/postgres"
        finally:
            call(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home)


def start(data: Path, results: Path, url: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    command = [sys.executable, str(HERE / "tuning_process.py"), str(data), str(results), url, str(TRIALS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def slots(output: str) -> list[int]:
    return [int(line) for line in output.splitlines() if line.isdecimal()]


def states(url: str) -> Counter[str]:
    storage, presence = open_storage(url, Path())
    try:
        return Counter(trial.state.name for trial in optuna.load_study(study_name="toys", storage=storage).trials)
    finally:
        presence.close()


def test_two_processes_share_the_trials_and_none_is_done_twice(server: str, tmp_path: Path) -> None:
    """On two machines each has a results folder of its own, so that here only the database can tell them apart."""
    ring_dataset(tmp_path)
    processes = [start(tmp_path, tmp_path / f"machine{number}", server) for number in range(2)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all(f"done {TRIALS}" in output for output in outputs)
    first, second = map(slots, outputs)
    assert sorted(first + second) == list(range(TRIALS)) and first and second
    records = [record["labels"]["trial"] for n in range(2) for record in Ledger(tmp_path / f"machine{n}")]
    assert sorted(records) == list(range(TRIALS))
    assert states(server)["COMPLETE"] == TRIALS and states(server)["RUNNING"] == 0


def test_one_is_killed_and_the_other_finishes(server: str, tmp_path: Path) -> None:
    ring_dataset(tmp_path)
    one, two = (start(tmp_path, tmp_path / f"machine{number}", server) for number in range(2))
    assert one.stdout is not None
    seen = [int(one.stdout.readline()) for _ in range(3)]  # the third has begun: it will not end
    os.kill(one.pid, signal.SIGKILL)
    one.communicate()
    output = two.communicate()[0]
    assert two.returncode == 0 and f"done {TRIALS}" in output
    assert sorted({*seen, *slots(output)}) == list(range(TRIALS))
    assert set(seen) & set(slots(output)) <= {seen[-1]}  # only the trial that was cut off is done again
    found = states(server)
    assert found["COMPLETE"] == TRIALS and found["RUNNING"] == 0
