"""Ours beside every accuracy that the paper prints: the verdict, the difference, and what a reader gets of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ledgers import made_up_records, write_ledger

from bench.ledger import Ledger
from bench.paper.scorecard import scorecard, scores, without_not_run
from bench.paper.trial_index import TrialIndex
from bench.report.evidence import Evidence
from bench.report.results import Setting


def findings(results: Path, records: list[dict[str, Any]]) -> TrialIndex:
    return TrialIndex(Evidence(Ledger(write_ledger(results, records))), Setting())


def test_the_scorecard_has_every_published_accuracy_once(tmp_path: Path) -> None:
    """14 models on 6 graphs, 5 on 3, and from Tables 4 and 5: 2 without encoding, 2 halves of NrAug, on 9."""
    found = scores(findings(tmp_path, []))
    assert len(found) == 14 * 6 + 5 * 3 + 2 * 9 + 2 * 9
    on_photo = [score.trials.variant for score in found if score.trials.dataset == "photo"]
    assert on_photo.count("+LNA") == on_photo.count("+GNA") == 1  # though both are 96.36 there


@pytest.mark.parametrize(
    ("accuracies", "verdict", "difference"),
    [
        ([95.5, 95.0, 96.0, 95.5, 95.0, 96.0, 95.5, 95.0, 96.0, 95.5], "reproduced", "not shown"),  # the paper: 95.49
        ([90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.5], "lower", "lower"),
        ([99.0, 99.5, 99.0, 99.5, 99.0, 99.5, 99.0, 99.5, 99.0, 99.5], "higher", "higher"),
        # -0.49 with s = 0.41 and the paper's 0.11: error sqrt(0.41² + 0.11²) / sqrt(10) = 0.13, bound 2 · 0.41 = 0.82
        ([95.0, 94.5, 95.5, 95.0, 94.5, 95.5, 95.0, 94.5, 95.5, 95.0], "reproduced", "lower"),
        # -0.89 with s = 0.39: the 90 % interval, 1.81 · 0.13 = 0.23 on either side, lies around the bound of 0.79
        ([94.5, 94.5, 95.0, 94.5, 94.0, 95.0, 94.5, 95.0, 94.0, 95.0], "undecided", "lower"),
        ([95.5, 95.0, 96.0], "undecided", ""),
    ],
)
def test_the_scorecard_judges_against_the_paper(
    tmp_path: Path, accuracies: list[float], verdict: str, difference: str
) -> None:
    known = findings(tmp_path, made_up_records("nagphormer", "photo", accuracies))
    found = scores(known)
    [score] = [score for score in found if score.trials.records]
    assert (score.verdict, score.difference) == (verdict, difference)
    table = scorecard(known, found)
    said = [line for line in table.caption if line.startswith("Of these with 10 trials or more")]
    counted = {"lower": "1 lower than the paper, 0 higher", "higher": "0 lower than the paper, 1 higher"}
    assert len(said) == (difference != "")
    assert all(counted.get(difference, "1 with no difference") in line for line in said)
    short = without_not_run(table, TrialIndex(known.evidence, Setting(lane="tuned")))
    assert len(table.rows) == len(found) == 135 and [row[1].text for row in short.rows] == ["NAGphormer"]
    assert short.caption[-1].startswith(
        "134 more were not run and stand in scorecard.csv only; `python -m bench run --study NAME --settings tuned`"
    )
    assert f"1 {verdict}" in table.caption[0] and "published accuracies" in table.caption[0]
    assert sum(other.verdict == "not run" for other in found) == len(found) - 1
