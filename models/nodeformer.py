"""NodeFormer: attention among all nodes in linear time, with Gumbel noise while training and the graph as a bias.

Paper: Wu, Zhao, Li, Wipf, Yan: "NodeFormer: A Scalable Graph Structure Learning Transformer for Node Classification",
NeurIPS 2022.
Settings: lane `author` has Pubmed (the script for 20 labels per class) and Amazon2M (the script for that graph). The
authors' code can load Computer, Photo, CS and Physics but publishes no settings for them, and knows neither CoraFull,
AMiner nor Reddit: these get the defaults, the authors' for Cora but for the end of training (theirs: 1000 epochs and no
early stop). Width 64 on features as they are was the best of six by validation accuracy on Photo's sealed split (one
trial each of at most 60 epochs, in the ledger): width 32, row-normalised features, a tenth of the weight decay, order 1
or dropout at ten times the learning rate came after it. Most were cut off with their validation losses still falling,
so the choice favours what learns fast. About a fifth of each fresh test set on Photo are validation nodes of this
choice: a small bias among six candidates.

Attention: q and k are divided by sqrt(temperature), then mapped to positive random features (random_features.py).
While training, K Gumbel samples per node and head multiply the keys by exp(noise / temperature), and the K results are
averaged. Every head has the full width. Relational bias: sigmoid(b) (or b) times D^-1/2 A_r D^-1/2 V, with a b per head
and order. A_1 is the adjacency with self-loops and each further A_r the square of the one before, as in the official
code: orders 1, 2, 3 are A, A^2, A^4, as patterns of ones. Edge regularisation: the loss is cross-entropy − weight ·
mean over layers, heads and edges of log(attention on the edge) / (degree of the attending node), without noise; weight
0 does no work on edges.

Where this knowingly differs from the official code:
  * Random directions and noise come from a generator of the model's own, seeded once at construction. The official
    code re-seeds torch's global generator in every layer with a number taken from the data.
  * Evaluation uses directions that were drawn at construction, so that a prediction is repeatable.
  * The directions are uniform on the sphere (the official QR leaves a preference for signs).
  * Parts of the graph: `batch_size` random nodes of the whole graph, labelled or not, with the edges among them; an
    epoch sees every node once, and a part without a labelled node is left out. The official code fills its batches
    with training nodes only; with 940 labels among 2,449,029 nodes these would have hardly an edge.
  * Evaluation uses the same temperature as training; the official large-graph script evaluates with 1.
  * The relational bias is applied after the output map, which is linear: A (V W) instead of (A V) W, the same with a
    fraction of the columns.
  * In lane `author`, the later of two equally accurate states is kept, not the earlier.
Mini-batches: none by default (the whole graph in every update). Inference: one pass over the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numba
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.data.graph import Graph, Split
from bench.model import Model, Recipe, Stop
from bench.prepared import PrepareCache, as_tensor
from models.kernels.features import FeatureMatrix
from models.kernels.propagation import SparseOperator, scale_entries
from models.kernels.random_features import orthogonal_directions, softmax_features

_VERSION = 1
_BLOCK = 4096  # nodes whose noisy keys exist at the same time
_EDGES = 1 << 16  # edges whose attention exists at the same time, where the kernel is torch's
_SAMPLE, _MOST_LOOKS = 1024, 50_000_000  # how closely the size of a relation is estimated
_BASE = 55 * 2**20  # what the libraries take in any case once they compute, as measured


@dataclass(frozen=True)
class NodeFormerConfig(Recipe):
    """NodeFormer's architecture and recipe; the defaults are for graphs without author settings."""

    hidden: int = 64  # width of the model
    layers: int = 2  # of attention
    heads: int = 4  # each of them `hidden` wide
    dropout: float = 0.0  # on the input of the first layer and on the output of each
    random_features: int = 30  # M: directions per layer
    gumbel: bool = True  # noise on the keys while training
    gumbel_samples: int = 10  # K: how many noisy attentions are averaged
    temperature: float = 0.25  # of the attention and of the noise
    relational_bias: bool = True  # add what the neighbours send along edges
    relational_order: int = 2  # orders 1, 2, 3 are A, A^2, A^4
    relational_gate: Literal["sigmoid", "identity"] = "sigmoid"  # what is made of the learned weights of the bias
    edge_weight: float = 1.0  # of the edge regularisation; 0 leaves it out
    layer_norm: bool = True  # after the input map and after every layer
    residual: bool = True  # add each layer's input to its output
    activation: bool = False  # after every layer, not only after the input map
    jumping: bool = False  # the classifier sees every layer's output
    normalize_features: bool = False  # rows of the feature matrix sum to 1

    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 5e-3
    batch_size: int = 0  # nodes of the graph per update, labelled or not; 0 means all of them
    max_epochs: int = 300  # `ranked` renews its patience at every tie, of which few validation nodes have no end
    stop: Stop = "ranked"
    patience: int = 50

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        if self.edge_weight < 0:
            raise ValueError(f"edge_weight must be at least 0, not {self.edge_weight}")
        if self.relational_order > 4:
            raise ValueError(f"relational_order must be at most 4 (the eighth power of A), not {self.relational_order}")

    @property
    def orders(self) -> int:
        """How many patterns are needed: for the bias, and the first of them for the edge regularisation."""
        return max(self.relational_order if self.relational_bias else 0, int(self.edge_weight > 0))


SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "author": {
        "pubmed": {
            "hidden": 32,
            "layers": 2,
            "heads": 4,
            "dropout": 0.3,
            "random_features": 30,
            "gumbel_samples": 10,
            "relational_order": 3,
            "relational_gate": "sigmoid",
            "edge_weight": 1.0,
            "normalize_features": True,
            "learning_rate": 1e-3,
            "weight_decay": 5e-4,
            "max_epochs": 1000,
            "stop": "never",
        },
        "amazon2m": {
            "hidden": 64,
            "layers": 3,
            "heads": 1,
            "dropout": 0.0,
            "random_features": 50,
            "gumbel_samples": 5,
            "relational_order": 1,
            "relational_gate": "identity",
            "edge_weight": 0.01,
            "activation": True,
            "jumping": True,
            "normalize_features": False,
            "learning_rate": 1e-2,
            "weight_decay": 0.0,
            "batch_size": 100_000,
            "max_epochs": 1000,
            "evaluate_every": 9,
            "stop": "never",
        },
    }
}


@dataclass(frozen=True, eq=False)
class Part:
    """The graph, or as much of it as one step sees."""

    features: FeatureMatrix
    relations: list[SparseOperator]  # by order: D^-1/2 A_r D^-1/2
    labelled: Tensor  # places of the training nodes whose loss counts
    labels: Tensor  # of these


