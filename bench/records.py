"""What a record means: its status, what it used, and which of several stands."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.errors import UserError
from bench.text import nearest

Record = Mapping[str, Any]

OK = "ok"
OOM = "oom"
TIMEOUT = "timeout"
DIVERGED = "diverged"
UNSUPPORTED = "unsupported"
MISSING = "missing"
ERROR = "error"
INTERRUPTED = "interrupted"
PRUNED = "pruned"  # a tuning trial that was not worth finishing; neither an answer nor a failure
COST = "cost"  # the purpose of records that were made to measure time and memory; None is to measure accuracy
FRONTIER = "frontier"  # the purpose of runs that look for the smallest memory limit; they have a separate ledger
CAP_REACHED = "max_epochs"  # bench.train's word for a training that no stopping rule ended
PART_OF_INFERENCE = "infer a part"  # a phase of cells that measure cost on a part of a graph
STATUSES = (OK, OOM, TIMEOUT, DIVERGED, UNSUPPORTED, MISSING, ERROR, INTERRUPTED, PRUNED)


def parse_statuses(text: str) -> frozenset[str]:
    """The statuses of `--retry oom,error`."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in STATUSES:
            raise UserError(f"unknown status '{name}' (known: {', '.join(STATUSES)}).{nearest(name, STATUSES)}")
    if not names:
        raise UserError(f"no status is named in '{text}' (known: {', '.join(STATUSES)})")
    return frozenset(names)


def device_kind(record: Record) -> str:
    """`cpu` or `cuda`; older records have no device and are of a processor."""
    return str(record["environment"].get("device") or "cpu").partition(":")[0]


def memory_used(record: Record, phases: Sequence[str] | None = None) -> int | None:
    """Bytes above the start that a memory limit would have counted; None where nothing was measured.

    In these phases, or in the one that had the most.

    On a CUDA device that is what was reserved, else private writable address space. The latter is sampled, and older
    records lack it: resident anonymous memory, whose peaks the kernel itself notes, is the least it can have been.
    """
    measured = [phase for name, phase in record["phases"].items() if phases is None or name in phases]
    on_device = _peaks(measured, "peak_reserved")
    if on_device:
        return max(on_device)
    baseline = record.get("baseline_anonymous") or 0
    resident = [peak - baseline for peak in _peaks(measured, "peak_anonymous")]
    return max([*_peaks(measured, "peak_data"), *resident], default=None)


def _peaks(phases: Iterable[Mapping[str, Any]], what: str) -> list[int]:
    return [phase[what] for phase in phases if phase.get(what) is not None]


def peak(record: Record, what: str) -> int | None:
    """The largest of any phase, of something that not every device or system has."""
    return max(_peaks(record["phases"].values(), what), default=None)


def phase_seconds(record: Record) -> float:
    """Time inside the phases, compilation included."""
    return sum(phase["seconds"] + phase["compile_seconds"] for phase in record["phases"].values())


def metric_of(record: Record) -> str:
    """The metric that the cell was judged by."""
    return str(record.get("config", {}).get("metric", "accuracy"))


def score_of(record: Record, part: str) -> float:
    """The primary metric on "val" or "test", in per cent."""
    return 100.0 * float(record["metrics"][part][metric_of(record)])


def wall_seconds(record: Record) -> float:
    """The whole time of the cell as the parent process saw it."""
    return phase_seconds(record) + record["overhead_seconds"]


def waited_seconds(record: Record) -> float:
    """What of its time a cell spent waiting for arrays that another one was preparing."""
    return float(record["phases"].get("preprocess", {}).get("waited_seconds") or 0.0)


def newest(records: Iterable[Record]) -> Record | None:
    """The record that stands for a key: the last one, unless an `ok` is only followed by failures it outlives."""
    standing: Record | None = None
    for record in records:
        if standing is None or not _outlives(standing, record):
            standing = record
    return standing


def limit_number(limit: float | None) -> float:
    """A limit as a number; None, no limit, is infinite."""
    return math.inf if limit is None else limit


def _outlives(earlier: Record, later: Record) -> bool:
    """An `ok` is not undone by being interrupted or pruned, or by a failure that tighter limits explain."""
    if earlier["status"] != OK:
        return False
    if later["status"] == OK:
        return _measured_better(earlier, later)
    tighter = any(
        limit_number(later["limits"][what]) < limit_number(earlier["limits"][what]) for what in ("memory", "time")
    )
    return tighter or later["status"] in (INTERRUPTED, PRUNED)


