"""GraphSAINT: each update trains on a small sampled subgraph, with weights that undo the sampler's preferences.

Paper: Zeng, Zhou, Srivastava, Kannan, Prasanna: "GraphSAINT: Graph Sampling Based Inductive Learning Method", ICLR
2020.
Settings: lane `author` has Reddit, the one graph of this benchmark that the official code covers with this network; of
its Reddit configurations the random-walk one is taken (2,000 roots, length 4), whose subgraphs hold every labelled
node's surroundings however few labels there are; frontier sampling and jumping knowledge, which others use, are not
here. For Amazon2M the authors publish a graph attention network, which is another model: no author settings. Lane `ogb`
has the GraphSAGE example of the Open Graph Benchmark for that graph (walks from all nodes, no normalisation) as far as
this network can express it: three summed layers, here each branch through its own ReLU, the input with dropout too, and
rows of length 1 before a linear classifier; 41 updates in each of its 20 epochs instead of 30. AMiner and the small
graphs have nothing published and get the defaults: the Reddit network with smaller subgraphs and dropout 0.3, the best
of six by validation accuracy on Photo's sealed split (one trial each of at most 100 epochs, in the ledger); 0.1, and
with it the edge sampler, a tenth of the learning rate, width 256 or walks from all nodes came after it. About a fifth
of each fresh test set on Photo are validation nodes of this choice: a small bias among six candidates.

Samplers (all with replacement; repeated nodes count once; the subgraph has all edges among its nodes):
  node  nodes with probability proportional to their degree;
  edge  edges with probability proportional to 1/deg u + 1/deg v (a self-loop: 1/deg), both ends kept;
  walk  random walks of a given length from roots drawn uniformly from the training nodes, or from all.

Where this knowingly differs from the official code:
  * Training is transductive: the sampler sees the whole graph, not only the edges among training nodes (with 820
    labels among 232,965 nodes there are hardly any). The counts C_v and C_uv are of all nodes, aggregation weights
    C_v / C_uv (at most 1e4; 0.1 where both are 0) are used everywhere, rows are divided by the degree in the whole
    graph, and only labelled nodes have a loss, with weight (number of subgraphs / C_v) / number of labelled nodes.
  * A subgraph without a labelled node gets one, drawn uniformly. This belongs to the sampler: the counts know of it.
  * Where the pre-sampled subgraphs are used up, they are used again in a new random order. The official code draws
    new ones, whose edges may never have been counted and would weigh 1e4; its own runs end before that happens.
    Subgraphs are not stored: each is a function of the seed and of its number, and is drawn again when its turn comes.
  * An epoch is (all nodes / budget) updates, at least one; official: (training nodes / budget). The budget is the
    number of nodes drawn, twice that of edges, or roots times length.
  * Pre-sampling covers all nodes `coverage` times, or ends at ten times the subgraphs that full budgets would need;
    official: the training nodes, without an end.
  * Where every epoch counts (`stop=never`), the later of two equally accurate states is kept.
  * Features, where standardised, are so with the mean and deviation over all nodes; official: over training nodes.
  * The neighbours' mean is taken after the linear map, which gives the same with fewer columns.
The official optimiser never gets its weight decay; here it does, with 0 as the default. Isolated nodes are never drawn
by the node and edge samplers, as in the official code.
Mini-batches: one subgraph per update. Inference: on the whole graph, layer by layer and in chunks of
`evaluation_batch` nodes, computing only the rows that the asked nodes depend on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numba
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.graph import UNKNOWN_LABEL, Graph, Split
from bench.model import Model, Recipe, Stop
from bench.prepared import PrepareCache
from models.kernels.dropout import add_dropped
from models.kernels.features import FeatureMatrix
from models.kernels.propagation import SparseOperator

_VERSION = 1
_AT_A_TIME = 1024  # rows that are looked at together for mean and deviation
_AT_ONCE = 200  # subgraphs are pre-sampled in lots of this size
_MOST = 10  # how many times more subgraphs than full budgets would need, where subgraphs stay far below their budget
_LARGEST_WEIGHT, _UNSEEN_WEIGHT = 1e4, 0.1  # of an aggregation: at most, and where neither node nor edge was counted
_BASE = 75 * 2**20  # what the libraries take in any case once they compute, as measured


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
    def budget(self) -> int:
        """Nodes that a subgraph would have if none were drawn twice, as the official code counts them."""
        return self.draws * {"node": 1, "edge": 2, "walk": self.walk_length}[self.sampler]


SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "author": {
        "reddit": {
            "architecture": "1-0-1-0",
            "hidden": 128,
            "dropout": 0.1,
            "sampler": "walk",
            "draws": 2000,
            "walk_length": 4,
            "roots": "training",
            "coverage": 50.0,
            "standardize": True,
            "learning_rate": 1e-2,
            "max_epochs": 30,
            "stop": "never",
        }
    },
    "ogb": {
        "amazon2m": {
            "architecture": "1-1-1",
            "hidden": 256,
            "combine": "add",
            "branch_norm": False,
            "dropout": 0.5,
            "draws": 20000,
            "walk_length": 3,
            "roots": "all",
            "normalization": False,
            "learning_rate": 1e-2,
            "clip_norm": 0.0,
            "max_epochs": 20,
            "stop": "never",
        }
    },
}


@dataclass(frozen=True)
class Prepared:
    """What is computed before the first step."""

    sampler: Sampler
    counts: Counts | None  # None where nothing is normalised
    features: FeatureRows


class GraphSAINT(Model):
    """Layers of the node's own features and its neighbours' mean, trained on sampled subgraphs."""

    name = "graphsaint"
    title = "GraphSAINT"
    group = "scalable"
    paper = "Zeng et al., GraphSAINT: Graph Sampling Based Inductive Learning Method, ICLR 2020"
    revision = 1
    Config = GraphSAINTConfig
    settings = SETTINGS
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
        self.sampler, self.counts, self.features = prepared.sampler, prepared.counts, prepared.features
        self._upcoming: list[int] = []  # numbers of the next subgraphs
        self._drawn = 0  # subgraphs so far, where there are no pre-sampled ones
        layers, width = [], graph.num_features
        for order in config.orders:
            layers.append(Layer(order, width, config))
            width = layers[-1].width
        self.layers = nn.ModuleList(layers)
        self.classifier = nn.Linear(width, graph.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int:
        count, width = graph.features.shape
        known = np.flatnonzero(graph.labels != UNKNOWN_LABEL)
        part = Sampler(graph, known if len(known) else np.arange(count), config, 0).subgraph(0, None)  # as any other
        dense_copy, per_row = _feature_bytes(graph, config.standardize)
        weights, branches = 0, 0  # of the network; columns of all branches together
        for order in config.orders:
            weights, branches = weights + (order + 1) * width * config.hidden, branches + (order + 1) * config.hidden
            width = config.hidden * (order + 1 if config.combine == "concat" else 1)
        preparing = 4 * (count + graph.num_entries) if config.normalization else 0
        training = len(part.nodes) * (2 * per_row + 28 * branches) + 24 * part.adjacency.matrix.nnz
        chunk = min(count, config.evaluation_batch or count)
        inference = 8 * count * max(config.hidden, graph.num_classes) + chunk * (per_row + 20 * config.hidden)
        return _BASE + int(dense_copy + max(preparing, 20 * weights + max(training, inference)))

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Prepared:
        sampler = Sampler(graph, split.train, config, seed)
        counts = None
        if config.normalization:
            key = {
                "graph": graph.fingerprint,
                "split": split.fingerprint,
                "seed": seed,
                "sampler": [config.sampler, config.draws, config.walk_length, config.roots],
                "coverage": config.coverage,
                "version": _VERSION,
            }
            counts = Counts(**cache.get("saint", key, lambda: count_subgraphs(sampler, config.coverage)))
        return Prepared(sampler, counts, FeatureRows(graph, config.standardize))

    # -- training ------------------------------------------------------------------------------------------------

    def batches(self, nodes: Tensor, training: bool) -> Iterator[Any]:
        if not training:
            yield from super().batches(nodes, training)
            return
        for _ in range(max(1, math.ceil(self.sampler.num_nodes / self.config.budget))):
            yield self.sampler.subgraph(self._next_number(), self.counts)

    def _next_number(self) -> int:
        """Which subgraph comes next: the pre-sampled ones in a random order, again and again."""
        if self.counts is None:
            self._drawn += 1
            return self._drawn - 1
        if not self._upcoming:
            self._upcoming = torch.randperm(self.counts.subgraphs).tolist()
        return self._upcoming.pop()

    def loss(self, batch: Subgraph) -> Tensor:
        rate = self.config.dropout
        hidden: Any = self.features.rows(batch.nodes).to(self.device).dropped(rate)
        for at, layer in enumerate(self.layers):
            hidden = layer(_dropped(hidden, rate) if at else hidden, batch.adjacency)
        logits = self.classify(hidden[torch.from_numpy(batch.labelled).to(self.device)])
        labels = self.labels[torch.from_numpy(batch.nodes[batch.labelled])].to(self.device)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        return losses @ torch.from_numpy(batch.loss_weights).to(self.device)

    def classify(self, hidden: Tensor) -> Tensor:
        """Logits from the last layer's output: rows of length 1, dropout, linear."""
        embedding = functional.normalize(hidden, dim=1)
        return self.classifier(_dropped(embedding, self.config.dropout) if self.training else embedding)

    # -- inference -----------------------------------------------------------------------------------------------

    def forward(self, nodes: Tensor) -> Tensor:
        """Logits of these nodes from the whole graph, as inference has them (no dropout, no gradient)."""
        return self.predict(nodes)

    @torch.no_grad()
    def predict(self, nodes: Tensor) -> Tensor:
        stages = _stages(list(self.layers))
        needed = [nodes.numpy()]  # nodes whose output of each stage is needed, the last stage's at the end
        for stage in reversed(stages):
            needed.insert(0, self.sampler.with_neighbours(needed[0]) if stage[0].order else needed[0])
        hidden: Tensor | None = None
        for at, stage in enumerate(stages):
            last = at == len(stages) - 1
            hidden = self._run_stage(stage, hidden, needed[at], needed[at + 1], last)
        assert hidden is not None
        return hidden

    def _run_stage(
        self, stage: list[Layer], hidden: Tensor | None, known: np.ndarray, wanted: np.ndarray, last: bool
    ) -> Tensor:
        """A stage's output (logits after the last one) for the wanted nodes, from its input for the known nodes.

        Only two arrays have a row per node beside the input: the projected input and the output.
        """
        place = np.full(self.sampler.num_nodes, -1, dtype=np.int32)
        place[known] = np.arange(len(known), dtype=np.int32)
        head = stage[0]

        def inputs(places: np.ndarray) -> Any:
            if hidden is None:
                return self.features.rows(known[places]).to(self.device)
            return hidden[torch.from_numpy(places).to(self.device)]

        projected = None
        if head.order:
            chunks = self._chunks(np.arange(len(known)))
            projected = _collect((head.project(inputs(chunk), 1) for chunk in chunks), len(known))

        def outputs(nodes: np.ndarray) -> Tensor:
            neighbours = None
            if projected is not None:
                neighbours = self.sampler.mean_of_neighbours(nodes, place, len(known)).product(projected)
            result = head.join(head.project(inputs(place[nodes]), 0), neighbours)
            for layer in stage[1:]:
                result = layer(result, None)
            return self.classify(result) if last else result

        return _collect((outputs(chunk) for chunk in self._chunks(wanted)), len(wanted))

    def _chunks(self, nodes: np.ndarray) -> Iterator[np.ndarray]:
        size = self.config.evaluation_batch or max(len(nodes), 1)
        for first in range(0, max(len(nodes), 1), size):
            yield nodes[first : first + size]

    def choices(self) -> dict[str, str]:
        subgraphs = "drawn afresh" if self.counts is None else f"{self.counts.subgraphs} pre-sampled"
        return {"sampler": self.config.sampler, "subgraphs": subgraphs}


