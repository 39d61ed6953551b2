"""Golden cells: short trainings of every model and each of its options, whose numbers are kept in tests/golden/.

Records stay valid as long as these numbers do (tests/test_golden.py compares them). Whoever changes what a model
computes raises its `revision`, whoever changes the loop, the splits or the seeding raises `PROTOCOL_REVISION`, and
makes the numbers again in the same commit:

    python tests/golden_cells.py            # of every model
    python tests/golden_cells.py gcn gat    # of these
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from graphs import random_graph

from bench import worker
from bench.cells import Cell
from bench.datasets.store import _write_folder
from bench.graph import UNKNOWN_LABEL, Graph
from bench.model import Model, Recipe
from bench.registry import scan
from bench.splits import draw_split, rule_for, seeds_for

FOLDER = Path(__file__).parent / "golden"
DIGITS = 8  # significant ones that are kept; the comparison needs four
GRAPHS = {
    "dense": lambda: random_graph(),
    "sparse": lambda: random_graph(sparse=True),
    "larger": lambda: random_graph(seed=1, sparse=True, num_nodes=300, num_features=40),  # several blocks of rows
}
# Enough epochs to see every update rule at work, few enough that rounding does not grow to 1e-4.
SHORT: dict[str, Any] = {"max_epochs": 4, "patience": 2, "evaluate_every": 1, "learning_rate": 1e-3}
LARGER = (("max_epochs", 2),)
MEMBERS = {field.name for field in dataclasses.fields(Recipe)}
LOOP_MODEL = "gcn"  # the loop is the same for all: one model goes through its rules
NUMBERS: dict[str, list[dict[str, Any]]] = {  # options that are neither a choice nor a switch
    "gat": [{"output_heads": 4}, {"layers": 3, "residual": True, "norm": "layer"}, {"heads": 1, "linear_head": True}],
    "gcn": [{"layers": 4, "residual": True, "norm": "layer"}, {"layers": 1}],
    "gprgnn": [{"initialisation": "SGC", "initial_step": 3}],
    "grandplus": [{"consistency": 0.0}, {"unlabelled": 8, "unlabelled_batch": 3}, {"layers": 1}, {"batch_size": 7}],
    "graphgps": [{"attention": "transformer", "attention_dropout": 0.3}, {"attention_dropout": 0.3}],
    "graphormer": [{"near_start": 2.0}, {"attention_dropout": 0.3}, {"distances": 3, "degrees": 4}],
    "graphsaint": [{"architecture": "1-1-0", "combine": "add"}, {"sampler": "edge", "normalization": False}],
    "gt": [{"input_dropout": 0.3, "layers": 1}],
    "nagphormer": [{"hops": 1}, {"layers": 2, "batch_size": 11}, {"tokens": "projected", "readout": "sum"}],
    "nagphormer+": [{"global_augmentation": False, "local_augmentation": False}, {"augment_probability": 1.0}],
    "nodeformer": [{"relational_order": 0}, {"dropout": 0.3}, {"batch_size": 11}, {"edge_weight": 0.0}],
    "pprgo": [{"propagation_steps": 0}, {"layers": 1}, {"top_k": 3}],
    "san": [{"attention": "full", "gamma": 1.0}, {"input_dropout": 0.3, "layers": 1}],
}


@dataclass(frozen=True)
class GoldenCell:
    """One short training: which model, on which graph, with which settings beside its defaults."""

    model: str
    graph: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return " ".join([self.graph, *(f"{name}={value}" for name, value in self.settings)])


def golden_cells(model: type[Model]) -> list[GoldenCell]:
    """The default configuration on every graph, then each other choice of each option on the sparse one.

    A bias ahead of batch normalisation has no gradient but rounding, which Adam makes as large as any: it is left out.
    """
    found = [GoldenCell(model.name, graph, LARGER if graph == "larger" else ()) for graph in GRAPHS]
    changes = [*_choices(model.Config), *NUMBERS.get(model.name, [])]
    if model.name == LOOP_MODEL:
        changes += _loop_rules()
    found += [GoldenCell(model.name, "sparse", tuple(change.items())) for change in changes]
    return list(dict.fromkeys(found))


def _choices(config: type[Recipe]) -> Iterator[dict[str, Any]]:
    hints = get_type_hints(config)
    for field in dataclasses.fields(config):
        if field.name not in MEMBERS:
            kind = hints[field.name]
            allowed = get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else ()
            for choice in allowed:
                if choice != field.default:
                    yield {field.name: choice, **({"bias": False} if choice == "batch" and "bias" in hints else {})}


def _loop_rules() -> Iterator[dict[str, Any]]:
    hints = get_type_hints(Recipe)
    updates = {"warmup_updates": 3, "decay_updates": 9, "final_learning_rate": 1e-4}
    for schedule in get_args(hints["schedule"]):
        yield {"schedule": schedule, "max_epochs": 12, "plateau_patience": 1, "stop": "never", **updates}
    for rule in get_args(hints["stop"]):
        yield {"stop": rule, "max_epochs": 40, "patience": 3, "learning_rate": 0.03}
    yield from ({"optimizer": optimizer, "weight_decay": 0.01} for optimizer in get_args(hints["optimizer"]))
    yield {"clip_norm": 0.05, "evaluate_every": 3}
    yield from ({"split": rule} for rule in ("uniform-50/25/25", "total-5/8"))
    yield from ({"split_mode": mode} for mode in ("frozen", "sealed"))


class Unmetered:
    """Stands in for the worker's meter, whose sampling thread lives as long as its process."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[dict[str, Any]]:
        yield {}


