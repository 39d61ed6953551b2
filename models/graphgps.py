"""GraphGPS: in every layer a graph convolution and attention among all nodes side by side, with encodings at the input.

Paper: Rampášek et al.: "Recipe for a General, Powerful, Scalable Graph Transformer", NeurIPS 2022.
Settings: the authors have none for the graphs of this benchmark, so there is no lane `author`. Most defaults are those
of their node classification on one graph (Actor, Squirrel, WebKB): GCN and attention, 2 layers, 4 heads, width 64,
GELU, no norms, four Laplacian frequencies, AdamW with warm-up and cosine decay over 200 epochs, no early stop, a look
at the validation nodes every 5 epochs. Performer attention with a learning rate of 5e-3 was the best of six by
validation accuracy on Photo's sealed split (one trial each of at most 60 epochs, in the ledger): Transformer attention
at that rate, without and with batch norm and with more dropout, came after it, then the authors' own choice,
Transformer attention at 5e-4, and width 128 with 1e-3. The cap left the decay over 200 epochs as it is; the authors'
own was still learning then, while the others' validation losses had passed their lowest, so the choice favours what
learns fast. About a fifth of each fresh test set on Photo are validation nodes of this choice: a small bias among six
candidates. What Luo et al. ("Classic GNNs are Strong Baselines") say about their search for GraphGPS does not make a
complete configuration for any graph, so it is no lane either.

Where this knowingly differs from the official code:
  * Laplacian encoding: sparse solver instead of a dense one, and a rule for graphs in several pieces, whose lowest
    eigenvectors would all be indicators of components (kernels/spectrum.py).
  * Random-walk encoding: from sparse products, in blocks of columns, instead of powers of a dense N x N matrix.
  * Existing self-loops (Photo has one, Pubmed three) get weight 2 in the convolution, as "A + I" says; PyG's keeps 1.
  * Attention weights never exist for all pairs at once: fused attention, or chunks of queries where the weights have
    dropout. Performer attention has the official shape (heads of width 64 whatever the model's, no biases in front,
    one fixed set of directions per layer).
  * Without norms only the nodes that are asked for send queries in the last layer; the others' outputs would be thrown
    away. With batch norm that is so in evaluation only: in training every node counts in the statistics.
  * The schedule is one update ahead: update 1 has a tenth of the peak rate and update 10 the peak; the official factor
    at epoch e, counted from 0, is max(1e-6, e / 10) until it is 1.
  * The later of two equally accurate states is kept, not the earlier.

Transformer attention takes time quadratic in the number of nodes, Performer attention linear; memory is linear in both.
Full batch: every update sees the whole graph. Inference is one pass; with `evaluation_batch`, one pass for each batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.graph import Graph, Split
from bench.model import Model, Recipe, Schedule, Stop
from bench.prepared import PrepareCache, as_tensor
from bench.space import Log
from models.graphormer import lean_attention, split_heads
from models.kernels.dropout import add_dropped
from models.kernels.features import FeatureMatrix
from models.kernels.propagation import SparseOperator, normalized_adjacency, scale_entries, sparse_dense
from models.kernels.random_features import orthogonal_directions, softmax_features
from models.kernels.spectrum import lowest_eigenpairs

_VERSION = 1  # of the random-walk encoding
_BLOCK = 64  # columns that walk together
_EPSILON = 1e-4  # of the Performer's features, as in the library that the official code uses


@dataclass(frozen=True)
class GraphGPSConfig(Recipe):
    """GraphGPS's architecture and recipe; most defaults are the authors' for node classification on a single graph."""

    hidden: int = 64  # width of the model, encodings included
    layers: int = 2  # of convolution beside attention
    heads: int = 4  # of the attention
    dropout: float = 0.2  # after the convolution, after attention, and twice in the feed-forward block
    attention_dropout: float = 0.0  # transformer: on the attention weights; performer: on its output
    attention: Literal["transformer", "performer"] = "performer"  # of all pairs, or through random features
    head_width: int = 64  # performer: width of each head, whatever `hidden` is
    directions: int = 266  # performer: random features of each head; 266 is 64 ln 64
    norm: Literal["none", "batch"] = "none"  # after each residual connection
    encoding: Literal["none", "laplacian", "random-walk", "both"] = "laplacian"  # of the node's place in the graph
    frequencies: int = 4  # laplacian: eigenvectors, the constant one included
    frequency_width: int = 4  # laplacian: columns of the input that encode them
    steps: int = 16  # random-walk: lengths of the walks that may return
    walk_width: int = 16  # random-walk: columns of the input that encode them

    optimizer: Literal["adam", "adamw"] = "adamw"
    learning_rate: float = 5e-3
    weight_decay: float = 1e-5
    schedule: Schedule = "warmup-cosine"
    warmup_updates: int = 10
    decay_updates: int = 200
    clip_norm: float = 1.0
    max_epochs: int = 200
    evaluate_every: int = 5
    stop: Stop = "never"

    def __post_init__(self) -> None:
        if self.attention == "transformer" and self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        if self.hidden <= self.encoding_width:
            raise ValueError(f"hidden ({self.hidden}) must exceed the encodings' columns ({self.encoding_width})")

    @property
    def encoding_width(self) -> int:
        return self.uses_laplacian * self.frequency_width + self.uses_walks * self.walk_width

    @property
    def uses_laplacian(self) -> bool:
        return self.encoding in ("laplacian", "both")

    @property
    def uses_walks(self) -> bool:
        return self.encoding in ("random-walk", "both")


@dataclass(frozen=True)
class Prepared:
    """Features, the convolution's matrix, and what the encodings are computed from."""

    features: FeatureMatrix
    adjacency: SparseOperator
    frequencies: Tensor | None  # N x frequencies x 2: entry and eigenvalue
    walks: Tensor | None  # N x steps


