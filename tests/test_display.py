"""What is shown while cells run, and the estimates behind it."""

import dataclasses
import io
import time
from typing import Any

import pytest
from rich.console import Console

from bench import console as console_module
from bench.cells import Cell
from bench.commands.display import Progress, finished_line, make_display
from bench.console import show_table, waiting_for
from bench.executors import Event
from bench.planning.estimate import Forecaster


def config(max_epochs: int = 9, **settings: Any) -> dict[str, Any]:
    return {"max_epochs": max_epochs, "stop": "never", "schedule": "constant", "evaluate_every": 1, **settings}


BASE = Cell("net", 1, "photo", "abc", config(), "rule", 0, 0, {"trial": 0})


def make_cell(trial: int, **changes: Any) -> Cell:
    return dataclasses.replace(BASE, split_seed=trial, seed=trial, labels={"trial": trial}, **changes)


def make_record(cell: Cell, seconds: float = 10.0, status: str = "ok", reason: str | None = None) -> dict[str, Any]:
    return {
        "key": cell.key,
        "model": cell.model,
        "dataset": cell.dataset,
        "data": cell.data,
        "config": dict(cell.config),
        "labels": dict(cell.labels),
        "status": status,
        "reason": reason,
        "metrics": {"test": {"accuracy": 0.9549}, "val": {"accuracy": 0.96}},
        "training": {"epochs": cell.config["max_epochs"], "best_epoch": 2, "capped": False, "stopped_by": "max_epochs"},
        "phases": {"train": {"seconds": seconds - 0.5, "compile_seconds": 0.0}},
        "overhead_seconds": 0.5,
    }


# -- estimates ----------------------------------------------------------------------------------------------------


def test_estimates_go_by_the_same_work_and_as_many_epochs() -> None:
    short = make_cell(0, config=config(2, hidden=8))
    other = make_cell(0, config=config(9, hidden=16))
    same = make_cell(0, config=config(9, hidden=8))
    asked = make_cell(5, config=config(9, hidden=8))
    forecaster = Forecaster([make_record(other, 30)])
    assert forecaster.seconds(asked) == pytest.approx(30)  # another size says more than nothing
    forecaster.add(make_record(short, 2))
    assert forecaster.seconds(asked) == pytest.approx(0.5 + 9 * 1.5 / 2)
    for seconds in (10, 11, 60):
        forecaster.add(make_record(same, seconds))
    assert forecaster.seconds(asked) == pytest.approx(11)


def test_between_the_values_of_a_sweep_the_nearest_one_counts() -> None:
    def at(hops: int, trial: int = 0, **others: Any) -> Cell:
        return make_cell(trial, config=config(**{"hops": hops, "readout": "sum", "encoding": True, **others}))

    forecaster = Forecaster([make_record(at(hops), seconds) for hops, seconds in [(4, 40), (6, 60), (12, 120)]])
    forecaster.add(make_record(at(20, readout="single", encoding=False), 1000))
    # 20 hops: one setting apart; the record of 20 hops is two apart
    assert forecaster.seconds(at(20)) == pytest.approx(120)
    assert forecaster.seconds(at(5)) == pytest.approx(50)  # as far from 4 as from 6
    assert forecaster.seconds(at(4, trial=7)) == pytest.approx(40)
    assert forecaster.seconds(at(20, max_epochs=2)) == pytest.approx(0.5 + 2 * 119.5 / 9)  # fewer epochs of the same


def test_nothing_is_guessed_from_failures_or_from_others() -> None:
    forecaster = Forecaster([make_record(BASE, status="oom"), make_record(make_cell(0, dataset="cs", data="def"))])
    assert forecaster.seconds(BASE) is None
    assert forecaster.seconds(make_cell(0, model="other", dataset="cs", data="def")) is None


def test_totals() -> None:
    forecaster = Forecaster([make_record(BASE, 10)])
    unknown = make_cell(0, model="other")
    assert forecaster.total([]) == 0
    assert forecaster.total([unknown]) is None
    # the unknown one counts as 10 too
    assert forecaster.total([BASE, make_cell(1), unknown], jobs=2) == pytest.approx(15)


# -- progress -----------------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_counts_and_estimates() -> None:
    clock = Clock()
    cells = [make_cell(trial) for trial in range(4)]
    progress = Progress(clock, waiting={cell.key: cell for cell in cells}, jobs=2)
    assert progress.line() == "0 of 4 done, 0 running, time left unknown"
    progress.hear(Event("started", cells[0]))
    progress.hear(Event("started", cells[1]))
    clock.now += 10
    progress.hear(Event("finished", cells[0], record=make_record(cells[0], 10)))
    assert progress.line() == "1 of 4 done, 1 running, about 10.0 s left"  # 10 + 10 waiting, 0 of the running, two jobs
    progress.hear(Event("finished", cells[1], record=make_record(cells[1], status="error")))
    assert progress.line() == "2 of 4 done, 0 running, 1 failed, about 10.0 s left"
    progress.hear(Event("finished", cells[2], record=make_record(cells[2], 10)))  # another process did it
    progress.hear(Event("started", cells[3]))
    clock.now += 4
    assert progress.seconds_left() == pytest.approx(6)
    clock.now += 100
    assert progress.seconds_left() == 0
    progress.hear(Event("finished", cells[3], record=make_record(cells[3], 104)))
    assert (progress.total, progress.finished, progress.failed) == (4, 4, 1)
    assert progress.seconds_left() == 0


