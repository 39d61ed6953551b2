"""GPR-GNN: a small network predicts each node on its own, then a learnt polynomial of the adjacency spreads it.

Paper: Chien, Peng, Li, Milenkovic: "Adaptive Universal Generalized PageRank Graph Neural Network", ICLR 2021.
Settings: the authors' script for Pubmed, Computer and Photo. It trains and validates on 2.5 % of the nodes each, not on
60/20/20 splits. Nothing is published for the other graphs; their defaults are the script's for the citation graphs, on
features as they are (row-normalised bags of words with hundreds of words per node are so small that it learns slowly).

Where this knowingly differs from the official code:
  * γ is kept in single precision; the official parameter is double by accident of its origin.
  * Existing self-loops (Photo has one, Pubmed three) get weight 2, as "A + I" says; PyG, and so the official code,
    keeps them at 1.
  * The stopping rule is asked from the 201st epoch on, one epoch earlier than there.
  * γ cannot be given entry by entry (the official initialisation "WS").
γ is learnt at the rate of all other weights but without weight decay, and may become negative. Feature dropout acts on
the stored entries of the features; on dense features that is the official dropout.
Full batch; inference is one forward pass over the whole graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bench.graph import Graph, Split
from bench.model import Model, Recipe, Stop
from bench.prepared import PrepareCache
from models.kernels.diffusion import Polynomial
from models.kernels.full_batch import FeaturesAndAdjacency, estimate_memory, linear


@dataclass(frozen=True)
class GPRGNNConfig(Recipe):
    """GPR-GNN's architecture and recipe; the defaults are for graphs without author settings."""

    hidden: int = 64  # width of the hidden layer
    steps: int = 10  # K: the highest power of the adjacency
    initialisation: Literal["PPR", "NPPR", "SGC", "Random"] = "PPR"  # what γ starts from
    alpha: float = 0.1  # PPR: teleport probability; NPPR: how fast γ falls
    initial_step: int = 0  # SGC: the power that starts with all the weight
    dropout: float = 0.5  # on the features and on the hidden layer
    propagation_dropout: float = 0.5  # on the predictions, before they are spread
    normalize_features: bool = False  # rows of the feature matrix sum to 1

    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: float = 1e-2
    weight_decay: float = 5e-4  # on all but γ
    max_epochs: int = 1000
    stop: Stop = "window"
    patience: int = 200

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha must lie between 0 and 1, not {self.alpha}")
        if self.initial_step > self.steps:
            raise ValueError(f"initial_step must be at most steps ({self.steps}), not {self.initial_step}")


_AUTHORS: dict[str, Any] = {
    "hidden": 64,
    "steps": 10,
    "initialisation": "PPR",
    "dropout": 0.5,
    "propagation_dropout": 0.5,
    "normalize_features": True,
    "max_epochs": 1000,
    "stop": "window",
    "patience": 200,
}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "author": {
        "pubmed": {**_AUTHORS, "learning_rate": 0.05, "alpha": 0.2, "weight_decay": 5e-4},
        "computer": {**_AUTHORS, "learning_rate": 0.05, "alpha": 0.5, "weight_decay": 0.0},
        "photo": {**_AUTHORS, "learning_rate": 0.01, "alpha": 0.5, "weight_decay": 0.0},
    }
}


class GPRGNN(Model):
    """Σ γ_k Â^k H over k = 0..K, with H = ReLU(X W1 + b1) W2 + b2 and γ learnt."""

    name = "gprgnn"
    title = "GPRGNN"
    aliases = ("gpr-gnn",)
    group = "gnn"
    paper = "Chien et al., Adaptive Universal Generalized PageRank Graph Neural Network, ICLR 2021"
    revision = 1
    Config = GPRGNNConfig
    settings = SETTINGS
    spaces = {  # noqa: RUF012
        "wide": {
            "hidden": (64, 128, 256),
            "initialisation": ("PPR", "SGC", "Random"),
            "alpha": (0.1, 0.2, 0.5, 0.9),
            "initial_step": (0, 10),
            "dropout": (0.2, 0.5, 0.8),
            "propagation_dropout": (0.0, 0.5, 0.7),
            "normalize_features": (True, False),
            "learning_rate": (0.002, 0.01, 0.05),
            "weight_decay": (0.0, 5e-4),
        }
    }

    def __init__(self, graph: Graph, prepared: FeaturesAndAdjacency, config: GPRGNNConfig) -> None:
        super().__init__(graph, prepared, config)
        self.features, self.adjacency = prepared.features, prepared.adjacency
        self.first = nn.Linear(graph.num_features, config.hidden)  # initialised by torch, as in the official code
        self.second = nn.Linear(config.hidden, graph.num_classes)
        self.gamma = nn.Parameter(initial_gamma(config))
        self.dropout = nn.Dropout(config.dropout)
        self.propagation_dropout = nn.Dropout(config.propagation_dropout)

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> FeaturesAndAdjacency:
        return FeaturesAndAdjacency.of(graph, row_normalize=config.normalize_features)

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int:
        return estimate_memory(graph, config.hidden, per_node=6 * config.hidden + 8 * graph.num_classes)

    def param_groups(self) -> list[dict[str, Any]]:
        network = [*self.first.parameters(), *self.second.parameters()]
        return [{"params": network}, {"params": [self.gamma], "weight_decay": 0.0}]

    def forward(self, nodes: Tensor) -> Tensor:
        return self.logits()[nodes]

    def predict(self, nodes: Tensor) -> Tensor:
        return self(nodes)  # one pass over the graph serves all nodes, so there is nothing to gain from chunks

    def logits(self) -> Tensor:
        """Class scores of all nodes."""
        features = self.features.to(self.device).dropped(self.config.dropout if self.training else 0.0)
        hidden = torch.relu(linear(features, self.first))
        local = self.propagation_dropout(self.second(self.dropout(hidden)))
        result: Tensor = Polynomial.apply(local, self.gamma, self.adjacency)
        return result

    def choices(self) -> dict[str, str]:
        return {"features": self.features.storage}


def initial_gamma(config: GPRGNNConfig) -> Tensor:
    """The K + 1 weights that training starts from."""
    powers, alpha = torch.arange(config.steps + 1, dtype=torch.float64), config.alpha
    if config.initialisation == "SGC":
        gamma = (powers == config.initial_step).double()
    elif config.initialisation == "PPR":  # the last one takes what the truncated series leaves
        gamma = alpha * (1.0 - alpha) ** powers
        gamma[-1] = (1.0 - alpha) ** config.steps
    else:
        gamma = alpha**powers if config.initialisation == "NPPR" else 2.0 * torch.rand(config.steps + 1).double() - 1.0
        gamma = gamma / gamma.abs().sum()
    return gamma.float()
