"""GRAND+: an MLP on randomly propagated features, with a consistency loss on unlabelled nodes.

Paper: Feng et al.: "GRAND+: Scalable Graph Random Neural Networks", WWW 2022.
Settings: lane `author` holds the published scripts (their "ppr" variant) for Pubmed, AMiner, Reddit and Amazon2M. The
official loader knows CoraFull, CS, Physics, Photo and Computer too, but no settings are published for them. Its limit
of 5,000 passes over the training nodes is read as 5,000 epochs of ten updates; patience ends training long before.
The 64 entries per row of the defaults were the best of six by validation accuracy on Photo's sealed split (one trial
each of at most 100 epochs, in the ledger): 32, and with these half the consistency weight, ten times the learning rate,
width 64 or flatter weights of more powers came after it. About a fifth of each fresh test set on Photo are validation
nodes of this choice: a small bias among six candidates.

Where this knowingly differs from the official code:
  * Training and inference are on one scale: inference uses the weights of the push, which sum to 1. The official "ppr"
    inference leaves them unnormalised, so that on AMiner features arrive at half the scale that the network was
    trained on (0.52, and 0.30 on Reddit, where the row normalisation hides it).
  * Where no unlabelled node is confident enough, the consistency loss is 0; the official mean over nothing is NaN.
    With two classes the threshold 2 / C is 1 and nobody ever is.
  * "All unlabelled nodes" means all test nodes; the official -1 leaves the last one out.
  * A self-loop that the graph already has counts once, in training and inference alike; the official push ignores
    weights but its inference gives it weight 2.
  * With λ = 0 nothing is computed for unlabelled nodes.
  * A batch of one row is normalised by the running statistics (batch normalisation), where the official code fails.
  * Patience: the rules "accuracy" and "both" of bench/train.py. "accuracy" is the official one. With "both", the
    official counter grows whenever accuracy is below that of the remembered state, and only a new state clears it;
    here it grows only while accuracy and loss are both worse than their own bests, and either of them clears it.
  * Which state is kept with "both" (lane `author` on Pubmed): one that is no worse than the best accuracy and the
    lowest loss so far, which move at every evaluation (GAT's rule). The official thresholds are those of the saved
    state and move only when it is replaced, so later states may be saved there that are refused here.
  * The first evaluation comes after ten updates, not after one.
Mini-batches: an epoch is ten updates (the official code evaluates every ten), each of `batch_size` training nodes and
`unlabelled_batch` nodes of a random sample U' of test nodes, whose features are seen but whose labels are not.
Validation uses the top-k rows. Inference: exact propagation in main memory, then the MLP in chunks of
`evaluation_batch`. Dense features are propagated as such, a block of columns at a time; sparse ones are never made
dense as a whole: their first linear map comes before the propagation (which is linear too, and the normalisation
between the two is then a scale per row and an affine map per column).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numba
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.graph import Graph, Split
from bench.model import Model, Recipe, Stop
from bench.prepared import PrepareCache, as_tensor
from models.kernels.propagation import add_row, sparse_dense
from models.kernels.push import WORKSPACE_BYTES, TopRows, dropped, gfpush_rows, neighbour_sums, nodes_without_loop

UPDATES_PER_EPOCH = 10
_VERSION = 1
_BLOCK = 64  # columns that are propagated together
_FLOOR = 35_000_000  # bytes: threads, compiled code, what the allocator keeps of an earlier phase
_TINY = 1e-12  # sums and norms below it count as zero


@dataclass(frozen=True)
class GRANDPlusConfig(Recipe):
    """GRAND+'s architecture and recipe; the defaults are for graphs without author settings."""

    propagation: Literal["ppr", "avg", "single"] = "ppr"  # weights of the powers: α (1 - α)^n, equal, the last alone
    order: int = 6  # the highest power
    alpha: float = 0.4  # of "ppr"
    rmax: float = 1e-5  # push: residuals below rmax times the degree are not passed on
    top_k: int = 64  # entries kept per row
    node_dropout: float = 0.5  # DropNode, on the kept entries
    augmentations: int = 2  # random propagations per update
    hidden: int = 256  # width of the hidden layers
    layers: int = 2  # 1 is logistic regression
    batch_norm: bool = True  # on the input and on hidden activations
    node_norm: bool = True  # rows of length 1, likewise
    input_dropout: float = 0.2  # on the propagated features
    hidden_dropout: float = 0.5  # on hidden activations
    consistency: float = 1.0  # λ, the weight of the consistency loss; 0 switches it off
    consistency_loss: Literal["l2", "kl"] = "l2"  # distance of the predictions from their sharpened mean
    consistency_warmup: int = 100  # updates until λ is reached
    temperature: float = 0.1  # of the sharpened targets
    unlabelled: int = 0  # size of the sample U' of test nodes; 0 means all of them
    unlabelled_batch: int = 100  # of them per update

    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    batch_size: int = 200
    evaluation_batch: int = 2000
    max_epochs: int = 1000
    stop: Stop = "accuracy"
    patience: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha must be above 0 and at most 1, not {self.alpha}")
        for name in ("rmax", "consistency"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")

    @property
    def mixture(self) -> np.ndarray:
        """The weights of P^0 … P^order; they sum to 1."""
        powers = np.arange(self.order + 1)
        weights = {"ppr": (1.0 - self.alpha) ** powers, "avg": np.ones(len(powers)), "single": powers == self.order}
        return weights[self.propagation] / weights[self.propagation].sum()


_COMMON: dict[str, Any] = {
    "propagation": "ppr",
    "order": 6,
    "node_dropout": 0.5,
    "augmentations": 2,
    "temperature": 0.1,
    "evaluation_batch": 10_000,
    "max_epochs": 5000,
    "batch_norm": True,
}
_LARGE: dict[str, Any] = {
    **_COMMON,
    "input_dropout": 0.0,
    "hidden_dropout": 0.0,
    "consistency_loss": "kl",
    "unlabelled": 10_000,
    "top_k": 64,
    "stop": "accuracy",
}
AUTHOR_SETTINGS: dict[str, dict[str, Any]] = {
    "pubmed": {
        **_COMMON,
        "learning_rate": 1e-2,
        "weight_decay": 1e-2,
        "layers": 1,
        "node_norm": True,
        "input_dropout": 0.2,
        "hidden_dropout": 0.2,
        "consistency": 1.0,
        "consistency_loss": "l2",
        "consistency_warmup": 100,
        "batch_size": 5,
        "unlabelled_batch": 100,
        "unlabelled": 0,
        "top_k": 16,
        "rmax": 1e-5,
        "alpha": 0.5,
        "clip_norm": 0.1,
        "stop": "both",
        "patience": 50,
    },
    "aminer": {
        **_LARGE,
        "learning_rate": 1e-2,
        "weight_decay": 1e-2,
        "layers": 1,
        "node_norm": False,
        "consistency": 1.5,
        "consistency_warmup": 100,
        "batch_size": 20,
        "unlabelled_batch": 100,
        "rmax": 1e-5,
        "alpha": 0.1,
        "patience": 10,
    },
    "reddit": {
        **_LARGE,
        "learning_rate": 1e-4,
        "weight_decay": 0.0,
        "layers": 2,
        "hidden": 512,
        "node_norm": True,
        "consistency": 1.5,
        "consistency_warmup": 500,
        "batch_size": 50,
        "unlabelled_batch": 200,
        "rmax": 1e-5,
        "alpha": 0.05,
        "clip_norm": 0.1,
        "patience": 20,
    },
    "amazon2m": {
        **_LARGE,
        "learning_rate": 1e-3,
        "weight_decay": 1e-5,
        "layers": 2,
        "hidden": 1024,
        "node_norm": True,
        "consistency": 0.8,
        "consistency_warmup": 500,
        "batch_size": 50,
        "unlabelled_batch": 200,
        "rmax": 1e-6,
        "alpha": 0.2,
        "patience": 30,
    },
}


@dataclass(frozen=True)
class Prepared:
    """Top-k rows of the training, validation and sampled nodes, and which nodes were sampled."""

    rows: TopRows
    sample: Tensor


class GRANDPlus(Model):
    """DropNode on approximate propagation rows, an MLP, and consistency between the augmentations."""

    name = "grandplus"
    title = "GRAND+"
    aliases = ("grand+", "grand-plus", "grand_plus")
    group = "scalable"
    paper = "Feng et al., GRAND+: Scalable Graph Random Neural Networks, WWW 2022"
    revision = 1
    Config = GRANDPlusConfig
    settings = {"author": AUTHOR_SETTINGS}  # noqa: RUF012
    spaces = {  # noqa: RUF012
        "wide": {
            "propagation": ("ppr", "avg", "single"),
            "order": (2, 4, 6, 10, 20),
            "alpha": (0.05, 0.1, 0.2, 0.4, 0.5),
            "rmax": (1e-5, 1e-6, 1e-7),
            "top_k": (16, 32, 64),
            "hidden": (64, 256, 512, 1024),
            "layers": (1, 2),
            "batch_norm": (False, True),
            "node_norm": (False, True),
            "input_dropout": (0.0, 0.2, 0.5),
            "hidden_dropout": (0.0, 0.2, 0.5, 0.7),
            "consistency": (0.0, 0.5, 0.8, 1.0, 1.5),
            "consistency_loss": ("l2", "kl"),
            "consistency_warmup": (100, 500, 1000),
            "batch_size": (5, 20, 50, 200, 500),
            "unlabelled_batch": (100, 200),
            "learning_rate": (1e-4, 1e-3, 1e-2),
            "weight_decay": (0.0, 1e-5, 1e-3, 1e-2),
        }
    }

    def __init__(self, graph: Graph, prepared: Prepared, config: GRANDPlusConfig) -> None:
        super().__init__(graph, prepared, config)
        self.graph, self.rows, self.sample = graph, prepared.rows, prepared.sample
        self.mlp = MLP(graph.num_features, graph.num_classes, config)
        self.updates = 0  # so far
        self._waiting = torch.empty(0, dtype=torch.int64)  # training nodes that this pass over them has still to see

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Prepared:
        sample = draw_sample(split.test, config, seed)
        nodes = np.union1d(np.union1d(split.train, split.val), sample)
        push = {"mixture": config.mixture.tolist(), "rmax": config.rmax, "top_k": config.top_k, "version": _VERSION}

        def compute() -> dict[str, np.ndarray]:
            own = nodes_without_loop(graph)
            return gfpush_rows(graph, own, nodes, config.mixture, config.rmax, config.top_k)

        return Prepared(TopRows.cached("gfpush", graph, nodes, push, cache, compute), torch.from_numpy(sample))

    # -- training ------------------------------------------------------------------------------------------------

    def batches(self, nodes: Tensor, training: bool) -> Iterator[Any]:
        """Ten pairs of training nodes and unlabelled nodes; passes over the training nodes go on across epochs."""
        if not training:
            yield from super().batches(nodes, training)
            return
        size = self.config.batch_size or len(nodes)
        for _ in range(UPDATES_PER_EPOCH):
            if not len(self._waiting):
                self._waiting = nodes[torch.randperm(len(nodes))]
            labelled, self._waiting = self._waiting[:size], self._waiting[size:]
            chosen = torch.randperm(len(self.sample))[: self.config.unlabelled_batch]
            yield labelled, self.sample[chosen]

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        labelled, unlabelled = batch
        columns, weights = self.rows.of(torch.cat([labelled, unlabelled]))
        views = []
        for _ in range(self.config.augmentations):
            kept = drop_nodes(torch.from_numpy(weights), self.config.node_dropout)
            views.append(self.mlp(self._mixed(columns, kept)).log_softmax(dim=1))
        targets = self.labels[labelled].to(self.device)
        losses = [functional.nll_loss(view[: len(labelled)], targets) for view in views]
        loss = torch.stack(losses).mean()
        ramp = min(1.0, self.updates / self.config.consistency_warmup)
        self.updates += 1
        if len(unlabelled):
            apart = consistency([view[len(labelled) :] for view in views], self.config)
            loss = loss + self.config.consistency * ramp * apart
        return loss

    def _mixed(self, columns: np.ndarray, weights: Tensor) -> Tensor:
        """For each row the weighted sum of its columns' features, computed in main memory."""
        features = self.graph.features
        out = np.zeros((len(columns), features.shape[1]), dtype=np.float32)
        if isinstance(features, np.ndarray):
            _mix_dense(columns, weights.numpy(), features, out)
        else:
            _mix_sparse(columns, weights.numpy(), features.indptr, features.indices, features.data, out)
        return torch.from_numpy(out).to(self.device)

    # -- evaluation ----------------------------------------------------------------------------------------------

    def forward(self, nodes: Tensor) -> Tensor:
        """Logits of nodes that have rows, nothing dropped from these."""
        columns, weights = self.rows.of(nodes)
        return self.mlp(self._mixed(columns, drop_nodes(torch.from_numpy(weights), 0.0)))

    def validate(self, nodes: Tensor) -> Tensor:
        return torch.cat([self(batch) for batch in self.batches(nodes, training=False)])

    def predict(self, nodes: Tensor) -> Tensor:
        propagation, features = Propagation(self.graph, self.config.mixture), self.graph.features
        finish: Callable[[Tensor], Tensor] = self.mlp
        if isinstance(features, np.ndarray):
            inputs = propagation.of_features(as_tensor(features))
        else:
            inputs, finish = self._projected(propagation, features), self.mlp.after_first
        scores = torch.empty((len(nodes), self.mlp.classes), device=self.device)
        size = self.config.evaluation_batch or max(len(nodes), 1)
        for start in range(0, len(nodes), size):
            chunk = nodes[start : start + size]
            scores[start : start + size] = finish(inputs[chunk].to(self.device))
        return scores

    def _projected(self, propagation: Propagation, features: sp.csr_array) -> Tensor:
        """What the first linear map makes of the propagated features, without their ever being there."""
        weight, bias = self.mlp.first_as_affine()
        hidden = propagation.mixed(torch.from_numpy(sparse_dense(features, weight.cpu().T.contiguous().numpy())))
        if self.config.node_norm:
            hidden /= propagation.lengths(features).clamp(min=_TINY)[:, None]
        return hidden.add_(bias.cpu())

    def choices(self) -> dict[str, str]:
        sparse = sp.issparse(self.graph.features)
        return {"inference": "projected, then propagated" if sparse else "propagated, then projected"}

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int:
        """The largest of preparation, training, validation and inference, above what all of them hold."""
        nodes, width, classes = graph.num_nodes, graph.num_features, graph.num_classes
        trained = int((graph.labels >= 0).sum())
        checked = min(3 * trained // 2, (nodes - trained) // 2)  # validation nodes, by either of the usual splits
        unlabelled = 0 if config.consistency == 0.0 else config.unlabelled or nodes
        rows = min(nodes, trained + checked + unlabelled)
        first = config.hidden if config.layers > 1 else classes
        hidden = config.hidden * (config.layers - 1) + classes

        prepare = nodes * WORKSPACE_BYTES * numba.get_num_threads() + 8 * rows * config.top_k
        batch = min(trained, config.batch_size or trained) + min(unlabelled, config.unlabelled_batch)
        steps = 2 + config.node_norm + config.batch_norm  # arrays that an input becomes one after the other
        train = config.augmentations * batch * 4 * (steps * width + 2 * steps * hidden)
        chunk = config.evaluation_batch or nodes
        validate = min(checked, chunk) * 4 * (steps * width + 2 * hidden)
        if not isinstance(graph.features, np.ndarray):
            lengths = 3 * 4 * nodes * _BLOCK + 8 * graph.features.nnz if config.node_norm else 0
            propagate = max(3 * 4 * nodes * first, 4 * nodes * first + lengths)
            infer = max(propagate, 4 * nodes * (first + classes) + min(nodes, chunk) * 4 * 3 * hidden)
        else:
            propagate = 4 * nodes * (width + 3 * min(width, _BLOCK))
            infer = max(propagate, 4 * nodes * (width + classes) + min(nodes, chunk) * 4 * (steps * width + 3 * hidden))
        parameters = sum(a * b for a, b in pairwise(_widths(width, classes, config)))
        return _FLOOR + 5 * 4 * parameters + max(prepare, train, validate, infer)


class MLP(nn.Module):
    """Linear maps with dropout before each; where asked, rows of length 1 and batch normalisation before that."""

    def __init__(self, features: int, classes: int, config: GRANDPlusConfig) -> None:
        super().__init__()
        self.config, self.classes = config, classes
        widths = _widths(features, classes, config)
        self.linears: Any = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(widths)])
        self.norms: Any = nn.ModuleList([BatchNorm(a) if config.batch_norm else nn.Identity() for a in widths[:-1]])

    def forward(self, inputs: Tensor) -> Tensor:
        return self.after_first(self.linears[0](self._prepare(inputs, 0, self.config.input_dropout)))

    def after_first(self, hidden: Tensor) -> Tensor:
        """What follows the first linear map."""
        for at in range(1, len(self.linears)):
            hidden = self.linears[at](self._prepare(torch.relu(hidden), at, self.config.hidden_dropout))
        return hidden

    def _prepare(self, rows: Tensor, at: int, rate: float) -> Tensor:
        if self.config.node_norm:
            rows = functional.normalize(rows, dim=1, eps=_TINY)
        return dropped(self.norms[at](rows), rate if self.training else 0.0)

    def first_as_affine(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the first linear map joined with the batch normalisation before it, as in evaluation."""
        linear, norm = self.linears[0], self.norms[0]
        if not self.config.batch_norm:
            return linear.weight, linear.bias
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        return linear.weight * scale, linear.bias + linear.weight @ (norm.bias - norm.running_mean * scale)


def _widths(features: int, classes: int, config: GRANDPlusConfig) -> list[int]:
    return [features, *[config.hidden] * (config.layers - 1), classes]


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation that takes the running statistics where a batch has a single row, and so no variance."""

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) > 1:
            return super().forward(rows)
        return functional.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class Propagation:
    """Exact products with Σ w_n P^n for P = D^-1 (A + I), in main memory and without storing a matrix."""

    def __init__(self, graph: Graph, mixture: np.ndarray) -> None:
        self.graph, self.mixture, self.own = graph, mixture.tolist(), nodes_without_loop(graph)
        self.shares = torch.from_numpy((1.0 / (graph.degrees + self.own)).astype(np.float32))[:, None]

    def mixed(self, dense: Tensor) -> Tensor:
        """Σ w_n P^n dense; overwrites its argument, and needs two more arrays of its size."""
        total, following = dense * self.mixture[0], torch.empty_like(dense)
        for weight in self.mixture[1:]:
            neighbour_sums(self.graph, self.own, dense, following)
            following *= self.shares
            total.add_(following, alpha=weight)
            dense, following = following, dense
        return total

    def of_features(self, features: Tensor) -> Tensor:
        """All nodes' propagated features, N x d."""
        out = torch.empty(features.shape)
        for start in range(0, features.shape[1], _BLOCK):
            block = features[:, start : start + _BLOCK].clone(memory_format=torch.contiguous_format)
            out[:, start : start + _BLOCK] = self.mixed(block)
        return out

    def lengths(self, features: sp.csr_array) -> Tensor:
        """The Euclidean lengths of all nodes' propagated features, for sparse ones."""
        columns = features.tocsc()
        squares = torch.zeros(features.shape[0])
        for start in range(0, features.shape[1], _BLOCK):
            block = torch.from_numpy(columns[:, start : start + _BLOCK].toarray(order="C"))
            squares += self.mixed(block).square_().sum(dim=1)
        return squares.sqrt_()


