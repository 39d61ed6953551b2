"""Studies in the report: curves worked out by hand, and bands only where they hold."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledgers import made_up_records, write_ledger
from running import ring_dataset

from bench.lanes import Winner, find_winner, warning_lines, winner_path
from bench.ledger import Ledger
from bench.registry import find_model
from bench.report.evidence import Evidence
from bench.report.table import Entry, Table
from bench.report.tuning import (
    best_so_far,
    expected_best,
    independent_draws,
    study_label,
    tuning_drawing,
    tuning_table,
    with_budgets,
)
from bench.tuning.winners import read_studies, write_study, write_winner

IDENTITY = {
    "model": "gcn",
    "dataset": "photo",
    "sampler": "random",
    "pruning": False,
    "objective": "accuracy",
    "seed": 0,
}
STUDY: dict[str, Any] = {"name": "gcn-photo-wide-random-s0", "space": "wide", "published_first": True}
STUDY |= {"identity": IDENTITY, "budget": "12 trials"}


def made_up_trials(*accuracies: float | None) -> list[dict[str, Any]]:
    return [
        {
            "trial": number,
            "outcome": "oom" if accuracy is None else "ok",
            "val_accuracy": accuracy,
            "seconds": 1800.0,
            "train_seconds": 1.0,
            "cell": f"cell{number}",
            "settings": {"hidden": 64},
        }
        for number, accuracy in enumerate(accuracies)
    ]


def test_best_so_far() -> None:
    curve = best_so_far(made_up_trials(None, 0.5, None, 0.4, 0.75))
    assert np.isnan(curve[0]) and curve[1:].tolist() == [50.0, 50.0, 50.0, 75.0]


def test_only_random_trials_that_all_ended_are_independent_draws() -> None:
    trials = made_up_trials(0.9, 0.5, None)
    draws = independent_draws(STUDY, trials)
    assert draws is not None and draws.tolist() == [0.5, 0.0]  # the published settings were not drawn
    all_drawn = independent_draws({**STUDY, "published_first": False}, trials)
    assert all_drawn is not None and all_drawn.tolist() == [0.9, 0.5, 0.0]
    for change in ({"sampler": "tpe"}, {"sampler": "grid"}, {"pruning": True}):
        assert independent_draws({**STUDY, "identity": {**IDENTITY, **change}}, trials) is None


def test_the_expected_best_is_the_mean_of_the_maximum_and_lies_in_its_band() -> None:
    draws = np.array([0.1, 0.4, 0.5, 0.9])
    below, middle, above = expected_best(draws)
    for count in (1, 2, 3):
        tuples = itertools.product(draws, repeat=count)  # with replacement: draws from the empirical distribution
        assert middle[count - 1] == pytest.approx(100 * np.mean([max(chosen) for chosen in tuples]))
    assert (below <= middle).all() and (middle <= above).all() and (above - below > 10).all()
    assert all(np.array_equal(a, b) for a, b in zip(expected_best(draws), (below, middle, above), strict=True))


def test_a_study_becomes_a_row_and_a_curve(tmp_path: Path) -> None:
    assert tuning_table(tmp_path) is None and tuning_drawing(tmp_path) is None
    trials = made_up_trials(0.5, None, 0.75, 0.75)
    write_study(tmp_path / "tuning" / f"{STUDY['name']}.json", STUDY, trials)
    assert read_studies(tmp_path) == [(STUDY, trials)]
    table = tuning_table(tmp_path)
    assert table is not None
    [row] = table.rows
    assert [item.text for item in row] == [
        "gcn-photo-wide-random-s0", "gcn", "photo", "wide", "random", "no", "4", "3 complete, 1 oom", "2.00", "75.00",
    ]  # fmt: skip
    assert row[-1].keys == ("cell2",)  # the first of equals
    drawing, again = tuning_drawing(tmp_path), tuning_drawing(tmp_path)
    assert drawing is not None and again is not None
    assert set(drawing.files) == {"png", "svg"} and drawing.files == again.files


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("gcn-photo-wide-random-s0", {}, "GCN, random, wide, seed 0"),
        ("gcn-photo-wide-random-s3", {"seed": 3}, "GCN, random, wide, seed 3"),
        ("mine", {}, "mine"),
        (
            "gcn-photo-wide-random-pareto-s0",
            {"objective": "accuracy,seconds"},
            "GCN, random, wide, accuracy and seconds, seed 0",
        ),
    ],
)
def test_curves_of_different_studies_have_different_names(name: str, change: dict[str, Any], expected: str) -> None:
    assert study_label({**STUDY, "name": name, "identity": {**IDENTITY, **change}}) == expected


FOUND = {"model": "gcn", "dataset": "photo", "study": "s", "space": "wide", "sampler": "tpe", "seed": 0}
WINNER = Winner({"hidden": 64}, FOUND, {"trials": 34, "outcomes": "30 complete, 4 oom", "hours": 1.0123})


def test_a_winner_is_read_as_it_was_written(tmp_path: Path) -> None:
    from bench.datasets.catalogue import resolve

    settings = {"a": 1, "b": 1e-05, "c": True, "d": 'a "b" ü', "e": [1, 2], "f": 0.0}
    write_winner(winner_path(tmp_path, "tuned", "gcn", "photo"), Winner(settings, FOUND, {"trials": 1}))
    [photo], [twin], [pubmed] = resolve("photo"), resolve("photo-twin"), resolve("pubmed")
    for dataset in (photo, twin):  # a twin has no settings of its own
        found = find_winner(tmp_path, "tuned", "gcn", dataset)
        assert found is not None and found.settings == settings and found.found == FOUND
    assert find_winner(tmp_path, "tuned", "gcn", pubmed) is None
    assert find_winner(tmp_path, "tuned-cheap", "gcn", photo) is None
    assert find_winner(tmp_path, "author", "gcn", photo) is None


def test_settings_that_were_found_on_other_data_are_named(tmp_path: Path) -> None:
    stored, gcn = ring_dataset(tmp_path), find_model("gcn")
    here = {**FOUND, "revision": gcn.revision, "data": stored["ring"].graph.fingerprint, "dataset": "ring"}
    other = {**here, "data": "another file that was called ring.npz"}
    original = {**other, "dataset": "original"}  # whose twin the ring is, say
    lines = [
        warning_lines({("gcn", "ring"): Winner({}, found, {})}, [], stored, [gcn]) for found in (here, other, original)
    ]
    told = "gcn on ring: its settings were tuned on other data that was called ring too; tune again"
    assert lines == [[], [told], []]


def test_tables_on_tuned_settings_name_the_budget_of_what_they_show(tmp_path: Path) -> None:
    write_winner(winner_path(tmp_path, "tuned", "gcn", "photo"), WINNER)
    records = made_up_records("gcn", "photo", [90.0, 91.0], mode="sealed")
    evidence = Evidence(Ledger(write_ledger(tmp_path, records)))
    shown = Table("a", "A", ("model", "%"), ((Entry("GCN"), Entry("90.5", (records[0]["key"],))),))
    empty = Table("b", "B", ("model",), ((Entry("GCN"),),))
    tuned = [with_budgets(table, evidence, "tuned") for table in (shown, empty)]
    assert isinstance(tuned[0], Table)
    assert tuned[0].caption == (
        "Tuned: gcn on photo: 34 trials (30 complete, 4 oom) in 1.01 h, sampler tpe, space wide, seed 0.",
    )
    write_winner(winner_path(tmp_path, "tuned", "gcn", "mine"), Winner({}, {**FOUND, "dataset": "mine"}, WINNER.budget))
    evidence.records = [{**records[0], "dataset": "mine"}]  # a user's file
    own = with_budgets(shown, evidence, "tuned")
    assert isinstance(own, Table) and own.caption[0].startswith("Tuned: gcn on mine: 34 trials")
    assert tuned[1] == empty and with_budgets(shown, evidence, "author") == shown