class GraphGPS(Model):
    """Layers of message passing and global attention in parallel, then a linear classifier."""

    name = "graphgps"
    title = "GraphGPS"
    aliases = ("gps",)
    group = "transformer"
    paper = "Rampášek et al., Recipe for a General, Powerful, Scalable Graph Transformer, NeurIPS 2022"
    revision = 1
    Config = GraphGPSConfig
    spaces = {  # noqa: RUF012  widths and depths of the authors' configurations and of the search by Luo et al.
        "wide": {
            "hidden": (64, 96, 128, 256),
            "layers": (1, 2, 3, 4, 5),
            "heads": (1, 2, 4, 8),
            "dropout": (0.0, 0.2, 0.3, 0.5, 0.7),
            "attention": ("performer", "transformer"),
            "attention_dropout": (0.0, 0.2, 0.5),
            "norm": ("none", "batch"),
            "encoding": ("none", "laplacian", "random-walk", "both"),
            "frequencies": (4, 8, 16),
            "learning_rate": Log(1e-4, 1e-2),
            "weight_decay": Log(1e-6, 1e-2),
        }
    }

    def __init__(self, graph: Graph, prepared: Prepared, config: GraphGPSConfig) -> None:
        super().__init__(graph, prepared, config)
        self.features, self.adjacency = prepared.features, prepared.adjacency
        self.frequencies, self.walks = prepared.frequencies, prepared.walks
        self.project = nn.Linear(graph.num_features, config.hidden - config.encoding_width)
        if config.uses_laplacian:
            self.frequency_encoder = FrequencyEncoder(config.frequency_width)
        if config.uses_walks:
            self.walk_encoder = nn.Sequential(nn.BatchNorm1d(config.steps), nn.Linear(config.steps, config.walk_width))
        self.encoder = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.classifier = nn.Linear(config.hidden, graph.num_classes)

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int:
        """A training step over the whole graph."""
        floor = 80e6  # threads, matrix products, compiled code
        nodes, width, hidden = graph.num_nodes, graph.num_features, config.hidden
        stored = getattr(graph.features, "nnz", nodes * width)
        features = 4 * nodes * width if 8 * stored >= nodes * width else 28 * stored  # as FeatureMatrix decides
        per_node = 24 * config.hidden  # of a layer: activations, gradients, what the allocator keeps
        if config.attention == "performer":
            per_node += 4 * config.heads * (config.head_width + config.directions)
        walks = 12 * nodes * _BLOCK if config.uses_walks else 0
        training = 4 * nodes * per_node * config.layers + 20 * hidden * width
        return int(floor + features + 24 * (graph.num_entries + nodes) + max(training, walks))

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Prepared:
        frequencies = walks = None
        if config.uses_laplacian:
            values, vectors = lowest_eigenpairs(graph, config.frequencies, False, cache)
            frequencies = torch.from_numpy(np.stack([vectors, np.broadcast_to(values, vectors.shape)], axis=2))
        if config.uses_walks:
            walks = as_tensor(return_probabilities(graph, config.steps, cache))
        adjacency = SparseOperator(normalized_adjacency(graph), symmetric=True)
        return Prepared(FeatureMatrix.of(graph), adjacency, frequencies, walks)

    def forward(self, nodes: Tensor) -> Tensor:
        hidden, nodes = self._embed(), nodes.to(self.device)
        for layer in self.encoder[:-1]:
            hidden = layer(hidden, self.adjacency)
        if self.training and self.config.norm != "none":
            return self.classifier(self.encoder[-1](hidden, self.adjacency)[nodes])
        return self.classifier(self.encoder[-1](hidden, self.adjacency, nodes))

    def _embed(self) -> Tensor:
        """The projected features with the encodings beside them."""
        parts = [self.features.to(self.device) @ self.project.weight.T.contiguous() + self.project.bias]
        if self.frequencies is not None:
            self.frequencies = self.frequencies.to(self.device)
            parts.append(self.frequency_encoder(self.frequencies))
        if self.walks is not None:
            self.walks = self.walks.to(self.device)
            parts.append(self.walk_encoder(self.walks))
        return torch.cat(parts, dim=1)

    def choices(self) -> dict[str, str]:
        return {"local": "gcn", "attention": self.config.attention, "encoding": self.config.encoding}


