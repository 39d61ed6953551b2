"""How long cells will take, for the time left and for `run --dry-run`.

Cells are taken apart, into what an epoch takes and how many there will be, so that records also tell of what has never
been run.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.cells import Cell, canonical_json
from bench.environment import processor
from bench.graph import Split
from bench.model import Recipe
from bench.records import (
    CAP_REACHED,
    OK,
    Record,
    device_kind,
    inference_seconds,
    is_capped,
    memory_used,
    prepared_bytes,
    seconds_per_epoch,
    waited_seconds,
    wall_seconds,
)

Config = Mapping[str, Any]


PACE = ("batch_size", "evaluation_batch", "evaluate_every")  # what of a recipe decides how long an epoch takes
SHORT, MANY_LOOKS = 1.0, 20  # a training that was cut short tells enough after so many seconds or evaluations
PLATEAU = "plateau"  # bench.train's schedule that ends training when the rate has become too low
UNKNOWN_LENGTH = 4.0  # times the patience: how long training goes on where no record can tell
# the same for a rule whose patience is the length of a window, and epochs until a plateau has lowered the rate enough
UNKNOWN_LENGTHS = {"window": 1.5, PLATEAU: 200.0}


@dataclass(frozen=True)
class Speed:
    """What a cell takes, apart from how many epochs it trains."""

    fixed: float  # seconds before and after training, and what the first epochs pay once
    epoch: float  # seconds
    memory: float | None  # bytes at the peak
    disk: float | None  # bytes of prepared arrays

    def seconds(self, epochs: float) -> float:
        return self.fixed + epochs * self.epoch

    def towards(self, other: Speed, share: float) -> Speed:
        """What lies between this one (0) and the other (1)."""

        def between(mine: float | None, theirs: float | None) -> float | None:
            return None if mine is None or theirs is None else mine + share * (theirs - mine)

        fixed, epoch = between(self.fixed, other.fixed) or 0.0, between(self.epoch, other.epoch) or 0.0
        return Speed(fixed, epoch, between(self.memory, other.memory), between(self.disk, other.disk))


def speed_of(record: Record, from_scratch: bool = False, nodes: int | None = None) -> Speed:
    """The speed that a finished record shows, whatever number of epochs it had.

    `from_scratch` is for a cell that may not reuse what others have prepared, `nodes` is how many the cell predicts
    (None: as many as the record did).
    """
    epoch, train = seconds_per_epoch(record), record["phases"]["train"]
    first = train.get("first_evaluation")
    once = max(0.0, first[1] - first[0] * epoch) if first else 0.0
    around = sum(phase["seconds"] for name, phase in record["phases"].items() if name != "train")
    around -= waited_seconds(record)
    if from_scratch:
        around += record["phases"]["preprocess"].get("reused_seconds") or 0.0
    if nodes is not None and (inference := inference_seconds(record, nodes)) is not None:
        around += inference - record["phases"]["infer"]["seconds"]
    return Speed(around + once + record["overhead_seconds"], epoch, memory_used(record), prepared_bytes(record))


def inferred_nodes(split: Split, wanted: int | None) -> int:
    """How many nodes a cell of this split predicts at its end; `wanted` as in bench.worker.Job.inference_nodes."""
    val, test = len(split.val), len(split.test)
    return val + test if wanted is None else min(len(split.train) + val + test, max(wanted, val + 1))


def tells_enough(record: Record) -> bool:
    """Whether its epochs say what an epoch takes; a few that were over in no time do not."""
    looks = record["training"]["epochs"] / record["config"]["evaluate_every"]
    train = record["phases"]["train"]
    first, last = train.get("first_evaluation"), train.get("last_evaluation")
    measured = last[1] - first[1] if first and last else train["seconds"]
    return not _cut_short(record) or measured >= SHORT or looks >= MANY_LOOKS


def _cut_short(record: Record) -> bool:
    return is_capped(record["training"], record["labels"].get("cap") is not None)


def at_least(record: Record, epochs: float) -> float:
    """Seconds below which a cell will not be done whose pilot ran out of time: it had not finished its few epochs."""
    train = record["phases"].get("train", {}).get("seconds", 0.0)
    return wall_seconds(record) - train + train * max(1.0, epochs / record["config"]["max_epochs"])


class Forecaster:
    """Judges cells by earlier records: speeds by those of this machine, epochs by anybody's."""

    def __init__(
        self,
        records: Iterable[Record] = (),
        threads: int | None = None,
        device: str = "cpu",
        from_scratch: bool = False,
        inferred: Callable[[Cell], int | None] = lambda cell: None,
    ) -> None:
        """Without `threads` speeds of other machines count too: a display had better say something than nothing.

        `inferred` says how many nodes a cell predicts at its end; None: as many as those before it.
        """
        self._from_scratch, self._inferred = from_scratch, inferred
        self._here = None if threads is None else (processor(), threads, device.partition(":")[0])
        # by model and graph, and there by the work of an epoch
        self._measured: dict[tuple[str, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
        self._beyond: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._ratios: dict[str, list[float]] = defaultdict(list)
        self._seconds: dict[str, float | None] = {}  # by key, what was already worked out: a display asks often
        for record in records:
            self.add(record)

    def is_from_here(self, record: Record) -> bool:
        """Whether it says how fast this machine is, with these threads on this kind of device."""
        if self._here is None:
            return True
        place = record["environment"]
        return self._here == (place["processor"], place["threads"], device_kind(record))

    def add(self, record: Record) -> None:
        """Learn from a record, if it is `ok`."""
        if record["status"] != OK:
            return
        config = record["config"]
        if self.is_from_here(record):
            self._measured[record["model"], record["data"]][canonical_json(_work_per_epoch(config))].append(record)
        epochs, stopped_by, rule = record["training"]["epochs"], record["training"]["stopped_by"], _what_ends(config)
        if rule is not None and not _cut_short(record):
            patience = _patience(config)
            beyond = epochs if stopped_by == CAP_REACHED else max(0, epochs - patience)
            self._beyond[record["model"]][record["data"]].append(beyond)
            self._ratios[rule].append(epochs / (patience or 1))
        self._seconds = {}  # a new one: the thread that draws may be reading the old one

    def seconds(self, cell: Cell) -> float | None:
        """What the cell takes, by the nearest configuration where its own has not run; None where none has."""
        known = self._seconds
        if cell.key not in known:
            speed = self.speed(cell) or self._nearest_speed(cell)
            known[cell.key] = None if speed is None else speed.seconds(self.epochs(cell))
        return known[cell.key]

    def total(self, cells: Iterable[Cell], jobs: int = 1) -> float | None:
        """Seconds for all of them; cells nothing is known about count as the mean of the others."""
        each = [self.seconds(cell) for cell in cells]
        known = [seconds for seconds in each if seconds is not None]
        if not known:
            return None if each else 0.0
        return statistics.mean(known) * len(each) / jobs

    def speed(self, cell: Cell) -> Speed | None:
        """The median of what cells with the same work per epoch took; None where there was none.

        Of several, those that trained far shorter than the longest (pilots, capped runs) are not asked.
        """
        work = canonical_json(_work_per_epoch(cell.config))
        records = self._measured.get((cell.model, cell.data), {}).get(work, [])
        whole = cell.config["max_epochs"]
        return self._median([r for r in records if tells_enough(r) or r["training"]["epochs"] >= whole], cell)

    def _nearest_speed(self, cell: Cell) -> Speed | None:
        """The same of cells with the most similar work per epoch, however little they tell."""
        work, apart = _work_per_epoch(cell.config), defaultdict[tuple[int, float], list[Record]](list)
        for records in list(self._measured.get((cell.model, cell.data), {}).values()):
            apart[_distance(work, _work_per_epoch(records[0]["config"]))] += records
        return self._median(apart[min(apart)], cell) if apart else None

    def _median(self, records: list[Record], cell: Cell) -> Speed | None:
        longest, nodes = max((record["training"]["epochs"] for record in records), default=0), self._inferred(cell)
        long = (record for record in records if 2 * record["training"]["epochs"] >= longest)
        found = [speed_of(record, self._from_scratch, nodes) for record in long]
        if not found:
            return None
        return Speed(
            statistics.median(speed.fixed for speed in found),
            statistics.median(speed.epoch for speed in found),
            max((speed.memory for speed in found if speed.memory is not None), default=None),
            max((speed.disk for speed in found if speed.disk is not None), default=None),
        )

    def epochs(self, cell: Cell) -> float:
        """How long it will train: as the model did on this graph, else on others, else as its rule usually takes."""
        config, rule = cell.config, _what_ends(cell.config)
        if rule is None:
            return float(config["max_epochs"])
        by_graph = self._beyond.get(cell.model, {})
        if by_graph:
            medians = [statistics.median(lengths) for lengths in list(by_graph.values())]
            beyond = statistics.median(by_graph.get(cell.data) or medians)
            expected = beyond + _patience(config)
        else:
            ratios = self._ratios.get(rule)
            usual = UNKNOWN_LENGTHS.get(rule, UNKNOWN_LENGTH)
            expected = (statistics.median(ratios) if ratios else usual) * (_patience(config) or 1)
        return min(float(config["max_epochs"]), expected)


def _what_ends(config: Config) -> str | None:
    """The rule that ends training before its last epoch, or the schedule that does; None where nothing can."""
    if config["stop"] != "never":
        return str(config["stop"])
    return PLATEAU if config["schedule"] == PLATEAU else None


def _patience(config: Config) -> int:
    """In epochs; a schedule that ends training has none that could be told from the rest."""
    return 0 if config["stop"] == "never" else int(config["patience"] * config["evaluate_every"])


def _work_per_epoch(config: Config) -> dict[str, Any]:
    """The part of a configuration that decides how long an epoch takes; dropout and learning rates do not."""
    idle = {item.name for item in dataclasses.fields(Recipe)} - set(PACE)
    return {name: value for name, value in config.items() if name not in idle and not name.endswith("dropout")}


def _distance(one: Config, other: Config) -> tuple[int, float]:
    """How far apart two configurations are: how many settings differ, then how much."""
    pairs = [(one.get(name), other.get(name)) for name in one.keys() | other.keys()]
    different = [(a, b) for a, b in pairs if a != b and canonical_json(a) != canonical_json(b)]  # lists were tuples
    # A plain difference ranks the values of one setting; where several differ, their number has decided already.
    return len(different), sum(
        abs(a - b) for a, b in different if isinstance(a, int | float) and isinstance(b, int | float)
    )
