"""The memory frontier: the bisection as a law, and one search with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from bench.cli import app
from bench.commands.frontier import FLOOR, find_frontier, known
from bench.ledger import Ledger
from bench.records import Record

MOST = 16 * 10**9
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
        np.ones(300_000_000, dtype=np.uint8).sum()

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


def record(status: str, limit: int | None = None, used: int | None = None) -> Record:
    return {
        "status": status,
        "reason": "because",
        "limits": {"memory": limit, "time": None},
        "phases": {} if used is None else {"train": {"peak_data": used}},
    }


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
    assert found.enough <= found.too_little * (1 + precision) + 1
    assert found.enough in probed  # a run within it succeeded
    assert found.too_little == FLOOR or found.too_little in probed
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
    assert (found.too_little, found.enough) == (0, None)
    assert found.failure is not None and found.failure["status"] == status


def test_a_cell_that_diverges_had_memory_enough() -> None:
    found = find_frontier(lambda budget: record("diverged" if budget >= 10**9 else "oom", budget, 10**9), MOST, 0.05)
    assert found.enough is not None and found.too_little < 10**9 <= found.enough


def test_what_earlier_runs_say() -> None:
    records = [record("ok", 500), record("oom", 300), record("ok", None, used=350), record("error", 420)]
    assert known(records, 500) is records[0]
    assert known(records, 501) is records[0]
    assert known(records, 300) is records[1]
    assert known(records, 299) is records[1]
    assert known(records, 400) is None  # between them; what was only seen, and other failures, prove nothing


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
        (["--precision", "0"], "--precision is a share"),
        (["--up-to", "many"], "'many' is not an amount of memory"),
        (["--up-to", "10kB"], "less than anything needs"),
        (["--datasets", "fotos"], "there is no dataset or group 'fotos'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    result = bench("frontier", "--model", "gcn", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_search_with_real_processes(registry_as_it_was: None) -> None:
    Path("hungry.py").write_text(HUNGRY)
    asked = ("frontier", "--plugin", "hungry", "--model", "hungry", "--threads", "1", "--precision", "0.3")
    result = bench(*asked, "--up-to", "2GB")
    assert result.exit_code == 0, result.output
    records = list(Ledger(Path("results/frontier")))
    fitting = [item["limits"]["memory"] for item in records if item["status"] == "ok"]
    failing = [item["limits"]["memory"] for item in records if item["status"] == "oom"]
    assert max(failing) < min(fitting) <= 1.3 * max(failing) + 1
    assert 300e6 <= min(fitting) < 500e6  # the array, and what torch takes at its first step
    assert f"{min(fitting) / 1e9:.2f}" in result.output
    assert not Path("results/ledger").exists()  # an `oom` that was provoked is nobody's result

    again = bench(*asked, "--up-to", "2GB")
    assert again.exit_code == 0
    assert len(list(Ledger(Path("results/frontier")))) == len(records)  # known by now

    too_little = bench(*asked, "--up-to", "100MB")
    assert too_little.exit_code == 1
    assert "more than 100 MB" in too_little.output
