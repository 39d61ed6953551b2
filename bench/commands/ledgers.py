"""`status` and `why`: what the ledger says about finished, running and failed cells."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from rich.console import Console

from bench.claims import Claims
from bench.console import say, show_table
from bench.errors import UserError
from bench.ledger import Ledger
from bench.records import Record, is_failure
from bench.text import nearest


def show_status(results: Path) -> None:
    """Counts per dataset and model, with the statuses of what failed."""
    console, ledger = Console(), _open(results)
    failures: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    done: Counter[tuple[str, str]] = Counter()
    for record in _standing(ledger):
        place = record["dataset"], record["model"]
        if not is_failure(record):
            done[place] += 1
        else:
            failures[place][record["status"]] += 1
    running = Counter(_place(note) for note in Claims(results).held().values())
    rows = [
        (*place, str(done[place]), str(running[place]), ", ".join(f"{n} {status}" for status, n in failed.items()))
        for place in sorted({*done, *failures, *running})
        for failed in [failures.get(place, Counter())]
    ]
    if not rows:
        say(console, f"nothing has been run into {results}/ yet")
        return
    show_table(console, ["dataset", "model", "done", "running", "failed"], rows)
    total_failed = sum(counter.total() for counter in failures.values())
    say(console, f"{done.total()} done, {running.total()} running, {total_failed} failed. Records: {results}/")


def show_failures(model: str, dataset: str, results: Path) -> None:
    """The reasons, and the ends of the logs, of the cells of this model on this dataset that failed."""
    from bench.registry import find_model

    console, ledger = Console(), _open(results)
    name = find_model(model).name
    of_model = [record for record in _standing(ledger) if record["model"] == name]
    known = sorted({record["dataset"] for record in of_model})
    wanted = next((spelling for spelling in _spellings(dataset) if spelling in known), None)
    records = [record for record in of_model if record["dataset"] == wanted]
    if not records:
        also = f"; it has records on {', '.join(known)}" if known else ""
        raise UserError(f"no cell of {name} on '{dataset}' is in {results}/{also}.{nearest(dataset, known)}")
    failed = [record for record in records if is_failure(record)]
    for record in failed:
        _show_failure(console, record, results)
    say(console, f"{name} on {records[0]['dataset']}: {len(failed)} of {len(records)} cells failed")


def _show_failure(console: Console, record: Record, results: Path) -> None:
    trial = record["labels"].get("trial", "-")
    say(console, f"trial {trial}, cell {record['key']}, {record['started']}: {record['status']}: {record['reason']}")
    for line in record.get("log", "").splitlines():
        say(console, f"    {line}")
    log = results / "logs" / f"{record['key']}.log"
    if log.exists():
        say(console, f"    whole log: {log}")


def _spellings(word: str) -> list[str]:
    """What records may call this dataset: a catalogued one has aliases, a user's own goes by its file's name."""
    from bench.data.catalogue import datasets

    names = [item.name for item in datasets().values() if word.lower() in (item.name, *item.aliases)]
    return [word, *names, Path(word).name, Path(word).stem]


def _open(results: Path) -> Ledger:
    if not results.is_dir():
        raise UserError(f"there is no results folder '{results}'; name one with --results")
    return Ledger(results)


def _place(note: str) -> tuple[str, str]:
    """(dataset, model) of a claim; its note is empty where it is not written yet or the disk is full."""
    model, _, dataset = note.partition("\t")
    return dataset, model or "(starting)"


def _standing(ledger: Ledger) -> list[Record]:
    """The record that stands for each cell."""
    keys = dict.fromkeys(record["key"] for record in ledger)
    return [record for key in keys if (record := ledger.newest(key)) is not None]
