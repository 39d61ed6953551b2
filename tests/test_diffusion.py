"""Predictions spread by powers of the adjacency: by hand, against plain twins and dense formulas, and dropout's law."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch
from graphs import dense_adjacency, dense_normalized, path_graph, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.kernels.diffusion import (
    DroppedAdjacency,
    Polynomial,
    PowerIteration,
    plain_polynomial,
    plain_power_iteration,
)
from models.kernels.propagation import SparseOperator, normalized_adjacency


def as_dense(step: DroppedAdjacency | SparseOperator, size: int) -> Tensor:
    return step.product(torch.eye(size)).double()


# -- personalised PageRank --------------------------------------------------------------------------------------------


def test_one_step_on_a_path_by_hand() -> None:
    # degrees with loops are 2, 3, 2; a quarter of each node's own prediction stays
    steps = [SparseOperator(normalized_adjacency(path_graph()), symmetric=True)]
    result = PowerIteration.apply(torch.tensor([[1.0], [0.0], [2.0]]), steps, 0.25)
    edge = 0.75 / np.sqrt(6)
    np.testing.assert_allclose(result.ravel(), [0.375 + 0.25, 3 * edge, 0.75 + 0.5], rtol=1e-6)


def test_many_steps_reach_personalised_pagerank() -> None:
    graph = random_graph()
    local, alpha = torch.randn(60, 4), 0.2
    result = PowerIteration.apply(local, [SparseOperator(normalized_adjacency(graph), symmetric=True)] * 120, alpha)
    expected = alpha * np.linalg.solve(np.eye(60) - (1 - alpha) * dense_normalized(graph), local.double().numpy())
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_dropped_propagation_and_its_gradient_are_dense(fused: bool) -> None:
    matrix = normalized_adjacency(random_graph())
    torch.manual_seed(1)
    steps: list[Any] = [
        DroppedAdjacency(matrix, 0.4, seed) if fused else SparseOperator(matrix).dropped(0.4) for seed in range(6)
    ]
    local, slope = torch.randn(60, 4, requires_grad=True), torch.randn(60, 4)
    twin = local.detach().double().requires_grad_()
    result, expected = (
        PowerIteration.apply(local, steps, 0.1),
        plain_power_iteration(twin, [as_dense(s, 60) for s in steps], 0.1),
    )
    (result * slope).sum().backward()
    (expected * slope).sum().backward()
    assert local.grad is not None and twin.grad is not None
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(local.grad.double(), twin.grad, rtol=1e-4, atol=1e-5)


# -- a polynomial -----------------------------------------------------------------------------------------------------


def test_the_polynomial_of_a_path_by_hand() -> None:
    operator = SparseOperator(normalized_adjacency(path_graph()), symmetric=True)
    result = Polynomial.apply(torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([2.0, -1.0, 6.0]), operator)
    edge = 1 / np.sqrt(6)
    first, second = np.array([1 / 2, edge, 0]), np.array([1 / 4 + 1 / 6, edge / 2 + edge / 3, 1 / 6])
    np.testing.assert_allclose(result.ravel(), [2, 0, 0] - first + 6 * second, rtol=1e-5)


@settings(max_examples=15)
@given(st.integers(0, 1000), st.integers(0, 6), st.integers(1, 5))
def test_the_polynomial_and_its_gradients_are_dense_autograd(seed: int, steps: int, width: int) -> None:
    graph = random_graph(seed % 3)
    generator = torch.Generator().manual_seed(seed)
    local, slope = (torch.randn((60, width), generator=generator) for _ in range(2))
    gamma = torch.randn(steps + 1, generator=generator)
    local.requires_grad_(), gamma.requires_grad_()
    twins = [part.detach().double().requires_grad_() for part in (local, gamma)]
    matrix = torch.from_numpy(dense_normalized(graph))
    result = Polynomial.apply(local, gamma, SparseOperator(normalized_adjacency(graph), symmetric=True))
    expected = plain_polynomial(*twins, matrix)
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)
    powers = sum(twins[1][k] * (torch.linalg.matrix_power(matrix, k) @ twins[0]) for k in range(steps + 1))
    torch.testing.assert_close(expected, powers)
    (result * slope).sum().backward()
    (expected * slope).sum().backward()
    for ours, theirs in zip((local, gamma), twins, strict=True):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


# -- dropout on the adjacency -----------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(rate=st.floats(0.01, 0.95), seed=st.integers(0, 2**32 - 1))
def test_every_entry_is_dropped_or_scaled_and_the_transpose_agrees(rate: float, seed: int) -> None:
    graph = random_graph()
    step = DroppedAdjacency(normalized_adjacency(graph), rate, seed)
    matrix, whole = as_dense(step, 60), torch.from_numpy(dense_normalized(graph))
    kept = matrix != 0
    torch.testing.assert_close(matrix[kept], whole[kept] / (1 - rate), rtol=1e-5, atol=1e-7)
    assert torch.equal(step.product(torch.eye(60), transpose=True).double(), matrix.T)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_entries_are_dropped_independently(rate: float) -> None:
    graph = random_graph(num_nodes=83)
    seen = torch.from_numpy(dense_adjacency(graph)) > 0
    masks = torch.stack(
        [as_dense(DroppedAdjacency(normalized_adjacency(graph), rate, seed), 83) > 0 for seed in range(400)]
    ).double()
    deviation = (rate * (1 - rate)) ** 0.5
    shares = masks[:, seen].mean(dim=0)
    assert abs(shares.mean() - (1 - rate)) < 5 * deviation / (400 * len(shares)) ** 0.5
    assert shares.std() == pytest.approx(deviation / 400**0.5, rel=0.15)  # as for independent draws
    centred = masks - (1 - rate)
    off_diagonal = seen & ~torch.eye(83, dtype=torch.bool)
    products = (centred * centred.transpose(1, 2))[:, off_diagonal]  # an edge and its reverse
    assert abs(products.mean()) < 5 * deviation**2 / (products.numel() / 2) ** 0.5
    following = (centred[1:] * centred[:-1])[:, seen]  # neighbouring seeds
    assert abs(following.mean()) < 5 * deviation**2 / following.numel() ** 0.5


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS == 1, reason="needs a second thread")
def test_the_number_of_threads_changes_nothing() -> None:
    step = DroppedAdjacency(normalized_adjacency(random_graph()), 0.5, 3)
    before, results = numba.get_num_threads(), []
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        numba.set_num_threads(threads)
        results.append(as_dense(step, 60))
    numba.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)
