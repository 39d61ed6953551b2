"""GraphSAINT, transductive: each update trains on a small sampled subgraph, with weights that undo the sampler's bias.

Paper: Zeng, Zhou, Srivastava, Kannan, Prasanna: "GraphSAINT: Graph Sampling Based Inductive Learning Method", ICLR
2020; official training is inductive.
Settings: lane `author` has Reddit, the one graph here that the official code covers with this network; of its Reddit
configurations the random-walk one is taken (2,000 roots, length 4), whose subgraphs hold every labelled node's
surroundings however few labels there are; frontier sampling and jumping knowledge, which others use, are not here. For
Amazon2M the authors publish a graph attention network, another model: no author settings. Lane `ogb` has the GraphSAGE
example of the Open Graph Benchmark for it (walks from all nodes, no normalisation) as far as this network can express
it: three summed layers, here each branch through its own ReLU, the input with dropout too, and rows of length 1 before
a linear classifier; 41 updates in each of its 20 epochs instead of 30. AMiner and the small graphs have nothing
published and get the defaults: the Reddit network with smaller subgraphs and dropout 0.3, the best of six by validation
accuracy on Photo's sealed split (one trial each of at most 100 epochs, in the ledger); then came 0.1, and with it the
edge sampler, a tenth of the learning rate, width 256 or walks from all nodes. About 20 % of each fresh test set on
Photo were its validation data: a small bias.

Where this knowingly differs from the official code:
  * Training is transductive: the sampler (models/kernels/subgraphs.py) sees the whole graph, not only the edges among
    training nodes (with 820 labels among 232,965 nodes there are hardly any). The counts C_v and C_uv are of all nodes,
    aggregation weights C_v / C_uv (at most 1e4; 0.1 where both are 0) are used everywhere, rows are divided by the
    degree in the whole graph, and only labelled nodes have a loss, with weight (subgraphs / C_v) / labelled nodes.
  * A subgraph without a labelled node gets one, drawn uniformly, before anything is counted.
  * Pre-sampled subgraphs that are used up come again in a new random order. The official code draws new ones, whose
    edges may never have been counted and would weigh 1e4; its own runs end before that. None is stored: each is a
    function of the seed and of its number, and is drawn again when its turn comes.
  * An epoch is (all nodes / budget) updates, at least one; official: (training nodes / budget). The budget is the
    number of nodes drawn, twice that of edges, or roots times length. Pre-sampling covers all nodes `coverage` times,
    or ends at ten times the subgraphs that full budgets would need; official: the training nodes, without an end.
  * With `stop=never` the later of two equally accurate states is kept. Features are standardised by the moments over
    all nodes (official: training nodes). The neighbours' mean comes after the linear map: the same with fewer columns.
  * The official optimiser never gets its weight decay; here it does, with 0 as the default.
As there, isolated nodes are never drawn by the node and edge samplers. Mini-batches: one subgraph per update.
Inference: on the whole graph, layer by layer in chunks of `evaluation_batch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.graph import Graph, Split
from bench.model import Model, Recipe, Stop, read_settings
from bench.prepared import PrepareCache
from models.kernels.dropout import dropped
from models.kernels.features import FeatureRows
from models.kernels.full_batch import glorot
from models.kernels.layerwise import run_layers
from models.kernels.propagation import ScaledAdjacency
from models.kernels.subgraphs import Subgraph, SubgraphStream, estimate_memory

Prepared = tuple[SubgraphStream, FeatureRows]


@dataclass(frozen=True)
class GraphSAINTConfig(Recipe):
    """GraphSAINT's architecture, sampler and recipe; the defaults are for graphs without author settings."""

    architecture: str = "1-0-1-0"  # a layer each: 1 sees the node and its neighbours' mean, 0 only the node
    hidden: int = 128  # width of a branch (the node, its neighbours)
    combine: Literal["concat", "add"] = "concat"  # the branches of a layer
    branch_norm: bool = True  # layer normalisation of each branch, after the activation
    dropout: float = 0.3  # on every layer's input and before the classifier
    sampler: Literal["node", "edge", "walk"] = "walk"  # how subgraphs are drawn, see the top of this file
    draws: int = 500  # nodes, edges or walks' roots drawn per subgraph
    walk_length: int = 4  # steps of a walk
    roots: Literal["training", "all"] = "training"  # where walks start
    normalization: bool = True  # undo the sampler's preferences; otherwise plain means within the subgraph
    coverage: float = 50.0  # pre-sampled subgraphs have this many times the graph's nodes in all
    standardize: bool = False  # every feature gets mean 0 and deviation 1

    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: float = 1e-2
    clip_norm: float = 5.0
    evaluation_batch: int = 16384
    max_epochs: int = 1000
    stop: Stop = "ranked"
    patience: int = 50

    def __post_init__(self) -> None:
        if not self.architecture or set(self.architecture.split("-")) - {"0", "1"}:
            raise ValueError(f"architecture must be zeros and ones such as 1-0-1-0, not '{self.architecture}'")
        if self.coverage <= 0:
            raise ValueError(f"coverage must be above 0, not {self.coverage}")

    @property
    def orders(self) -> list[int]:
        return [int(part) for part in self.architecture.split("-")]

    @property
    def widths(self) -> list[int]:
        """Of what each layer gives."""
        return [self.hidden * (order + 1 if self.combine == "concat" else 1) for order in self.orders]


