"""The feature matrix and its rows: sparse or dense by density, the same products, dropout and moments either way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graphs import dense_features, make_graph, random_graph
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from models.kernels.features import (
    FeatureMatrix,
    FeatureRows,
    column_moments,
    fill_rows,
    mixed_rows,
    plain_mixed_rows,
    row_normalized,
)
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


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_standardised_rows_are_those_of_scikit_learn(sparse: bool, centred: bool) -> None:
    dense = dense_features(random_graph()).copy()
    dense[:, 3] = 0.0 if sparse else 0.1  # never varies: not a reason to divide by rounding
    graph = make_graph(60, [(0, 1)], sp.csr_array(dense) if sparse else dense)
    before = dense.copy()
    expected = StandardScaler(with_mean=centred).fit_transform(dense.astype(np.float64))
    nodes = torch.tensor([4, 0, 59, 4])
    rows = FeatureRows(graph, standardize=True, centred=centred).of(nodes)
    np.testing.assert_allclose(rows @ torch.eye(20), expected[nodes], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(dense_features(graph), before)  # the graph's own features are as they were
    np.testing.assert_allclose(FeatureRows(graph).of(nodes) @ torch.eye(20), dense[nodes], rtol=1e-6)


def test_sparse_rows_stay_sparse_unless_a_mean_is_subtracted() -> None:
    wide = sp.csr_array((np.ones(60, dtype=np.float32), (np.arange(60), np.arange(60) * 7)), shape=(60, 500))
    graph = make_graph(60, [(0, 1)], wide)
    assert isinstance(FeatureRows(graph, standardize=True, centred=False).of(torch.arange(60)).matrix, SparseOperator)
    centred = FeatureRows(graph, standardize=True).of(torch.arange(60))
    expected = StandardScaler().fit_transform(wide.toarray().astype(np.float64))
    np.testing.assert_allclose(centred @ torch.eye(500), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_moments_of_many_rows(sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.kernels.features._AT_A_TIME", 16)
    dense = np.random.default_rng(0).random((50, 6)).astype(np.float32) * (np.arange(6) > 1) + 100 * (np.arange(6) == 5)
    mean, variance = column_moments(sp.csr_array(dense) if sparse else dense)
    np.testing.assert_allclose(mean, dense.astype(np.float64).mean(axis=0))
    np.testing.assert_allclose(variance, dense.astype(np.float64).var(axis=0), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_mixed_rows_are_their_plain_twin(sparse: bool) -> None:
    features, random = random_graph(sparse=sparse).features, np.random.default_rng(0)
    columns = random.integers(0, 60, (9, 7), dtype=np.int32)
    weights = random.random((9, 7), dtype=np.float32) * (random.random((9, 7)) < 0.7)
    mixed = mixed_rows(features, columns, weights)
    np.testing.assert_allclose(mixed, plain_mixed_rows(features, columns, weights), rtol=1e-5, atol=1e-6)
    expected = np.einsum("bk,bkd->bd", weights, dense_features(random_graph())[columns])
    np.testing.assert_allclose(mixed, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [0, 1, 4, 100])
def test_rows_are_filled_in_whatever_chunks(size: int) -> None:
    places = torch.tensor([7, 0, 3, 9, 4])
    found = fill_rows(10, places, size, lambda chunk: torch.stack([chunk, chunk**2], dim=1).float())
    assert found.shape == (10, 2)
    torch.testing.assert_close(found[places], torch.stack([places, places**2], dim=1).float())
    assert fill_rows(3, torch.arange(0), size, lambda chunk: torch.empty((len(chunk), 5))).shape == (3, 5)
