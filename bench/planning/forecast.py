"""What the cells of a request will take, column by column, and which of them fit into a budget."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.cells import Cell, canonical_json
from bench.datasets.catalogue import Dataset
from bench.datasets.store import Stored
from bench.datasets.twin_specs import TWINS
from bench.model import Model
from bench.planning.estimate import Forecaster, Speed
from bench.prepared import list_entries
from bench.sizes import format_size

RECORDS, PILOT, NEIGHBOURS = "records", "pilot", "neighbours"  # what a forecast can rest on


@dataclass(eq=False)
class Column:
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
        """Of one cell; None where nobody knows."""
        if self.failure:
            return self.failed_after
        return None if self.speed is None else self.speed.fixed + self.epochs * self.speed.epoch

    @property
    def total(self) -> float | None:
        """Of all cells that are to be run."""
        return None if self.seconds is None else len(self.todo) * self.seconds

    @property
    def disk(self) -> float | None:
        """Bytes of prepared arrays: what the model says, else what records show; None where nobody knows."""
        return self.kept if self.kept is not None or self.speed is None else self.speed.disk


def make_columns(cells: Sequence[Cell], todo: Iterable[Cell]) -> list[Column]:
    """The cells by column, in their order; a cell that was asked for twice is there once."""
    columns: dict[tuple[str, str, str], Column] = {}
    waiting = {cell.key for cell in todo}
    for cell in {cell.key: cell for cell in cells}.values():
        kind = (cell.dataset, cell.model, canonical_json(dict(cell.config)))
        column = columns.setdefault(kind, Column([]))
        column.cells.append(cell)
        if cell.key in waiting:
            column.todo.append(cell)
    return list(columns.values())


def judge(columns: Iterable[Column], forecaster: Forecaster, basis: str) -> list[Column]:
    """Give each the speed that records show; returns those with cells to run for which there is none."""
    unknown = []
    for column in columns:
        column.epochs = forecaster.epochs(column.first)
        column.speed = forecaster.speed(column.first)
        column.basis = basis if column.speed else ""
        if column.todo and column.speed is None:
            unknown.append(column)
    return unknown


def rows_of(columns: Iterable[Column]) -> list[list[Column]]:
    """The variants of one model on one dataset, in the order of the study."""
    rows: dict[tuple[str, str], list[Column]] = {}
    for column in columns:
        rows.setdefault((column.first.dataset, column.first.model), []).append(column)
    return list(rows.values())


def ends_of_rows(columns: Iterable[Column]) -> list[Column]:
    """The first and the last variant of each model and dataset: the smallest and the largest value of a sweep."""
    rows = rows_of(column for column in columns if column.todo)
    return [column for row in rows for column in (row[:1] + row[1:][-1:])]


def fill_between(row: Sequence[Column]) -> None:
    """Between two variants that are known lie the others, in equal steps; beyond them the nearest serves."""
    known = [(place, column.speed) for place, column in enumerate(row) if column.speed is not None]
    for place, column in enumerate(row):
        if column.speed is not None or column.failure or not known:
            continue
        low, before = max(
            ((at, speed) for at, speed in known if at < place), default=known[0], key=lambda pair: pair[0]
        )
        high, after = min(
            ((at, speed) for at, speed in known if at > place), default=known[-1], key=lambda pair: pair[0]
        )
        share = (place - low) / (high - low) if low < place < high else 0.0
        column.speed = (before if low < place else after).towards(after, share)
        column.basis = NEIGHBOURS


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
    columns: Iterable[Column], models: Iterable[type[Model]], stored: Mapping[str, Stored]
) -> dict[str, str]:
    """Note what each model expects to keep on disk; returns one line by model for those that fail to say."""
    by_name, failures = {model.name: model for model in models}, {}
    for column in columns:
        model, graph = by_name[column.first.model], stored[column.first.dataset].graph
        try:
            column.kept = model.estimate_disk(graph, model.Config(**column.first.config))
        except Exception as error:  # a matter of this model; its records may still tell
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            failures[model.name] = f"{model.name} cannot say what it will keep on disk: {reason}"
    return failures


def prepared_size(columns: Iterable[Column], private: bool = False) -> float:
    """Bytes of prepared arrays on disk; `private`: there are those of one cell at a time.

    Variants of a model on a dataset share arrays where they differ in numbers alone (the fewest hops are among the
    most), or in what leaves the size as it is, such as a readout.
    """
    sizes = [size for row in rows_of(columns) for size in _sizes_apart(row)]
    return max(sizes, default=0.0) if private else sum(sizes)


def _sizes_apart(row: Iterable[Column]) -> set[float]:
    """The largest of each kind of variants, kinds of the same size being taken for one."""
    largest: dict[str, float] = {}
    for column in row:
        config = column.first.config
        kind = canonical_json({name: value for name, value in config.items() if type(value) not in (int, float)})
        largest[kind] = max(largest.get(kind, 0.0), column.disk or 0.0)
    return set(largest.values())


def space_warning(columns: Iterable[Column], room: Room) -> str:
    """What to say where the prepared arrays will not fit, otherwise nothing; models may share some, hence "up to"."""
    size = prepared_size((column for column in columns if column.todo), room.private)
    if size <= room.size:
        return ""
    held = f", {format_size(room.held)} taken by earlier ones that can go" if room.held else ""
    return (
        f"the prepared arrays want up to {format_size(size)} of the disk, and there is room for "
        f"{format_size(room.size)} ({format_size(room.free)} free{held}, {format_size(room.limit)} at most): what does "
        "not fit stays in memory, or pushes out what others must then compute again. Make room or set BENCH_CACHE to "
        "another folder."
    )


def free_space(folder: Path) -> int:
    """Bytes that are free where this folder is or will be."""
    return shutil.disk_usage(next(place for place in (folder, *folder.absolute().parents) if place.exists())).free


def expected_size(dataset: Dataset) -> int | None:
    """Bytes of a catalogued graph in the store, before it is there; None where nobody knows its shape."""
    shape = TWINS.get(dataset.name if dataset.is_twin else f"{dataset.name}-twin")
    if shape is None:
        return None
    values = shape.features if shape.words is None else 2 * shape.words.per_row  # a sparse one has its column beside it
    return round(4 * (shape.num_entries + shape.nodes * (values + 3)))  # row pointers; labels take 8 bytes


def within_budget(columns: Iterable[Column], seconds: float) -> list[Cell]:
    """The cells that fit: first trials before second ones, and among these the shortest first.

    So every variant gets as many trials as the others wherever that is possible, and as many as possible get one. What
    failed as a pilot, or was too slow for one, is not picked.
    """
    queue = [
        (number, column.seconds, cell)
        for column in columns
        if column.seconds is not None and not column.failure
        for number, cell in enumerate(column.todo)
    ]
    chosen, left = [], seconds
    for _, needed, cell in sorted(queue, key=lambda item: item[:2]):
        if needed <= left:
            chosen.append(cell)
            left -= needed
    return chosen
