"""Dropout fused with the residual addition: the law of dropout, its gradient, and its independence of threads."""

from __future__ import annotations

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.kernels.dropout import _AddDropped, add_dropped


def kept(shape: tuple[int, ...], rate: float, seed: int) -> torch.Tensor:
    """Which elements survive: ones are dropped to 0 or scaled up."""
    return _AddDropped.apply(torch.zeros(shape), torch.ones(shape), rate, seed) > 0


@given(rate=st.floats(0.01, 0.9), seed=st.integers(0, 2**32 - 1))
def test_every_element_is_dropped_or_scaled(rate: float, seed: int) -> None:
    residual, branch = torch.randn(7, 5), torch.randn(7, 5)
    out = _AddDropped.apply(residual, branch, rate, seed)
    dropped = torch.isclose(out, residual, atol=1e-6)
    scaled = torch.isclose(out, residual + branch / (1 - rate), rtol=1e-4, atol=1e-5)
    assert bool((dropped | scaled).all())


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
def test_the_share_of_survivors_in_the_whole_in_rows_and_in_columns(rate: float) -> None:
    mask = kept((400, 500), rate, seed=12345).double()
    deviation = (rate * (1 - rate)) ** 0.5
    assert abs(mask.mean() - (1 - rate)) < 4 * deviation / mask.numel() ** 0.5
    assert mask.mean(dim=1).std() == pytest.approx(deviation / 500**0.5, rel=0.2)  # as for independent draws
    assert mask.mean(dim=0).std() == pytest.approx(deviation / 400**0.5, rel=0.2)


def test_neighbours_and_neighbouring_seeds_are_unrelated() -> None:
    first, second = (kept((400, 500), 0.5, seed).double() - 0.5 for seed in (7, 8))
    bound = 4 * 0.25 / first.numel() ** 0.5
    assert abs((first * second).mean()) < bound
    assert abs((first[:, 1:] * first[:, :-1]).mean()) < bound
    assert abs((first[1:] * first[:-1]).mean()) < bound


def test_the_gradient_passes_where_the_value_did() -> None:
    residual, branch = torch.randn(40, 30, requires_grad=True), torch.randn(40, 30, requires_grad=True)
    arrived = torch.randn(40, 30)
    _AddDropped.apply(residual, branch, 0.25, 99).backward(arrived)
    assert torch.equal(residual.grad, arrived)
    expected = torch.where(kept((40, 30), 0.25, 99), arrived / 0.75, torch.zeros(()))
    torch.testing.assert_close(branch.grad, expected)


def test_the_number_of_threads_changes_nothing() -> None:
    shape = (100, 1000)  # several chunks
    before = numba.get_num_threads()
    masks = []
    for threads in {1, numba.config.NUMBA_NUM_THREADS}:
        numba.set_num_threads(threads)
        masks.append(kept(shape, 0.3, seed=5))
    numba.set_num_threads(before)
    assert all(torch.equal(mask, masks[0]) for mask in masks)


def test_rate_zero_is_plain_addition_and_the_generator_drives_the_rest() -> None:
    residual, branch = torch.randn(8, 8), torch.randn(8, 8)
    assert torch.equal(add_dropped(residual, branch, 0.0), residual + branch)
    torch.manual_seed(3)
    first, second = add_dropped(residual, branch, 0.5), add_dropped(residual, branch, 0.5)
    torch.manual_seed(3)
    assert torch.equal(add_dropped(residual, branch, 0.5), first) and not torch.equal(first, second)
