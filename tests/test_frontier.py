"""The memory frontier: the bisection as a law, and one search with real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from bench.cells import Cell
from bench.cli import app
from bench.commands.frontier import FLOOR, Search, find_frontier, known, long_enough
from bench.ledger import Ledger
from bench.prepared import private_folder
from bench.records import Record

MOST = 16 * 10**9
FIND = ("run", "--study", "frontier")
HUNGRY = """
from dataclasses import dataclass
import numpy as np
from torch import nn
from bench.model import Model, Recipe
from bench.prepared import as_tensor

class Hungry(Model):
    name = "hungry"

    @classmethod
    def prepare(cls, graph, split, config, seed, cache):
        cache.get("sum", {}, lambda: {"sum": np.ones(300_000_000, dtype=np.uint8).sum(keepdims=True)})

    @classmethod
    def estimate_memory(cls, graph, config):
        return 10**12  # far too much: the search must not believe it

    def __init__(self, graph, prepared, config):
        super().__init__(graph, prepared, config)
        self.features = as_tensor(graph.features)
        self.linear = nn.Linear(graph.num_features, graph.num_classes)

    def forward(self, nodes):
        return self.linear(self.features[nodes])
"""


def record(status: str, limit: int | None = None, used: int | None = None, **other: Any) -> Record:
    return {
        "status": status,
        "reason": "because",
        "limits": {"memory": limit, "time": None},
        "phases": {} if used is None else {"train": {"peak_data": used}},
        "source": "abc",
        "environment": {"threads": 2, "gpu": None, "processor": "fast"},
        **other,
    }


HERE = ("abc", "fast, 2 thread(s)")  # source and machine of the search


@given(
    needed=st.integers(FLOOR + 1, MOST),
    seen=st.integers(1, 2 * MOST),  # what the first run was seen to use, which may be far off
    precision=st.floats(0.01, 1.0),
)
def test_the_bracket_holds_what_is_needed(needed: int, seen: int, precision: float) -> None:
    probed: list[int] = []

    def probe(budget: int) -> Record:
        probed.append(budget)
        return record("ok" if budget >= needed else "oom", budget, seen)

    found = find_frontier(probe, MOST, precision)
    assert found.enough is not None
    assert found.too_little < needed <= found.enough
    assert found.complete
    assert found.enough <= max(found.too_little, FLOOR) * (1 + precision) + 1
    assert found.enough in probed  # a run within it succeeded
    assert found.too_little in (0, *probed)  # 0: nothing that failed was tried
    assert found.probes == len(probed) < 60


def test_a_good_guess_saves_runs() -> None:
    needed = 3_210_000_000
    found = find_frontier(lambda budget: record("ok" if budget >= needed else "oom", budget, needed), MOST, 0.05)
    assert found.probes <= 4
    assert found.enough == needed


def test_where_nothing_is_enough_the_most_is_too_little() -> None:
    found = find_frontier(lambda budget: record("oom", budget), MOST, 0.05)
    assert (found.too_little, found.enough, found.probes) == (MOST, None, 1)


@pytest.mark.parametrize("status", ["error", "unsupported", "timeout"])
def test_other_failures_end_the_search(status: str) -> None:
    found = find_frontier(lambda budget: record(status, budget), MOST, 0.05)
    assert (found.too_little, found.enough, found.complete) == (0, None, False)
    assert found.failure is not None and found.failure["status"] == status


@given(budget=st.integers(FLOOR + 1, MOST - 1), needed=st.integers(FLOOR + 1, MOST))
def test_a_failure_midway_claims_only_what_was_tried(budget: int, needed: int) -> None:
    """Every run within `budget` or less takes too long."""
    fitting, failing = [], []

    def probe(within: int) -> Record:
        status = "timeout" if within <= budget else "ok" if within >= needed else "oom"
        {"ok": fitting, "oom": failing, "timeout": []}[status].append(within)
        return record(status, within, budget)

    found = find_frontier(probe, MOST, 0.05)
    assert found.enough == min(fitting)
    assert found.too_little == max(failing, default=0)
    if found.too_little == 0:
        assert not found.complete
        assert found.failure is not None and found.failure["status"] == "timeout"


def test_a_cell_that_diverges_had_memory_enough() -> None:
    found = find_frontier(lambda budget: record("diverged" if budget >= 10**9 else "oom", budget, 10**9), MOST, 0.05)
    assert found.enough is not None and found.too_little < 10**9 <= found.enough


def test_what_earlier_runs_say() -> None:
    records = [record("ok", 500), record("oom", 300), record("ok", None, used=350), record("error", 420)]
    assert known(records, 500, *HERE) is records[0]
    assert known(records, 501, *HERE) is records[0]
    assert known(records, 300, *HERE) is records[1]
    assert known(records, 299, *HERE) is records[1]
    assert known(records, 400, *HERE) is None  # between them; what was only seen, and other failures, prove nothing


@pytest.mark.parametrize(
    "elsewhere",
    [("abd", "fast, 2 thread(s)"), ("abc", "fast, 1 thread(s)"), ("abc", "slow, 2 thread(s)")],
)
def test_what_ran_on_other_code_or_machines_proves_nothing(elsewhere: tuple[str, str]) -> None:
    records = [record("ok", 500), record("oom", 300)]
    assert known(records, 500, *elsewhere) is None
    assert known(records, 300, *elsewhere) is None
    gpu = [record("ok", 500, environment={"threads": 2, "gpu": "Card", "processor": "fast"})]
    assert known(gpu, 500, "abc", "Card with fast, 2 thread(s)") is gpu[0]
    assert known(gpu, 500, *HERE) is known(gpu, 500, "abc", "Other with fast, 2 thread(s)") is None


def test_what_fitted_because_others_had_prepared_it_proves_nothing() -> None:
    reused = {"preprocess": {"source": "partly reused"}}
    assert known([record("ok", 500, phases=reused)], 500, *HERE) is None
    tight = [record("oom", 300, phases=reused)]
    assert known(tight, 300, *HERE) is tight[0]  # it would have needed even more


@pytest.mark.parametrize(("every", "most", "expected"), [(1, 200, 2), (5, 200, 6), (5, 3, 3)])
def test_a_run_goes_on_after_its_first_evaluation(every: int, most: int, expected: int) -> None:
    cell = Cell("toy", 1, "ring", "f" * 32, {"evaluate_every": every, "max_epochs": most}, "uniform-60/20/20", 0, 0, {})
    short = long_enough(cell)
    assert short.config["max_epochs"] == short.labels["cap"] == expected


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory-limit", "many"], "'many' is not an amount of memory"),
        (["--memory-limit", "10kB"], "less than anything needs"),
        (["--datasets", "fotos"], "there is no dataset or group 'fotos'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    result = bench(*FIND, "--model", "gcn", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_search_that_breaks_off_says_why_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[int] = []

    def probe(self: Search, plan: object, cell: object, budget: int) -> Record:
        budgets.append(budget)
        statuses = {2_000_000_000: "ok", 700_000_000: "oom"}
        return record(statuses.get(budget, "timeout"), budget, used=700_000_000)

    monkeypatch.setattr(Search, "probe", probe)
    result = bench(*FIND, "--model", "gcn", "--memory-limit", "2GB")
    assert result.exit_code == 1
    assert budgets == [2_000_000_000, 700_000_000, 735_000_000]
    expected = "cannot be found: timeout within 735 MB: because (2.00 GB are enough, 700 MB are not)"
    assert f"gcn digits: {expected}" in " ".join(result.output.split())

    budgets.clear()
    result = bench(*FIND, "--model", "gcn", "--memory-limit", "3GB")
    assert result.exit_code == 1 and budgets == [3_000_000_000]
    assert "gcn digits: cannot be found: timeout within 3.00 GB: because" in " ".join(result.output.split())
    assert "are enough" not in result.output and "are not" not in result.output


def test_a_search_with_real_processes(registry_as_it_was: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("hungry.py").write_text(HUNGRY)
    nobody = next(number for number in range(4_000_000, 5_000_000) if not psutil.pid_exists(number))
    left = (
        Path("cache/prepared")
        / f"{private_folder(Path()).name.rpartition('-')[0]}-{nobody}"
        / "sum-of-a-search-that-was-killed"
    )
    left.mkdir(parents=True)
    monkeypatch.setattr("bench.commands.frontier.PRECISION", 0.3)
    asked = (*FIND, "--plugin", "hungry", "--model", "hungry", "--threads", "1")
    result = bench(*asked, "--memory-limit", "2GB")
    assert result.exit_code == 0, result.output
    records = list(Ledger(Path("results/own/frontier")))
    fitting = [item["limits"]["memory"] for item in records if item["status"] == "ok"]
    failing = [item["limits"]["memory"] for item in records if item["status"] == "oom"]
    assert max(failing) < min(fitting) <= 1.3 * max(failing) + 1
    assert 300e6 <= min(fitting) < 500e6  # the array, and what torch takes at its first step
    assert f"{min(fitting) / 1e9:.2f}" in result.output
    assert not Path("results/own/ledger").exists()  # an `oom` that was provoked is nobody's result
    # every run has prepared everything itself, and nothing of it is left
    assert {item["phases"]["preprocess"]["source"] for item in records if item["status"] == "ok"} == {"measured"}
    assert list(Path("cache/prepared").iterdir()) == []

    again = bench(*asked, "--memory-limit", "2GB")
    assert again.exit_code == 0
    assert len(list(Ledger(Path("results/own/frontier")))) == len(records)  # known by now

    too_little = bench(*asked, "--memory-limit", "100MB")
    assert too_little.exit_code == 1
    assert "more than 100 MB" in too_little.output
