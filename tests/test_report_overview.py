"""What the report says about itself: the first table, and where models come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ledgers import failed, made_up_records, write_ledger

from bench.ledger import Ledger
from bench.records import machine_of
from bench.registry import models
from bench.report.audit import audit_table
from bench.report.evidence import Evidence
from bench.report.findings import Findings, Setting
from bench.report.frontier import frontier_table
from bench.report.glance import glance
from bench.report.origins import differences_of, origin_table, settings_of
from bench.report.scorecard import scores

TEXT = """A model: what it does.

Paper: somebody's.
Settings: the authors' for Photo,
and defaults elsewhere.

Where this knowingly differs from the official code:
  * One thing
    on two lines.
  * Another (a * b).
Full batch.
"""


def first_lines(results: Path, records: list[dict[str, Any]]) -> list[str]:
    findings = Findings(Evidence(Ledger(write_ledger(results, records))), Setting())
    return glance(findings, scores(findings), audit_table(findings))


def test_the_first_lines_say_what_was_run(tmp_path: Path) -> None:
    records = [
        *made_up_records("gcn", "photo", [90.0] * 10),
        *made_up_records("nagphormer", "photo", [90.0, 91.0]),
        *made_up_records("nagphormer", "photo", [89.0], settings={"structural_encoding": False}),
        *[failed(record, "oom") for record in made_up_records("san", "photo", [90.0])],
    ]
    accuracy, published, _, ran, missing = first_lines(tmp_path, records)
    assert accuracy == "Accuracy was run on Photo (2 models, 1 with 10 trials)."
    assert published == (
        "135 published accuracies: 1 lower, 2 undecided (2 with fewer than 10 trials), 1 failed, 131 not run."
    )
    assert ran == "Run: Table 4 (structural-encoding) on Photo in part."  # NAGphormer+ is missing
    assert "Figure 2 (`python -m bench run --study readout`)" in missing  # one readout is none


def test_an_empty_ledger_has_first_lines_too(tmp_path: Path) -> None:
    accuracy, *_, missing = first_lines(tmp_path, [])
    assert accuracy == "Accuracy was run on nothing yet."
    assert missing.startswith("Not run: ") and missing.count("--study") == 7  # all studies but the two of accuracy


def test_a_models_file_is_quoted() -> None:
    assert settings_of(TEXT) == "the authors' for Photo, and defaults elsewhere."
    assert differences_of(TEXT) == ["One thing on two lines.", "Another (a * b)."]
    two_paragraphs = TEXT.replace("Full batch.", "\nEvery epoch takes long.\n  * Not a difference.")
    assert differences_of(two_paragraphs) == ["One thing on two lines.", "Another (a * b)."]
    assert settings_of("A model.") == "" and differences_of("A model.") == []


def test_every_model_says_where_its_settings_come_from() -> None:
    table = origin_table(list(models()))
    assert [row[0].text for row in table.rows] == [model.title for model in models().values()]
    assert all(len(row[1].text) > 100 for row in table.rows)


def search(
    model: str, budgets: dict[int, str], epochs: int, started: str, settings: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The runs of one search: megabytes -> how it ended."""
    [record] = made_up_records(model, "photo", [90.0], max_epochs=epochs, settings=settings or {})
    return [
        {**record, "status": status, "limits": {"memory": limit * 10**6, "time": None}, "started": started}
        for limit, status in budgets.items()
    ]


def test_the_frontier_is_between_the_smallest_that_fits_and_what_does_not(tmp_path: Path) -> None:
    assert frontier_table(tmp_path) is None
    runs = [
        *search("gcn", {900: "ok", 100: "oom", 120: "ok", 110: "oom"}, epochs=6, started="2026-01-02"),
        *search("gcn", {80: "ok", 75: "oom"}, epochs=1, started="2026-01-03"),  # shorter: it has seen less
        *search("gcn", {100: "oom"}, epochs=9, started="2026-01-03"),  # longer, but nothing was enough
        *search("gcn", {60: "ok", 50: "oom"}, epochs=6, started="2026-01-04", settings={"hidden": 8}),
        *search("gat", {900: "timeout", 100: "oom"}, epochs=6, started="2026-01-02"),  # nothing was enough
    ]
    elsewhere = {"environment": {**runs[0]["environment"], "processor": "Another"}}
    runs += [{**record, **elsewhere} for record in search("gcn", {150: "ok"}, epochs=6, started="2026-01-01")]
    runs += [{**record, "source": "older"} for record in search("san", {500: "ok"}, 6, "2026-01-01")]
    here = machine_of(runs[0])
    write_ledger(tmp_path / "frontier", runs)
    table = frontier_table(tmp_path)
    assert table is not None
    assert [[item.text for item in row] for row in table.rows] == [
        ["Photo", "GCN", "default", "150", "", "6", "1", "Another, 2 thread(s)"],
        ["Photo", "GCN", "default", "120", "110", "6", "4", here],
        ["Photo", "GCN", "default hidden=8", "60", "50", "6", "2", here],
        ["Photo", "SAN [stale]", "default", "500", "", "6", "1", here],
    ]
