"""The normalised adjacency and the sparse products, against hand-worked numbers and dense formulas."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graphs import ISOLATED, LOOP, dense_normalized, make_graph, path_graph, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from models.kernels.propagation import (
    ScaledAdjacency,
    SparseOperator,
    nodes_without_loop,
    normalized_adjacency,
    plain_scaled_adjacency,
    sparse_dense,
)


def random_sparse(seed: int, rows: int, columns: int, share: float = 0.3) -> sp.csr_array:
    random = np.random.default_rng(seed)
    values = random.standard_normal((rows, columns)) * (random.random((rows, columns)) < share)
    return sp.csr_array(values.astype(np.float32))


def test_normalised_adjacency_of_a_path_by_hand() -> None:
    edge = 1 / np.sqrt(6)  # between degrees 2 and 3, loops counted
    expected = [[1 / 2, edge, 0], [edge, 1 / 3, edge], [0, edge, 1 / 2]]
    np.testing.assert_allclose(normalized_adjacency(path_graph()).toarray(), expected, rtol=1e-6)


def test_an_existing_self_loop_gets_weight_two() -> None:
    graph = make_graph(2, [(0, 1), (0, 0)])
    expected = [[2 / 3, 1 / np.sqrt(6)], [1 / np.sqrt(6), 1 / 2]]
    np.testing.assert_allclose(normalized_adjacency(graph).toarray(), expected, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_normalised_adjacency_is_the_dense_formula_and_leaves_the_graph_alone(seed: int) -> None:
    graph = random_graph(seed)
    before = graph.indptr.copy(), graph.indices.copy()
    matrix = normalized_adjacency(graph)
    np.testing.assert_allclose(matrix.toarray(), dense_normalized(graph), atol=1e-6)
    assert matrix.dtype == np.float32
    assert (matrix.toarray() == matrix.toarray().T).all()  # `symmetric=True` relies on it
    for node in ISOLATED:
        assert matrix[[node]].nnz == 1 and matrix[node, node] == 1.0
    assert np.array_equal(before[0], graph.indptr) and np.array_equal(before[1], graph.indices)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 12), st.integers(1, 9))
def test_sparse_times_dense_is_the_dense_product(seed: int, rows: int, inner: int, columns: int) -> None:
    matrix = random_sparse(seed, rows, inner)
    dense = np.random.default_rng(seed).standard_normal((inner, columns)).astype(np.float32)
    np.testing.assert_allclose(sparse_dense(matrix, dense), matrix.toarray() @ dense, rtol=1e-5, atol=1e-5)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 10), st.integers(1, 10))
def test_operator_and_its_gradient_are_dense_autograd(seed: int, rows: int, inner: int) -> None:
    matrix = random_sparse(seed, rows, inner)
    generator = torch.Generator().manual_seed(seed)
    ours = torch.randn((inner, 4), generator=generator, requires_grad=True)
    dense = ours.detach().clone().requires_grad_()
    slope = torch.randn((rows, 4), generator=generator)
    result, expected = SparseOperator(matrix) @ ours, torch.from_numpy(matrix.toarray()) @ dense
    (result * slope).sum().backward()
    (expected * slope).sum().backward()
    assert ours.grad is not None and dense.grad is not None
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(ours.grad, dense.grad)


def test_symmetric_operator_has_the_right_gradient() -> None:
    graph = random_graph()
    operator = SparseOperator(normalized_adjacency(graph), symmetric=True)
    dense = torch.randn((60, 5), requires_grad=True)
    slope = torch.randn((60, 5))
    (operator @ dense * slope).sum().backward()
    assert dense.grad is not None
    expected = dense_normalized(graph).T @ slope.double().numpy()
    np.testing.assert_allclose(dense.grad.numpy(), expected, atol=1e-5)


def test_operator_takes_a_transposed_view() -> None:
    matrix, dense = random_sparse(3, 6, 7), torch.randn(5, 7)
    torch.testing.assert_close(SparseOperator(matrix) @ dense.T, torch.from_numpy(matrix.toarray()) @ dense.T)


def test_other_values_reach_the_transpose_too() -> None:
    matrix = random_sparse(1, 8, 5)
    values = np.arange(1, matrix.nnz + 1, dtype=np.float32)
    operator = SparseOperator(matrix).with_values(values)
    expected = torch.from_numpy(sp.csr_array((values, matrix.indices, matrix.indptr), shape=(8, 5)).toarray())
    right, left = torch.randn(5, 3), torch.randn(8, 3)
    torch.testing.assert_close(operator.product(right), expected @ right)
    torch.testing.assert_close(operator.product(left, transpose=True), expected.T @ left)


def test_a_symmetric_operator_refuses_other_values() -> None:
    operator = SparseOperator(normalized_adjacency(path_graph()), symmetric=True)
    with pytest.raises(ValueError, match="symmetry"):
        operator.with_values(np.ones(7, dtype=np.float32))


def test_sparse_dropout_drops_at_its_rate_and_scales_what_is_left() -> None:
    torch.manual_seed(0)
    matrix = sp.csr_array(np.ones((200, 100), dtype=np.float32))
    operator = SparseOperator(matrix)
    assert operator.dropped(0.0) is operator
    dropped = operator.dropped(0.8)
    values = dropped.matrix.toarray()
    assert set(np.unique(values)) == {np.float32(0.0), np.float32(1.0) / np.float32(1.0 - 0.8)}
    assert (values == 0).mean() == pytest.approx(0.8, abs=0.015)  # five standard deviations of 20,000 draws
    assert values.mean() == pytest.approx(1.0, abs=0.075)  # the expectation is kept
    assert np.array_equal(dropped.transposed.toarray(), values.T)  # the gradient sees the same draw
    assert (matrix.data == 1.0).all()
    assert not np.array_equal(operator.dropped(0.8).matrix.data, dropped.matrix.data)


# -- products that store no matrix ------------------------------------------------------------------------------------


def test_loops_are_found() -> None:
    mask = nodes_without_loop(random_graph())
    assert np.flatnonzero(~mask).tolist() == [LOOP]
    assert nodes_without_loop(make_graph(3, [(0, 0), (0, 1), (2, 2)])).tolist() == [False, True, False]


@pytest.mark.parametrize("powers", [(0.5, 0.5), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("width", [1, 5, 32])
def test_the_scaled_adjacency_is_its_plain_twin(width: int, powers: tuple[float, float]) -> None:
    graph = random_graph()
    own = np.random.default_rng(0).random(60) < 0.5
    ours, twin = ScaledAdjacency(graph, own, *powers), plain_scaled_adjacency(graph, own, *powers)
    dense = torch.randn(60, width)
    np.testing.assert_allclose(ours.product(dense), twin @ dense.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.product(dense, transpose=True), twin.T @ dense.numpy(), rtol=1e-4, atol=1e-6)
    nodes = torch.tensor([3, 59, 3, LOOP])
    np.testing.assert_allclose(ours.rows(nodes, dense), (twin @ dense.numpy())[nodes], rtol=1e-4, atol=1e-6)


def test_the_scaled_adjacency_by_hand() -> None:
    # degrees 1, 2, 1 and a node of its own, which has nothing but what `own` gives it
    graph = make_graph(4, [(0, 1), (1, 2)])
    dense = torch.tensor([[8.0], [2.0], [6.0], [3.0]])
    mean = ScaledAdjacency(graph, None, 1.0, 0.0)
    assert mean.product(dense).ravel().tolist() == [2.0, 7.0, 2.0, 0.0]
    dense[0] = torch.nan
    assert mean.rows(torch.tensor([0, 2, 3]), dense).ravel().tolist() == [2.0, 2.0, 0.0]  # rows not needed are not read
    looped = ScaledAdjacency(graph, np.ones(4, dtype=bool), 1.0, 0.0)
    assert looped.product(torch.ones(4, 1)).ravel().tolist() == [1.0] * 4


def test_nodes_and_their_neighbours() -> None:
    graph = random_graph()
    reach = ScaledAdjacency(graph, None, 1.0, 0.0).with_neighbours
    for nodes in ([], [3], [59, 0, 7, 7]):
        expected = {*nodes, *(int(other) for node in nodes for other in graph.adjacency()[[node]].indices)}
        assert reach(torch.tensor(nodes, dtype=torch.int64)).tolist() == sorted(expected)
