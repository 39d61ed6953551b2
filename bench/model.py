"""What a model must be: the one interface between the harness and every file in models/."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.graph import Graph, Split
from bench.prepared import PrepareCache
from bench.space import Space
from bench.toml import read_toml

Schedule = Literal["constant", "warmup-linear", "warmup-cosine", "plateau"]  # of the learning rate, see bench/train.py
Stop = Literal["ranked", "loss", "accuracy", "both", "window", "never"]  # rules that end training, see bench/train.py


def added(default: Any) -> Any:
    """A setting that came after records existed: while it has its default, no cell's key knows of it."""
    return field(default=default, metadata={"added": True})


def read_settings(file: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return lane → dataset → settings from the TOML file beside a model's file.

    A lane's table `every` holds what all of its datasets share.
    """
    lanes: dict[str, Any] = read_toml(Path(file).with_suffix(".toml"))
    for datasets in lanes.values():
        shared = datasets.pop("every", {})
        datasets.update({name: {**shared, **settings} for name, settings in datasets.items()})
    return lanes


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; every model's Config extends it with its architecture.

    Names and defaults say which values are allowed (bench/settings.py refuses the others): a whole number is at least 1
    if its default is, otherwise at least 0; what ends in "dropout" is at least 0 and below 1; floats are finite.
    """

    optimizer: Literal["adam", "adamw"] = "adamw"  # adam couples weight decay with the gradient, adamw does not
    learning_rate: float = 1e-3  # the peak where there is a schedule
    weight_decay: float = 0.0  # where `param_groups` puts it
    schedule: Schedule = "constant"
    warmup_updates: int = 0  # warmup-*: updates until the peak is reached
    decay_updates: int = 0  # warmup-*: the update at which the final rate is reached
    final_learning_rate: float = 0.0  # warmup-*: the rate from then on; plateau: below it training ends
    clip_norm: float = 0.0  # gradient-norm clipping; 0 means none
    batch_size: int = 0  # training nodes per update; 0 means all of them
    evaluation_batch: int = 0  # nodes per chunk when predicting; 0 means all of them
    max_epochs: int = 1000  # training ends there if no rule ended it before
    evaluate_every: int = 1  # epochs between two looks at the validation nodes
    stop: Stop = "ranked"  # see bench/train.py
    patience: int = 50  # evaluations without progress before training ends; the window's length for "window"
    metric: str = added("accuracy")  # the dataset's: what stopping, pruning and tables go by (bench/metrics.py)
    plateau_factor: float = added(0.5)  # plateau: what the rate is multiplied by
    plateau_patience: int = added(10)  # plateau: evaluations without a lower loss that are put up with before that


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
        """What the model decided by itself (a strategy, a variant); stands in the record."""
        return {}