class GraphSAINT(Model):
    """Layers of the node's own features and its neighbours' mean, trained on sampled subgraphs."""

    name = "graphsaint"
    title = "GraphSAINT"
    group = "scalable"
    paper = "Zeng et al., GraphSAINT: Graph Sampling Based Inductive Learning Method, ICLR 2020"
    revision = 1
    Config = GraphSAINTConfig
    settings = read_settings(__file__)
    spaces = {  # noqa: RUF012
        "wide": {
            "hidden": (128, 256, 512),
            "dropout": (0.0, 0.1, 0.2, 0.3, 0.5),
            "learning_rate": (1e-1, 1e-2, 1e-3, 1e-4),
            "architecture": ("1-0-1-0", "1-1-0", "1-1-1", "1-0-1-0-1-0"),
            "sampler": ("node", "edge", "walk"),
            "draws": (500, 1000, 2000, 4000, 20000),
            "standardize": (False, True),
        }
    }

    def __init__(self, graph: Graph, prepared: Prepared, config: GraphSAINTConfig) -> None:
        super().__init__(graph, prepared, config)
        self.subgraphs, self.features = prepared
        self.mean = ScaledAdjacency(graph, None, 1.0, 0.0)  # over the neighbours in the whole graph
        widths = [graph.num_features, *config.widths]
        self.layers: Any = nn.ModuleList([Layer(*shape, config) for shape in zip(config.orders, widths, strict=False)])
        self.classifier = nn.Linear(widths[-1], graph.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                glorot(module)

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int:
        return estimate_memory(graph, config, [graph.num_features, *config.widths])

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Prepared:
        return SubgraphStream.of(graph, split, config, seed, cache), FeatureRows(graph, config.standardize)

    def batches(self, nodes: Tensor, training: bool) -> Iterator[Any]:
        return self.subgraphs.epoch() if training else super().batches(nodes, training)

    def loss(self, batch: Subgraph) -> Tensor:
        nodes, labelled = torch.from_numpy(batch.nodes), torch.from_numpy(batch.labelled)
        hidden: Any = self.features.of(nodes).to(self.device).dropped(self.config.dropout)
        for at, layer in enumerate(self.layers):
            hidden = dropped(hidden, self.config.dropout) if at else hidden
            hidden = layer(hidden, batch.adjacency @ layer.send(hidden) if layer.order else None)
        logits = self.classify(hidden[labelled.to(self.device)])
        losses = functional.cross_entropy(logits, self.labels[nodes[labelled]].to(self.device), reduction="none")
        return losses @ torch.from_numpy(batch.loss_weights).to(self.device)

    def classify(self, hidden: Tensor) -> Tensor:
        """Logits from the last layer's output: rows of length 1, dropout, linear."""
        rate = self.config.dropout if self.training else 0.0
        return self.classifier(dropped(functional.normalize(hidden, dim=1), rate))

    def forward(self, nodes: Tensor) -> Tensor:
        """Logits of these nodes from the whole graph, as inference has them (no dropout, no gradient)."""
        return self.predict(nodes)

    @torch.no_grad()
    def predict(self, nodes: Tensor) -> Tensor:
        size = self.config.evaluation_batch
        logits = run_layers(list(self.layers), self.features, self.mean, nodes, size, self.device, self.classify)
        return logits[nodes].to(self.device)

    def choices(self) -> dict[str, str]:
        counts = self.subgraphs.counts
        subgraphs = "drawn afresh" if counts is None else f"{counts.subgraphs} pre-sampled"
        return {"sampler": self.config.sampler, "subgraphs": subgraphs}


class Layer(nn.Module):
    """Order 0: a dense layer. Order 1: also one on the neighbours' mean, the two joined. Dropout is the caller's."""

    def __init__(self, order: int, width: int, config: GraphSAINTConfig) -> None:
        super().__init__()
        self.order, self.concat = order, config.combine == "concat"
        self.linears: Any = nn.ModuleList([nn.Linear(width, config.hidden) for _ in range(order + 1)])
        norms = [nn.LayerNorm(config.hidden, eps=1e-9) if config.branch_norm else nn.Identity() for _ in self.linears]
        self.norms = nn.ModuleList(norms)

    def send(self, hidden: Any) -> Tensor:
        """What the neighbours' mean is taken of."""
        return hidden @ self.linears[1].weight.T

    def forward(self, hidden: Any, received: Tensor | None = None) -> Tensor:
        branches = [hidden @ self.linears[0].weight.T] + ([] if received is None else [received])
        parts = zip(branches, self.linears, self.norms, strict=True)
        finished = [norm(torch.relu(branch + linear.bias)) for branch, linear, norm in parts]
        return torch.cat(finished, dim=1) if self.concat else sum(finished[1:], start=finished[0])