class NodeFormer(Model):
    """Layers of kernelised attention among all nodes, plus a relational bias."""

    name = "nodeformer"
    title = "NodeFormer"
    group = "transformer"
    paper = "Wu et al., NodeFormer: A Scalable Graph Structure Learning Transformer, NeurIPS 2022"
    revision = 1
    Config = NodeFormerConfig
    settings = SETTINGS
    spaces = {  # noqa: RUF012
        "wide": {
            "hidden": (32, 64, 128),
            "heads": (1, 2, 4),
            "layers": (2, 3),
            "relational_bias": (False, True),
            "relational_order": (1, 2, 3),
            "edge_weight": (0.0, 0.01, 0.1, 1.0),
            "dropout": (0.0, 0.3, 0.5),
            "learning_rate": (1e-2, 1e-3, 1e-4),
            "weight_decay": (5e-3, 5e-4, 5e-5, 0.0),
        }
    }

    fixed_directions: Tensor  # for evaluation: layers x M x width

    def __init__(self, graph: Graph, prepared: Prepared, config: NodeFormerConfig) -> None:
        super().__init__(graph, prepared, config)
        self.prepared = prepared
        self.project = nn.Linear(graph.num_features, config.hidden)
        self.layers = nn.ModuleList([AttentionLayer(config) for _ in range(config.layers)])
        norms = [nn.LayerNorm(config.hidden) if config.layer_norm else nn.Identity() for _ in range(config.layers + 1)]
        self.norms = nn.ModuleList(norms)
        width = config.hidden * (config.layers + 1 if config.jumping else 1)
        self.classifier = nn.Linear(width, graph.num_classes)
        self._random = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        fixed = [self._draw_directions() for _ in range(config.layers)]
        self.register_buffer("fixed_directions", torch.stack(fixed))

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int:
        c, count = config, graph.num_nodes
        nodes = min(c.batch_size or count, count)  # per update
        features, first = _feature_bytes(graph, c.normalize_features), 8 * (count + graph.num_entries)
        bias = c.relational_order if c.relational_bias else 0
        inner, kernel = c.heads * c.hidden, c.heads * c.random_features
        # What a layer keeps of each node for its gradients: q, k, v, scaled q and k, their features, noise, results.
        kept = (6 + bias) * inner + (2 + (c.edge_weight > 0)) * kernel + c.heads * c.gumbel_samples + 6 * c.hidden
        training = 4 * nodes * (c.layers + 1) * kept  # one layer's worth again while going back
        inference = 4 * count * (6 * inner + 2 * kernel + (c.layers + 1) * c.hidden)
        largest = max((expected_entries(graph, order) for order in range(2, c.orders + 1)), default=0.0)
        preparing = 4 * (largest + bool(c.orders) * graph.num_entries)
        return _BASE + int(features + bool(c.orders) * first + max(training, inference, preparing))

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Prepared:
        features = FeatureMatrix.of(graph, row_normalize=config.normalize_features)
        return Prepared(features, relations(graph, config.orders, cache))

    # -- training ------------------------------------------------------------------------------------------------

    def batches(self, nodes: Tensor, training: bool) -> Iterator[Any]:
        size, count = self.config.batch_size, self.prepared.features.shape[0]
        if not training:
            yield from super().batches(nodes, training)
        elif size == 0 or size >= count:
            yield self._part(None, nodes)
        else:
            is_labelled = torch.zeros(count, dtype=torch.bool)
            is_labelled[nodes] = True
            for members in torch.randperm(count).split(size):
                members = members.sort().values
                if bool(is_labelled[members].any()):
                    yield self._part(members, is_labelled[members].nonzero().squeeze(1))

    def _part(self, members: Tensor | None, labelled: Tensor) -> Part:
        """The whole graph, or these nodes of it with the edges among them; `labelled` are places within."""
        prepared = self.prepared if members is None else self.prepared.induced(members.numpy())
        nodes = labelled if members is None else members[labelled]
        return Part(prepared.features, prepared.relations, labelled, self.labels[nodes])

    def loss(self, batch: Part) -> Tensor:
        logits, on_edges = self._run(batch.features, batch.relations)
        labelled = batch.labelled.to(self.device)
        loss = functional.cross_entropy(logits[labelled], batch.labels.to(self.device))
        if on_edges:
            loss = loss - self.config.edge_weight * torch.stack(on_edges).mean()
        return loss

    # -- the network ---------------------------------------------------------------------------------------------

    def _run(self, features: FeatureMatrix, relations: list[SparseOperator]) -> tuple[Tensor, list[Tensor]]:
        """Logits of all nodes of the part, and each layer's mean log attention on edges while that is trained."""
        c = self.config
        hidden = features.to(self.device) @ self.project.weight.T + self.project.bias
        hidden = self._drop(functional.elu(self.norms[0](hidden)))
        outputs, on_edges = [hidden], []
        for at, layer in enumerate(self.layers):
            directions = self._draw_directions() if self.training else self.fixed_directions[at]
            hidden, attention = layer(hidden, relations, directions.to(hidden), self._random)
            if attention is not None:
                on_edges.append(attention)
            if c.residual:
                hidden = hidden + outputs[-1]
            hidden = self.norms[at + 1](hidden)
            hidden = self._drop(functional.elu(hidden) if c.activation else hidden)
            outputs = [*outputs, hidden] if c.jumping else [hidden]
        return self.classifier(torch.cat(outputs, dim=1) if c.jumping else hidden), on_edges

    def _drop(self, hidden: Tensor) -> Tensor:
        return functional.dropout(hidden, self.config.dropout, self.training) if self.config.dropout else hidden

    def _draw_directions(self) -> Tensor:
        return orthogonal_directions(self.config.random_features, self.config.hidden, self._random)

    def forward(self, nodes: Tensor) -> Tensor:
        return self._run(self.prepared.features, self.prepared.relations)[0][nodes.to(self.device)]

    def predict(self, nodes: Tensor) -> Tensor:
        return self(nodes)  # once for all: every node sees all others

    def choices(self) -> dict[str, str]:
        count = self.prepared.features.shape[0]
        whole = self.config.batch_size == 0 or self.config.batch_size >= count
        entries = [relation.matrix.nnz for relation in self.prepared.relations]
        return {
            "updates": "whole graph" if whole else "random parts",
            "relations": ", ".join(f"{entry} entries" for entry in entries) or "none",
        }


