"""The feature matrix: sparse or dense by its density, the same products and the same dropout either way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graphs import dense_features, random_graph
from torch import Tensor

from models.kernels.features import FeatureMatrix, row_normalized
from models.kernels.propagation import SparseOperator


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_normalised_by_their_absolute_sums(sparse: bool) -> None:
    dense = np.array([[1, 3, 0], [0, 0, 0], [-2, 1, 1], [0, 0, 5]], dtype=np.float32)
    expected = np.array([[0.25, 0.75, 0], [0, 0, 0], [-0.5, 0.25, 0.25], [0, 0, 1]], dtype=np.float32)
    features: Any = sp.csr_array(dense) if sparse else dense.copy()
    result: Any = row_normalized(features)
    assert sp.issparse(result) == sparse and result.dtype == np.float32
    np.testing.assert_array_equal(result.toarray() if sparse else result, expected)
    np.testing.assert_array_equal(features.toarray() if sparse else features, dense)  # the input is as it was


def matrix_with(stored: int, rows: int = 10, columns: int = 16) -> sp.csr_array:
    values = np.zeros(rows * columns, dtype=np.float32)
    values[np.random.default_rng(0).permutation(rows * columns)[:stored]] = np.arange(1, stored + 1)
    return sp.csr_array(values.reshape(rows, columns))


def test_from_an_eighth_of_all_entries_on_it_is_dense() -> None:
    assert isinstance(FeatureMatrix(matrix_with(19)).matrix, SparseOperator)
    assert isinstance(FeatureMatrix(matrix_with(20)).matrix, Tensor)
    assert isinstance(FeatureMatrix(matrix_with(3).toarray()).matrix, Tensor)


@pytest.mark.parametrize("stored", [12, 60])
def test_products_and_their_gradients(stored: int) -> None:
    features = matrix_with(stored)
    weight = torch.randn(16, 3, requires_grad=True)
    product = FeatureMatrix(features) @ weight
    expected = features.toarray() @ weight.detach().numpy()
    np.testing.assert_allclose(product.detach().numpy(), expected, rtol=1e-5)
    product.square().sum().backward()
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad.numpy(), 2 * features.toarray().T @ expected, rtol=1e-4)


@pytest.mark.parametrize("stored", [15, 120])
def test_dropout_drops_or_scales_each_stored_entry(stored: int) -> None:
    features = matrix_with(stored)
    matrix, ones = FeatureMatrix(features), torch.eye(16)
    torch.manual_seed(1)
    first, second = ((matrix.dropped(0.25) @ ones).numpy() for _ in range(2))
    kept = first != 0
    np.testing.assert_allclose(first[kept], features.toarray()[kept] / 0.75, rtol=1e-6)
    assert 0 < kept.sum() < stored
    assert not np.array_equal(first, second)
    assert matrix.dropped(0.0) is matrix
    np.testing.assert_array_equal((matrix @ ones).numpy(), features.toarray())  # the original is untouched


@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_a_graph(sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    dense = dense_features(graph)
    np.testing.assert_array_equal((FeatureMatrix.of(graph) @ torch.eye(20)).numpy(), dense)
    sums = (FeatureMatrix.of(graph, row_normalize=True) @ torch.ones(20, 1)).numpy().ravel()
    np.testing.assert_allclose(sums, (dense.sum(axis=1) > 0).astype(float), atol=1e-6)