# -- network ----------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Order 0: a dense layer. Order 1: also one on the neighbours' mean, the two joined. Dropout is the caller's."""

    def __init__(self, order: int, width: int, config: GraphSAINTConfig) -> None:
        super().__init__()
        self.order, self.concat = order, config.combine == "concat"
        self.linears = nn.ModuleList([nn.Linear(width, config.hidden) for _ in range(order + 1)])
        norms = [nn.LayerNorm(config.hidden, eps=1e-9) if config.branch_norm else nn.Identity() for _ in self.linears]
        self.norms = nn.ModuleList(norms)
        self.width = config.hidden * (order + 1 if self.concat else 1)

    def forward(self, hidden: Any, adjacency: SparseOperator | None) -> Tensor:
        neighbours = None
        if self.order:
            assert adjacency is not None
            neighbours = adjacency @ self.project(hidden, 1)
        return self.join(self.project(hidden, 0), neighbours)

    def project(self, hidden: Any, branch: int) -> Tensor:
        """A branch's linear map, without its bias: what can be done before the mean over neighbours."""
        linear: Any = self.linears[branch]
        return hidden @ linear.weight.T

    def join(self, own: Tensor, neighbours: Tensor | None) -> Tensor:
        """The layer's output from the projections of both branches."""
        branches = [own] if neighbours is None else [own, neighbours]
        finished = [self._finish(branch, at) for at, branch in enumerate(branches)]
        return torch.cat(finished, dim=1) if self.concat else sum(finished[1:], start=finished[0])

    def _finish(self, projected: Tensor, branch: int) -> Tensor:
        linear: Any = self.linears[branch]
        return self.norms[branch](torch.relu(projected + linear.bias))


