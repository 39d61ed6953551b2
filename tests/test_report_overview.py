"""What the report says about itself: the first table, and where models come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ledgers import failed, made_up_records, write_ledger

from bench.commands.reports import build_report
from bench.ledger import Ledger
from bench.paper.sections import paper_sections
from bench.paper.slips import slip_table, slips
from bench.records import machine_of
from bench.registry import models
from bench.report.evidence import Evidence
from bench.report.frontier import frontier_table
from bench.report.origins import differences_of, origin_table, settings_of
from bench.report.results import Setting
from bench.report.sections import plain_sections

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
    evidence = Evidence(Ledger(write_ledger(results, records)))
    sections = [*plain_sections(evidence, Setting()), *paper_sections(evidence, Setting())]
    return [line for section in sections for line in (*section.headlines, *section.counts)]


def test_the_first_lines_say_what_was_run(tmp_path: Path) -> None:
    records = [
        *made_up_records("gcn", "photo", [90.0] * 10),
        *made_up_records("nagphormer", "photo", [90.0, 91.0]),
        *made_up_records("nagphormer", "photo", [89.0], settings={"structural_encoding": False}),
        *[failed(record, "oom") for record in made_up_records("san", "photo", [90.0])],
    ]
    accuracy, own, published, _, ran, missing = first_lines(tmp_path, records)
    assert accuracy == ("Accuracy was run on Photo (2 models of 2 to 10 trials, 1 with 10 or more).")
    assert own.startswith("NAGphormer, ours minus the paper's [95 % interval]: Photo -4.99 [")  # 90.5 - 95.49
    assert own.endswith("(2 trials, too few to tell).")
    assert published == (
        "135 published accuracies: 1 lower, 2 undecided (2 with fewer than 10 trials), 1 failed, 131 not run. Of these "
        "with 10 trials or more: 1 lower than the paper, 0 higher, 0 with no difference shown (Welch's t, 5 %)."
    )
    assert ran == "Run: Table 4 (structural-encoding) on Photo in part."  # NAGphormer+ is missing
    assert "Figure 2 (`python -m bench run --study readout`)" in missing  # one readout is none


def test_an_empty_ledger_has_first_lines_too(tmp_path: Path) -> None:
    accuracy, *_, missing = first_lines(tmp_path, [])
    assert accuracy == "Accuracy was run on nothing yet."
    assert missing.startswith("Not run: ") and missing.count("--study") == 7  # all studies but the two of accuracy


STEADY = [95.0, 95.5, 96.0, 95.0, 95.5, 96.0, 95.0, 95.5, 96.0, 95.5]  # mean 95.5, s = 0.408
JITTER = [0.5, -0.5, 0.0, 0.5, -0.5, 0.0, 0.5, -0.5, 0.0, 0.0]  # sums to nothing, s = 0.408


def test_the_findings_come_with_intervals_and_the_papers_numbers(tmp_path: Path) -> None:
    without = [value + change for value, change in zip(STEADY, JITTER, strict=True)]
    records = [
        *made_up_records("nagphormer", "photo", STEADY),
        *made_up_records(
            "nagphormer", "photo", [value - 1 for value in without], settings={"structural_encoding": False}
        ),
        *made_up_records("nagphormer+", "photo", without),
        *made_up_records("gcn", "photo", [value - 5 for value in STEADY]),
    ]
    _, best, own, extended, encoding, parts, *_ = first_lines(tmp_path, records)
    # 95.50 - 95.49; the paper's spread is 0.11: error sqrt(0.408² + 0.11²) / sqrt(10) = 0.134, t(10.3) = 2.22
    assert own == (
        "NAGphormer, ours minus the paper's [95 % interval]: Photo +0.01 [-0.29, +0.31] (10 trials, no difference "
        "shown)."
    )
    assert extended.startswith("NAGphormer+, ours minus the paper's [95 % interval]: Photo -1.11 [")  # 96.61
    assert extended.endswith("(10 trials, lower).")
    assert best == (
        "Photo: NAGphormer has the highest mean, 95.50; 2 of 3 models with 10 trials are tied for best, that is, no "
        "other is significantly better (5 %): NAGphormer, NAGphormer+."
    )
    # differences 1 ∓ jitter: error 0.408 · sqrt(1/10 + 1/3) = 0.269, t(9) = 2.262; the paper has 95.49 - 95.02
    assert encoding == (
        "Table 4 on Photo (with and without the Laplacian eigenvectors among the features), gain [95 % interval] "
        "(n pairs); then the paper's: NAGphormer +1.00 [+0.39, +1.61] (10); +0.47."
    )
    assert parts.endswith("the paper's: +NrAug +0.00 [-0.61, +0.61] (10); +1.12.")


def test_the_report_begins_with_the_paper_and_its_newest_record(tmp_path: Path) -> None:
    older, newer = made_up_records("gcn", "photo", [90.0, 91.0])
    older |= {"started": "2026-01-02T10:00:00+00:00"}
    newer |= {"started": "2026-03-04T10:00:00+00:00", "environment": {**newer["environment"], "code": "abc" * 12}}
    again = {**older, "predictions": "0" * 32, "started": "2026-01-03T10:00:00+00:00"}
    report = build_report(write_ledger(tmp_path, [older, newer, again]))
    head, findings, counts, *_ = report.files["report.md"].decode().split("\n## ")
    assert "Jinsong Chen, Chang Liu, Kaiyuan Gao, Gaichao Li, Kun He: Tokenized Graph Transformer with" in head
    assert head.rstrip().endswith("Newest record: 2026-03-04, by code version abcabcabcabc.")
    assert findings.startswith("Findings\n\n* Accuracy was run on Photo (1 model of 2 trials, 0 with 10 or more).")
    assert "* Warning: 1 cell(s) were run again and predicted differently" in counts
    rows = report.files["tables/scorecard.csv"].decode().splitlines()
    assert len(rows) == 1 + 135 and "| not run" not in report.files["report.md"].decode().partition("### Table 2")[0]


def test_a_models_file_is_quoted() -> None:
    assert settings_of(TEXT) == "the authors' for Photo, and defaults elsewhere."
    assert differences_of(TEXT) == ["One thing on two lines.", "Another (a * b)."]
    two_paragraphs = TEXT.replace("Full batch.", "\nEvery epoch takes long.\n  * Not a difference.")
    assert differences_of(two_paragraphs) == ["One thing on two lines.", "Another (a * b)."]
    assert settings_of("A model.") == "" and differences_of("A model.") == []


def test_every_model_says_where_its_settings_come_from() -> None:
    table = origin_table(list(models()))
    assert [row[0].text for row in table.rows] == [model.title for model in models().values()]
    assert all(row[1].text for row in table.rows)


def test_the_papers_slips_are_shown_in_the_order_of_their_kinds() -> None:
    table = slip_table()
    assert len(table.rows) == len(slips()) and table.rows[0][1].text == "misprint"
    kinds = [row[1].text for row in table.rows]
    assert list(dict.fromkeys(kinds)) == ["misprint", "text-tables", "text-text", "text-code", "silent"]
    assert kinds == sorted(kinds, key=kinds.index)  # each kind in one piece
    where, _, printed, right = (item.text for item in table.rows[0])
    assert (where, printed) == ("1, paragraph on linear attention", "Reddit has around 23 thousand nodes")
    assert right.startswith("232,965 nodes")


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
        ["Photo", "SAN", "default", "500", "", "6", "1", here],
    ]
