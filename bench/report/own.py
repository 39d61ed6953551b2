"""The user's own results beside the reference's and the paper's: the first table of a report on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from bench.cells import canonical_json
from bench.metrics import ACCURACY, find_metric
from bench.paper import published_accuracy
from bench.records import OK, Record, address, metric_of, score_of
from bench.reference import Reference
from bench.report.evidence import Evidence
from bench.report.findings import dataset_title, model_title
from bench.report.table import Entry, Table, entry
from bench.table import mean_and_spread
from bench.text import settings_as_typed


def own_table(evidence: Evidence, reference: Reference) -> Table:
    """One row per condition that the user ran, whatever model or graph it is."""
    conditions: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in evidence.own:
        if record["status"] == OK and not record.get("purpose") and "test" in record["metrics"]:
            labels = record["labels"]
            settings = f"{labels.get('settings', '')} {settings_as_typed(labels.get('set', {}))}".strip()
            mode = str(labels.get("mode", "fresh"))
            names = (record["dataset"], record["model"], settings, mode)
            rest = (record["data"], record["split"]["rule"], canonical_json(record["config"]))
            conditions[names + rest].append(record)
    rows = [_row(records, names[2], names[3], reference) for names, records in sorted(conditions.items())]
    return Table(
        "own",
        "Your results beside the reference and the paper",
        ("Dataset", "Method", "Settings", "Splits", "yours (n)", "reference (n)", "paper"),
        tuple(rows),
        (
            "Test accuracy, or the metric named beside the dataset, in %: mean ± sample standard deviation (n trials). "
            "The reference has the same configuration and splits, and no cap on epochs where it has such trials.",
        ),
    )


def _row(records: Sequence[Record], settings: str, mode: str, reference: Reference) -> tuple[Entry, ...]:
    first = records[0]
    plain = not first["labels"].get("set")
    return (
        entry(_title(first)),
        entry(model_title(first["model"])),
        entry(settings),
        entry(mode),
        _accuracies(records),
        _accuracies(reference.trials_like(first)),
        entry(published_accuracy(first["model"], first["dataset"]) if plain else ""),
    )


def _title(record: Record) -> str:
    title, metric = dataset_title(record["dataset"]), metric_of(record)
    return title if metric == ACCURACY else f"{title} ({find_metric(metric).title})"


def _accuracies(records: Sequence[Record]) -> Entry:
    values = [score_of(record, "test") for record in records]
    text = f"{mean_and_spread(values)} ({len(values)})" if values else ""
    return Entry(text, tuple(map(address, records)))