def train_golden(golden: GoldenCell, folder: Path) -> dict[str, Any]:
    """Train as a worker would, and return what came of it."""
    graph: Graph = GRAPHS[golden.graph]()
    settings = dict(golden.settings)
    rule, mode = settings.pop("split", "uniform-60/20/20"), settings.pop("split_mode", "fresh")
    split_seed, seed = seeds_for(mode, base_seed=0, trial=1)
    split = draw_split(rule_for(rule, mode), graph.labels, graph.num_classes, split_seed)
    labels = graph.labels.copy()
    labels[split.test] = UNKNOWN_LABEL
    model = scan().models[golden.model]
    config = dataclasses.asdict(model.Config(**{**SHORT, **settings}))
    cell = Cell(golden.model, model.revision, "golden", graph.fingerprint, config, split.rule, split_seed, seed, {})
    arrays = folder / golden.graph
    if not arrays.exists():
        _write_folder(arrays, graph)
    job = worker.Job(cell, model.__module__, model.__name__, arrays, labels, split)
    result = worker._steps(job, Unmetered(), "cpu", lambda kind, content: None)  # type: ignore[arg-type]
    training = result["training"]
    return {
        "epochs": training["epochs"],
        "best_epoch": training["best_epoch"],
        "stopped_by": training["stopped_by"],
        "train_loss": [_rounded(row[0]) for row in training["curve"]],
        "val_loss": [_rounded(row[1]) for row in training["curve"]],
        "val_accuracy": [_rounded(row[2]) for row in training["curve"]],
        "test_classes": "".join(map(str, result["test"].tolist())),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def kept_file(model: str) -> Path:
    return FOLDER / f"{model}.json"


def kept(model: str) -> dict[str, Any] | None:
    """The numbers that are committed for this model, None if it has none yet."""
    file = kept_file(model)
    return json.loads(file.read_text()) if file.exists() else None


def regenerate(names: list[str]) -> None:
    """Train the golden cells of these models anew and keep their numbers."""
    models = scan().models
    with tempfile.TemporaryDirectory() as folder:
        for name in names or sorted(models):
            values = {cell.name: train_golden(cell, Path(folder)) for cell in golden_cells(models[name])}
            lines = ",\n".join(f"{json.dumps(cell)}: {json.dumps(value)}" for cell, value in values.items())
            kept_file(name).write_text("{\n" + lines + "\n}\n")
            print(f"{name}: {len(values)} golden cells in {kept_file(name).name}")


if __name__ == "__main__":
    regenerate(sys.argv[1:])
