"""Full-batch baselines against the same networks on torch_geometric's edge_index path with dense features."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.datasets.catalogue import resolve
from bench.datasets.store import open_arrays
from bench.registry import find_model
from bench.settings import resolve_settings
from perf.cases import GB, Options, open_data, write_split
from perf.child import load_split
from perf.measure import Measurement, measure, scratch_folder
from perf.table import Row

MODELS = ("gcn", "appnp", "gprgnn")
STEPS = 10  # of propagation, in APPNP and GPRGNN


@dataclass(frozen=True)
class FullBatch:
    """Default settings on one dataset; both take turns, each time in a separate process."""

    name: str = "full-batch"
    dataset: str = "physics"
    epochs: int = 4
    rounds: int = 2
    ratio: float = 10

    @property
    def about(self) -> str:
        return f"epochs of {', '.join(MODELS)} on {self.dataset} against torch_geometric's edge_index path"

    def run(self, options: Options) -> list[Row]:
        stored = open_data(self.dataset, options)
        [dataset] = resolve(self.dataset)
        rows = []
        with scratch_folder() as folder:
            split = write_split(folder / "split.npz", stored.graph, dataset.split_rule)
            for model in MODELS:
                config = resolve_settings(find_model(model), dataset.settings_name, "default").values
                task: dict[str, Any] = {
                    "case": self.dataset,
                    "folder": str(stored.folder),
                    "rule": dataset.split_rule,
                    "model": model,
                }
                task |= {"config": config, "split": str(split), "epochs": options.epochs or self.epochs}
                rows += self._compare(model, task, options)
        return rows

    def _compare(self, model: str, task: dict[str, Any], options: Options) -> list[Row]:
        measure({**task, "kind": "ours", "epochs": 1}, options.threads)  # compiles
        taken: dict[str, list[Measurement]] = {"perf.full_batch:run_edge_index": [], "ours": []}
        for number in range(1, (options.rounds or self.rounds) + 1):
            for kind, measurements in taken.items():
                measurements.append(measure({**task, "kind": kind}, options.threads))
                options.say(
                    f"{self.name}: {model}, {kind}, round {number}: {measurements[-1].per_epoch:.3f} s per epoch"
                )
        reference, ours = taken.values()

        def row(what: str, value: Callable[[Measurement], float], target: float | None) -> Row:
            median, theirs = (statistics.median(map(value, side)) for side in (ours, reference))
            return Row(f"{self.name}-{self.dataset}", f"{model}: {what}", median, theirs, target)

        return [
            row("seconds per epoch", lambda taken: taken.per_epoch, self.ratio),
            row("peak memory, GB", lambda taken: taken.peak_resident / GB, None),
        ]


def run_edge_index(task: dict[str, Any]) -> dict[str, Any]:
    """In a separate process: training epochs with validation, as a script on torch_geometric would do them."""
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    torch.set_num_threads(task["threads"])
    split, labels_array = load_split(task)
    graph, config = open_arrays(Path(task["folder"])), task["config"]
    start = time.perf_counter()
    features = torch.from_numpy(graph.features.toarray() if sp.issparse(graph.features) else graph.features)
    sources = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    edges = torch.from_numpy(np.stack([sources, graph.indices.astype(np.int64)]))
    labels, train, val = (torch.from_numpy(array) for array in (labels_array, split.train, split.val))
    model = _edge_index_model(task["model"], graph.num_features, graph.num_classes, config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["learning_rate"], weight_decay=config["weight_decay"])
    before, epochs, accuracy = time.perf_counter() - start, [], 0.0
    for _ in range(task["epochs"]):
        start = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(features, edges)[train], labels[train]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = float((model(features, edges)[val].argmax(1) == labels[val]).float().mean())
        epochs.append(time.perf_counter() - start)
    return {"before": before, "epochs": epochs, "accuracy": accuracy}


def _edge_index_model(name: str, width: int, classes: int, config: dict[str, Any]) -> Any:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
    from torch_geometric.nn import APPNP, GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = GCNConv(width, config["hidden"]), GCNConv(config["hidden"], classes)

        def forward(self, features: Tensor, edges: Tensor) -> Tensor:
            hidden = self.first(functional.dropout(features, config["dropout"], self.training), edges).relu()
            return self.last(functional.dropout(hidden, config["dropout"], self.training), edges)

    class Propagated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(width, config["hidden"]), nn.Linear(config["hidden"], classes)
            self.steps = APPNP(STEPS, 0.1)
            self.weights = nn.Parameter(torch.full((STEPS + 1,), 1 / (STEPS + 1)))

        def forward(self, features: Tensor, edges: Tensor) -> Tensor:
            hidden = self.first(functional.dropout(features, config["dropout"], self.training)).relu()
            hidden = self.last(functional.dropout(hidden, config["dropout"], self.training))
            if name == "appnp":
                return self.steps(hidden, edges)
            index, values = gcn_norm(edges, num_nodes=len(features))
            total = self.weights[0] * hidden
            for step in range(1, STEPS + 1):
                hidden = torch.zeros_like(hidden).index_add(0, index[1], values[:, None] * hidden[index[0]])
                total = total + self.weights[step] * hidden
            return total

    return Convolutions() if name == "gcn" else Propagated()
