"""`status` and `why`: what the ledger says about finished, running and failed cells."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from rich.console import Console

from bench.claims import Claims
from bench.console import say, show_table
from bench.errors import UserError
from bench.ledger import Ledger
from bench.records import OK, PRUNED, Record, is_failure
from bench.splits import is_scored
from bench.text import counted, nearest, settings_as_typed


def show_status(results: Path) -> None:
    """Counts per dataset and model, with the statuses of what failed."""
    console, ledger = Console(), Ledger(results)
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for record in _standing(ledger):
        counts[record["dataset"], record["model"]][record["status"]] += 1
    running = Counter(_place(note) for note in Claims(results).held().values())
    rows, total = [], Counter[str]()
    for place in sorted({*counts, *running}):
        failed = {status: n for status, n in counts[place].items() if status not in (OK, PRUNED)}
        done, pruned = counts[place][OK], counts[place][PRUNED]
        numbers = (str(done), str(pruned), str(running[place]))
        rows.append((*place, *numbers, ", ".join(f"{n} {status}" for status, n in sorted(failed.items()))))
        total.update(done=done, pruned=pruned, failed=sum(failed.values()))
    if not rows:
        say(console, f"nothing has been run into {results}/ yet")
        return
    show_table(console, ["dataset", "model", "done", "pruned", "running", "failed"], rows)
    pruned_too = f", {total['pruned']} pruned (trials of `tune` that were not worth finishing)"
    say(
        console,
        f"{total['done']} done, {running.total()} running, {total['failed']} failed"
        f"{pruned_too if total['pruned'] else ''}. Records: {results}/",
    )


def show_failures(model: str, dataset: str, results: Path, tuning: bool = False) -> None:
    """The reasons, and the ends of the logs, of the cells of this model on this dataset that failed.

    Trials of `tune` only where asked for: many of them fail as a matter of course.
    """
    from bench.registry import scan

    console, ledger = Console(), Ledger(results)
    name = scan().card(model).name
    of_model = [record for record in _standing(ledger) if record["model"] == name]
    known = sorted({record["dataset"] for record in of_model})
    wanted = next((spelling for spelling in _spellings(dataset) if spelling in known), None)
    records = [record for record in of_model if record["dataset"] == wanted]
    if not records:
        also = f"; it has records on {', '.join(known)}" if known else ""
        raise UserError(f"no cell of {name} on '{dataset}' is in {results}/{also}.{nearest(dataset, known)}")
    chosen = [record for record in records if tuning or not _is_tuning(record)]
    failed = [record for record in chosen if is_failure(record)]
    for record in sorted(failed, key=lambda record: (_origin(record), _trial(record), record["started"])):
        _show_failure(console, record, results)
    say(console, f"{name} on {wanted}: {len(failed)} of {len(chosen)} cells failed")
    hidden = sum(is_failure(record) for record in records) - len(failed)
    if hidden:
        say(console, f"and {counted(hidden, 'trial')} of `tune`, which --tuning shows")


def _is_tuning(record: Record) -> bool:
    return not is_scored(record["split"]["rule"])


def _origin(record: Record) -> str:
    """What a cell was run for: its study of `tune`, or purpose, split mode and settings."""
    labels = record["labels"]
    if _is_tuning(record):
        return f"tuning study {labels.get('study', '-')}"
    settings = f"{labels.get('settings', '-')} settings {settings_as_typed(labels.get('set', {}))}".strip()
    return ", ".join(filter(None, [record.get("purpose"), f"{labels.get('mode', '-')} splits", settings]))


def _trial(record: Record) -> int:
    return int(record["labels"].get("trial", -1))


def _show_failure(console: Console, record: Record, results: Path) -> None:
    which = f"{_origin(record)}, trial {record['labels'].get('trial', '-')}, cell {record['key']}, {record['started']}"
    say(console, f"{which}: {record['status']}: {record['reason']}")
    for line in record.get("log", "").splitlines():
        say(console, f"    {line}")
    log = results / "logs" / f"{record['key']}.log"
    if log.exists():
        say(console, f"    whole log: {log}")


def _spellings(word: str) -> list[str]:
    """What records may call this dataset: a catalogued one has aliases, a user's own goes by its file's name."""
    from bench.datasets.catalogue import datasets

    names = [item.name for item in datasets().values() if word.lower() in (item.name, *item.aliases)]
    return [word, *names, Path(word).name, Path(word).stem]


def _place(note: str) -> tuple[str, str]:
    """(dataset, model) of a claim; its note is empty where it is not written yet or the disk is full."""
    model, _, dataset = note.partition("\t")
    return dataset, model or "(starting)"


def _standing(ledger: Ledger) -> list[Record]:
    """The record that stands for each cell."""
    keys = dict.fromkeys(record["key"] for record in ledger)
    return [record for key in keys if (record := ledger.newest(key)) is not None]