def _measured_better(earlier: Record, later: Record) -> bool:
    """A result is not replaced by a mere measurement of cost, nor an undisturbed one of these by a disturbed one."""
    if later.get("purpose") is None:
        return False
    return earlier.get("purpose") is None or (under_load(earlier) is False and under_load(later) is not False)


def is_capped(training: Mapping[str, Any], by_cap: bool) -> bool:
    """Return whether a cap ended this training; `by_cap`: its limit on epochs was one, not the recipe's own."""
    return by_cap and training.get("stopped_by") == CAP_REACHED


def is_failure(record: Record) -> bool:
    """Whether something went wrong that a table or a user should hear of."""
    return record["status"] not in (OK, PRUNED)


# -- what it cost -----------------------------------------------------------------------------------------------------

LOADED = 0.05  # of the cell's own processors: as much as others may use before a measurement counts as disturbed


def under_load(record: Record) -> bool | None:
    """Whether other work disturbed the measurement; None where the record does not know.

    Older records do not say how many processors the cell could use: there it is all of the machine's.
    """
    load = record.get("load")
    return None if not load else bool(load["others"] > LOADED * load.get("usable", load["processors"]))


def machine_of(record: Record) -> str:
    """What timings have in common that may stand in one column: devices and threads."""
    environment = record["environment"]
    devices = " with ".join(filter(None, [environment["gpu"], environment["processor"]]))
    return f"{devices}, {environment['threads']} thread(s)"


def preparation_seconds(record: Record) -> float:
    """Of the arrays that the cell used: as measured here without waiting, or by the cell that prepared them."""
    phase = record["phases"]["preprocess"]
    return float(phase["seconds"] - waited_seconds(record) + (phase.get("reused_seconds") or 0.0))


def address(record: Record) -> str:
    """What tells a record from others that a report shows: its cell, and of a measurement the purpose and the machine.

    A measurement hides no result, and none from another machine.
    """
    purpose = record.get("purpose")
    if not purpose:
        return str(record["key"])
    return f"{record['key']}@{purpose}-{hashlib.sha256(machine_of(record).encode()).hexdigest()[:6]}"


def seconds_per_epoch(record: Record) -> float:
    """Without what the first epochs pay once, where the record can tell them apart."""
    train = record["phases"]["train"]
    first, last = train.get("first_evaluation"), train.get("last_evaluation")
    if first and last and last[0] > first[0]:
        return float((last[1] - first[1]) / (last[0] - first[0]))
    return float(train["seconds"] / max(record["training"]["epochs"], 1))


def seconds_per_thousand_nodes(record: Record) -> float | None:
    """Inference, per 1,000 nodes; None where none was (a trial of `tune`) or the record does not say how many."""
    infer = record["phases"]["infer"]
    return 1000 * infer["seconds"] / infer["nodes"] if infer.get("nodes") else None


def inference_seconds(record: Record, nodes: int) -> float | None:
    """Inference over so many nodes, by the line through the two sizes that were measured.

    Where one was, in proportion to it, which `is_at_most` tells from a measurement: too long for a model that computes
    the whole graph whatever is asked. None where none was (a trial of `tune`) or the record does not say how many.
    """
    part, whole = record["phases"].get(PART_OF_INFERENCE), record["phases"].get("infer", {})
    if not whole.get("nodes"):
        return None
    if part is None or part["nodes"] >= whole["nodes"]:
        return float(whole["seconds"] * nodes / whole["nodes"])
    each = max(whole["seconds"] - part["seconds"], 0.0) / (whole["nodes"] - part["nodes"])
    return float(whole["seconds"] + (nodes - whole["nodes"]) * each)


def is_at_most(record: Record, nodes: int) -> bool:
    """Whether `inference_seconds` can only say how long inference over so many nodes takes at most."""
    measured = record["phases"]["infer"].get("nodes")
    return bool(measured) and measured < nodes and PART_OF_INFERENCE not in record["phases"]


def prepared_bytes(record: Record) -> int | None:
    """The prepared arrays that the cell used: what it keeps on disk; None where it was not counted."""
    found = record["phases"].get("preprocess", {}).get("prepared_bytes")
    return None if found is None else int(found)
