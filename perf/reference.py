"""The reference: NAGphormer as its published description trains it, with nothing done about speed or memory.

Every node's tokens are stored at full width in float32 and filled in node by node; the eigenvectors come from the
non-symmetric ARPACK solver; q, k and v are separate products and attention is a chain of plain operations; the data
loader collates sample by sample from a second copy of the tokens; validation keeps the autograd graph.
It shares no code with models/, so the two check each other (tests/test_perf.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import eigs
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from bench.graph import Graph, Split


@dataclass(frozen=True)
class Settings:
    """The author's settings under which the reference runs."""

    hops: int
    encoding_size: int
    hidden: int
    layers: int
    heads: int
    dropout: float
    attention_dropout: float
    learning_rate: float
    final_learning_rate: float
    weight_decay: float
    warmup_updates: int
    decay_updates: int
    batch_size: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Settings:
        """From a full configuration of models.nagphormer, by the names that both know."""
        return cls(**{name: config[name] for name in cls.__dataclass_fields__})


# -- before the first step --------------------------------------------------------------------------------------------


def laplacian_encoding(graph: Graph, count: int) -> Tensor:
    """Eigenvectors 2 .. count + 1 of I - D^-1/2 A D^-1/2, by ascending eigenvalue."""
    scale = sp.diags_array(1.0 / np.sqrt(np.maximum(graph.degrees, 1).astype(np.float64)))
    adjacency = graph.adjacency().astype(np.float64)
    laplacian = sp.csr_array(sp.eye_array(graph.num_nodes) - scale @ adjacency @ scale)
    values, vectors = eigs(laplacian, k=count + 1, which="SR", tol=1e-2)
    ascending = vectors[:, np.argsort(values)]
    return torch.from_numpy(ascending[:, 1:].real.astype(np.float32))


def normalised_adjacency(graph: Graph) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 as a sparse tensor of coordinates, the fastest of torch's layouts for this product."""
    looped = sp.coo_array(graph.adjacency() + sp.eye_array(graph.num_nodes, dtype=np.float32))
    scale = 1.0 / np.sqrt(looped.sum(axis=1))
    values = (looped.data * scale[looped.row] * scale[looped.col]).astype(np.float32)
    places = torch.from_numpy(np.stack([looped.row, looped.col]).astype(np.int64))
    return torch.sparse_coo_tensor(places, torch.from_numpy(values), looped.shape, check_invariants=False).coalesce()


def hop_tokens(adjacency: Tensor, features: Tensor, hops: int) -> Tensor:
    """(N, K + 1, d + s), one assignment per node and hop."""
    tokens = torch.empty(features.shape[0], hops + 1, features.shape[1])
    current = features
    for hop in range(hops + 1):
        if hop:
            current = adjacency @ current
        for node in range(len(current)):
            tokens[node, hop] = current[node]
    return tokens


# -- the network ------------------------------------------------------------------------------------------------------


