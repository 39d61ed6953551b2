"""From sections to everything under reports/: a pure function of the records, so that it can be checked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.records import address
from bench.report.drawing import Drawing, drawn_by
from bench.report.evidence import Evidence
from bench.report.page import Head, make_page
from bench.report.results import Setting
from bench.report.sections import Section
from bench.report.table import Table, to_csv, to_markdown
from bench.report.tuning import with_budgets

DRAWN_BY = "drawn-by.json"  # the versions that the bytes of pictures depend on
CONTENTS = "contents.txt"  # the names of all files, so that the next report knows which ones are its own


@dataclass(frozen=True)
class Report:
    """Everything that `report` writes, by path below the reports folder."""

    files: dict[str, bytes]
    warnings: list[str]


def make_report(evidence: Evidence, sections: Sequence[Section], setting: Setting) -> Report:
    """Make every file of the report; nothing is written."""
    parts = [with_budgets(part, evidence, setting.lane) for section in sections for part in section.parts]
    files: dict[str, bytes] = {DRAWN_BY: json.dumps(drawn_by(), indent=1).encode()}
    for part in parts:
        if isinstance(part, Table):
            files[f"tables/{part.name}.csv"] = to_csv(part).encode()
        else:
            files |= {f"figures/{part.name}.{form}": content for form, content in part.files.items()}
    head = Head(
        about=(*(line for section in sections for line in section.about), _newest(evidence)),
        findings=tuple(line for section in sections for line in section.headlines),
        counts=(*(line for section in sections for line in section.counts), _count(evidence, parts)),
        warnings=tuple(f"Warning: {warning}" for warning in evidence.warnings),
    )
    shown = [part.brief or part if isinstance(part, Table) else part for part in parts]
    chips = [chip for section in sections for chip in section.chips]
    files["report.md"] = _markdown(sections, shown, head).encode()
    files["index.html"] = make_page(shown, evidence.records, head, chips).encode()
    files[CONTENTS] = "".join(f"{name}\n" for name in sorted([*files, CONTENTS])).encode()
    return Report(files, evidence.warnings)


def _newest(evidence: Evidence) -> str:
    """When the newest record was made, and by which version of the code."""
    if not evidence.records:
        return "No records yet."
    record = max(evidence.records, key=lambda record: str(record["started"]))
    code = record["environment"].get("code")
    return f"Newest record: {record['started'][:10]}" + (f", by code version {code[:12]}." if code else ".")


def _count(evidence: Evidence, parts: Sequence[Table | Drawing]) -> str:
    statuses = Counter(record["status"] for record in evidence.records)
    words = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    tables = (part for part in parts if isinstance(part, Table) and part.name != "machines")
    shown = {key for table in tables for row in table.rows for item in row for key in item.keys}
    cells = {record["key"] for record in evidence.records}
    unused = len(cells) - len({record["key"] for record in evidence.records if address(record) in shown})
    measured = len(evidence.records) - len(cells)  # of the same cells, on other machines or for their cost alone
    more = f", {measured} of them measured once more" if measured else ""
    lead = f"{len(cells)} cells in the ledger{more} ({words or 'none yet'}). A number opens the records behind it."
    return lead + f" {unused} cells feed no table: older contents or revisions, or tuning." if unused else lead


def _markdown(sections: Sequence[Section], parts: Sequence[Table | Drawing], head: Head) -> str:
    """`parts` are those of all sections, one after another."""

    def texts() -> Iterator[str]:
        yield "# Report"
        yield "  \n".join(head.about)
        yield "## Findings"
        yield "\n".join(f"* {line}" for line in head.findings)
        yield "## Counts"
        yield "\n".join(f"* {line}" for line in (*head.counts, *head.warnings))
        left = iter(parts)
        for section in sections:
            yield f"## {section.title}"
            for part in (next(left) for _ in section.parts):
                if isinstance(part, Table):
                    yield to_markdown(part)
                else:
                    yield f"![{part.title}](figures/{part.name}.png)\n\n{part.title}"

    return "\n\n".join(text.rstrip() for text in texts()) + "\n"
