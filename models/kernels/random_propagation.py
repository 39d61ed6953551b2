"""Features mixed by powers of P = D^-1 (A + I): at random by DropNode while training, exactly at inference (GRAND+)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from bench.graph import Graph
from bench.prepared import as_tensor
from models.kernels.diffusion import Polynomial, Product
from models.kernels.mlp import MLP, TINY, mlp_widths
from models.kernels.propagation import ScaledAdjacency, SparseOperator, nodes_without_loop
from models.kernels.push import count_labelled, push_bytes

_BLOCK = 64  # columns that are spread together
_FLOOR = 35_000_000  # bytes: threads, compiled code, what the allocator keeps of an earlier phase


def power_weights(kind: str, order: int, alpha: float) -> np.ndarray:
    """Return weights of P^0 … P^order that sum to 1: α (1 - α)^n, equal ones ("avg"), or the last alone ("single")."""
    powers = np.arange(order + 1)
    weights = {"ppr": (1.0 - alpha) ** powers, "avg": np.ones(len(powers)), "single": powers == order}[kind]
    return weights / weights.sum()


def draw_sample(nodes: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw so many of these nodes, ascending; 0 means all of them."""
    if count == 0 or count >= len(nodes):
        return nodes
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(seed))
    return np.sort(nodes[order[:count].numpy()])


def drop_nodes(weights: Tensor, rate: float) -> Tensor:
    """Rows with entries dropped at this rate, divided by what is left of their sum; a row that lost all stays zero."""
    if rate > 0.0:
        weights = weights * (torch.rand(weights.shape) >= rate)
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=TINY)


def exact_inputs(graph: Graph, mixture: np.ndarray, mlp: MLP) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return a row for every node, in main memory, and what makes logits of such rows, as in evaluation.

    Dense features are propagated as such. Sparse ones are never made dense as a whole: their first linear map comes
    before the propagation, which is linear too; the normalisation between the two is then a scale per row and an affine
    map per column.
    """
    walk, gamma = ScaledAdjacency(graph, nodes_without_loop(graph), 1.0, 0.0), torch.from_numpy(mixture)
    if isinstance(graph.features, np.ndarray):
        return spread_columns(as_tensor(graph.features), gamma, walk), mlp
    weight, bias = (part.cpu() for part in mlp.first_as_affine())
    hidden = Polynomial.apply(SparseOperator(graph.features).product(weight.T), gamma, walk)
    if mlp.node_norm:
        hidden /= spread_lengths(graph.features, gamma, walk).clamp(min=TINY)[:, None]
    return hidden.add_(bias), mlp.after_first


def spread_columns(columns: Tensor, gamma: Tensor, adjacency: Product) -> Tensor:
    """Σ γ_k A^k X, some columns at a time: beside the argument and the result, little more is needed."""
    out = torch.empty(columns.shape)
    for start in range(0, columns.shape[1], _BLOCK):
        block = columns[:, start : start + _BLOCK].contiguous()
        out[:, start : start + _BLOCK] = Polynomial.apply(block, gamma, adjacency)
    return out


def spread_lengths(columns: sp.csr_array, gamma: Tensor, adjacency: Product) -> Tensor:
    """The Euclidean lengths of the rows of Σ γ_k A^k X, which is never there as a whole."""
    by_column, squares = columns.tocsc(), torch.zeros(columns.shape[0])
    for start in range(0, columns.shape[1], _BLOCK):
        block = torch.from_numpy(by_column[:, start : start + _BLOCK].toarray(order="C"))
        squares += Polynomial.apply(block, gamma, adjacency).square_().sum(dim=1)
    return squares.sqrt_()


def estimate_memory(graph: Graph, config: Any) -> int:
    """Estimate the largest of preparation, training, validation and inference, above what all of them hold."""
    nodes, (trained, checked), widths = graph.num_nodes, count_labelled(graph), mlp_widths(graph, config)
    hidden, steps = sum(widths[1:]), 2 + config.node_norm + config.batch_norm  # arrays that an input becomes in turn
    unlabelled = (config.unlabelled or nodes) if config.consistency else 0
    prepare = push_bytes(graph, min(nodes, trained + checked + unlabelled), config.top_k)
    batch = min(trained, config.batch_size or trained) + min(unlabelled, config.unlabelled_batch)
    train = 4 * config.augmentations * batch * steps * (widths[0] + 2 * hidden)
    chunk = min(nodes, config.evaluation_batch or nodes)
    validate = 4 * min(checked, chunk) * (steps * widths[0] + 2 * hidden)
    if isinstance(graph.features, np.ndarray):
        inputs, making, finishing = widths[0], 4 * min(widths[0], _BLOCK), steps * widths[0]
    else:
        inputs, making, finishing = widths[1], max(3 * widths[1], 4 * _BLOCK if config.node_norm else 0), 0
    infer = max(nodes * making, nodes * widths[-1] + chunk * (finishing + 3 * hidden))
    parameters = 20 * sum(a * b for a, b in pairwise(widths))
    return _FLOOR + parameters + max(prepare, train, validate, 4 * (nodes * inputs + infer))
