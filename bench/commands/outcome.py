"""What `run` says of its cells: the list of a dry run, the line before the first, the table after the last."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench.cells import Cell
from bench.commands.paper import published_accuracy
from bench.console import say, show_table
from bench.lanes import budget_lines
from bench.metrics import titled
from bench.planning.estimate import Forecaster
from bench.records import COST, Record
from bench.reference import Reference
from bench.sizes import format_duration
from bench.table import Context, caption, cost_caption, describe_settings, summarise, summarise_costs
from bench.text import counted

if TYPE_CHECKING:
    from bench.request import Plan, Request


def opening_line(cells: Sequence[Cell], todo: Sequence[Cell], estimator: Forecaster, results: Path, jobs: int) -> str:
    if not todo:
        which = f"all {len(cells)} cells are" if len(cells) > 1 else "the one cell is"
        return f"nothing to run: {which} in {results}/"
    done = f"{len(cells) - len(todo)} done, " if len(todo) < len(cells) else ""
    together = f", {jobs} at a time" if jobs > 1 else ""
    return f"{counted(len(cells), 'cell')}: {done}{len(todo)} to run{together}, {_about(estimator.total(todo, jobs))}"


def elsewhere_line(answered: Collection[Record], processor: str) -> str:
    """How many of the records that spare a run were not made on this processor; nothing where all were."""
    others = sum(record["environment"]["processor"] != processor for record in answered)
    if not others:
        return ""
    which = f"{others} of {counted(len(answered), 'record')} {'was' if others == 1 else 'were'}"
    return f"{which} made on other machines; `--results mine` starts afresh"


def _about(seconds: float | None) -> str:
    return "time unknown" if seconds is None else f"about {format_duration(seconds)}"


def show_summary(
    console: Console, plan: Plan, records: dict[str, Record], request: Request, reference: Reference
) -> None:
    """The table, what a reader must know about it, and what stayed out."""
    context = Context(
        model_titles={model.name: model.title or model.name for model in plan.models},
        dataset_titles={dataset.name: titled(dataset.title, dataset.metric) for dataset in plan.datasets},
        twins={dataset.name for dataset in plan.datasets if dataset.is_twin},
        reference=reference.trials,
        paper=_printed,
    )
    if plan.purpose == COST:
        frame = summarise_costs(plan.cells, records, context)
        lines = cost_caption(frame, f"{request.results}/")
    else:
        frame = summarise(plan.cells, records, context)
        lines = caption(frame, request.split, request.settings, f"{request.results}/")
    show_table(console, list(frame.columns), frame.itertuples(index=False))
    agreements = [] if plan.purpose == COST else _agreements(plan.cells, records, reference)
    for line in [*agreements, *lines, *budget_lines(plan.winners), *plan.missing, *plan.bad]:
        say(console, line)


def _agreements(cells: Sequence[Cell], records: dict[str, Record], reference: Reference) -> list[str]:
    """A line per condition of which the reference has trials of the same seeds."""
    conditions: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        conditions.setdefault((cell.dataset, cell.model, describe_settings(cell)), []).append(cell)
    found = (
        reference.agreement(group, {cell.key: records[cell.key] for cell in group if cell.key in records})
        for group in conditions.values()
    )
    return [line for line in found if line]


def _printed(cell: Cell) -> str:
    """What the paper prints for this model and graph; nothing where the user changed settings."""
    return "" if cell.labels.get("set") else published_accuracy(cell.model, cell.dataset)
