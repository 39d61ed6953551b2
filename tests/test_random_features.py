"""Random features of the softmax kernel against exact kernels and exact attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from models.kernels.random_features import orthogonal_directions, softmax_features


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact_features(x: Tensor, directions: Tensor) -> Tensor:
    """exp(w·x − |x|²/2) / sqrt(M) with x scaled by width^(-1/4), in float64, nothing taken away."""
    x, directions = x.double() / x.shape[-1] ** 0.25, directions.double()
    return torch.exp(x @ directions.T - (x**2).sum(-1, keepdim=True) / 2) / len(directions) ** 0.5


# -- directions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5, 8, 21])
def test_directions_are_orthogonal_within_blocks(count: int) -> None:
    directions = orthogonal_directions(count, 8, seeded()).double()
    assert directions.shape == (count, 8)
    for first in range(0, count, 8):
        block = directions[first : first + 8]
        gram = block @ block.T
        torch.testing.assert_close(gram, gram.diagonal().diag(), rtol=0, atol=1e-5)


def test_directions_are_distributed_as_gaussian_vectors() -> None:
    random = seeded()
    draws = torch.stack([orthogonal_directions(3, 3, random) for _ in range(4000)]).double()
    # mean 0 in every coordinate: without the sign correction the first one would be of one sign only
    assert float(draws.mean(dim=0).abs().max()) < 5 / np.sqrt(4000)
    torch.testing.assert_close((draws**2).mean(dim=0), torch.ones(3, 3).double(), rtol=0, atol=0.12)
    lengths = (draws**2).sum(dim=2)  # chi-squared with 3 degrees of freedom: mean 3, variance 6
    assert float(lengths.mean()) == pytest.approx(3, abs=0.12)
    assert float(lengths.var()) == pytest.approx(6, abs=0.6)


def test_directions_come_from_the_given_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (orthogonal_directions(5, 4, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, again) and not torch.equal(first, other)


# -- features ---------------------------------------------------------------------------------------------------------


def test_features_are_the_formula_up_to_the_factors_that_cancel() -> None:
    torch.manual_seed(0)
    x, directions = torch.randn(7, 2, 6), orthogonal_directions(9, 6, seeded())
    expected = exact_features(x, directions)
    exponents = (x.double() / 6**0.25) @ directions.double().T
    queries = softmax_features(x, directions, epsilon=0.0).double()
    torch.testing.assert_close(queries * exponents.amax(dim=2, keepdim=True).exp(), expected, rtol=1e-4, atol=1e-7)
    keys = softmax_features(x, directions, keys_along=0, epsilon=0.0).double()
    largest = exponents.amax(dim=(0, 2), keepdim=True)  # one per head, over all nodes
    torch.testing.assert_close(keys * largest.exp(), expected, rtol=1e-4, atol=1e-7)
    raised = softmax_features(x, directions, keys_along=0, epsilon=0.5).double()
    torch.testing.assert_close(raised - keys, torch.full_like(keys, 0.5 / 3), rtol=1e-4, atol=1e-6)


def test_keys_may_lie_along_any_dimension() -> None:
    torch.manual_seed(0)
    x, directions = torch.randn(7, 2, 6), orthogonal_directions(9, 6, seeded())
    swapped = softmax_features(x.transpose(0, 1), directions, keys_along=-2)
    torch.testing.assert_close(swapped.transpose(0, 1), softmax_features(x, directions, keys_along=0))


def test_products_have_the_kernel_as_their_mean() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(4, 5) * 0.3, torch.randn(6, 5) * 0.3  # long vectors have a huge variance
    random = seeded()
    draws = []
    for _ in range(1500):
        directions = orthogonal_directions(10, 5, random)
        draws.append(exact_features(query, directions) @ exact_features(key, directions).T)
    estimate, error = torch.stack(draws).mean(dim=0), torch.stack(draws).std(dim=0) / 1500**0.5
    expected = torch.exp(query.double() @ key.double().T / 5**0.5)
    assert ((estimate - expected).abs() < 5 * error).all()
    assert float((error / expected).max()) < 0.1  # the test is not won by a large error


def test_attention_approaches_the_softmax() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(12, 8) * 0.5, torch.randn(15, 8) * 0.5, torch.randn(15, 3)
    expected = torch.softmax(query @ key.T / 8**0.5, dim=1) @ value
    errors = []
    for count in (16, 16384):
        directions = orthogonal_directions(count, 8, seeded())
        keys = softmax_features(key, directions, keys_along=0, epsilon=0.0)
        weights = softmax_features(query, directions, epsilon=0.0) @ keys.T
        found = weights @ value / weights.sum(dim=1, keepdim=True)
        errors.append(float((found - expected).abs().max()))
    assert errors[1] < 0.05 and errors[1] < errors[0] / 4


def test_large_inputs_stay_finite() -> None:
    directions = orthogonal_directions(6, 4, seeded())
    for keys_along in (None, 0):
        features = softmax_features(torch.randn(5, 4) * 1e3, directions, keys_along)
        assert features.isfinite().all() and (features > 0).all()


@pytest.mark.parametrize("keys_along", [None, 0])
def test_gradients_are_those_of_the_formula(keys_along: int | None) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 2, 6, dtype=torch.float64, requires_grad=True)
    directions, weights = orthogonal_directions(9, 6, seeded()), torch.randn(7, 2, 9, dtype=torch.float64)
    (softmax_features(x, directions, keys_along) * weights).sum().backward()
    found, x.grad = x.grad, None
    exponents = (x / 6**0.25) @ directions.double().T
    largest = exponents.amax(dim=-1 if keys_along is None else (0, 2), keepdim=True).detach()
    features = torch.exp(exponents - (x**2).sum(-1, keepdim=True) / 2 / 6**0.5 - largest) / 3
    (features * weights).sum().backward()
    torch.testing.assert_close(found, x.grad)