class ReferenceNAGphormer(nn.Module):
    """From materialised tokens (batch, K + 1, width) to log-probabilities."""

    def __init__(self, width: int, num_classes: int, settings: Settings) -> None:
        super().__init__()
        hidden = settings.hidden
        self.embed = nn.Linear(width, hidden)
        self.layers = nn.ModuleList(ReferenceLayer(settings) for _ in range(settings.layers))
        self.final_norm = nn.LayerNorm(hidden)
        self.score = nn.Linear(2 * hidden, 1)
        self.inner = nn.Linear(hidden, hidden // 2)
        self.outer = nn.Linear(hidden // 2, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, mean=0.0, std=0.02 / math.sqrt(settings.layers))
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        z = self.embed(tokens)
        for layer in self.layers:
            z = layer(z)
        z = self.final_norm(z)
        itself, neighbours = z[:, :1], z[:, 1:]
        pairs = torch.cat((itself.repeat(1, neighbours.shape[1], 1), neighbours), dim=2)
        alpha = functional.softmax(self.score(pairs), dim=1)
        summary = itself[:, 0] + torch.sum(alpha * neighbours, dim=1)
        return functional.log_softmax(self.outer(torch.relu(self.inner(summary))), dim=1)


class ReferenceLayer(nn.Module):
    """LN, attention, dropout, residual; LN, feed-forward, dropout, residual."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        hidden = settings.hidden
        self.heads, self.size = settings.heads, hidden // settings.heads
        self.first_norm, self.second_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.merge = nn.Linear(hidden, hidden)
        self.widen, self.narrow = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)
        self.drop, self.drop_weights = nn.Dropout(settings.dropout), nn.Dropout(settings.attention_dropout)

    def forward(self, z: Tensor) -> Tensor:
        z = z + self.drop(self.attend(self.first_norm(z)))
        return z + self.drop(self.narrow(functional.gelu(self.widen(self.second_norm(z)))))

    def attend(self, z: Tensor) -> Tensor:
        q, k, v = (self.per_head(linear(z)) for linear in (self.query, self.key, self.value))
        weights = torch.softmax(torch.matmul(q / math.sqrt(self.size), k.transpose(2, 3)), dim=3)
        mixed = torch.matmul(self.drop_weights(weights), v)
        return self.merge(mixed.transpose(1, 2).contiguous().flatten(2))

    def per_head(self, z: Tensor) -> Tensor:
        return z.view(z.shape[0], z.shape[1], self.heads, self.size).transpose(1, 2)


# -- training ---------------------------------------------------------------------------------------------------------


def rate_factor(settings: Settings) -> Callable[[int], float]:
    """The factor on the peak rate of update 0, 1, 2, …: linear warm-up, then linear decay to the final rate."""
    final = settings.final_learning_rate / settings.learning_rate
    warmup, end = settings.warmup_updates, settings.decay_updates

    def factor(done: int) -> float:
        update = done + 1
        if update <= warmup:
            return update / warmup
        return final if update >= end else final + (1.0 - final) * (end - update) / (end - warmup)

    return factor


def run_reference(graph: Graph, labels: Tensor, split: Split, settings: Settings, epochs: int) -> dict[str, Any]:
    """Train for some epochs; seconds before the first step and of every epoch."""
    torch.manual_seed(0)
    features = torch.from_numpy(graph.features.toarray() if sp.issparse(graph.features) else np.array(graph.features))
    start = time.perf_counter()
    together = torch.cat((features, laplacian_encoding(graph, settings.encoding_size)), dim=1)
    tokens = hop_tokens(normalised_adjacency(graph), together, settings.hops)
    loaders = []  # the test nodes' copy is there from the start as well
    for nodes in map(torch.from_numpy, (split.train, split.val, split.test)):
        subset = TensorDataset(tokens[nodes], labels[nodes])
        loaders.append(DataLoader(subset, batch_size=settings.batch_size, shuffle=True))
    model = ReferenceNAGphormer(together.shape[1], graph.num_classes, settings)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=False
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_factor(settings))
    before = time.perf_counter() - start

    seconds, loss, correct = [], math.nan, 0
    for _ in range(epochs):
        start = time.perf_counter()
        loss = _train_epoch(model, loaders[0], optimizer, schedule)
        correct = _validate(model, loaders[1])
        seconds.append(time.perf_counter() - start)
    return {"before": before, "epochs": seconds, "loss": loss, "accuracy": correct / len(split.val)}


def _train_epoch(
    model: nn.Module, batches: DataLoader, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LambdaLR
) -> float:
    """One pass with one update per batch; the mean of the batches' losses."""
    model.train()
    total = 0.0
    for tokens, labels in batches:
        optimizer.zero_grad()
        loss = functional.nll_loss(model(tokens), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item()
    return total / len(batches)


def _validate(model: nn.Module, batches: DataLoader) -> int:
    """Correct validation nodes; gradients stay switched on, as in the reference."""
    model.eval()
    correct = 0
    for tokens, labels in batches:
        output = model(tokens)
        functional.nll_loss(output, labels).item()
        correct += int((output.argmax(1) == labels).sum())
    return correct
