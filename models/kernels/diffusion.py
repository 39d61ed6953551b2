"""What powers of the adjacency spread: personalised PageRank (APPNP, PPRGo), weighted powers (GPR-GNN, GRAND+).

Both are autograd functions whose backward pass spreads the gradient the same way, so that no step's result is kept;
beside each is its plain twin, which autograd differentiates step by step. Tests hold them equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numba
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from models.kernels.dropout import _hash
from models.kernels.propagation import add_row


class Product(Protocol):
    """A square sparse matrix that multiplies a dense tensor, outside autograd."""

    def product(self, dense: Tensor, transpose: bool = False) -> Tensor: ...


class PowerIteration(torch.autograd.Function):
    """Z ← (1 - α) A_k Z + α H for each step's matrix A_k, from Z = H.

    It is linear in H, so the backward pass needs the transposed matrices and no intermediate result.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, steps: Sequence[Product], alpha: float) -> Tensor:
        ctx.steps, ctx.alpha = steps, alpha
        spread = local
        for step in steps:
            spread = step.product(spread).mul_(1.0 - alpha).add_(local, alpha=alpha)
        return spread

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        total = torch.zeros_like(gradient)
        for step in reversed(ctx.steps):
            total.add_(gradient, alpha=ctx.alpha)
            gradient = step.product(gradient, transpose=True).mul_(1.0 - ctx.alpha)
        return total.add_(gradient), None, None


def plain_power_iteration(local: Tensor, steps: Sequence[Tensor], alpha: float) -> Tensor:
    """The same as one writes it down, with the steps' matrices as tensors."""
    spread = local
    for matrix in steps:
        spread = (1.0 - alpha) * (matrix @ spread) + alpha * local
    return spread


class Polynomial(torch.autograd.Function):
    """Σ γ_k A^k H.

    With B for the transpose of A, the gradient of γ_k is <B^k G, H> and that of H is Σ γ_k B^k G, so the backward pass
    is the forward one with the output's gradient G in H's place: it needs H, and no power that the forward pass made.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, gamma: Tensor, adjacency: Product) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(local, gamma)
        total, power = torch.zeros_like(local), local
        for at, weight in enumerate(gamma.tolist()):
            power = adjacency.product(power) if at else power
            total.add_(power, alpha=weight)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        local, gamma = ctx.saved_tensors
        total, power, overlaps = torch.zeros_like(local), gradient, []
        for at, weight in enumerate(gamma.tolist()):
            power = ctx.adjacency.product(power, transpose=True) if at else power
            total.add_(power, alpha=weight)
            overlaps.append((power * local).sum())
        return total, torch.stack(overlaps), None


def plain_polynomial(local: Tensor, gamma: Tensor, matrix: Tensor) -> Tensor:
    """The same as one writes it down, with the matrix as a tensor."""
    total, power = gamma[0] * local, local
    for weight in gamma[1:]:
        power = matrix @ power
        total = total + weight * power
    return total


# -- dropout on the adjacency -----------------------------------------------------------------------------------------


class DroppedAdjacency:
    """A symmetric matrix with every stored entry dropped at a rate and the rest scaled up; for the processor.

    An entry's fate is a hash of its row, its column and the seed: no mask is stored, and the transposed product finds
    the same one. `SparseOperator.dropped` is the same with a stored mask.
    """

    def __init__(self, matrix: sp.csr_array, rate: float, seed: int) -> None:
        self.matrix, self.rate, self.seed = matrix, rate, seed

    def product(self, dense: Tensor, transpose: bool = False) -> Tensor:
        source = dense.detach().contiguous().numpy()
        out = np.empty((self.matrix.shape[0], source.shape[1]), dtype=np.float32)
        matrix = self.matrix
        _dropped_product(matrix.indptr, matrix.indices, matrix.data, source, self.rate, self.seed, transpose, out)
        return torch.from_numpy(out)


@numba.njit(cache=True, nogil=True, inline="never")
def _kept_weights(
    row: np.uint32,
    columns: np.ndarray,
    weights: np.ndarray,
    threshold: np.uint32,
    scale: np.float32,
    seed: np.uint32,
    transpose: bool,
    out: np.ndarray,
) -> None:
    """What is left of one row's entries; `transpose`: of the entries (column, row) instead of (row, column)."""
    of_row = _hash(row, seed)
    for at in range(columns.shape[0]):
        column = np.uint32(columns[at])
        fate = _hash(row, _hash(column, seed)) if transpose else _hash(column, of_row)
        out[at] = weights[at] * scale if fate >= threshold else np.float32(0.0)


@numba.njit(cache=True, parallel=True, nogil=True)
def _dropped_product(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    rate: float,
    seed: int,
    transpose: bool,
    out: np.ndarray,
) -> None:
    threshold, scale = np.uint32(rate * 2.0**32), np.float32(1.0 / (1.0 - rate))
    for row in numba.prange(len(indptr) - 1):
        columns, weights = indices[indptr[row] : indptr[row + 1]], data[indptr[row] : indptr[row + 1]]
        kept = np.empty(len(columns), dtype=np.float32)
        _kept_weights(np.uint32(row), columns, weights, threshold, scale, np.uint32(seed), transpose, kept)
        out[row] = 0.0
        add_row(columns, kept, dense, out[row])
