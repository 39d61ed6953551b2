"""Two `tune` processes on one PostgreSQL server, which the test starts on loopback; one of them is killed.

Skipped, with the reason, where there is no server to start or no driver to reach it: nothing is installed here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from running import ring_dataset

from bench.ledger import Ledger
from bench.tuning.storage import open_storage

HERE = Path(__file__).parent
TRIALS, STUDY = 20, "gcn-ring-wide-random-s0"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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


def start_two(tmp_path: Path, url: str) -> list[subprocess.Popen[str]]:
    """On two machines each has a results folder of its own, so that here only the database can tell them apart."""
    ring_dataset(tmp_path)
    environment = {**os.environ, "BENCH_CACHE": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE)])
    command = [
        sys.executable, str(HERE / "tuning_process.py"), "tune", "--model", "gcn", "--datasets",
        str(tmp_path / "ring.npz"), "--trials", str(TRIALS), "--sampler", "random", "--max-epochs", "100", "--set",
        "patience=100", "--threads", "1", "--storage", url, "--results",
    ]  # fmt: skip
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    processes = [
        subprocess.Popen([*command, str(tmp_path / f"machine{number}")], text=True, env=environment, **pipes)
        for number in range(2)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


def slots(output: str) -> list[int]:
    """The trials that a process says it has finished."""
    return [int(number) for number in re.findall(r"^gcn on ring: trial (\d+): val ", output, re.MULTILINE)]


def finished(tmp_path: Path) -> list[int]:
    """The trials of all cells that either machine has finished."""
    records = [record for number in range(2) for record in Ledger(tmp_path / f"machine{number}")]
    return sorted(record["labels"]["trial"] for record in records if record["status"] == "ok")


def filled(url: str) -> tuple[list[int], int]:
    """The slots of the complete trials, and how many trials are stuck."""
    storage, presence = open_storage(url, Path())
    try:
        trials = optuna.load_study(study_name=STUDY, storage=storage).trials
    finally:
        presence.close()
    complete = [trial.user_attrs["claim"]["slot"] for trial in trials if trial.state == TrialState.COMPLETE]
    return sorted(complete), sum(trial.state == TrialState.RUNNING for trial in trials)


def test_two_processes_share_the_trials_and_none_is_done_twice(server: str, tmp_path: Path) -> None:
    processes = start_two(tmp_path, server)
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = map(slots, outputs)
    assert sorted(first + second) == list(range(TRIALS)) and first and second
    assert finished(tmp_path) == list(range(TRIALS))
    assert filled(server) == (list(range(TRIALS)), 0)


def test_one_is_killed_and_the_other_finishes(server: str, tmp_path: Path) -> None:
    one, two = start_two(tmp_path, server)
    assert one.stdout is not None
    said = ""
    while len(slots(said)) < 3:
        line = one.stdout.readline()
        assert line, said
        said += line
    time.sleep(0.2)  # a bit into the next one
    os.kill(one.pid, signal.SIGKILL)
    said += one.communicate()[0]
    output = two.communicate()[0]
    assert one.returncode == -signal.SIGKILL and two.returncode == 0, output
    assert f"{TRIALS} trials ({TRIALS} complete) in" in output
    assert not set(slots(said)) & set(slots(output))
    assert filled(server) == (list(range(TRIALS)), 0)
    done = finished(tmp_path)
    assert set(done) == set(range(TRIALS)) and len(done) <= TRIALS + 1  # at most the one that was cut off is done again
