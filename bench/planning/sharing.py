"""How a machine is shared between cells: how many run at the same time where the user did not say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bench.cells import Cell, canonical_json
from bench.graph import Graph
from bench.model import Model

SMALL = 50_000  # nodes: up to here operations are so short that a second thread per cell gains less than a second cell
LIBRARIES = 2**29  # bytes of a process before its model asks for any
UNKNOWN = 2**31  # bytes for a model that does not say


def are_small(graphs: Iterable[Graph]) -> bool:
    """Whether cells on these graphs had better run side by side, one thread each."""
    return all(graph.num_nodes <= SMALL for graph in graphs)


def cells_at_once(
    cells: Iterable[Cell],
    models: Iterable[type[Model]],
    graphs: Mapping[str, Graph],
    processors: int,
    memory: int,
    limit: int | None = None,
) -> int:
    """One per processor where every graph is small and the memory is enough for the largest cells, otherwise fewer.

    `graphs` by dataset name; `memory` bytes are there for all cells, and `limit` is the most that one of them may take.
    """
    cells, by_name = list(cells), {model.name: model for model in models}
    if not are_small(graphs[cell.dataset] for cell in cells):
        return 1
    kinds = {(cell.model, cell.dataset, canonical_json(dict(cell.config))): cell for cell in cells}
    expected = [expected_memory(by_name[cell.model], graphs[cell.dataset], cell) for cell in kinds.values()]
    largest = max((UNKNOWN if size is None else size for size in expected), default=0)
    each = LIBRARIES + (largest if limit is None else min(largest, limit))
    return max(1, min(len(cells), processors, memory // each))


def expected_memory(model: type[Model], graph: Graph, cell: Cell) -> int | None:
    """Bytes that the model itself expects the cell to take; None where it does not say."""
    try:
        return model.estimate_memory(graph, model.Config(**cell.config))
    except Exception:  # the cell itself will fail with it, and say so
        return None
