"""May this record be used? The one answer, for `run`, `tune` and `report`.

A record stays valid as long as the mathematics does: its key holds the model's `revision`, the record itself the
revision of the protocol. What holds both to their promise are the golden cells (tests/golden_cells.py). A hash of the
model's source is in the record as information; it decides only for plug-ins, which have no golden cells.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from bench.environment import processor
from bench.executors.devices import capacity_of
from bench.records import (
    COST,
    DIVERGED,
    ERROR,
    INTERRUPTED,
    OK,
    OOM,
    PRUNED,
    TIMEOUT,
    UNSUPPORTED,
    Record,
    device_kind,
    limit_number,
    machine_of,
    memory_used,
    under_load,
    waited_seconds,
    wall_seconds,
)
from bench.registry import find_model, is_plugin, source_hash
from bench.text import counted

if TYPE_CHECKING:
    from bench.cells import Cell
    from bench.ledger import Ledger
    from bench.model import Model
    from bench.runner import RunOptions

FindModel = Callable[[str], "type[Model]"]

PROTOCOL_REVISION = 1  # of training loop, splits and seeding: raised whenever one of them may change results


def is_current(record: Record) -> bool:
    """Whether today's loop, splits and seeding made it; older records do not say, and are of revision 1."""
    return bool(record.get("protocol", 1) == PROTOCOL_REVISION)


def may_be_mended(record: Record, source: str) -> bool:
    """Whether this is an error of other code than the present, whose hash is `source`."""
    return record["status"] == ERROR and record["source"] != source


def older_code_line(reused: Iterable[Record], present: Mapping[str, str]) -> str:
    """Say how many of the reused records another source of their model made; nothing where none was."""
    counts = Counter(record["model"] for record in reused if record["source"] != present[record["model"]])
    if not counts:
        return ""
    total = counts.total()
    verb = "was" if total == 1 else "were"
    names = ", ".join(counts)
    return f"{counted(total, 'result')} {verb} made by older code of {names} (same revision); --redo runs them again"


def satisfies(
    record: Record,
    memory_limit: int | None = None,
    time_limit: float | None = None,
    capacity: int | None = None,
    device: str | None = None,
) -> bool:
    """Whether this record says what running the cell under these limits would give; None is no limit.

    `capacity` is the memory that there is: no limit can be looser than that. `device` is where it would run, None if
    that does not matter: what a GPU's memory or speed was enough for says nothing of a processor's, nor the reverse.
    """
    status, limits = record["status"], record["limits"]
    if device is not None and device_kind(record) != device.partition(":")[0]:
        unlimited = memory_limit is None and time_limit is None
        return (status == OK and unlimited) or status in (DIVERGED, UNSUPPORTED)
    if status == OK:
        within_memory = _fits(memory_limit, limits["memory"], memory_used(record))
        return within_memory and _fits(time_limit, limits["time"], wall_seconds(record) - waited_seconds(record))
    if status == OOM:
        return min(limit_number(memory_limit), limit_number(capacity)) <= limit_number(limits["memory"])
    if status == TIMEOUT:
        return limit_number(time_limit) <= limit_number(limits["time"])
    return status not in (INTERRUPTED, PRUNED)


def _fits(limit: float | None, earlier_limit: float | None, used: float | None) -> bool:
    """A success holds under every limit that is no tighter than its own, or that it was measured to keep."""
    return limit_number(limit) >= limit_number(earlier_limit) or (used is not None and used <= limit_number(limit))


def find_reusable(
    records: Iterable[Record],
    memory_limit: int | None,
    time_limit: float | None,
    purpose: str | None = None,
    machine: str | None = None,
    capacity: int | None = None,
    device: str | None = None,
) -> Record | None:
    """Return the newest current record that was made for this purpose and answers for these limits.

    A purpose other than accuracy is to measure, which has to be done again where others have disturbed it; `machine`,
    as `machine_of` writes it, is where it has to have been done.
    """
    found = None
    for record in records:
        disturbed = purpose is not None and record["status"] == OK and under_load(record)
        elsewhere = machine is not None and machine_of(record) != machine
        unfit = disturbed or elsewhere or record.get("purpose") != purpose or not is_current(record)
        if not unfit and satisfies(record, memory_limit, time_limit, capacity, device):
            found = record
    return found


# -- before a cell is run ---------------------------------------------------------------------------------------------


def pending(
    cells: Sequence[Cell], ledger: Ledger, options: RunOptions, find: FindModel = find_model
) -> tuple[list[Cell], dict[str, Record]]:
    """The cells that have to be run, each once, and the records that are reused for the others.

    An error of other code than the present is not reused: the file may have been mended.
    """
    todo: dict[str, Cell] = {}
    reused: dict[str, Record] = {}
    for cell in cells:
        record = find_reusable_under(ledger.of(cell.key), options)
        mended = record is not None and may_be_mended(record, source_hash(find(cell.model)))
        if record is None or options.redo or mended or record["status"] in options.retry:
            todo[cell.key] = cell
        else:
            reused[cell.key] = record
    return list(todo.values()), reused


def find_reusable_under(records: Sequence[Record], options: RunOptions) -> Record | None:
    """The record that makes another run needless; what it costs has to be known for this machine."""
    machine = this_machine(options.device, options.threads) if options.purpose == COST else None
    # asked only where it matters: on a GPU it has to be woken for that
    capacity = capacity_of(options.device) if any(record["status"] == OOM for record in records) else None
    limits = options.memory_limit, options.time_limit
    return find_reusable(records, *limits, options.purpose, machine, capacity, options.device)


def would_repeat(record: Record, cell: Cell, model: type[Model], source: str, options: RunOptions) -> bool:
    """Whether running the cell now would give this, as far as the record tells; `source` is the model's hash.

    An error may be mended, a plug-in have changed; seconds are held against those of cells that run now.
    """
    if record["status"] == ERROR or (record["source"] != source and is_plugin(model)):
        return False
    if record["status"] != OK or "seconds" not in cell.labels.get("objective", ""):
        return True
    return machine_of(record) == this_machine(options.device, options.threads) and under_load(record) is False


@functools.cache
def this_machine(device: str, threads: int) -> str:
    """What `machine_of` says of records that are made here."""
    gpu = None
    if device.startswith("cuda"):
        import torch

        gpu = torch.cuda.get_device_name(device)
    return machine_of({"environment": {"processor": processor(), "gpu": gpu, "threads": threads}})
