"""The `kernels` case on tiny graphs: its machinery, and that both sides of every row give the same numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph

from bench.graph import Graph
from perf import kernels
from perf.cases import Options
from perf.measure import Failed, Measurement
from perf.rivals import ROWS, Comparison


def doubled(graph: Graph, exact: bool) -> Any:
    weights = torch.randn(graph.num_nodes, 3).requires_grad_()
    more = 0.0 if exact else 1.0
    return [weights], {"ours": lambda: lambda: weights * 2, "torch": lambda: lambda: weights + weights + more}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of whose sides everything is known."""
    monkeypatch.setitem(ROWS, "doubled", Comparison("nobody", "digits", ("torch",), doubled))
    monkeypatch.setattr(kernels, "open_arrays", lambda folder: random_graph(sparse=True))
    monkeypatch.setattr(kernels, "SECONDS", 0.01)


def test_a_side_is_timed_with_its_memory_and_writes_what_is_compared(toy: None, tmp_path: Path) -> None:
    task = {"row": "doubled", "folder": "", "threads": 1}
    files = [tmp_path / "ours.npz", tmp_path / "torch.npz"]
    for file in files:
        assert kernels.run_side({**task, "side": file.stem, "result": str(file)}) == {}
    values = kernels.run_side({**task, "side": "ours"})
    assert 1 <= len(values["epochs"]) <= kernels.MOST_STEPS and min(values["epochs"]) > 0.0 and values["cpu"] > 0.0
    assert 0 <= values["memory"] < 50e6
    with np.load(files[0]) as arrays:
        out, gradient = arrays["arr_0"], arrays["arr_1"]
    torch.manual_seed(0)
    np.testing.assert_array_equal(out, 2 * torch.randn(60, 3).numpy())
    np.testing.assert_array_equal(gradient, 2 * kernels._arrived(torch.Size([60, 3])).numpy())
    kernels.check_agreement("doubled", files)


@pytest.mark.parametrize("difference", [1e-3, np.nan])
def test_sides_that_disagree_are_a_failure(difference: float, tmp_path: Path) -> None:
    files = [tmp_path / "ours.npz", tmp_path / "torch.npz"]
    same, other = np.ones(3), np.array([1.0, 1.0, 1.0 + difference])
    np.savez(files[0], same, same)
    np.savez(files[1], same, other)
    with pytest.raises(Failed, match="doubled: array 1 of torch is"):
        kernels.check_agreement("doubled", files)


def test_sides_take_turns_and_medians_are_compared(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"ours": iter([9.0, 1.0, 2.0]), "torch": iter([3.0, 8.0, 4.0])}
    turns: list[str] = []

    def measured(task: dict[str, Any], threads: int) -> Measurement:
        if "result" in task:
            np.savez(task["result"], np.ones(1))
            return Measurement({}, 0, 0)
        turns.append(task["side"])
        taken, memory = next(seconds[task["side"]]), 3e6 if task["side"] == "ours" else 6e6
        return Measurement({"epochs": [taken], "cpu": taken / 2, "memory": memory}, 0, 0)

    monkeypatch.setattr(kernels, "measure", measured)
    monkeypatch.setattr(kernels, "open_data", lambda name, options: SimpleNamespace(folder="", name=name))
    rows = kernels.Kernels(chosen=("doubled",)).run(Options(None, 1, say=lambda line: None))
    assert turns == ["ours", "torch"] * 3
    assert [(row.measure, row.ours, row.reference, row.met) for row in rows] == [
        ("torch: seconds", 2.0, 4.0, True),
        ("torch: CPU seconds", 1.0, 2.0, True),
        ("torch: MB", 3.0, 6.0, True),
    ]


def test_the_corner_has_the_nodes_of_highest_degree_and_is_as_writable_as_the_graph() -> None:
    graph = random_graph(sparse=True, num_nodes=300)
    graph.indptr.flags.writeable = False
    small = kernels.corner(graph)
    graph.indptr.flags.writeable = True
    assert small.num_nodes == kernels.CORNER == len(small.labels) == small.features.shape[0]
    assert small.indices.dtype == graph.indices.dtype and not small.indices.flags.writeable
    nodes = np.sort(np.argsort(-graph.degrees, kind="stable")[: kernels.CORNER])
    np.testing.assert_array_equal(small.adjacency().toarray(), graph.adjacency().toarray()[np.ix_(nodes, nodes)])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ROWS))
def test_both_sides_of_a_row_agree(name: str, tmp_path: Path) -> None:
    graph = kernels.corner(random_graph(sparse=True, num_nodes=400, num_features=60))  # connected
    sides = ("ours", *ROWS[name].rivals)
    for side in sides:
        np.savez(tmp_path / f"{side}.npz", *kernels.prepare_step(ROWS[name].build, graph, side, exact=True)())
        kernels.prepare_step(ROWS[name].build, graph, side)()
    kernels.check_agreement(name, [tmp_path / f"{side}.npz" for side in sides])
