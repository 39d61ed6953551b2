"""What the cells of a request will take, condition by condition, and which of them fit into a budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.cells import Cell, canonical_json
from bench.datasets.store import Stored
from bench.files import free_space
from bench.model import Model
from bench.planning.estimate import Forecaster, Speed
from bench.prepared import list_entries
from bench.sizes import format_size

RECORDS, PILOT, NEIGHBOURS = "records", "pilot", "neighbours"  # what a forecast can rest on


@dataclass(eq=False)
class Condition:
    """Cells that differ in nothing but their trial: those that are to be run, and what one of them will take."""

    cells: list[Cell]
    todo: list[Cell] = field(default_factory=list)
    speed: Speed | None = None
    epochs: float = 0.0
    basis: str = ""
    failure: str = ""  # what its pilot died of: the cells can be expected to do so too
    failed_after: float | None = None  # seconds
    at_least: bool = False  # the pilot ran out of time: it will take as long as this or longer
    kept: int | None = None  # bytes of prepared arrays, as the model itself expects

    @property
    def first(self) -> Cell:
        return self.cells[0]

    @property
    def seconds(self) -> float | None:
        """Of one cell; None where it is unknown."""
        if self.failure:
            return self.failed_after
        return None if self.speed is None else self.speed.seconds(self.epochs)

    @property
    def total(self) -> float | None:
        """Of all cells that are to be run."""
        return None if self.seconds is None else len(self.todo) * self.seconds

    @property
    def disk(self) -> float | None:
        """Bytes of prepared arrays: what the model says, else what records show; None where it is unknown."""
        return self.kept if self.kept is not None or self.speed is None else self.speed.disk


def make_conditions(cells: Sequence[Cell], todo: Iterable[Cell]) -> list[Condition]:
    """The cells by condition, in their order; a cell that was asked for twice is there once."""
    conditions: dict[tuple[str, str, str], Condition] = {}
    waiting = {cell.key for cell in todo}
    for cell in {cell.key: cell for cell in cells}.values():
        kind = (cell.dataset, cell.model, canonical_json(dict(cell.config)))
        condition = conditions.setdefault(kind, Condition([]))
        condition.cells.append(cell)
        if cell.key in waiting:
            condition.todo.append(cell)
    return list(conditions.values())


def judge(conditions: Iterable[Condition], forecaster: Forecaster, basis: str) -> list[Condition]:
    """Give each the speed that records show; returns those with cells to run for which there is none."""
    unknown = []
    for condition in conditions:
        condition.epochs = forecaster.epochs(condition.first)
        condition.speed = forecaster.speed(condition.first)
        condition.basis = basis if condition.speed else ""
        if condition.todo and condition.speed is None:
            unknown.append(condition)
    return unknown


def rows_of(conditions: Iterable[Condition]) -> list[list[Condition]]:
    """The variants of one model on one dataset, in the order of the study."""
    rows: dict[tuple[str, str], list[Condition]] = {}
    for condition in conditions:
        rows.setdefault((condition.first.dataset, condition.first.model), []).append(condition)
    return list(rows.values())


def ends_of_rows(conditions: Iterable[Condition]) -> list[Condition]:
    """The first and the last variant of each model and dataset: the smallest and the largest value of a sweep."""
    rows = rows_of(condition for condition in conditions if condition.todo)
    return [condition for row in rows for condition in (row[:1] + row[1:][-1:])]


def fill_between(row: Sequence[Condition]) -> None:
    """Between two variants that are known lie the others, in equal steps; beyond them the nearest serves."""
    known = [(place, condition.speed) for place, condition in enumerate(row) if condition.speed is not None]
    for place, condition in enumerate(row):
        if condition.speed is not None or condition.failure or not known:
            continue
        low, before = ([pair for pair in known if pair[0] < place] or known[:1])[-1]
        high, after = ([pair for pair in known if pair[0] > place] or known[-1:])[0]
        share = (place - low) / (high - low) if low < place < high else 0.0
        condition.speed = (before if low < place else after).towards(after, share)
        condition.basis = NEIGHBOURS


# -- space on disk ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Room:
    """Where prepared arrays are kept: bytes that are free, bytes of earlier ones, and the most that is kept."""

    free: int
    held: int
    limit: int
    private: bool = False  # each cell prepares for itself alone and keeps nothing

    @property
    def size(self) -> int:
        """Bytes that arrays can take. Earlier ones go to make room, or are the very ones that are wanted."""
        return min(self.limit, self.free + self.held)


def find_room(folder: Path, limit: int, private: bool = False) -> Room:
    """The room in a cache folder; a cell that prepares for itself can push nothing out."""
    held = 0 if private else sum(entry.size for entry in list_entries(folder))
    return Room(free_space(folder), held, limit, private)


def ask_models(
    conditions: Iterable[Condition], models: Iterable[type[Model]], stored: Mapping[str, Stored]
) -> dict[str, str]:
    """Note what each model expects to keep on disk; returns one line by model for those that fail to say."""
    by_name, failures = {model.name: model for model in models}, {}
    for condition in conditions:
        model, graph = by_name[condition.first.model], stored[condition.first.dataset].graph
        try:
            condition.kept = model.estimate_disk(graph, model.Config(**condition.first.config))
        except Exception as error:  # a matter of this model; its records may still tell
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            failures[model.name] = f"{model.name} cannot say what it will keep on disk: {reason}"
    return failures


def prepared_size(conditions: Iterable[Condition], private: bool = False) -> float:
    """Bytes of prepared arrays on disk; `private`: there are those of one cell at a time.

    Variants of a model on a dataset share arrays where they differ in numbers alone (the fewest hops are among the
    most), or in what leaves the size as it is, such as a readout.
    """
    sizes = [size for row in rows_of(conditions) for size in _sizes_apart(row)]
    return max(sizes, default=0.0) if private else sum(sizes)


def _sizes_apart(row: Iterable[Condition]) -> set[float]:
    """The largest of each kind of variants, kinds of the same size being taken for one."""
    largest: dict[str, float] = {}
    for condition in row:
        config = condition.first.config
        kind = canonical_json({name: value for name, value in config.items() if type(value) not in (int, float)})
        largest[kind] = max(largest.get(kind, 0.0), condition.disk or 0.0)
    return set(largest.values())


def space_warning(conditions: Iterable[Condition], room: Room) -> str:
    """What to say where the prepared arrays will not fit, otherwise nothing; models may share some, hence "up to"."""
    size = prepared_size((condition for condition in conditions if condition.todo), room.private)
    if size <= room.size:
        return ""
    held = f", {format_size(room.held)} taken by earlier ones that can go" if room.held else ""
    return (
        f"the prepared arrays want up to {format_size(size)} of the disk, and there is room for "
        f"{format_size(room.size)} ({format_size(room.free)} free{held}, {format_size(room.limit)} at most): what does "
        "not fit stays in memory, or pushes out what others must then compute again. Make room or set BENCH_CACHE to "
        "another folder."
    )


def within_budget(conditions: Iterable[Condition], seconds: float) -> list[Cell]:
    """The cells that fit: first trials before second ones, and among these the shortest first.

    So every variant gets as many trials as the others wherever that is possible, and as many as possible get one. What
    failed as a pilot, or was too slow for one, is not picked.
    """
    queue = [
        (number, condition.seconds, cell)
        for condition in conditions
        if condition.seconds is not None and not condition.failure
        for number, cell in enumerate(condition.todo)
    ]
    chosen, left = [], seconds
    for _, needed, cell in sorted(queue, key=lambda item: item[:2]):
        if needed <= left:
            chosen.append(cell)
            left -= needed
    return chosen
