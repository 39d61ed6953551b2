"""NAGphormer: a graph Transformer that sees each node as the sequence of its K + 1 neighbourhoods.

Paper: Chen et al.: "NAGphormer: A Tokenized Graph Transformer for Node Classification in Large Graphs", ICLR 2023.
Settings: lane `author` holds the commands published with the official code, for all nine datasets. They lie partly
outside the paper's search space (learning rate 1e-2 on CoraFull and Physics; heads and encoding size are not in it).

Where this knowingly differs from the official code:
  * Laplacian encoding: symmetric solver, fixed start, all zero modes left out (kernels/positional.py). The official
    call drops exactly one column, and on disconnected graphs its loose tolerance decides which one.
  * One operator, I - D^-1/2 A D^-1/2, for small and large graphs; the official code uses A + I for the large ones.
  * Tokens use the paper's Â = D^-1/2 (A + I) D^-1/2; the official small-graph branch takes what its data file holds.
  * q, k and v are one product, and the scalar that the official network creates and never uses is left out.
  * The monitored loss is a mean over validation nodes; the official one is a sum of means over shuffled batches.
  * The best state is a real copy (on a processor the official one aliases the live weights).
Defaults, for graphs without author settings: 500 nodes per update and a shorter warm-up (it is counted in updates, and
a small graph would spend hundreds of epochs on it), and the lowest validation loss as the stopping rule (the authors'
rule renews its patience at every tie, and with few validation nodes ties never end).
Mini-batches: training nodes, 2,000 with author settings. Inference: in chunks; no chunk depends on another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bench.graph import Graph, Split
from bench.model import Model, Recipe, added, read_settings
from bench.prepared import PrepareCache
from bench.space import Whole
from models.kernels.attention import token_attention
from models.kernels.dropout import add_dropped
from models.kernels.positional import laplacian_eigenvectors, laplacian_key
from models.kernels.tokens import ProjectedTokens, Tokens, build_tokens, cached_bytes, peak_bytes


@dataclass(frozen=True)
class NAGphormerConfig(Recipe):
    """NAGphormer's architecture and recipe; the defaults are for graphs without author settings."""

    hops: int = 3  # K: the sequence has K + 1 tokens
    structural_encoding: bool = True  # append Laplacian eigenvectors to the features
    encoding_size: int = 10  # s: how many of them
    hidden: int = 128
    layers: int = 1
    heads: int = 8
    dropout: float = 0.1  # after attention and after the feed-forward block
    attention_dropout: float = 0.1  # on the attention weights
    readout: Literal["attention", "single", "sum"] = "attention"
    tokens: Literal["auto", "materialised", "projected"] = "auto"  # how tokens are computed; all give the same
    token_storage: Literal["float32", "float16"] = added("float32")  # of materialised tokens: half the disk, rounded

    optimizer: Literal["adam", "adamw"] = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    schedule: Literal["constant", "warmup-linear"] = "warmup-linear"
    warmup_updates: int = 100
    decay_updates: int = 1000
    final_learning_rate: float = 1e-4
    batch_size: int = 500
    evaluation_batch: int = 2000
    max_epochs: int = 2000
    stop: Literal["ranked", "loss", "accuracy", "window", "never"] = "loss"
    patience: int = 30

    def __post_init__(self) -> None:
        if self.hops < 1:
            raise ValueError("hops must be at least 1: the readout weighs the neighbourhoods beyond the node itself")
        if self.hidden < 2:
            raise ValueError("hidden must be at least 2: the classifier halves it")
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")

    @property
    def encoding_columns(self) -> int:
        """How many columns the encoding adds to the features, where the graph has as many."""
        return self.encoding_size if self.structural_encoding else 0


_CACHED = 1 << 22  # numbers: 16 MiB, half of a common last-level cache