def test_the_first_of_its_kind_is_not_judged_by_others_for_ever() -> None:
    clock = Clock()
    known, new = make_cell(0), make_cell(0, model="other")
    progress = Progress(clock, {}, {cell.key: cell for cell in (known, new)}, Forecaster([make_record(known, 10)]))
    progress.hear(Event("started", new))
    clock.now += 4
    assert progress.seconds_left() == pytest.approx(16)  # taken for a cell of 10 seconds, like the other
    clock.now += 7
    assert progress.seconds_left() is None
    assert progress.line() == "0 of 2 done, 1 running, time left unknown"


def test_late_news_of_a_finished_cell_is_ignored() -> None:
    progress = Progress()
    progress.hear(Event("progress", BASE, epoch=3, val_accuracy=0.5))
    progress.hear(Event("phase", BASE, phase="train"))
    assert progress.running == {}


# -- lines and pictures -------------------------------------------------------------------------------------------


def test_lines_of_finished_cells() -> None:
    record = make_record(BASE, 12.3)
    record["training"] = {"epochs": 120, "best_epoch": 70, "capped": False}
    assert finished_line(make_cell(3), record) == (
        "net photo trial 3: ok, test 95.49 %, val 96.00 %, best epoch 70 of 120, 12.3 s"
    )
    failed = make_record(BASE, status="oom", reason="wanted 12 GB [limit 11 GB]")
    assert finished_line(BASE, failed) == "net photo trial 0: oom: wanted 12 GB [limit 11 GB]"
    variant = dataclasses.replace(BASE, labels={"trial": 2, "set": {"hops": 4, "layers": 1}})
    assert finished_line(variant, failed).startswith("net photo hops=4 layers=1 trial 2: oom")


def test_plain_output_is_one_whole_line_per_cell() -> None:
    console = Console(file=io.StringIO(), width=40)
    cells = [make_cell(trial) for trial in range(3)]
    records = [
        make_record(cells[0]),
        make_record(cells[1], status="error", reason="[red]odd[/red] " + "long " * 20),
        make_record(cells[2]),
    ]
    with make_display(console, cells, Forecaster(), 1) as display:
        for cell, record in zip(cells[:2], records, strict=False):
            display.on_event(Event("started", cell))
            display.on_event(Event("progress", cell, epoch=1, val_accuracy=0.5))
            display.on_event(Event("finished", cell, record=record))
        display.on_event(Event("finished", cells[2], record=records[2], elsewhere=True))
    lines = output(console).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("[1/3] net photo trial 0: ok, test 95.49 %")
    assert lines[1].startswith("[2/3] net photo trial 1: error: [red]odd[/red] long")
    assert lines[2].endswith("(by another run)")


def test_the_live_picture() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    cells = [make_cell(0), make_cell(1)]
    display = make_display(console, cells, Forecaster([make_record(BASE, 10)]), 1)
    assert display.live is not None
    display.on_event(Event("started", cells[1]))
    display.on_event(Event("phase", cells[1], phase="train"))
    display.on_event(Event("progress", cells[1], epoch=7, max_epochs=9, val_accuracy=0.8125))
    shown = Console(file=io.StringIO(), width=120)
    shown.print(display.picture())
    header, row, line = output(shown).splitlines()
    assert header.split() == ["model", "dataset", "trial", "phase", "epoch", "val", "%", "elapsed"]
    assert row.split()[:6] == ["net", "photo", "1", "train", "7/9", "81.25"]
    assert line.startswith("0 of 2 done, 1 running, about ")


def test_the_live_display_leaves_only_failures_behind() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    cells = [make_cell(0), make_cell(1)]
    records = [make_record(cells[0]), make_record(cells[1], status="diverged", reason="NaN")]
    with make_display(console, cells, Forecaster(), 1) as display:
        for cell, record in zip(cells, records, strict=True):
            display.on_event(Event("finished", cell, record=record))
    assert "trial 1: diverged: NaN" in output(console)
    assert "trial 0: ok" not in output(console)


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, ""), (0.2, "opening photo ...\n")])
def test_waiting_is_mentioned_only_where_it_is_long(
    seconds: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_module, "PATIENCE", 0.05)
    console = Console(file=io.StringIO())
    with waiting_for(console, "opening photo"):
        time.sleep(seconds)
    assert output(console) == expected


def test_tables_suit_the_console() -> None:
    headers, rows = ["model", "accuracy"], [("net", "90.00"), ("[odd]", "")]
    plain = Console(file=io.StringIO(), width=10)
    show_table(plain, headers, rows)
    assert output(plain).splitlines() == [
        "| model   | accuracy   |",
        "|---------|------------|",
        "| net     | 90.00      |",
        "| [odd]   |            |",
    ]
    terminal = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    show_table(terminal, headers, rows)
    assert "│ net   │ 90.00    │" in output(terminal)
    assert "│ [odd] │          │" in output(terminal)


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
