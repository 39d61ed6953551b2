"""From the ledger to everything under reports/: a pure function of the records, so that it can be checked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.ledger import Ledger
from bench.paper import citation
from bench.predictions import PredictionStore
from bench.records import address
from bench.reference import Reference
from bench.report.audit import Audited, audit, audit_table
from bench.report.costs import in_brief, machine_table
from bench.report.drawing import Drawing, drawn_by
from bench.report.evidence import Evidence
from bench.report.figures import all_figures
from bench.report.findings import Findings, Setting
from bench.report.frontier import frontier_table
from bench.report.glance import glance
from bench.report.highlights import highlights
from bench.report.origins import origin_table
from bench.report.own import own_table
from bench.report.page import Head, make_page
from bench.report.rivals import Ranking, across_table, control_table, ranking
from bench.report.scorecard import VERDICTS, Score, scorecard, scores, without_not_run
from bench.report.slips import slip_table
from bench.report.table import Table, to_csv, to_latex, to_markdown
from bench.report.tables import all_tables, model_order
from bench.report.tuning import tuning_drawing, tuning_table, with_budgets
from bench.studies import studies

# What a reader sees first comes first; a figure stands below the table that it belongs to. Others come after all these.
ORDER = (
    "own", "scorecard", "accuracy-small", "accuracy-small-control", "trials", "across", "critical-difference",
    "accuracy-small-cost", "accuracy-and-cost", "training-curves", "accuracy-large", "structural-encoding", "readout",
    "hops", "layers", "augmentation-parts", "augmentation-grid", "cost", "frontier", "claims", "slips", "datasets",
    "models", "tuning", "machines",
)  # fmt: skip
DRAWN_BY = "drawn-by.json"  # the versions that the bytes of pictures depend on
Part = TypeVar("Part")
CONTENTS = "contents.txt"  # the names of all files, so that the next report knows which ones are its own


@dataclass(frozen=True)
class Report:
    """Everything that `report` writes, by path below the reports folder."""

    files: dict[str, bytes]
    warnings: list[str]


def build_report(results: Path, setting: Setting | None = None, reference: Ledger | None = None) -> Report:
    """Read the ledger and make every file of the report; nothing is written.

    Where a reference is given, the user's own results come first and the reference stands in for what they lack.
    """
    evidence = Evidence(Ledger(results), reference)
    folders = [results] if reference is None else [results, reference.results]
    findings = Findings(evidence, setting or Setting())
    found, ranked, audited = scores(findings), ranking(findings), audit(findings)
    tables = with_budgets(make_tables(findings, found, ranked, audited), evidence, findings.setting.lane)
    if reference is not None:
        tables.append(own_table(evidence, Reference(reference)))
    tables += filter(None, [_first(frontier_table, folders), _first(tuning_table, folders)])
    drawings = list(all_figures(findings, found, ranked, PredictionStore(*folders)))
    drawings += filter(None, [_first(tuning_drawing, folders)])
    files: dict[str, bytes] = {DRAWN_BY: json.dumps(drawn_by(), indent=1).encode()}
    files |= {f"tables/{table.name}.csv": to_csv(table).encode() for table in tables}
    shown = [for_readers(table, findings.setting) for table in tables]
    files |= {f"tables/{table.name}.tex": to_latex(table).encode() for table in shown}
    for drawing in drawings:
        files |= {f"figures/{drawing.name}.{form}": content for form, content in drawing.files.items()}
    parts = in_order(shown, drawings)
    head = Head(
        about=(f"Paper: {citation()}.", _newest(evidence)),
        findings=tuple(highlights(findings, found)),
        counts=(*glance(findings, found, audited), _count(evidence, tables)),
        warnings=tuple(f"Warning: {warning}" for warning in evidence.warnings),
    )
    files["report.md"] = _markdown(parts, head).encode()
    files["index.html"] = make_page(parts, evidence.records, head, _chips(found)).encode()
    files[CONTENTS] = "".join(f"{name}\n" for name in sorted([*files, CONTENTS])).encode()
    return Report(files, evidence.warnings)


def _first(make: Callable[[Path], Part | None], folders: Sequence[Path]) -> Part | None:
    """What the first folder gives that has something to show."""
    return next((part for folder in folders if (part := make(folder)) is not None), None)


def make_tables(findings: Findings, found: Sequence[Score], ranked: Ranking, audited: Sequence[Audited]) -> list[Table]:
    """Every table of the report."""
    return [
        scorecard(findings, found),
        *all_tables(findings),
        control_table(findings, studies()["accuracy-small"], model_order("tab:normal-data")),
        across_table(findings, ranked),
        audit_table(audited, findings.setting),
        slip_table(),
        origin_table(model_order("tab:normal-data")),
        machine_table(findings.evidence),
    ]


def for_readers(table: Table, setting: Setting) -> Table:
    """A table that is too long or too wide to be read as a reader gets it; its CSV file has everything."""
    if table.name == "scorecard":
        return without_not_run(table, setting)
    return in_brief(table) if table.name in ("cost", "accuracy-small-cost") else table


def in_order(tables: Sequence[Table], drawings: Sequence[Drawing]) -> list[Table | Drawing]:
    """Figures and tables as a reader meets them; a figure comes before a table of the same name."""
    places = {name: at for at, name in enumerate(ORDER)}
    return sorted([*drawings, *tables], key=lambda part: places.get(part.name, len(ORDER)))


def _chips(found: Sequence[Score]) -> list[tuple[str, str]]:
    counts = Counter(score.verdict for score in found)
    return [(verdict, str(counts[verdict])) for verdict in VERDICTS if counts[verdict]]


def _newest(evidence: Evidence) -> str:
    """When the newest record was made, and by which version of the code."""
    if not evidence.records:
        return "No records yet."
    record = max(evidence.records, key=lambda record: str(record["started"]))
    code = record["environment"].get("code")
    return f"Newest record: {record['started'][:10]}" + (f", by code version {code[:12]}." if code else ".")


def _count(evidence: Evidence, tables: Sequence[Table]) -> str:
    statuses = Counter(record["status"] for record in evidence.records)
    parts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    numbers = (item for table in tables if table.name != "machines" for row in table.rows for item in row)
    shown = {key for item in numbers for key in item.keys}
    cells = {record["key"] for record in evidence.records}
    unused = len(cells) - len({record["key"] for record in evidence.records if address(record) in shown})
    measured = len(evidence.records) - len(cells)  # of the same cells, on other machines or for their cost alone
    more = f", {measured} of them measured once more" if measured else ""
    lead = f"{len(cells)} cells in the ledger{more} ({parts or 'none yet'}). A number opens the records behind it."
    return lead + f" {unused} cells are behind none: other splits, settings or graphs, or tuning." if unused else lead


def _markdown(parts: Sequence[Table | Drawing], head: Head) -> str:
    def texts() -> Iterator[str]:
        yield "# Report"
        yield "  \n".join(head.about)
        yield "## Findings"
        yield "\n".join(f"* {line}" for line in head.findings)
        yield "## Counts"
        yield "\n".join(f"* {line}" for line in (*head.counts, *head.warnings))
        yield "## Tables and figures"
        for part in parts:
            if isinstance(part, Table):
                yield to_markdown(part)
            else:
                yield f"![{part.title}](figures/{part.name}.png)\n\n{part.title}"

    return "\n\n".join(text.rstrip() for text in texts()) + "\n"
