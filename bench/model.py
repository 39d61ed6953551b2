"""What a model must be: the one interface between the harness and every file in models/."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.graph import Graph, Split
from bench.prepared import PrepareCache
from bench.recipe import Recipe, Schedule, Stop, added, read_settings
from bench.space import Space

__all__ = ["Model", "Recipe", "Schedule", "Stop", "added", "read_settings"]


class Model(nn.Module):
    """Base class of all models. A minimal one sets the class attributes and writes `__init__` and `forward`."""

    name: ClassVar[str] = ""  # how users type it
    title: ClassVar[str] = ""  # how tables print it
    aliases: ClassVar[tuple[str, ...]] = ()
    group: ClassVar[str] = ""  # "gnn", "scalable" or "transformer": the three families of the paper
    paper: ClassVar[str] = ""  # reference, one line
    revision: ClassVar[int] = 1  # raised whenever results may change
    Config: ClassVar[type[Recipe]] = Recipe
    # lane -> dataset -> the settings that differ from Config's defaults; "author" is the lane of the paper's authors
    settings: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}
    spaces: ClassVar[Mapping[str, Space]] = {}  # name -> what `tune` may choose from; "wide" is the usual one

    def __init__(self, graph: Graph, prepared: Any, config: Any) -> None:
        super().__init__()
        self.config = config
        self.labels = torch.from_numpy(graph.labels)  # known for the training nodes only

    # -- before training -----------------------------------------------------------------------------------------

    @classmethod
    def unsupported(cls, graph: Graph, config: Any) -> str | None:
        """Why this model cannot run on this graph at all, or None."""
        return None

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int | None:
        """Bytes of anonymous memory a cell will need at its peak, or None where no honest estimate exists."""
        return None

    @classmethod
    def estimate_disk(cls, graph: Graph, config: Any) -> int | None:
        """Bytes of the arrays that `prepare` will put through its cache, or None where no honest estimate exists."""
        return None

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Any:
        """Everything that is computed once, before the first step; what it puts through `cache` is shared by cells."""
        return None

    # -- training ------------------------------------------------------------------------------------------------

    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups for the optimiser; a method that exempts a parameter from weight decay says so here."""
        return [{"params": list(self.parameters())}]

    def batches(self, nodes: Tensor, training: bool) -> Iterator[Any]:
        """What the steps of one epoch (or the chunks of one prediction) see."""
        order = nodes[torch.randperm(len(nodes))] if training else nodes
        size = self.config.batch_size if training else self.config.evaluation_batch
        yield from order.split(size or max(len(order), 1))

    def loss(self, batch: Any) -> Tensor:
        """The scalar that one update minimises."""
        return functional.cross_entropy(self(batch), self.labels[batch].to(self.device))

    # -- evaluation (the caller sets eval mode and switches gradients off) ------------------------------------------

    def predict(self, nodes: Tensor) -> Tensor:
        """Class scores of these nodes (logits or log-probabilities), one row each, in their order."""
        return torch.cat([self(batch) for batch in self.batches(nodes, training=False)])

    def validate(self, nodes: Tensor) -> Tensor:
        """Scores used to select the best epoch; some methods validate more cheaply than they predict."""
        return self.predict(nodes)

    # -- odds and ends -----------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def choices(self) -> dict[str, str]:
        """What the model decided (a strategy, a variant); stands in the record."""
        return {}