class FrequencyEncoder(nn.Module):
    """A set of (eigenvector entry, eigenvalue) pairs per node becomes one vector: each pair by itself, then their sum.

    An eigenvector's sign says nothing: in training it is drawn anew in every pass.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(2, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU())

    def forward(self, pairs: Tensor) -> Tensor:
        if self.training:
            signs = torch.ones(pairs.shape[1:], device=pairs.device)
            signs[:, 0] -= 2.0 * torch.randint(2, (pairs.shape[1],), device=pairs.device)
            pairs = pairs * signs
        return self.pair(pairs).sum(dim=1)


class Layer(nn.Module):
    """norm(h + GCN(h)) + norm(h + attention(h)), then a feed-forward block with a residual connection and a norm."""

    def __init__(self, config: GraphGPSConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.convolution = nn.Linear(config.hidden, config.hidden)
        nn.init.xavier_uniform_(self.convolution.weight)
        nn.init.zeros_(self.convolution.bias)
        self.attention = {"transformer": Attention, "performer": Performer}[config.attention](config)
        norm = {"none": nn.Identity, "batch": nn.BatchNorm1d}[config.norm]
        self.local_norm, self.global_norm, self.norm = (norm(config.hidden) for _ in range(3))
        self.feed_forward = nn.Sequential(
            nn.Linear(config.hidden, 2 * config.hidden),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(2 * config.hidden, config.hidden),
        )

    def forward(self, hidden: Tensor, adjacency: SparseOperator, asked: Tensor | None = None) -> Tensor:
        """The next states of the nodes that are asked for (of all by default); all nodes are attended to."""
        dropout = self.dropout if self.training else 0.0
        own = hidden if asked is None else hidden[asked]
        local = adjacency @ (hidden @ self.convolution.weight.T.contiguous()) + self.convolution.bias
        local = local if asked is None else local[asked]
        mixed = self.local_norm(add_dropped(own, local, dropout))
        mixed = mixed + self.global_norm(add_dropped(own, self.attention(own, hidden), dropout))
        return self.norm(add_dropped(mixed, self.feed_forward(mixed), dropout))


class Attention(nn.Module):
    """softmax(q kᵀ / √width) v among all nodes."""

    def __init__(self, config: GraphGPSConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.query_key_value = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        nn.init.xavier_uniform_(self.query_key_value.weight)  # these three as torch's own attention has it
        nn.init.zeros_(self.query_key_value.bias)
        nn.init.zeros_(self.output.bias)

    def forward(self, asking: Tensor, hidden: Tensor) -> Tensor:
        """For each node that asks, what it takes from all nodes."""
        width = hidden.shape[1]
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        q = split_heads(functional.linear(asking, weight[:width], bias[:width]), self.heads)
        k, v = functional.linear(hidden, weight[width:], bias[width:]).chunk(2, dim=1)
        k, v = split_heads(k, self.heads), split_heads(v, self.heads)
        if self.training and self.dropout > 0.0:
            mixed = lean_attention(q, k, v, self.dropout)
        else:
            mixed = functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        return self.output(mixed.transpose(0, 1).flatten(1))


class Performer(nn.Module):
    """The same in linear time: e^(q k / √width) is the product of positive random features of q and of k."""

    directions: Tensor

    def __init__(self, config: GraphGPSConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.attention_dropout
        inner = config.heads * config.head_width
        self.query = nn.Linear(config.hidden, inner, bias=False)
        self.key = nn.Linear(config.hidden, inner, bias=False)
        self.value = nn.Linear(config.hidden, inner, bias=False)
        self.output = nn.Linear(inner, config.hidden)
        directions = orthogonal_directions(config.directions, config.head_width, torch.default_generator)
        self.register_buffer("directions", directions)

    def forward(self, asking: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = (
            split_heads(linear(nodes), self.heads)
            for linear, nodes in ((self.query, asking), (self.key, hidden), (self.value, hidden))
        )
        q, k = softmax_features(q, self.directions, epsilon=_EPSILON), softmax_features(k, self.directions, 1, _EPSILON)
        summed = k.sum(dim=1).unsqueeze(-1)  # heads x directions x 1
        mixed = (q @ (k.transpose(1, 2) @ v)) / (q @ summed)
        return functional.dropout(self.output(mixed.transpose(0, 1).flatten(1)), self.dropout, self.training)


# -- random walks -----------------------------------------------------------------------------------------------------


def return_probabilities(graph: Graph, steps: int, cache: PrepareCache) -> np.ndarray:
    """How likely a random walk from each node is back after 1, ..., steps steps: diagonals of (D^-1 A)^k, N x steps.

    An isolated node never comes back.
    """
    key = {"graph": graph.fingerprint, "steps": steps, "version": _VERSION}
    return cache.get("returns", key, lambda: {"returns": _walk(graph, steps)})["returns"]


def _walk(graph: Graph, steps: int) -> np.ndarray:
    """The symmetric S = D^-1/2 A D^-1/2 has the same diagonals, and S^(a + b) has S^a e_i · S^b e_i in its i-th place.

    So only half as many products are needed. All entries are positive: nothing cancels in float32.
    """
    adjacency = graph.adjacency()
    scale = (1.0 / np.sqrt(np.maximum(graph.degrees, 1))).astype(np.float32)
    scale_entries(adjacency.indptr, adjacency.indices, adjacency.data, scale)
    returns = np.zeros((graph.num_nodes, steps), dtype=np.float32)
    returns[:, 0] = adjacency.diagonal()
    for first in range(0, graph.num_nodes, _BLOCK):
        block = slice(first, min(first + _BLOCK, graph.num_nodes))
        _walk_from(adjacency, block, returns[block])
    return returns


def _walk_from(adjacency: sp.csr_array, block: slice, returns: np.ndarray) -> None:
    """All but the first column of a block's rows."""
    here = np.ascontiguousarray(adjacency[block].toarray().T)  # after one step; the matrix is symmetric
    for column in range(1, returns.shape[1]):
        if column % 2:  # an even number of steps: there and back
            returns[:, column] = np.einsum("nb,nb->b", here, here)
        else:
            before, here = here, sparse_dense(adjacency, here)
            returns[:, column] = np.einsum("nb,nb->b", before, here)
