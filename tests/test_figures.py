"""Figures: what is drawn from which trials, and what is rather not drawn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ledgers import failed, made_up_records, write_ledger
from matplotlib.figure import Figure

from bench.ledger import Ledger
from bench.paper.figures import drawn_of, grid_figure, scorecard_figure, sweep_figure
from bench.paper.scorecard import scores
from bench.paper.sections import paper_sections
from bench.paper.trial_index import TrialIndex
from bench.report.drawing import Drawing
from bench.report.evidence import Evidence
from bench.report.figures import pareto_figure, spread_figure
from bench.report.results import Results, Setting, results_of
from bench.report.sections import Part, plain_sections
from bench.report.table import Table
from perf.report import write_big_ledger


def findings(results: Path, records: list[dict[str, Any]]) -> TrialIndex:
    return TrialIndex(Evidence(Ledger(write_ledger(results, records))), Setting())


def results(folder: Path, records: list[dict[str, Any]]) -> list[Results]:
    found = findings(folder, records)
    return results_of(found.evidence, found.setting)


def parts(found: TrialIndex) -> list[Part]:
    """Every table and figure of a report."""
    sections = [*plain_sections(found.evidence, found.setting), *paper_sections(found.evidence, found.setting)]
    return [part for section in sections for part in section.parts]


def titles(figure: Figure | None) -> list[str]:
    assert figure is not None
    return [axis.get_title(loc="center") + axis.get_title(loc="left").strip() for axis in figure.axes]


def texts(figure: Figure | None) -> list[str]:
    assert figure is not None
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def on(machine: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**record, "environment": {**record["environment"], "processor": machine}} for record in records]


def test_seconds_of_two_machines_stand_in_two_panels_and_memory_in_one(tmp_path: Path) -> None:
    slow = [made_up_records(model, "photo", [90.0, 91.0], seconds=50.0) for model in ("nagphormer", "gcn", "gat")]
    records = [*on("Slow 1", [*slow[0][:1], *slow[1], *slow[2]]), *on("Fast 2", slow[0][1:])]
    figure = pareto_figure(results(tmp_path / "a", records))
    # one model alone on the other machine is no comparison of seconds
    assert texts(figure) == ["Slow 1, 2 thread(s)", "main memory"]
    records += on("Fast 2", made_up_records("appnp", "photo", [90.0]))
    figure = pareto_figure(results(tmp_path / "b", records))
    assert texts(figure) == ["Fast 2, 2 thread(s)", "Slow 1, 2 thread(s)", "main memory"]
    assert titles(figure) == ["Photo"] * 3
    assert pareto_figure(results(tmp_path / "c", made_up_records("gcn", "photo", [90.0]))) is None


def test_only_undisturbed_trainings_are_timed(tmp_path: Path) -> None:
    records = made_up_records("gcn", "photo", [90.0], seconds=10.0)
    records += made_up_records("gat", "photo", [89.0], seconds=20.0)
    slow = made_up_records("gat", "photo", [89.0, 89.5], seconds=500.0, others=0.5)[1:]
    figure = pareto_figure(results(tmp_path / "a", records + slow))
    assert figure is not None
    assert [axis.get_xlabel() for axis in figure.axes] == ["training, s", "peak memory, MB"]
    assert max(line.get_xdata()[0] for line in figure.axes[0].lines if len(line.get_xdata()) == 1) == 20.0
    busy = made_up_records("gcn", "photo", [90.0], others=0.5) + records[1:]  # one clean model is no comparison
    figure = pareto_figure(results(tmp_path / "b", busy))
    assert figure is not None and [axis.get_xlabel() for axis in figure.axes] == ["peak memory, MB"]


def test_the_front_goes_through_what_nothing_beats_in_both(tmp_path: Path) -> None:
    records = made_up_records("gcn", "photo", [90.0], seconds=10.0, memory=10**8)
    records += made_up_records("gat", "photo", [89.0], seconds=20.0, memory=10**8)
    records += made_up_records("nagphormer", "photo", [95.0], seconds=40.0, memory=2 * 10**8)
    figure = pareto_figure(results(tmp_path, records))
    assert figure is not None
    [front] = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert front.get_xydata().tolist() == [[10.0, 90.0], [40.0, 95.0]]


def test_a_study_is_drawn_where_there_are_two_variants_to_compare(tmp_path: Path) -> None:
    alone = made_up_records("nagphormer", "photo", [95.0]) + made_up_records("nagphormer+", "photo", [95.0])
    one = findings(tmp_path / "a", alone)
    assert sweep_figure(one, "readout", "readout") is None and grid_figure(one, "augmentation-grid") is None
    more = made_up_records("nagphormer", "photo", [94.0], settings={"readout": "sum"})
    more += made_up_records("nagphormer", "computer", [90.0])
    assert titles(sweep_figure(findings(tmp_path / "b", alone + more), "readout", "readout")) == ["Photo"]
    sweep = [
        r for k in (4, 6) for r in made_up_records("nagphormer", "pubmed", [9.0], settings={"layers": 1, "hops": k})
    ]
    drawn = sweep_figure(findings(tmp_path / "c", sweep), "hops", "hops K")
    assert titles(drawn) == ["Pubmed (not in the paper)"]  # which ran this study on the large graphs only


def layers(at: int, accuracies: list[float]) -> list[dict[str, Any]]:
    return made_up_records("nagphormer", "photo", accuracies, settings={"layers": at})


def test_few_trials_are_dots_without_an_interval_and_nothing_is_beyond_100(tmp_path: Path) -> None:
    few = findings(tmp_path / "few", layers(1, [99.0, 97.0]) + layers(2, [98.0, 99.0, 97.0]))
    figure = sweep_figure(few, "layers", "layers L")
    assert figure is not None
    [axis] = figure.axes
    assert not axis.containers  # no error bars: those of two trials would reach from 85 to 111
    means, *dots = axis.lines
    assert means.get_xydata().tolist() == [[1, 98.0], [2, 98.0]]
    assert sorted(tuple(point) for line in dots for point in line.get_xydata().tolist()) == [
        (1, 97.0), (1, 99.0), (2, 97.0), (2, 98.0), (2, 99.0),
    ]  # fmt: skip
    assert drawn_of(few, "layers") == "n = 2 to 3; below 5 trials the dots are the trials and there is no interval"

    wide = [100.0, 100.0, 100.0, 99.0, 96.0]  # mean 99, s² = 12/4 = 3: 99 ± 2.776 · 1.732 / √5 = 99 ± 2.15
    other = made_up_records("nagphormer+", "photo", [80.0] * 5, settings={"layers": 1})
    enough = findings(tmp_path / "five", layers(1, wide) + layers(2, [97.0] * 5) + other)
    figure = sweep_figure(enough, "layers", "layers L")
    assert figure is not None
    [axis] = figure.axes
    [[low, high]] = axis.containers[0].lines[2][0].get_segments()
    assert (low[1], high[1]) == (pytest.approx(96.85, abs=0.005), 100.0)
    assert axis.get_ylim()[0] < 80.0 and axis.get_ylim()[1] == 100.0 and len(axis.containers) == 3
    assert drawn_of(enough, "layers") == "n = 5; bars: 95 % interval of the mean"


def test_every_trial_is_a_point_and_the_scorecard_says_every_verdict(tmp_path: Path) -> None:
    [gone] = made_up_records("gat", "photo", [90.0])
    found = findings(tmp_path, [*made_up_records("nagphormer", "photo", [95.0, 96.0, 95.5]), failed(gone, "timeout")])
    figure = spread_figure(results_of(found.evidence, found.setting))
    assert figure is not None and len(figure.axes[0].lines[0].get_xdata()) == 3
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["NAGphormer (3)"]
    said = texts(scorecard_figure(scores(found)))
    assert "+0.01\nundecided" in said and "failed" in said and said.count("–") == 99 - 2


def test_a_big_ledger_has_cells_of_every_study(tmp_path: Path) -> None:
    write_big_ledger(tmp_path, 600)
    found = TrialIndex(Evidence(Ledger(tmp_path)), Setting())
    assert len(found.evidence.records) == 600 and not found.evidence.warnings
    for study in ("accuracy-small", "accuracy-large", "structural-encoding", "readout", "hops", "layers", "cost"):
        assert all(trials.good for trials in found.of_study(study)), study


@pytest.mark.slow
def test_every_figure_is_drawn(tmp_path: Path) -> None:
    write_big_ledger(tmp_path, 600)
    found = TrialIndex(Evidence(Ledger(tmp_path)), Setting())
    assert [part.name for part in parts(found) if isinstance(part, Drawing)] == [
        "trials", "training-curves", "accuracy-and-cost", "scorecard", "readout", "hops", "layers", "augmentation-grid",
    ]  # fmt: skip


NAMES = {"", "Method", "Dataset", "Machine", "Section", "Claim", "Split rule", "What the edge count counts"}


def test_every_number_opens_what_it_rests_on(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "photo", [95.0] * 5 + [94.0] * 5)
    records += made_up_records("gcn", "photo", [90.0] * 9 + [91.0]) + made_up_records("gcn", "computer", [85.0, 86.0])
    records += made_up_records("nagphormer", "photo", [93.0, 94.0], settings={"structural_encoding": False})
    records += made_up_records("nagphormer", "computer", [88.0, 89.0])
    found = findings(tmp_path, records)
    for table in (part for part in parts(found) if isinstance(part, Table)):
        for row in table.rows:
            for name, item in zip(table.header, row, strict=True):
                if name not in NAMES and re.search(r"\d", item.text):
                    assert item.keys or item.note, (table.name, name, item.text)