def draw_sample(test: np.ndarray, config: GRANDPlusConfig, seed: int) -> np.ndarray:
    """U': the test nodes that training sees without labels, ascending; none where λ is 0."""
    if config.consistency == 0.0:
        return test[:0]
    if config.unlabelled == 0 or config.unlabelled >= len(test):
        return test
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(seed))
    return np.sort(test[order[: config.unlabelled].numpy()])


def drop_nodes(weights: Tensor, rate: float) -> Tensor:
    """Rows with entries dropped at this rate, divided by what is left of their sum; a row that lost all stays zero."""
    if rate > 0.0:
        weights = weights * (torch.rand(weights.shape) >= rate)
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=_TINY)


def consistency(views: list[Tensor], config: GRANDPlusConfig) -> Tensor:
    """How far log-probabilities of several views are from their sharpened mean, over nodes of which it is confident."""
    mean = torch.stack([view.exp() for view in views]).mean(dim=0).detach()
    confident = mean.amax(dim=1) > 2.0 / mean.shape[1]
    target = (mean.clamp(min=torch.finfo(mean.dtype).tiny).log() / config.temperature).softmax(dim=1)
    distances = []
    for view in views:
        if config.consistency_loss == "kl":
            distances.append(-(target * view).sum(dim=1))
        else:
            distances.append((view.exp() - target).square().sum(dim=1))
    return (torch.stack(distances).mean(dim=0) * confident).sum() / confident.sum().clamp(min=1)


# -- kernels ----------------------------------------------------------------------------------------------------------


@numba.njit(cache=True, parallel=True, nogil=True)
def _mix_dense(columns: np.ndarray, weights: np.ndarray, features: np.ndarray, out: np.ndarray) -> None:
    for row in numba.prange(len(columns)):
        add_row(columns[row], weights[row], features, out[row])


@numba.njit(cache=True, parallel=True, nogil=True)
def _mix_sparse(
    columns: np.ndarray,
    weights: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    out: np.ndarray,
) -> None:
    for row in numba.prange(len(columns)):
        _mix_sparse_row(columns[row], weights[row], indptr, indices, data, out[row])


@numba.njit(cache=True, nogil=True)
def _mix_sparse_row(
    columns: np.ndarray,
    weights: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    out: np.ndarray,
) -> None:
    for at in range(len(columns)):
        weight, node = weights[at], columns[at]
        if weight != 0.0:
            for entry in range(indptr[node], indptr[node + 1]):
                out[indices[entry]] += weight * data[entry]