def _dropped(hidden: Tensor, rate: float) -> Tensor:
    """Dropout by the fast kernel, which adds to what it is given."""
    return add_dropped(hidden.new_zeros(()).expand(hidden.shape), hidden, rate)


def _stages(layers: list[Any]) -> list[list[Layer]]:
    """Layers grouped so that only the first of a group may look at neighbours: the others follow row by row."""
    stages: list[list[Layer]] = []
    for layer in layers:
        if layer.order or not stages:
            stages.append([layer])
        else:
            stages[-1].append(layer)
    return stages


def _collect(chunks: Iterator[Tensor], rows: int) -> Tensor:
    """The chunks below each other, without ever holding all of them twice."""
    out, first = None, 0
    for chunk in chunks:
        if out is None:
            if len(chunk) == rows:
                return chunk
            out = chunk.new_empty((rows, chunk.shape[1]))
        out[first : first + len(chunk)] = chunk
        first += len(chunk)
    assert out is not None
    return out


class FeatureRows:
    """The features of chosen nodes, standardised where asked with the mean and deviation over all nodes."""

    def __init__(self, graph: Graph, standardize: bool) -> None:
        matrix = FeatureMatrix.of(graph).matrix
        self.matrix: Any = matrix.matrix if isinstance(matrix, SparseOperator) else matrix.numpy()
        self.moments = _moments(self.matrix) if standardize else None

    def rows(self, nodes: np.ndarray) -> FeatureMatrix:
        chosen = self.matrix[nodes]  # a copy
        if self.moments is not None:
            mean, scale = self.moments
            chosen = _dense(chosen)
            chosen -= mean
            chosen *= scale
        return FeatureMatrix(chosen)