class AttentionLayer(nn.Module):
    """Kernelised attention with heads of full width, the relational bias, and one output map for both."""

    def __init__(self, config: NodeFormerConfig) -> None:
        super().__init__()
        self.config = config
        inner = config.heads * config.hidden
        self.query_key_value = nn.Linear(config.hidden, 3 * inner)
        self.output = nn.Linear(inner, config.hidden)
        start = 0.1 if config.relational_gate == "sigmoid" else 1.0
        shape = (config.relational_order if config.relational_bias else 0, config.heads)
        self.bias = nn.Parameter(torch.full(shape, start)) if config.relational_bias else None

    def forward(
        self, hidden: Tensor, relations: list[SparseOperator], directions: Tensor, random: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """The layer's output, and the mean log attention on edges while that is trained."""
        c = self.config
        query, key, value = self.query_key_value(hidden).view(len(hidden), 3, c.heads, c.hidden).unbind(1)
        query = softmax_features(query * c.temperature**-0.5, directions)
        key = softmax_features(key * c.temperature**-0.5, directions, keys_along=0)
        noise = None
        if self.training and c.gumbel:
            noise = gumbel_weights((len(hidden), c.heads, c.gumbel_samples), c.temperature, random).to(hidden)
        attended = kernel_attention(query, key, value, noise)
        result = self.output(attended.flatten(1))
        if self.bias is not None:
            gates = torch.sigmoid(self.bias) if c.relational_gate == "sigmoid" else self.bias
            for gate, relation in zip(gates, relations, strict=False):
                narrow = functional.linear((value * gate.unsqueeze(1)).flatten(1), self.output.weight)
                result = result + relation @ narrow
        if self.training and c.edge_weight > 0:
            return result, mean_log_attention(query, key, relations[0].matrix)
        return result, None


def _feature_bytes(graph: Graph, row_normalize: bool) -> int:
    """Bytes of the features beside those that are mapped from a file: copies, and a sparse matrix's transpose."""
    features = graph.features
    if isinstance(features, np.ndarray):
        return features.nbytes if row_normalize else 0
    if isinstance(FeatureMatrix(features[:_SAMPLE]).matrix, Tensor):  # judged by the first rows
        return 4 * features.shape[0] * features.shape[1]
    return 32 * features.nnz


# -- attention --------------------------------------------------------------------------------------------------------


def gumbel_weights(shape: tuple[int, int, int], temperature: float, random: torch.Generator) -> Tensor:
    """exp(g / temperature) for Gumbel noise g, nodes x heads x samples.

    Each head and sample is divided by its largest weight, so that none overflows; attention is a ratio and does not see
    a common factor.
    """
    noise = -torch.empty(shape).exponential_(generator=random).clamp_(min=1e-30).log_()
    return ((noise - noise.amax(dim=0)) / temperature).exp_()


def kernel_attention(query: Tensor, key: Tensor, value: Tensor, weights: Tensor | None) -> Tensor:
    """Softmax attention from random features: nodes x heads x width, in one pass over keys and one over queries.

    query and key are features (nodes x heads x M), value is nodes x heads x width. With weights (nodes x heads x K),
    the keys are multiplied by each of the K samples and the K results averaged. Memory hardly grows with K.
    """
    result: Tensor = _KernelAttention.apply(query, key, value, weights)
    return result


class _KernelAttention(torch.autograd.Function):
    """With keys k_m w_s and queries q_m / (K d_s), one column per feature m and sample s, this is (query keyᵀ) value.

    d_s, the denominator, is the query times the sum of that sample's keys. The wide columns exist for a block of nodes
    at a time.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, weights: Tensor | None) -> Tensor:
        if weights is None:
            weights = query.new_ones(()).expand(len(query), query.shape[1], 1)
        out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        kept = []
        for head in range(query.shape[1]):
            q, k, v, w = query[:, head], key[:, head], value[:, head], weights[:, head]
            sums = w.T @ k  # samples x features
            mixed = v.new_zeros(sums.numel(), v.shape[1])
            for at in _blocks(len(k)):
                mixed.addmm_(_spread(w[at], k[at]).T, v[at])
            for at in _blocks(len(q)):
                out[at, head] = _spread(_shares(q[at], sums), q[at]) @ mixed
            kept += [sums, mixed]
        ctx.save_for_backward(query, key, value, weights, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, weights, *kept = ctx.saved_tensors
        of_query, of_key = torch.empty_like(query), torch.empty_like(key)
        of_value = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        for head in range(query.shape[1]):
            q, k, v, w = query[:, head], key[:, head], value[:, head], weights[:, head]
            sums, mixed = kept[2 * head : 2 * head + 2]
            of_sums, of_mixed = torch.zeros_like(sums), torch.zeros_like(mixed)
            for at in _blocks(len(q)):
                shares, g = _shares(q[at], sums), gradient[at, head]
                of_mixed.addmm_(_spread(shares, q[at]).T, g)
                of_spread = (g @ mixed.T).view(len(g), *sums.shape)
                of_shares = (of_spread * q[at].unsqueeze(1)).sum(dim=2)
                of_denominator = of_shares * shares.square() * -len(sums)  # a share is 1 / (K denominator)
                of_query[at, head] = of_spread.mul_(shares.unsqueeze(2)).sum(dim=1).addmm_(of_denominator, sums)
                of_sums.addmm_(of_denominator.T, q[at])
            for at in _blocks(len(k)):
                of_value[at, head] = _spread(w[at], k[at]) @ of_mixed
                of_spread = (v[at] @ of_mixed.T).view(-1, *sums.shape)
                of_key[at, head] = of_spread.mul_(w[at].unsqueeze(2)).sum(dim=1).addmm_(w[at], of_sums)
        return of_query, of_key, of_value, None


def _blocks(count: int) -> Iterator[slice]:
    for first in range(0, count, _BLOCK):
        yield slice(first, first + _BLOCK)


def _shares(query: Tensor, sums: Tensor) -> Tensor:
    """nodes x samples: 1 / (K denominator)."""
    return (query @ sums.T).mul_(len(sums)).reciprocal_()


def _spread(weights: Tensor, features: Tensor) -> Tensor:
    """nodes x (samples · features): the features times each sample's weight."""
    return (weights.unsqueeze(2) * features.unsqueeze(1)).flatten(1)


# -- edge regularisation ----------------------------------------------------------------------------------------------


def mean_log_attention(query: Tensor, key: Tensor, pattern: sp.csr_array) -> Tensor:
    """The mean over edges and heads of log π / degree; π is the row node's attention, without noise, on the column's.

    `pattern` is symmetric with all self-loops; `query` and `key` are random features, nodes x heads x M.
    """
    on_pairs: Tensor = _LogPairs.apply(query.contiguous(), key.contiguous(), pattern)
    everything = torch.einsum("nhm,hm->nh", query, key.sum(dim=0))
    return (on_pairs - everything.log().sum()) / (pattern.nnz * query.shape[1])


class _LogPairs(torch.autograd.Function):
    """Sum over rows v of 1/degree · Σ over neighbours u and heads of log(q_v · k_u); nothing per edge is kept.

    The gradient of the queries falls off with the sum itself. That of the keys needs a second look at the edges, from
    the other end.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, pattern: sp.csr_array) -> Tensor:
        kernels = _OnProcessor if _on_processor(query) else _Elsewhere
        total, of_query = kernels.sum_of_logs(query.detach(), key.detach(), pattern)
        ctx.save_for_backward(query, key, of_query)
        ctx.pattern, ctx.kernels = pattern, kernels
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        query, key, of_query = ctx.saved_tensors
        of_key = ctx.kernels.key_gradient(query.detach(), key.detach(), ctx.pattern)
        return of_query * gradient, of_key * gradient, None


def _on_processor(tensor: Tensor) -> bool:
    """Whether the numba kernels can read it; elsewhere torch's operations give the same."""
    return tensor.is_cpu


class _OnProcessor:
    """The sum and its gradients by kernels that hold one row at a time."""

    @staticmethod
    def sum_of_logs(query: Tensor, key: Tensor, pattern: sp.csr_array) -> tuple[Tensor, Tensor]:
        rows, of_query = np.empty(len(query)), torch.empty_like(query)
        _log_rows(pattern.indptr, pattern.indices, query.numpy(), key.numpy(), rows, of_query.numpy())
        return query.new_tensor(rows.sum()), of_query

    @staticmethod
    def key_gradient(query: Tensor, key: Tensor, pattern: sp.csr_array) -> Tensor:
        of_key = torch.empty_like(key)
        _key_rows(pattern.indptr, pattern.indices, query.numpy(), key.numpy(), of_key.numpy())
        return of_key


class _Elsewhere:
    """The same in torch's operations, some edges at a time."""

    @staticmethod
    def sum_of_logs(query: Tensor, key: Tensor, pattern: sp.csr_array) -> tuple[Tensor, Tensor]:
        total, of_query = torch.zeros((), dtype=torch.float64, device=query.device), torch.zeros_like(query)
        for row, column, share in _edge_chunks(pattern, query):
            keys = key[column]
            products = (query[row] * keys).sum(dim=2)
            total += (products.log().sum(dim=1) * share).double().sum()
            of_query.index_add_(0, row, keys * (share.unsqueeze(1) / products).unsqueeze(2))
        return total.to(query.dtype), of_query

    @staticmethod
    def key_gradient(query: Tensor, key: Tensor, pattern: sp.csr_array) -> Tensor:
        of_key = torch.zeros_like(key)
        for row, column, share in _edge_chunks(pattern, query):
            queries = query[row]
            products = (queries * key[column]).sum(dim=2)
            of_key.index_add_(0, column, queries * (share.unsqueeze(1) / products).unsqueeze(2))
        return of_key


def _edge_chunks(pattern: sp.csr_array, like: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows, columns and 1 / degree of the row, some entries at a time."""
    lengths = torch.from_numpy(np.diff(pattern.indptr).astype(np.int64))
    rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    columns = as_tensor(pattern.indices)
    for row, column in zip(rows.split(_EDGES), columns.split(_EDGES), strict=True):
        yield row.to(like.device), column.long().to(like.device), (1.0 / lengths[row]).to(like)


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, inline="never")
def _log_row(columns: np.ndarray, query: np.ndarray, key: np.ndarray, of_query: np.ndarray) -> float:
    total, share = 0.0, np.float32(1.0 / len(columns))
    of_query[:] = 0.0
    for column in columns:
        for head in range(query.shape[0]):
            product = np.float32(0.0)
            for at in range(query.shape[1]):
                product += query[head, at] * key[column, head, at]
            total += np.log(product)
            weight = share / product
            for at in range(query.shape[1]):
                of_query[head, at] += weight * key[column, head, at]
    return total * share


@numba.njit(cache=True, parallel=True, nogil=True)
def _log_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    out: np.ndarray,
    of_query: np.ndarray,
) -> None:
    """Per row the mean over neighbours of log(query · key), summed over heads, and its gradient in the query."""
    for row in numba.prange(len(out)):
        out[row] = _log_row(indices[indptr[row] : indptr[row + 1]], query[row], key, of_query[row])


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, inline="never")
def _key_row(rows: np.ndarray, indptr: np.ndarray, query: np.ndarray, key: np.ndarray, of_key: np.ndarray) -> None:
    of_key[:] = 0.0
    for row in rows:
        share = np.float32(1.0 / (indptr[row + 1] - indptr[row]))
        for head in range(key.shape[0]):
            product = np.float32(0.0)
            for at in range(key.shape[1]):
                product += query[row, head, at] * key[head, at]
            weight = share / product
            for at in range(key.shape[1]):
                of_key[head, at] += weight * query[row, head, at]


@numba.njit(cache=True, parallel=True, nogil=True)
def _key_rows(indptr: np.ndarray, indices: np.ndarray, query: np.ndarray, key: np.ndarray, of_key: np.ndarray) -> None:
    """The gradient in the keys: of each node from the rows that have it as a neighbour, the pattern being symmetric."""
    for node in numba.prange(len(of_key)):
        _key_row(indices[indptr[node] : indptr[node + 1]], indptr, query, key[node], of_key[node])


# -- relations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prepared:
    """The features and the relations of the whole graph, or of some of its nodes."""

    features: FeatureMatrix
    relations: list[SparseOperator]

    def induced(self, nodes: np.ndarray) -> Prepared:
        """These nodes (ascending) with the edges among them, normalised by the degrees that are left."""
        matrix = self.features.matrix
        rows = (
            matrix.matrix[nodes]
            if isinstance(matrix, SparseOperator)
            else matrix[torch.from_numpy(nodes).to(matrix.device)].cpu().numpy()
        )
        parts = [sp.csr_array(relation.matrix[nodes][:, nodes]) for relation in self.relations]
        operators = [_operator(part.indptr, part.indices, _normalized(part.indptr, part.indices)) for part in parts]
        return Prepared(FeatureMatrix(rows), operators)


def relations(graph: Graph, orders: int, cache: PrepareCache) -> list[SparseOperator]:
    """D^-1/2 A_r D^-1/2 for r = 1 .. orders; each A_r but the first is the pattern of the square of the one before."""
    if orders == 0:
        return []
    pattern = _with_loops(graph)
    found = [_operator(*pattern, _normalized(*pattern))]
    for order in range(2, orders + 1):
        key = {"graph": graph.fingerprint, "order": order, "version": _VERSION}
        before = pattern
        # Two entries, so that a pattern is on disk and out of memory before its values are computed.
        kept = cache.get("relation", key, lambda before=before: _squared_arrays(before))  # type: ignore[misc]
        pattern = kept["indptr"], kept["indices"]
        values = cache.get("relation-values", key, lambda now=pattern: {"values": _normalized(*now)})  # type: ignore[misc]
        found.append(_operator(*pattern, values["values"]))
    return found


def _with_loops(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """The pattern of A + I."""
    matrix = sp.csr_array(graph.adjacency() + sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr"))
    return matrix.indptr, matrix.indices


def _normalized(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The values of D^-1/2 A D^-1/2 for a symmetric pattern of ones without empty rows."""
    values = np.ones(len(indices), dtype=np.float32)
    scale_entries(indptr, indices, values, (1.0 / np.sqrt(np.diff(indptr))).astype(np.float32))
    return values


def _operator(indptr: np.ndarray, indices: np.ndarray, values: np.ndarray) -> SparseOperator:
    size = len(indptr) - 1
    return SparseOperator(sp.csr_array((values, indices, indptr), shape=(size, size)), symmetric=True)


def _squared_arrays(pattern: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(zip(("indptr", "indices"), squared(*pattern), strict=True))


def squared(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pattern of the square of a square pattern, rows ascending."""
    lengths = np.zeros(len(indptr), dtype=np.int64)
    _square_lengths(indptr, indices, lengths[1:])
    starts = np.cumsum(lengths)
    starts = starts.astype(np.int32 if starts[-1] < 2**31 else np.int64)
    columns = np.empty(starts[-1], dtype=starts.dtype)
    _square_fill(indptr, indices, starts, columns)
    return starts, columns


@numba.njit(cache=True, nogil=True)
def _square_lengths(indptr: np.ndarray, indices: np.ndarray, lengths: np.ndarray) -> None:
    seen_by = np.full(len(lengths), -1, dtype=np.int32)
    for row in range(len(lengths)):
        for entry in range(indptr[row], indptr[row + 1]):
            middle = indices[entry]
            for place in range(indptr[middle], indptr[middle + 1]):
                if seen_by[indices[place]] != row:
                    seen_by[indices[place]] = row
                    lengths[row] += 1


@numba.njit(cache=True, nogil=True)
def _square_fill(indptr: np.ndarray, indices: np.ndarray, starts: np.ndarray, columns: np.ndarray) -> None:
    seen_by = np.full(len(starts) - 1, -1, dtype=np.int32)
    for row in range(len(starts) - 1):
        at = starts[row]
        for entry in range(indptr[row], indptr[row + 1]):
            middle = indices[entry]
            for place in range(indptr[middle], indptr[middle + 1]):
                if seen_by[indices[place]] != row:
                    seen_by[indices[place]] = row
                    columns[at] = indices[place]
                    at += 1
        columns[starts[row] : at].sort()


def expected_entries(graph: Graph, order: int) -> float:
    """About how many entries A_order has: nodes within 2^(order - 1) steps, counted exactly for some of the nodes."""
    starts = np.random.default_rng(0).permutation(graph.num_nodes)[:_SAMPLE]
    return graph.num_nodes * _mean_reach(graph.indptr, graph.indices, starts, 2 ** (order - 1), _MOST_LOOKS)


@numba.njit(cache=True, nogil=True)
def _mean_reach(indptr: np.ndarray, indices: np.ndarray, starts: np.ndarray, steps: int, most_looks: int) -> float:
    """The mean number of nodes within so many steps of a start, over as many starts as the looks at entries allow."""
    seen_by, queue = np.full(len(indptr) - 1, -1, dtype=np.int32), np.empty(len(indptr) - 1, dtype=np.int32)
    total, looks, done = 0, 0, 0
    for number in range(len(starts)):
        queue[0] = starts[number]
        seen_by[queue[0]] = number
        first, last = 0, 1
        for _ in range(steps):
            end = last
            for at in range(first, end):
                node = queue[at]
                looks += indptr[node + 1] - indptr[node]
                for entry in range(indptr[node], indptr[node + 1]):
                    if seen_by[indices[entry]] != number:
                        seen_by[indices[entry]] = number
                        queue[last] = indices[entry]
                        last += 1
            first = end
        total += last
        done += 1
        if looks > most_looks:
            break
    return total / done