class NAGphormer(Model):
    """Hop2Token, a pre-norm Transformer encoder over each node's tokens, and a readout that weighs the hops."""

    name = "nagphormer"
    title = "NAGphormer"
    group = "transformer"
    paper = "Chen et al., NAGphormer: A Tokenized Graph Transformer for Node Classification in Large Graphs, ICLR 2023"
    revision = 1
    Config = NAGphormerConfig
    settings = read_settings(__file__)
    spaces = {  # noqa: RUF012  the paper's grid, and one that also admits what the authors published
        "paper": {
            "layers": Whole(1, 5),
            "hidden": (128, 256, 512),
            "hops": Whole(2, 20),
            "learning_rate": (1e-3, 5e-3, 1e-4),
            "weight_decay": (1e-4, 5e-4, 1e-5),
            "dropout": (0.1, 0.3, 0.5),
        },
        "wide": {
            "layers": Whole(1, 5),
            "hidden": (128, 256, 512),
            "hops": Whole(2, 20),
            "learning_rate": (1e-2, 5e-3, 1e-3, 1e-4),
            "weight_decay": (1e-4, 5e-4, 1e-5),
            "dropout": (0.1, 0.3, 0.5),
            "heads": (1, 8),
            "encoding_size": (3, 10, 15),
        },
    }

    def __init__(self, graph: Graph, prepared: Tokens, config: NAGphormerConfig) -> None:
        super().__init__(graph, prepared, config)
        self.sequences, self.num_classes = prepared, graph.num_classes
        self.project = nn.Linear(prepared.width, config.hidden)
        self.encoder = nn.Sequential(*[EncoderLayer(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.hidden)
        self.hop_score = nn.Linear(2 * config.hidden, 1) if config.readout == "attention" else None
        half = config.hidden // 2
        self.classifier = nn.Sequential(nn.Linear(config.hidden, half), nn.ReLU(), nn.Linear(half, graph.num_classes))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02 / config.layers**0.5)
                nn.init.zeros_(module.bias)

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int:
        batch, hidden = min(config.batch_size or graph.num_nodes, graph.num_nodes), config.hidden
        step = 4 * batch * (config.hops + 1) * hidden * (19 + 14 * config.layers)  # with what the allocator keeps
        weights = hidden * (graph.num_features + config.encoding_columns + 8 * hidden * config.layers)
        return int(60e6 + 20 * weights + peak_bytes(graph, config, step))  # libraries; gradients, moments, best state

    @classmethod
    def estimate_disk(cls, graph: Graph, config: Any) -> int:
        return cached_bytes(graph, config)

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Tokens:
        structure = laplacian_eigenvectors(graph, config.encoding_columns, cache)
        return build_tokens(graph, structure, config, cache, {"encoding": laplacian_key(config.encoding_columns)})

    def forward(self, nodes: Tensor) -> Tensor:
        return self.classify(self.sequences.project(nodes, self.project.weight))

    def classify(self, tokens: Tensor) -> Tensor:
        """Logits from projected tokens (batch, K + 1, h) that still lack the projection's bias."""
        return self.classifier(self.read_out(self.norm(self.encoder(tokens + self.project.bias))))

    def read_out(self, tokens: Tensor) -> Tensor:
        """One vector per node from its encoded tokens."""
        if self.config.readout == "single":
            return tokens[:, 0]
        if self.config.readout == "sum":
            return tokens.sum(dim=1)
        assert self.hop_score is not None
        node, hops = tokens[:, :1], tokens[:, 1:]
        of_node, of_hop = self.hop_score.weight.view(2, -1)  # the score of [node ‖ hop] without building the pairs
        weights = (node @ of_node + hops @ of_hop + self.hop_score.bias).softmax(dim=1).unsqueeze(-1)
        return node.squeeze(1) + (weights * hops).sum(dim=1)

    def predict(self, nodes: Tensor) -> Tensor:
        project = self.sequences.projector(self.project.weight)
        # One array for all: kept apart, logits would lie between the freed blocks of every chunk and hold them back.
        logits = torch.empty((len(nodes), self.num_classes), device=self.device)
        for batch in self.batches(torch.arange(len(nodes)), training=False):
            for places in batch.split(self._nodes_at_once(len(batch))):
                logits[places.to(self.device)] = self.classify(project(nodes[places]))
        return logits

    def _nodes_at_once(self, most: int) -> int:
        """On the processor as many as its cache holds the widest activations of: what no product does costs a third."""
        if self.device.type != "cpu":
            return max(most, 1)
        return max(_CACHED // (3 * self.config.hidden * (self.config.hops + 1)) // 32 * 32, 32)

    def choices(self) -> dict[str, str]:
        return {"tokens": "projected" if isinstance(self.sequences, ProjectedTokens) else "materialised"}


class EncoderLayer(nn.Module):
    """Pre-norm attention and feed-forward blocks, each with dropout and a residual connection."""

    def __init__(self, config: NAGphormerConfig) -> None:
        super().__init__()
        hidden, self.heads = config.hidden, config.heads
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.attention_norm = nn.LayerNorm(hidden)
        self.query_key_value, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.feed_forward = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        dropout, attention_dropout = (self.dropout, self.attention_dropout) if self.training else (0.0, 0.0)
        packed = self.query_key_value(self.attention_norm(tokens))
        tokens = add_dropped(tokens, self.output(token_attention(packed, self.heads, attention_dropout)), dropout)
        return add_dropped(tokens, self.feed_forward(self.feed_forward_norm(tokens)), dropout)
