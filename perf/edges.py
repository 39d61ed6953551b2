"""GT and SAN against the same networks that form the vectors of all edges: peak memory of a few epochs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.cards import Card
from bench.datasets.catalogue import resolve
from bench.registry import find_model, scan
from bench.settings import resolve_settings
from models.gt import GT
from models.kernels.edges import CLAMP, Edges, Operators, PlainOperators
from models.san import SAN
from perf.cases import GB, Options, open_data, write_split
from perf.child import run_ours
from perf.measure import Measurement, measure, scratch_folder
from perf.table import Row

MODELS = {"gt": 3.0, "san": 2.0}  # and the least that the reference's memory must be, as a multiple of ours


@dataclass(frozen=True)
class EdgeAttention:
    """Default settings on one dataset; both take turns, each time in a separate process."""

    name: str = "edge-attention"
    dataset: str = "computer"
    epochs: int = 3
    rounds: int = 1

    @property
    def about(self) -> str:
        return f"peak memory of {', '.join(MODELS)} on {self.dataset} against vectors stored per edge"

    def run(self, options: Options) -> list[Row]:
        stored = open_data(self.dataset, options)
        [dataset] = resolve(self.dataset)
        rows = []
        with scratch_folder() as folder:
            split = write_split(folder / "split.npz", stored.graph, dataset.split_rule)
            for model, target in MODELS.items():
                config = resolve_settings(find_model(model), dataset.settings_name, "default").values
                task = {"case": self.dataset, "folder": str(stored.folder), "rule": dataset.split_rule, "model": model}
                more = {"config": config, "split": str(split), "epochs": options.epochs or self.epochs}
                rows += self._compare(model, target, {**task, **more}, options)
        return rows

    def _compare(self, model: str, target: float, task: dict[str, Any], options: Options) -> list[Row]:
        measure({**task, "kind": "ours", "epochs": 1}, options.threads)  # compiles
        taken: dict[str, list[Measurement]] = {"perf.edges:run_materialised": [], "ours": []}
        for number in range(1, (options.rounds or self.rounds) + 1):
            for kind, measurements in taken.items():
                measurements.append(measure({**task, "kind": kind}, options.threads))
                result = measurements[-1]
                options.say(
                    f"{self.name}: {model}, {kind}, round {number}: {result.peak_resident / GB:.2f} GB, "
                    f"{result.per_epoch:.3f} s per epoch, training loss {result.values['loss']:.5f}"
                )
        reference, ours = taken.values()

        def row(what: str, value: Callable[[Measurement], float], target: float | None) -> Row:
            of_ours, of_reference = (statistics.median(map(value, side)) for side in (ours, reference))
            return Row(f"{self.name}-{self.dataset}", f"{model}: {what}", of_ours, of_reference, target)

        return [
            row("peak memory, GB", lambda taken: taken.peak_resident / GB, target),
            row("peak anonymous memory, GB", lambda taken: taken.peak_anonymous / GB, None),
            row("seconds per epoch", lambda taken: taken.per_epoch, None),
        ]


# -- the reference ----------------------------------------------------------------------------------------------------


def run_materialised(task: dict[str, Any]) -> dict[str, Any]:
    """In a separate process: the same cell, with the reference's edges."""
    scan().add(map(Card.of, (MaterialisedGT, MaterialisedSAN)))
    return run_ours({**task, "model": f"materialised-{task['model']}"})


class MaterialisedEdges(Edges):
    """Attention as one writes it with gathered rows: E x heads x d tensors, which autograd keeps."""

    def operators(self, device: torch.device) -> Operators:
        if device not in self._operators:
            self._operators[device] = PlainOperators(self, device)  # for its two index tensors; DGL is not needed
        return self._operators[device]

    def sums(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        operators = self.operators(query.device)
        assert isinstance(operators, PlainOperators)
        source, target = operators.source, operators.target
        products = query.index_select(0, target) * key.index_select(0, source)
        scores = products.sum(dim=-1, keepdim=True) * query.shape[-1] ** -0.5
        weights = scores.clamp(-CLAMP, CLAMP).exp()
        messages = value.index_select(0, source) * weights
        return (
            torch.zeros_like(value).index_add(0, target, messages),
            value.new_zeros((*value.shape[:-1], 1)).index_add(0, target, weights),
        )


class MaterialisedGT(GT):
    """GT with the vectors of all edges in memory."""

    name = "materialised-gt"
    edge_kind = MaterialisedEdges


class MaterialisedSAN(SAN):
    """SAN with the vectors of all edges in memory; its positional encoder still works in chunks."""

    name = "materialised-san"
    edge_kind = MaterialisedEdges
