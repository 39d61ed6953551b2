"""Forecasts: what records say of cells that have never been run, and what fits into a budget."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench import worker
from bench.cells import Cell
from bench.commands.forecast import Pilots, pilot_of
from bench.datasets.catalogue import datasets
from bench.datasets.store import expected_size
from bench.environment import processor
from bench.graph import Split
from bench.model import Model
from bench.planning.estimate import Forecaster, Speed, at_least, inferred_nodes, speed_of, tells_enough
from bench.planning.forecast import (
    Condition,
    Room,
    ask_models,
    ends_of_rows,
    fill_between,
    find_room,
    judge,
    make_conditions,
    prepared_size,
    rows_of,
    space_warning,
    within_budget,
)
from bench.prepared import PrepareCache, list_entries
from bench.request import Plan
from bench.runner import RunOptions

CONFIG = {
    "hidden": 8, "dropout": 0.5, "learning_rate": 0.1, "batch_size": 0, "evaluation_batch": 0, "evaluate_every": 1,
    "max_epochs": 1000, "stop": "loss", "patience": 50, "schedule": "constant",
}  # fmt: skip


def cell(model: str = "net", data: str = "g", trial: int = 0, **config: Any) -> Cell:
    return Cell(model, 1, data, data, {**CONFIG, **config}, "uniform-60/20/20", trial, trial, {"trial": trial})


def record(
    of: Cell, epochs: int, train: float, cap: int | None = None, stopped_by: str = "", **here: Any
) -> dict[str, Any]:
    return {
        "status": "ok",
        "model": of.model,
        "data": of.data,
        "config": {**of.config, "max_epochs": cap or of.config["max_epochs"]},
        "labels": {"trial": 0, **({"cap": cap} if cap else {})},
        "training": {"epochs": epochs, "stopped_by": stopped_by or ("max_epochs" if cap else of.config["stop"])},
        "phases": {
            "load": {"seconds": 0.5},
            "preprocess": {"seconds": 4.0, "prepared_bytes": 1000},
            "train": {"seconds": train, "peak_data": 7000},
            "infer": {"seconds": 1.0},
        },
        "overhead_seconds": 0.5,
        "environment": {"processor": processor(), "threads": 1, "device": "cpu", **here},
    }


def forecaster(*records: dict[str, Any]) -> Forecaster:
    return Forecaster(records, threads=1)


# -- what an epoch takes --------------------------------------------------------------------------------------------


def test_what_is_paid_once_is_not_charged_per_epoch() -> None:
    found = record(cell(), 20, 40.0)
    found["phases"]["train"] |= {"first_evaluation": [5, 20.0], "last_evaluation": [20, 38.0]}
    speed = speed_of(found)  # 18 s for 15 epochs; the first five took 14 s longer than that
    assert speed.epoch == pytest.approx(1.2)
    assert speed.fixed == pytest.approx(0.5 + 4.0 + 1.0 + 0.5 + 14.0)
    assert (speed.memory, speed.disk) == (7000, 1000)
    found["phases"]["preprocess"]["reused_seconds"] = 30.0
    assert speed_of(found).fixed == speed.fixed
    assert speed_of(found, from_scratch=True).fixed == pytest.approx(speed.fixed + 30.0)


def test_inference_takes_as_long_as_its_nodes() -> None:
    found = record(cell(), 100, 50.0)
    found["phases"]["infer"] = {"seconds": 6.0, "nodes": 400}
    assert speed_of(found).fixed == speed_of(found, nodes=400).fixed == pytest.approx(0.5 + 4.0 + 6.0 + 0.5)
    assert speed_of(found, nodes=1000).fixed == pytest.approx(0.5 + 4.0 + 15.0 + 0.5)
    assert speed_of(found, nodes=100).fixed == pytest.approx(0.5 + 4.0 + 1.5 + 0.5)
    del found["phases"]["infer"]["nodes"]  # a record of earlier times
    assert speed_of(found, nodes=1000).fixed == pytest.approx(0.5 + 4.0 + 6.0 + 0.5)

    on_all, on_part = record(cell(), 100, 50.0), record(cell(), 100, 50.0)
    on_all["phases"]["infer"], on_part["phases"]["infer"] = (
        {"seconds": 30.0, "nodes": 3000},
        {"seconds": 4.0, "nodes": 400},
    )
    speed = Forecaster([on_all, on_part], threads=1, inferred=lambda cell: 200).speed(cell())
    assert speed is not None and speed.fixed == pytest.approx(0.5 + 4.0 + 2.0 + 0.5)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50), st.none() | st.integers(1, 200))
def test_inference_is_expected_on_the_nodes_that_a_worker_takes(
    train: int, val: int, test: int, wanted: int | None
) -> None:
    nodes = np.arange(train + val + test)
    split = Split(nodes[:train], nodes[train : train + val], nodes[train + val :], "uniform-60/20/20", 0)
    asked, others = worker._inference_sample(SimpleNamespace(cell=cell(), split=split, inference_nodes=wanted))  # type: ignore[arg-type]
    assert inferred_nodes(split, wanted) == len(asked.val) + len(asked.test) + len(others)


def test_records_with_the_same_work_per_epoch_count() -> None:
    known = forecaster(record(cell(), 100, 50.0), record(cell(), 100, 70.0), record(cell(), 100, 90.0))
    speed = known.speed(cell(dropout=0.1, learning_rate=0.3, max_epochs=7, patience=3, stop="never"))
    assert speed is not None and speed.epoch == pytest.approx(0.7)  # the median
    for other in (cell(hidden=16), cell(batch_size=5), cell(evaluate_every=2), cell(data="h"), cell(model="x")):
        assert known.speed(other) is None


@pytest.mark.parametrize("here", [{"processor": "another"}, {"threads": 2}, {"device": "cuda:0"}])
def test_speeds_of_other_machines_do_not_count_but_their_epochs_do(here: dict[str, Any]) -> None:
    known = forecaster(record(cell(), 120, 50.0, **here))
    assert known.speed(cell()) is None
    assert known.epochs(cell()) == 120
    assert not known.is_from_here(record(cell(), 120, 50.0, **here))
    assert known.is_from_here(record(cell(), 120, 50.0))


def test_a_capped_run_counts_if_it_is_long_enough_or_as_long_as_asked() -> None:
    assert tells_enough(record(cell(), 2, 1.1, cap=2))
    assert tells_enough(record(cell(), 20, 0.1, cap=20))
    assert tells_enough(record(cell(), 2, 0.1))  # it ended by itself
    slow_start = record(cell(), 2, 5.0, cap=2)
    slow_start["phases"]["train"] |= {"first_evaluation": [1, 4.9], "last_evaluation": [2, 5.0]}
    assert not tells_enough(slow_start)  # a tenth of a second is all that was measured
    short = record(cell(), 2, 0.1, cap=2)
    assert not tells_enough(short)
    assert forecaster(short).speed(cell()) is None
    assert forecaster(short).speed(cell(max_epochs=2)) is not None


def test_the_longest_runs_are_asked_where_there_are_several() -> None:
    known = forecaster(record(cell(), 20, 100.0, cap=20), record(cell(), 100, 50.0), record(cell(), 60, 30.0))
    speed = known.speed(cell())
    assert speed is not None and speed.epoch == pytest.approx(0.5)  # not the pilot's 5 s


def test_a_pilot_that_ran_out_of_time_gives_a_lower_bound() -> None:
    found = record(cell(), 2, 80.0, cap=2)
    for phase in found["phases"].values():
        phase["compile_seconds"] = 0.0
    assert at_least(found, 100.0) == pytest.approx(6.0 + 40.0 * 100)  # two epochs take 80 s or longer
    assert at_least(found, 1.0) == pytest.approx(86.0)
    del found["phases"]["train"], found["phases"]["infer"]  # it was still preparing
    assert at_least(found, 100.0) == pytest.approx(5.0)


# -- how many epochs ------------------------------------------------------------------------------------------------


def test_epochs_on_the_same_graph_then_on_others_then_by_the_rule() -> None:
    known = forecaster(
        record(cell(hidden=16), 150, 1.0),  # 100 epochs until the patience of 50 began
        record(cell(data="h"), 350, 1.0),
        record(cell(data="h"), 370, 1.0),
        record(cell(data="i"), 80, 1.0),
    )
    assert known.epochs(cell()) == 150
    assert known.epochs(cell(patience=20, evaluate_every=5)) == 200
    assert known.epochs(cell(data="new")) == 150  # 100, 310 and 30 on three graphs: their median, and the patience
    assert known.epochs(cell(data="new", max_epochs=90)) == 90
    # another model with this rule: these took 3, 7, 7.4 and 1.6 times their patience
    assert known.epochs(cell(model="other", patience=10)) == pytest.approx(10 * (3 + 7) / 2)
    assert known.epochs(cell(model="other", patience=10, stop="ranked")) == 40  # nobody knows: four times the patience
    assert known.epochs(cell(model="other", patience=10, stop="window")) == 15  # of which the first ten fill the window


def test_rules_that_never_end_training() -> None:
    known = forecaster(record(cell(), 150, 1.0))
    assert known.epochs(cell(stop="never", max_epochs=77)) == 77
    assert forecaster(record(cell(), 1000, 1.0, stopped_by="max_epochs")).epochs(cell(max_epochs=5000)) == 1050


def test_a_schedule_that_ends_training_is_remembered_by_its_length() -> None:
    lowered = {"stop": "never", "schedule": "plateau"}
    known = forecaster(
        record(cell(**lowered), 155, 1.0, stopped_by="plateau"),
        record(cell(data="h", **lowered), 214, 1.0, stopped_by="plateau"),
    )
    assert known.epochs(cell(**lowered)) == 155  # not the thousand that it may take at most
    assert known.epochs(cell(data="h", patience=3, **lowered)) == 214
    assert known.epochs(cell(model="other", **lowered)) == (155 + 214) / 2
    assert forecaster().epochs(cell(**lowered)) == 200
    assert forecaster().epochs(cell(max_epochs=90, **lowered)) == 90


def test_runs_that_were_cut_short_say_nothing_about_epochs() -> None:
    assert forecaster(record(cell(), 2, 5.0, cap=2)).epochs(cell()) == 200  # four times the patience


# -- conditions --------------------------------------------------------------------------------------------------------


def test_conditions_hold_the_trials_of_one_setting() -> None:
    cells = [cell(trial=trial, hidden=hidden) for hidden in (8, 16) for trial in range(3)]
    conditions = make_conditions([*cells, *cells[:2]], cells[1:])
    assert [(len(condition.cells), len(condition.todo)) for condition in conditions] == [(3, 2), (3, 3)]
    unknown = judge(conditions, forecaster(record(cell(), 100, 10.0)), "records")
    assert unknown == [conditions[1]]
    assert (conditions[0].basis, conditions[0].seconds) == ("records", pytest.approx(6.0 + 100 * 0.1))
    assert conditions[0].total == pytest.approx(32.0)
    assert conditions[1].seconds is None


def known_condition(hops: int, speed: Speed | None = None, todo: int = 1) -> Condition:
    one = cell(hops=hops)
    return Condition([one], [one] * todo, speed, epochs=10.0)


def test_variants_between_two_that_are_known_lie_between_them() -> None:
    row = [known_condition(hops) for hops in (4, 8, 12, 16, 20)]
    row[0].speed, row[4].speed = Speed(1.0, 2.0, 100.0, None), Speed(5.0, 6.0, 500.0, 7.0)
    fill_between(row)
    assert [condition.speed and condition.speed.epoch for condition in row] == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert row[1].speed == Speed(2.0, 3.0, 200.0, None)
    assert [condition.basis for condition in row] == ["", "neighbours", "neighbours", "neighbours", ""]
    assert row[2].seconds == pytest.approx(3.0 + 10 * 4.0)


def test_beyond_what_is_known_the_nearest_serves() -> None:
    row = [known_condition(hops) for hops in (4, 8, 12, 16)]
    row[1].speed, row[2].speed = Speed(1.0, 2.0, None, None), Speed(3.0, 4.0, None, None)
    fill_between(row)
    assert row[0].speed == row[1].speed and row[3].speed == row[2].speed
    alone = [known_condition(4), known_condition(8)]
    fill_between(alone)
    assert alone[0].speed is None


def test_the_ends_of_a_sweep_are_piloted() -> None:
    conditions = [known_condition(hops) for hops in (4, 8, 12)] + [known_condition(16, todo=0)]
    conditions.append(Condition([cell(model="other")], [cell(model="other")]))
    assert ends_of_rows(conditions) == [conditions[0], conditions[2], conditions[4]]
    assert [len(row) for row in rows_of(conditions)] == [4, 1]


# -- budget and disk ------------------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.tuples(st.floats(0.1, 100), st.integers(1, 5)), max_size=8),
    budget=st.floats(0, 500),
)
def test_what_fits_into_a_budget(lengths: list[tuple[float, int]], budget: float) -> None:
    conditions = []
    for number, (seconds, trials) in enumerate(lengths):
        cells = [cell(model=f"m{number}", trial=trial) for trial in range(trials)]
        conditions.append(Condition(cells, cells, Speed(seconds, 0.0, None, None)))
    chosen = {item.key for item in within_budget(conditions, budget)}
    spent = sum(condition.seconds or 0 for condition in conditions for item in condition.todo if item.key in chosen)
    assert spent <= budget * (1 + 1e-9)
    for condition in conditions:  # whatever was left out no longer fitted, and trials are taken in order
        taken = [item.key in chosen for item in condition.todo]
        assert taken == sorted(taken, reverse=True)
        assert all(taken) or (condition.seconds or 0) > budget - spent - 1e-6


def test_first_trials_come_before_second_ones() -> None:
    short, long = ([cell(model=name, trial=trial) for trial in range(3)] for name in ("short", "long"))
    conditions = [Condition(cells, cells, Speed(s, 0, None, None)) for cells, s in ((long, 10.0), (short, 1.0))]
    names = [(item.model, item.labels["trial"]) for item in within_budget(conditions, 12.0)]
    assert names == [("short", 0), ("long", 0), ("short", 1)]
    assert within_budget([replace(conditions[0], speed=None)], 100.0) == []  # nobody knows: left out


def test_a_longer_pilot_that_fails_says_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [condition] = make_conditions([cell()], [cell()])
    short = record(pilot_of(cell(), 2), epochs=2, train=0.01, cap=2)  # over in no time: it tells nothing
    longer = {**record(pilot_of(cell(), 20), epochs=5, train=0.02), "status": "diverged", "reason": "NaN at update 5"}
    longer["phases"] = {"train": {"seconds": 0.02, "compile_seconds": 0.0}}
    pilots = Pilots(tmp_path, RunOptions())
    ended = {2: short, 20: longer}
    monkeypatch.setattr(pilots, "_run", lambda cells, *_: {one.key: ended[one.config["max_epochs"]] for one in cells})
    pilots.judge([condition], Forecaster([], threads=1), Plan(), Console(file=io.StringIO()))
    assert condition.failure == "diverged: NaN at update 5" and not condition.at_least
    assert condition.speed is None and condition.seconds == pytest.approx(0.02 + longer["overhead_seconds"])


def test_variants_share_their_prepared_arrays() -> None:
    conditions = [known_condition(hops, Speed(1, 1, None, size)) for hops, size in ((4, 100.0), (8, 300.0))]
    conditions.append(Condition([cell(data="h")], [cell(data="h")], Speed(1, 1, None, 50.0)))
    assert prepared_size(conditions) == 350
    assert prepared_size(conditions, private=True) == 300  # one cell at a time, and nothing is kept
    assert prepared_size([]) == prepared_size([], private=True) == 0


def test_variants_that_prepare_other_arrays_do_not_share_them() -> None:
    def condition(size: float, **config: Any) -> Condition:
        return Condition([cell(**config)], [cell(**config)], Speed(1, 1, None, size))

    encoded = [condition(110.0, encoding=True), condition(100.0, encoding=False)]
    assert prepared_size(encoded) == 210
    assert prepared_size([condition(110.0, readout=readout) for readout in ("sum", "single", "attention")]) == 110
    swept = [
        condition(size, encoding=encoding, hops=hops) for size, encoding, hops in [(50.0, True, 2), (90.0, True, 4)]
    ]
    assert prepared_size([*swept, condition(80.0, encoding=False, hops=4)]) == 170


def test_where_arrays_will_not_fit_it_is_said_with_sizes_and_consequences() -> None:
    conditions = [known_condition(8, Speed(1, 1, None, 300.0)), known_condition(4, Speed(1, 1, None, 900.0), todo=0)]
    assert space_warning(conditions, Room(free=300, held=0, limit=1000)) == ""
    assert space_warning(conditions, Room(free=100, held=200, limit=1000)) == ""  # what is there may be what is wanted
    warning = space_warning(conditions, Room(free=100, held=199, limit=1000))
    assert "want up to 300 B of the disk, and there is room for 299 B (100 B free, 199 B taken by earlier" in warning
    assert "stays in memory" in warning and "\n" not in warning
    assert "room for 250 B (5.00 kB free, 250 B at most)" in space_warning(conditions, Room(5000, 0, limit=250))


def test_the_room_is_what_is_free_and_what_the_cache_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.planning.forecast.free_space", lambda folder: 700)
    PrepareCache(tmp_path).get("thing", {}, lambda: {"x": np.zeros(100)})
    [entry] = list_entries(tmp_path)
    assert entry.size > 800
    assert find_room(tmp_path, 10_000) == Room(700, entry.size, 10_000)
    assert find_room(tmp_path, 10_000).size == 700 + entry.size
    assert find_room(tmp_path, 1000).size == 1000
    assert find_room(tmp_path, 10_000, private=True).size == 700  # a cell on its own pushes nothing out


class Says(Model):
    name = "says"

    @classmethod
    def estimate_disk(cls, graph: Any, config: Any) -> int | None:
        return {1: 10 * graph.num_nodes, 2: None}[config.max_epochs]  # a KeyError for 3


def test_models_are_asked_before_records() -> None:
    recipe = {"max_epochs": 1}
    graphs: Any = {"g": SimpleNamespace(graph=SimpleNamespace(num_nodes=7))}
    cells = [replace(cell(model="says"), config={**recipe, "max_epochs": epochs}) for epochs in (1, 2, 3)]
    known, silent, failing = (Condition([one], [one], Speed(1, 1, None, 99.0)) for one in cells)
    unknown = Condition([cells[0]], [cells[0]])
    failures = ask_models([known, silent, failing, unknown], [Says], graphs)
    assert failures == {"says": "says cannot say what it will keep on disk: KeyError: 3"}
    assert [condition.disk for condition in (known, silent, failing, unknown)] == [70, 99.0, 99.0, 70]
    assert Condition([cells[1]]).disk is None


def test_sizes_of_graphs_before_they_are_there() -> None:
    catalogue = datasets()
    assert expected_size(catalogue["reddit"]) == 4 * (2 * 11_606_919 + 232_965 * (602 + 3))
    assert expected_size(catalogue["reddit"]) == expected_size(catalogue["reddit-twin"])
    assert expected_size(catalogue["digits"]) is None
    sparse = expected_size(catalogue["physics"])
    assert sparse is not None and sparse < 4 * 34_493 * 8_415  # far from dense
