"""The command line as a user meets it: what it prints, what it refuses, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner, Result

from bench import registry
from bench.cells import Cell
from bench.claims import Claims
from bench.cli import app
from bench.commands.outcome import elsewhere_line
from bench.errors import UserError
from bench.executors.devices import resolve_devices
from bench.request import Request, fallback_lines, make_options

MODEL, OTHER = list(registry.models())[:2]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a working folder and a cache of its own, and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BENCH_OFFLINE", "1")
    monkeypatch.delenv("BENCH_DATA", raising=False)


@pytest.fixture
def graph(tmp_path: Path) -> str:
    """A ring of 60 nodes whose label is one of its three features."""
    nodes = np.arange(60)
    ring = sp.csr_array((np.ones(60), (nodes, (nodes + 1) % 60)), shape=(60, 60))
    labels = nodes // 20
    np.savez(
        tmp_path / "ring.npz",
        adj_data=ring.data,
        adj_indices=ring.indices,
        adj_indptr=ring.indptr,
        adj_shape=ring.shape,
        attr_matrix=np.eye(3, dtype=np.float32)[labels],
        labels=labels,
    )
    return "ring.npz"


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for file in Path("results/own/ledger").glob("*") for line in file.read_text().splitlines()]


# -- help and lists -------------------------------------------------------------------------------------------------


def test_no_arguments_show_the_verbs() -> None:
    result = bench()
    assert result.exit_code == 0
    for verb in ("run", "tune", "list", "data", "status", "why", "report", "compare", "cache"):
        assert f"\n  {verb} " in result.stdout


def test_help_shows_defaults_and_names_no_model() -> None:
    text = " ".join(bench("run", "--help").stdout.split())
    for default in (
        "[default: digits]",
        "[default: (fresh; sealed with tuned settings)]",
        "[default: author]",
        "[default: 10;",
    ):
        assert default in text
    for model in registry.models():
        assert not re.search(rf"(?<!\w){re.escape(model)}(?!\w)", text.lower())


def test_lists() -> None:
    models, datasets, both = (bench("list", what).stdout for what in ("models", "datasets", "both"))
    assert f"| {MODEL} " in models
    assert "| photo-twin " in datasets
    assert both == f"{models}\n{datasets}"


def test_passports() -> None:
    result = bench("data", "digits,photo,reddit-twin")
    assert result.exit_code == 0
    assert "1,797 nodes" in result.stdout
    assert result.stdout.splitlines()[-1] == "present: digits; missing: photo; on demand: reddit-twin"


# -- bad input: one line on stderr, exit code 2, and no traceback ----------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--models", f"{MODEL}x"],
            f"unknown model '{MODEL}x'. Did you mean '{MODEL}'? `python -m bench list models` shows them all",
        ),
        (["--models", ","], "no model is named"),
        (["--datasets", "phisics"], "Did you mean 'physics'?"),
        (["--datasets", "nowhere/graph.npz"], "nowhere/graph.npz"),
        (["--settings", "autor"], "unknown settings 'autor'"),
        (["--split", "frsh"], "Did you mean 'fresh'?"),
        (["--split-ratio", "60/20"], "split ratio"),
        (["--set", "patiense=3"], "Did you mean 'patience'?"),
        (["--set", "patience=long"], "a whole number, not 'long'"),
        (["--set", "optimizer=adamm"], "Did you mean 'adam"),
        (["--set", "patience"], "key=value"),
        (["--set", "heads=0", "--models", "nagphormer"], "nagphormer: heads must be at least 1, not 0"),
        (["--set", "hidden=0", "--models", "gcn"], "gcn: hidden must be at least 1, not 0"),
        (["--set", "layers=0"], "layers must be at least 1, not 0"),
        (["--set", "dropout=1.5"], "dropout must be at least 0 and below 1, not 1.5"),
        (["--set", "batch_size=-1"], "batch_size must be at least 0, not -1"),
        (["--set", "max_epochs=0"], "max_epochs must be at least 1, not 0"),
        (["--set", "evaluate_every=0"], "evaluate_every must be at least 1, not 0"),
        (["--set", "schedule=warmup-linear", "--models", "gcn"], "decay_updates must be above warmup_updates (0)"),
        (["--seed", "99999999999"], "99999999999"),
        (["--retry", "omm"], "Did you mean 'oom'?"),
        (["--memory-limit", "11 bananas"], "not an amount of memory"),
        (["--memory-limit", "5"], "'5' has no unit; write for example 11GB"),
        (["--time-limit", "-3m"], "not a length of time"),
        (["--device", "gpu"], "not a device"),
        (["--data", "nowhere", "--datasets", "photo"], "nowhere"),
    ],
)
def test_user_mistakes(arguments: list[str], message: str) -> None:
    result = bench("run", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert not Path("results/own").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--trials", "0"], ["--trials", "many"], ["--jobs", "-1"], ["--threads", "0"], ["--max-epochs", "0"],
     ["--seed", "-1"], ["--nonsense"]],
)  # fmt: skip
def test_usage_mistakes(arguments: list[str]) -> None:
    result = bench("run", *arguments)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in arguments)
    assert result.stderr.startswith("error: ") and result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "modles"], "Did you mean 'models'?"),
        (["list", "phtoo"], "Did you mean 'photo'?"),
        (["list", f"{OTHER}q"], f"Did you mean '{OTHER}'?"),
        (["lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["tune"], "Missing option '--model"),
        (["cache", "burn"], "not 'burn'"),
        (["data", "foto"], "'photo'"),
        (["status", "--results", "elsewhere"], "there is no results folder"),
        (["why", MODEL, "digits", "--results", "elsewhere"], "there is no results folder"),
    ],
)
def test_mistakes_with_other_verbs(arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_results_that_cannot_be_written(graph: str) -> None:
    Path("file").touch()
    for folder in ("file", "file/below"):
        for verb in (["run"], ["run", "--dry-run"]):
            result = bench(*verb, "--models", MODEL, "--datasets", graph, "--results", folder)
            assert result.exit_code == 2
            assert f"{folder}' cannot be written" in result.stderr
            assert result.output.count("\n") == 1


@pytest.mark.parametrize("verb", [["run"], ["run", "--dry-run"], ["run", "--study", "frontier", "--models", MODEL]])
def test_damaged_data_is_one_line(graph: str, verb: list[str]) -> None:
    Path(graph).write_bytes(Path(graph).read_bytes()[:300])
    result = bench(*verb, "--datasets", graph)
    assert result.exit_code == 2
    assert result.stderr.startswith("bad data: ring.npz ")
    assert result.output.count("\n") == 1  # no empty table either


def write_path(file: str, nodes: int) -> None:
    """A path of so many nodes, of two classes in turn."""
    path = sp.csr_array((np.ones(nodes - 1), (range(nodes - 1), range(1, nodes))), shape=(nodes, nodes))
    arrays = {f"adj_{part}": getattr(path, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(file, **arrays, attr_matrix=np.eye(nodes), labels=np.arange(nodes) % 2)


TOO_SMALL = "bad data: tiny: 3 nodes are too few for the split rule uniform-60/20/20: one of its parts would be empty; "


@pytest.mark.parametrize(
    "verb", [["run"], ["run", "--dry-run"], ["run", "--study", "frontier", "--model", MODEL], ["tune", "--trials", "1"]]
)
def test_a_graph_too_small_for_its_split_is_said_before_anything_is_recorded(verb: list[str]) -> None:
    write_path("tiny.npz", 3)
    models = [] if "--model" in verb else ["--models", MODEL]
    result = bench(*verb, *models, "--datasets", "tiny.npz")
    assert result.exit_code == 2
    expected = f"{TOO_SMALL}name a larger graph or another --split-ratio\n"
    if verb[0] == "tune":  # which has no --split-ratio
        expected = TOO_SMALL.replace("uniform", "tuning:uniform") + "name a larger graph\n"
    assert result.output == expected
    assert not list(Path("results/own").glob("**/*.jsonl"))


def test_a_graph_too_small_for_its_split_leaves_the_others_alone(graph: str) -> None:
    write_path("tiny.npz", 3)
    result = bench("run", "--dry-run", "--models", MODEL, "--datasets", f"tiny.npz,{graph}", "--trials", "2")
    assert result.exit_code == 2
    assert result.stderr.startswith(TOO_SMALL) and result.stderr.count("\n") == 1
    assert "2 cells to run, 0 done" in result.stdout and "tiny" not in result.stdout
    write_path("enough.npz", 5)  # 3, 1 and 1 nodes
    result = bench("run", "--dry-run", "--models", MODEL, "--datasets", "enough.npz", "--trials", "1")
    assert (result.exit_code, result.stderr) == (0, "")


def test_damaged_data_in_the_cache_can_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path.parent)
    path = tmp_path / "cache" / "raw" / "Photo" / "raw" / "amazon_electronics_photo.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"broken")
    result = bench("run", "--datasets", "photo", "--results", str(tmp_path / "results"))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"bad data: {path.relative_to(tmp_path.parent)} is not an npz archive")
    assert result.stderr.count("\n") == 1


def test_missing_datasets_are_explained_and_exit_with_3() -> None:
    result = bench("run", "--models", MODEL, "--datasets", "large")
    assert result.exit_code == 3
    lines = result.stderr.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["missing:", f"{name}:"] for name in ("aminer", "reddit", "amazon2m")
    ]
    assert all("large-twin" in line for line in lines)


# -- devices and notes ----------------------------------------------------------------------------------------------


def test_devices() -> None:
    assert resolve_devices("auto", lambda: 0) == ["cpu"]
    assert resolve_devices("auto", lambda: 2) == ["cuda:0", "cuda:1"]
    assert resolve_devices("cpu", lambda: 2) == ["cpu"]
    assert resolve_devices("cuda", lambda: 2) == ["cuda:0", "cuda:1"]
    assert resolve_devices("CUDA:1, cuda:0, cuda:1", lambda: 2) == ["cuda:1", "cuda:0"]


@pytest.mark.parametrize(("text", "gpus"), [("cuda", 0), ("cuda:2", 2), ("cpu,cuda", 1), ("", 1), ("cuda:x", 1)])
def test_devices_that_are_not_there(text: str, gpus: int) -> None:
    with pytest.raises(UserError):
        resolve_devices(text, lambda: gpus)


def test_missing_settings_are_mentioned_once() -> None:
    def cell(model: str, dataset: str, settings: str) -> Cell:
        return Cell(model, 1, dataset, "", {}, "", 0, 0, {"settings": settings})

    cells = [cell(model, data, "default") for data in ("x", "y") for model in ("a", "b")] * 2
    cells += [cell("c", "x", "author"), cell("c", "y", "default")]
    assert fallback_lines(cells, "author") == [
        "x, y have no author settings: a, b use their defaults (marked 'default')",
        "y has no author settings: c uses its defaults (marked 'default')",
    ]
    assert fallback_lines(cells, "default") == []


# -- the whole way --------------------------------------------------------------------------------------------------


def test_run_resume_and_look_back(graph: str) -> None:
    common = ["--datasets", f"{graph},photo", "--max-epochs", "2", "--threads", "1"]
    request = ["run", "--models", f"{MODEL},{OTHER}", "--trials", "2", *common]

    dry = bench(*request, "--dry-run")
    assert dry.exit_code == 3  # photo is not here
    assert dry.stdout.count("| 2 of 2 ") == 2
    assert "4 cells to run, 0 done: time unknown" in dry.stdout
    assert not Path("results/own").exists()

    first = bench("run", "--models", MODEL, "--trials", "1", *common)
    assert first.exit_code == 3
    assert "1 cell: 1 to run, time unknown" in first.stdout
    assert f"[1/1] {MODEL} ring trial 0: ok, test " in first.stdout
    assert "missing: photo: " in first.stderr

    second = bench(*request)
    assert re.search(r"4 cells: 1 done, 3 to run(, \d at a time)?, about ", second.stdout)  # as this machine allows
    table = [line for line in second.stdout.splitlines() if line.startswith("| ring ")]
    assert len(table) == 2
    assert all("| capped " in line and " (2) |" in line and " ± " in line for line in table)
    assert "Splits: fresh. Settings: author." in second.stdout
    assert second.stdout.splitlines()[-2] == "Records: results/own/"

    made = records()
    assert sorted((record["model"], record["labels"]["trial"]) for record in made) == sorted(
        (model, trial) for model in (MODEL, OTHER) for trial in (0, 1)
    )
    assert {record["labels"]["cap"] for record in made} == {2}
    assert str(Path.cwd()) not in json.dumps(made)

    again = bench(*request)
    assert "nothing to run: all 4 cells are in results/own/" in again.stdout
    assert [line for line in again.stdout.splitlines() if line.startswith("| ring ")] == table
    assert records() == made

    status = bench("status").stdout
    assert "4 done, 0 running, 0 failed. Records: results/own/" in status
    why = bench("why", MODEL.upper(), "ring.npz")
    assert f"{MODEL} on ring: 0 of 2 cells failed" in why.stdout
    assert bench("why", MODEL, "rink").exit_code == 2

    assert "graphs/ring-" in bench("cache").stdout
    assert bench("cache", "clear").stdout.startswith("cleared ")
    assert "graphs/ring-" not in bench("cache", "show").stdout


def test_no_name_is_not_every_name() -> None:
    for verb in (["run"], ["run", "--dry-run"], ["run", "--study", "frontier"], ["tune", "--trials", "1"]):
        for option in ("--models", "--model"):  # either spelling, everywhere
            result = bench(*verb, option, "")
            assert result.exit_code == 2 and "no model is named" in result.stderr, result.output


def test_either_spelling_takes_a_list(graph: str) -> None:
    for option in ("--model", "--models"):
        result = bench("run", option, f"{MODEL},{OTHER}", "--datasets", graph, "--trials", "1", "--dry-run")
        assert "2 cells to run, 0 done" in result.stdout, result.output


@pytest.mark.parametrize(
    ("request_", "retry", "redo", "private"),
    [
        (Request(), frozenset(), False, False),
        (Request(redo=True), frozenset(), True, True),
        (Request(retry="oom"), frozenset({"oom"}), False, False),
        (Request(retry="oom, ERROR"), frozenset({"oom", "error"}), False, False),
    ],
)
def test_what_is_run_again_and_whether_it_prepares_its_own_arrays(
    request_: Request, retry: frozenset[str], redo: bool, private: bool
) -> None:
    options = make_options(request_)
    assert (options.retry, options.redo, options.private_arrays) == (retry, redo, private)
    assert options.prepares_alone is private


def test_records_of_other_machines_are_mentioned() -> None:
    here, there = ({"environment": {"processor": name}} for name in ("mine", "theirs"))
    assert elsewhere_line([], "mine") == elsewhere_line([here, here], "mine") == ""
    assert elsewhere_line([there, here, there], "mine") == (
        "2 of 3 records were made on other machines; `--results mine` starts afresh"
    )
    assert elsewhere_line([there], "mine").startswith("1 of 1 record was made on other machines; ")


def test_a_run_says_that_its_records_come_from_elsewhere(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ["run", "--models", MODEL, "--datasets", graph, "--trials", "1", "--max-epochs", "2"]
    assert "other machines" not in bench(*request).stdout
    assert "other machines" not in bench(*request).stdout  # its own record now
    monkeypatch.setattr("bench.commands.run.processor", lambda: "another one")
    for again in (bench(*request), bench(*request, "--dry-run")):
        assert "1 of 1 record was made on other machines; `--results mine` starts afresh\n" in again.stdout


def test_failed_cells_are_shown_and_explained(graph: str) -> None:
    result = bench("run", "--models", MODEL, "--datasets", graph, "--trials", "1", "--set", "learning_rate=1e30")
    assert result.exit_code == 1
    (record,) = records()
    assert record["status"] != "ok"
    assert f"[1/1] {MODEL} ring learning_rate=1e+30 trial 0: {record['status']}: {record['reason']}" in result.stdout
    assert f"| 1 {record['status']} " in result.stdout
    assert f"1 {record['status']}" in bench("status").stdout
    assert record["reason"] in bench("why", MODEL, "ring").stdout


def test_status_names_what_is_running() -> None:
    Path("mine").mkdir()
    status = ("status", "--results", "mine")
    assert "nothing has been run into mine/ yet" in bench(*status).stdout
    claim = Claims(Path("mine")).take("cell", "net\tphoto")
    assert claim is not None
    assert "0 done, 1 running, 0 failed" in bench(*status).stdout
    assert "| photo     | net     | 0      | 0        | 1         |" in bench(*status).stdout
    claim.release()
    assert "nothing has been run" in bench(*status).stdout


def interrupt(arguments: list[str], line: str, before: Callable[[int], None]) -> list[str]:
    """Run a command, press Ctrl-C after the output line that starts so (and after `before`); what it says on stderr."""
    root = Path(__file__).parent.parent
    with subprocess.Popen(
        [sys.executable, "-m", "bench", *arguments],
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, as a shell gives it: Ctrl-C reaches every member
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(line):
            assert process.poll() is None
        before(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    return errors.splitlines()


INTERRUPTED = [
    f"loading torch and {MODEL} ...",
    "interrupted; finished records are kept, the same command goes on from here",
]


def test_control_c_keeps_what_is_finished_and_the_cache_is_safe_until_then(graph: str) -> None:
    def try_to_clear(process: int) -> None:
        result = bench("cache", "clear")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "in use" in result.stderr and result.stderr.count("\n") == 1

    request = ["run", "--models", MODEL, "--datasets", graph, "--trials", "400", "--max-epochs", "2"]
    assert interrupt(request, "[1/400]", try_to_clear) == INTERRUPTED
    assert 1 <= sum(record["status"] == "ok" for record in records()) < 400
    assert bench("cache", "clear").exit_code == 0
    assert not Path("cache/graphs").exists()


def test_control_c_before_the_first_cell_is_one_line_too(graph: str) -> None:
    def is_fork_server(process: psutil.Process) -> bool:
        try:
            return any("forkserver" in part for part in process.cmdline())
        except psutil.NoSuchProcess:
            return False

    def wait_for_fork_server(process: int) -> None:
        """It imports for seconds, in the same process group; until then it has not yet learnt to ignore Ctrl-C."""
        deadline = time.monotonic() + 60
        while not any(map(is_fork_server, psutil.Process(process).children())):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    request = ["run", "--models", MODEL, "--datasets", graph, "--trials", "1"]
    assert interrupt(request, "1 cell: 1 to run", wait_for_fork_server) == INTERRUPTED
    assert records() == []