def _feature_bytes(graph: Graph, standardize: bool) -> tuple[float, float]:
    """Bytes of a dense copy of all features, where one is made, and of each row that is taken out."""
    features = graph.features
    if isinstance(features, np.ndarray):
        return 0.0, 4.0 * features.shape[1]
    as_dense = isinstance(FeatureMatrix(features[:_AT_A_TIME]).matrix, Tensor)  # judged by the first rows
    copy = 4.0 * features.shape[0] * features.shape[1] if as_dense else 0.0
    per_row = 4.0 * features.shape[1] if as_dense or standardize else 16.0 * features.nnz / features.shape[0]
    return copy, per_row


def _dense(features: Any) -> np.ndarray:
    return features if isinstance(features, np.ndarray) else features.toarray()


def _moments(features: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and 1 / deviation of every column; a constant column gets 1."""
    count, width = features.shape
    total, squares = np.zeros(width), np.zeros(width)
    for first in range(0, count, _AT_A_TIME):
        part = _dense(features[first : first + _AT_A_TIME]).astype(np.float64)
        total += part.sum(axis=0)
        squares += np.square(part, out=part).sum(axis=0)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    varies = deviation > 1e-6 * np.sqrt(squares / count)  # more than rounding leaves
    scale = np.divide(1.0, deviation, out=np.ones(width), where=varies)
    return mean.astype(np.float32), scale.astype(np.float32)


# -- subgraphs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Subgraph:
    """What one update sees; nodes are numbered within it."""

    nodes: np.ndarray  # ascending, as the graph numbers them
    adjacency: SparseOperator  # the weighted mean over neighbours
    labelled: np.ndarray  # places of the training nodes in `nodes`
    loss_weights: np.ndarray  # of these, float32


@dataclass(frozen=True, eq=False)
class Counts:
    """In how many of the pre-sampled subgraphs each node and each adjacency entry was."""

    of_nodes: np.ndarray  # int32, N
    of_entries: np.ndarray  # int32, one per stored entry of the adjacency
    total: np.ndarray  # a single number, how many subgraphs there were

    @property
    def subgraphs(self) -> int:
        return int(self.total[0])


class Sampler:
    """Draws subgraphs; number i is a pure function of the seed and of i, whoever asks and in whichever order."""

    def __init__(self, graph: Graph, training: np.ndarray, config: GraphSAINTConfig, seed: int) -> None:
        self.indptr, self.indices, self.config = graph.indptr, graph.indices, config
        self.num_nodes, self.training = graph.num_nodes, training
        self.is_training = np.zeros(graph.num_nodes, dtype=np.bool_)
        self.is_training[training] = True
        self.linked = np.flatnonzero(graph.degrees).astype(np.int32)  # nodes with a neighbour
        self.seed = np.uint64(seed % 2**64)
        self._place = np.full(graph.num_nodes, -1, dtype=np.int32)  # all -1 between two calls

    def nodes(self, number: int) -> np.ndarray:
        """The nodes of this subgraph, ascending."""
        key, draws = np.uint64(_hash(self.seed, number)), self.config.draws
        if self.config.sampler == "walk":
            starts = self.training if self.config.roots == "training" else None
            drawn = _draw_walks(self.indptr, self.indices, starts, draws, self.config.walk_length, key)
        elif len(self.linked) == 0:  # no edge to go by
            drawn = _draw_walks(self.indptr, self.indices, None, draws, 0, key)
        elif self.config.sampler == "edge":
            drawn = _draw_edges(self.indptr, self.indices, self.linked, draws, key)
        else:
            drawn = _draw_by_degree(self.indices, draws, key)
        chosen = np.unique(drawn)
        if not self.is_training[chosen].any():
            added = self.training[_below(key, len(drawn) + draws, len(self.training))]
            chosen = np.insert(chosen, np.searchsorted(chosen, added), added)
        return chosen

    def subgraph(self, number: int, counts: Counts | None) -> Subgraph:
        """The subgraph with its weights: by the counts, or plain means where there are none."""
        nodes = self.nodes(number)
        self._place[nodes] = np.arange(len(nodes), dtype=np.int32)
        starts = np.zeros(len(nodes) + 1, dtype=np.int32)
        _row_lengths(self.indptr, self.indices, nodes, self._place, starts[1:])
        np.cumsum(starts, out=starts)
        columns = np.empty(starts[-1], dtype=np.int32)
        forth, back = (np.empty(starts[-1], dtype=np.float32) for _ in range(2))
        graph, result = (self.indptr, self.indices, nodes, self._place), (starts, columns, forth, back)
        labelled = np.flatnonzero(self.is_training[nodes])
        if counts is None:
            _fill_plain(*graph, *result)
            weights = np.full(len(labelled), 1.0 / len(labelled), dtype=np.float32)
        else:
            _fill_weighted(*graph, counts.of_nodes, counts.of_entries, *result)
            seen = counts.of_nodes[nodes[labelled]]
            weights = (counts.subgraphs / (np.maximum(seen, 0.1) * len(self.training))).astype(np.float32)
        self._place[nodes] = -1
        return Subgraph(nodes, _WithTranspose(starts, columns, forth, back), labelled, weights)

    def with_neighbours(self, nodes: np.ndarray) -> np.ndarray:
        """These nodes and all their neighbours, ascending."""
        mask = np.zeros(self.num_nodes, dtype=np.bool_)
        mask[nodes] = True
        _mark_neighbours(self.indptr, self.indices, nodes, mask)
        return np.flatnonzero(mask)

    def mean_of_neighbours(self, nodes: np.ndarray, place: np.ndarray, width: int) -> SparseOperator:
        """Rows of the whole graph's mean over neighbours; its columns are the places that nodes have been given."""
        lengths = self.indptr[nodes + 1] - self.indptr[nodes]
        starts = np.zeros(len(nodes) + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        starts = starts.astype(np.int32 if starts[-1] < 2**31 else np.int64)
        columns = np.empty(starts[-1], dtype=starts.dtype)
        weights = np.empty(starts[-1], dtype=np.float32)
        _fill_rows(self.indptr, self.indices, nodes, place, starts, columns, weights)
        return SparseOperator(sp.csr_array((weights, columns, starts), shape=(len(nodes), width)))


class _WithTranspose(SparseOperator):
    """A matrix with a symmetric pattern whose transpose is known: it only has other values."""

    def __init__(self, starts: np.ndarray, columns: np.ndarray, forth: np.ndarray, back: np.ndarray) -> None:
        shape = (len(starts) - 1, len(starts) - 1)
        super().__init__(sp.csr_array((forth, columns, starts), shape=shape))
        self._transposed = sp.csr_array((back, columns, starts), shape=shape)


def count_subgraphs(sampler: Sampler, coverage: float) -> dict[str, np.ndarray]:
    """Sample until the subgraphs have `coverage` times the graph's nodes, and count who was in them."""
    of_nodes = np.zeros(sampler.num_nodes, dtype=np.int32)
    of_entries = np.zeros(len(sampler.indices), dtype=np.int32)
    inside = np.zeros(sampler.num_nodes, dtype=np.bool_)
    wanted, found, subgraphs = coverage * sampler.num_nodes, 0, 0
    while found <= wanted and subgraphs * sampler.config.budget <= _MOST * wanted:
        for number in range(subgraphs, subgraphs + _AT_ONCE):
            nodes = sampler.nodes(number)
            found += len(nodes)
            _count(sampler.indptr, sampler.indices, nodes, inside, of_nodes, of_entries)
        subgraphs += _AT_ONCE
    return {"of_nodes": of_nodes, "of_entries": of_entries, "total": np.array([subgraphs])}


# -- kernels ----------------------------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _hash(key: np.uint64, count: int) -> np.uint64:
    """The count-th of the well-mixed 64-bit numbers that belong to the key (splitmix64)."""
    value = np.uint64(key) + np.uint64(count + 1) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def _below(key: np.uint64, count: int, limit: int) -> int:
    """The count-th random whole number of this key, uniform between 0 and limit - 1."""
    return np.int64((_hash(key, count) >> np.uint64(11)) * (1.0 / 2**53) * limit)


@numba.njit(cache=True, nogil=True)
def _draw_by_degree(indices: np.ndarray, draws: int, key: np.uint64) -> np.ndarray:
    """Nodes proportional to degree: the ends of uniformly drawn entries, where each node stands degree times."""
    drawn = np.empty(draws, dtype=np.int64)
    for draw in range(draws):
        drawn[draw] = indices[_below(key, draw, len(indices))]
    return drawn


@numba.njit(cache=True, nogil=True)
def _draw_edges(indptr: np.ndarray, indices: np.ndarray, linked: np.ndarray, draws: int, key: np.uint64) -> np.ndarray:
    """Both ends of edges proportional to 1/deg u + 1/deg v: a uniform node and one of its neighbours, uniformly."""
    drawn = np.empty(2 * draws, dtype=np.int64)
    for draw in range(draws):
        node = linked[_below(key, 2 * draw, len(linked))]
        drawn[2 * draw] = node
        drawn[2 * draw + 1] = indices[indptr[node] + _below(key, 2 * draw + 1, indptr[node + 1] - indptr[node])]
    return drawn


@numba.njit(cache=True, nogil=True)
def _draw_walks(
    indptr: np.ndarray, indices: np.ndarray, starts: np.ndarray | None, draws: int, length: int, key: np.uint64
) -> np.ndarray:
    """Every node that the walks see, their roots included; a walk stays where there is no neighbour."""
    drawn = np.empty(draws * (length + 1), dtype=np.int64)
    for draw in range(draws):
        at = draw * (length + 1)
        if starts is None:  # noqa: SIM108  numba prunes the branch, not a conditional expression
            node = _below(key, at, len(indptr) - 1)
        else:
            node = np.int64(starts[_below(key, at, len(starts))])
        drawn[at] = node
        for step in range(1, length + 1):
            degree = indptr[node + 1] - indptr[node]
            if degree:
                node = np.int64(indices[indptr[node] + _below(key, at + step, degree)])
            drawn[at + step] = node
    return drawn


@numba.njit(cache=True, nogil=True)
def _count(
    indptr: np.ndarray,
    indices: np.ndarray,
    nodes: np.ndarray,
    inside: np.ndarray,
    of_nodes: np.ndarray,
    of_entries: np.ndarray,
) -> None:
    """Add one for each node and each entry of this subgraph; `inside` is all False before and after."""
    for node in nodes:
        inside[node] = True
    for node in nodes:
        of_nodes[node] += 1
        for entry in range(indptr[node], indptr[node + 1]):
            of_entries[entry] += inside[indices[entry]]
    for node in nodes:
        inside[node] = False


@numba.njit(cache=True, nogil=True, inline="never")
def _length(columns: np.ndarray, place: np.ndarray) -> int:
    length = 0
    for column in columns:
        length += place[column] >= 0
    return length


@numba.njit(cache=True, parallel=True, nogil=True)
def _row_lengths(
    indptr: np.ndarray, indices: np.ndarray, nodes: np.ndarray, place: np.ndarray, lengths: np.ndarray
) -> None:
    """How many neighbours of each node have a place."""
    for row in numba.prange(len(nodes)):
        lengths[row] = _length(indices[indptr[nodes[row]] : indptr[nodes[row] + 1]], place)


@numba.njit(cache=True, nogil=True)
def _ratio(of_node: int, of_entry: int) -> float:
    if of_entry == 0:
        return _LARGEST_WEIGHT if of_node > 0 else _UNSEEN_WEIGHT
    return min(of_node / of_entry, _LARGEST_WEIGHT)


@numba.njit(cache=True, nogil=True, inline="never")
def _fill_weighted_row(
    indptr: np.ndarray,
    indices: np.ndarray,
    node: int,
    place: np.ndarray,
    of_nodes: np.ndarray,
    of_entries: np.ndarray,
    first: int,
    columns: np.ndarray,
    forth: np.ndarray,
    back: np.ndarray,
) -> None:
    degree, seen, at = indptr[node + 1] - indptr[node], of_nodes[node], first
    for entry in range(indptr[node], indptr[node + 1]):
        other = indices[entry]
        if place[other] >= 0:
            columns[at] = place[other]
            forth[at] = _ratio(seen, of_entries[entry]) / degree
            # The entry in the other direction has the same count: both are in a subgraph or neither is.
            back[at] = _ratio(of_nodes[other], of_entries[entry]) / (indptr[other + 1] - indptr[other])
            at += 1


@numba.njit(cache=True, parallel=True, nogil=True)
def _fill_weighted(
    indptr: np.ndarray,
    indices: np.ndarray,
    nodes: np.ndarray,
    place: np.ndarray,
    of_nodes: np.ndarray,
    of_entries: np.ndarray,
    starts: np.ndarray,
    columns: np.ndarray,
    forth: np.ndarray,
    back: np.ndarray,
) -> None:
    """The subgraph's rows and those of its transpose, with weights C_v / C_uv / degree in the whole graph."""
    for row in numba.prange(len(nodes)):
        _fill_weighted_row(indptr, indices, nodes[row], place, of_nodes, of_entries, starts[row], columns, forth, back)


@numba.njit(cache=True, nogil=True, inline="never")
def _fill_plain_row(
    neighbours: np.ndarray,
    place: np.ndarray,
    starts: np.ndarray,
    row: int,
    columns: np.ndarray,
    forth: np.ndarray,
    back: np.ndarray,
) -> None:
    at = starts[row]
    for other in neighbours:
        column = place[other]
        if column >= 0:
            columns[at] = column
            forth[at] = 1.0 / (starts[row + 1] - starts[row])
            back[at] = 1.0 / (starts[column + 1] - starts[column])
            at += 1


@numba.njit(cache=True, parallel=True, nogil=True)
def _fill_plain(
    indptr: np.ndarray,
    indices: np.ndarray,
    nodes: np.ndarray,
    place: np.ndarray,
    starts: np.ndarray,
    columns: np.ndarray,
    forth: np.ndarray,
    back: np.ndarray,
) -> None:
    """The subgraph's rows and those of its transpose, each row a mean within the subgraph."""
    for row in numba.prange(len(nodes)):
        neighbours = indices[indptr[nodes[row]] : indptr[nodes[row] + 1]]
        _fill_plain_row(neighbours, place, starts, row, columns, forth, back)


@numba.njit(cache=True, nogil=True)
def _mark_neighbours(indptr: np.ndarray, indices: np.ndarray, nodes: np.ndarray, mask: np.ndarray) -> None:
    for node in nodes:
        for entry in range(indptr[node], indptr[node + 1]):
            mask[indices[entry]] = True


@numba.njit(cache=True, nogil=True, inline="never")
def _fill_row(neighbours: np.ndarray, place: np.ndarray, columns: np.ndarray, weights: np.ndarray) -> None:
    for at in range(len(neighbours)):
        columns[at] = place[neighbours[at]]
        weights[at] = 1.0 / len(neighbours)


@numba.njit(cache=True, parallel=True, nogil=True)
def _fill_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    nodes: np.ndarray,
    place: np.ndarray,
    starts: np.ndarray,
    columns: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Whole rows of the mean over neighbours, for nodes in any order."""
    for row in numba.prange(len(nodes)):
        neighbours = indices[indptr[nodes[row]] : indptr[nodes[row] + 1]]
        _fill_row(neighbours, place, columns[starts[row] : starts[row + 1]], weights[starts[row] : starts[row + 1]])
