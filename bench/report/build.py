"""From the ledger to everything under reports/: a pure function of the records, so that it can be checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.data.catalogue import datasets
from bench.ledger import Ledger
from bench.predictions import PredictionStore
from bench.report.audit import audit_table
from bench.report.evidence import Evidence
from bench.report.figures import all_figures, as_bytes
from bench.report.page import make_page
from bench.report.table import Table, to_csv, to_latex, to_markdown
from bench.report.tables import VERDICTS, Findings, Setting, all_tables, scorecard, scores

TITLES = {
    "readout": "Figure 2: three readouts",
    "hops": "Figure 3: hops K",
    "layers": "Figure 4: layers L",
    "augmentation-grid": "Figure 5: mask ratio against augmentation probability",
    "scorecard": "Ours minus the paper's",
    "accuracy-and-cost": "Accuracy against training time and memory; the dashed line joins what nothing beats in both",
    "trials": "Every trial; the bar is the mean",
    "training-curves": "Validation accuracy along training, median over trials",
}


@dataclass(frozen=True)
class Report:
    """Everything that `report` writes, by path below the reports folder."""

    files: dict[str, bytes]
    warnings: list[str]


def build_report(results: Path, setting: Setting | None = None) -> Report:
    """Read the ledger and make every file of the report; nothing is written."""
    evidence = Evidence(Ledger(results))
    findings = Findings(evidence, setting or Setting())
    found = scores(findings)
    titles = {name: dataset.title for name, dataset in datasets().items()}
    tables = [
        scorecard(found, titles),
        *all_tables(findings),
        audit_table(findings),
    ]
    figures = list(all_figures(findings, found, PredictionStore(results)))
    files: dict[str, bytes] = {}
    for table in tables:
        files[f"tables/{table.name}.csv"] = to_csv(table).encode()
        files[f"tables/{table.name}.tex"] = to_latex(table).encode()
    for name, figure in figures:
        files[f"figures/{name}.png"] = as_bytes(figure, "png")
        files[f"figures/{name}.svg"] = as_bytes(figure, "svg")
    files["report.md"] = _markdown(tables, [name for name, _ in figures], evidence).encode()
    drawn = [(TITLES[name], files[f"figures/{name}.png"]) for name, _ in figures]
    counts = Counter(score.verdict for score in found)
    chips = [(verdict, str(counts[verdict])) for verdict in VERDICTS if counts[verdict]]
    page = make_page(tables, drawn, evidence.records, _lead(evidence), chips, _foot(evidence))
    files["index.html"] = page.encode()
    return Report(files, evidence.warnings)


def _lead(evidence: Evidence) -> str:
    statuses = Counter(record["status"] for record in evidence.records)
    parts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return f"{len(evidence.records)} cells in the ledger ({parts or 'none yet'}). A number opens the records behind it."


def _foot(evidence: Evidence) -> list[str]:
    """Where the records were made."""
    machines: Counter[str] = Counter()
    for record in evidence.records:
        environment = record["environment"]
        libraries = ", ".join(f"{name} {environment[name]}" for name in ("python", "torch", "numpy", "scipy", "numba"))
        machines[f"{environment['gpu'] or environment['processor']}; {libraries}"] += 1
    lines = [f"{count} cells on {machine}." for machine, count in sorted(machines.items())]
    return [*lines, *(f"Warning: {warning}" for warning in evidence.warnings)]


def _markdown(tables: list[Table], figures: list[str], evidence: Evidence) -> str:
    parts = ["# Report", _lead(evidence), *map(to_markdown, tables)]
    if figures:
        parts += ["## Figures", *(f"![{TITLES[name]}](figures/{name}.png)\n\n{TITLES[name]}" for name in figures)]
    parts += ["## Where", "\n".join(f"* {line}" for line in _foot(evidence))]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"
