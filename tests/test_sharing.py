"""How many cells run at the same time where nobody said."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cells import Cell
from bench.commands.run import share_machine
from bench.graph import Graph
from bench.model import Model, Recipe
from bench.planning import sharing
from bench.planning.sharing import LIBRARIES, UNKNOWN, cells_at_once
from bench.request import Plan, Request
from bench.runner import RunOptions
from tests.graphs import make_graph
from tests.test_display import make_cell

GIB = 2**30


class Sized(Model):
    name = "sized"
    Config = Recipe

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int | None:
        return GIB * config.patience  # a setting to choose the size by


class Silent(Sized):
    name = "silent"

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int | None:
        return None


class Broken(Sized):
    name = "broken"

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int | None:
        raise ZeroDivisionError


MODELS = (Sized, Silent, Broken)
GRAPHS = {"ring": make_graph(3, [(0, 1), (1, 2)])}


def cell(trial: int, model: str = "sized", gib: int = 1) -> Cell:
    return replace(make_cell(trial), model=model, dataset="ring", config={"patience": gib})


@pytest.mark.parametrize(
    ("cells", "processors", "memory", "limit", "expected"),
    [
        ([cell(trial) for trial in range(9)], 4, 100 * GIB, None, 4),  # the processors
        ([cell(trial) for trial in range(3)], 4, 100 * GIB, None, 3),  # no more than there are cells
        ([cell(0), cell(0, gib=7), cell(1)], 4, 2 * (7 * GIB + LIBRARIES), None, 2),  # the largest, twice
        ([cell(0), cell(0, gib=7), cell(1)], 4, 2 * (7 * GIB + LIBRARIES) - 1, None, 1),
        ([cell(0), cell(0, gib=7), cell(1)], 4, 3 * (2 * GIB + LIBRARIES), 2 * GIB, 3),  # none may take more than 2
        ([cell(0, gib=7)] * 2, 4, GIB, None, 1),  # too little for one: it is tried all the same
        ([cell(0, "silent"), cell(1, "silent")], 4, 2 * (UNKNOWN + LIBRARIES), None, 2),
        ([cell(0, "broken"), cell(1, "broken")], 4, 2 * (UNKNOWN + LIBRARIES) - 1, None, 1),
        ([], 4, GIB, None, 1),
    ],
)
def test_cells_at_once(cells: list[Cell], processors: int, memory: int, limit: int | None, expected: int) -> None:
    assert cells_at_once(cells, MODELS, GRAPHS, processors, memory, limit) == expected


def test_one_large_graph_is_enough_to_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell(0), replace(cell(0), dataset="larger"), cell(1)]
    graphs = {**GRAPHS, "larger": make_graph(4, [(0, 3)])}
    monkeypatch.setattr(sharing, "SMALL", 3)
    assert cells_at_once(cells, MODELS, graphs, 4, 100 * GIB) == 1
    monkeypatch.setattr(sharing, "SMALL", 4)
    assert cells_at_once(cells, MODELS, graphs, 4, 100 * GIB) == 3


def test_threads_do_not_depend_on_what_is_left_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that is run after a restart, alone, must give the same bytes as beside the others."""
    monkeypatch.setattr("bench.commands.run.usable_processors", lambda: 4)
    stored: Any = {"ring": SimpleNamespace(graph=GRAPHS["ring"])}
    plan = Plan(models=list(MODELS), stored=stored)
    for count in (1, 3):
        left = [cell(trial) for trial in range(count)]
        jobs, options = share_machine(Request(), plan, left, RunOptions(threads=4), ["cpu"])
        assert (jobs, options.threads) == (count, 1)
    monkeypatch.setattr(sharing, "SMALL", 2)
    jobs, options = share_machine(Request(), plan, [cell(0)], RunOptions(), ["cpu"])
    assert (jobs, options.threads) == (1, 4)


def test_gpus_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.commands.run.usable_processors", lambda: 16)
    gpus = [f"cuda:{index}" for index in range(4)]
    jobs, options = share_machine(Request(), Plan(), [], RunOptions(device=gpus[0], threads=16), gpus)
    assert (jobs, options.threads) == (4, 4)
