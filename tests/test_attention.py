"""Fused attention against the textbook formula, in values and gradients; dropout where it belongs and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.kernels.attention import _FusedAttention, plain_attention, token_attention
from models.nagphormer import EncoderLayer, NAGphormerConfig


def by_the_book(packed: np.ndarray, heads: int, keep: np.ndarray | None) -> np.ndarray:
    """One node, one head, one query at a time, in float64."""
    batch, length, width = packed.shape
    size = width // 3 // heads
    out = np.zeros((batch, length, heads * size))
    for node in range(batch):
        q, k, v = np.split(packed[node].astype(np.float64), 3, axis=1)
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            for query in range(length):
                weights = np.exp(k[:, own] @ q[query, own] / np.sqrt(size))
                weights /= weights.sum()
                if keep is not None:
                    weights *= keep[node, head, query]
                out[node, query, own] = weights @ v[:, own]
    return out


shapes = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.integers(1, 5))


@settings(max_examples=30)
@given(shapes, st.booleans(), st.integers(0, 1000))
def test_fused_is_plain_is_the_book(shape: tuple[int, int, int, int], masked: bool, seed: int) -> None:
    batch, length, heads, size = shape
    torch.manual_seed(seed)
    packed, slope = torch.randn(batch, length, 3 * heads * size), torch.randn(batch, length, heads * size)
    keep = (torch.rand(batch, heads, length, length) >= 0.4).float() / 0.6 if masked else None
    results, gradients = [], []
    for attention in (_FusedAttention.apply, plain_attention):
        leaf = packed.clone().requires_grad_()
        results.append(attention(leaf, heads, keep))
        (results[-1] * slope).sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    expected = by_the_book(packed.numpy(), heads, None if keep is None else keep.numpy())
    np.testing.assert_allclose(results[0].detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def test_numerical_gradient_of_the_fused_kernel() -> None:
    torch.manual_seed(0)
    packed, slope = torch.randn(2, 3, 12), torch.randn(2, 3, 4)

    def value(inputs: Tensor) -> float:
        return float((plain_attention(inputs.double(), 2, None) * slope.double()).sum())

    leaf = packed.clone().requires_grad_()
    (token_attention(leaf, 2, 0.0) * slope).sum().backward()
    assert leaf.grad is not None
    direction = torch.randn_like(packed)
    step = 1e-3
    numerical = (value(packed + step * direction) - value(packed - step * direction)) / (2 * step)
    assert float((leaf.grad * direction).sum()) == pytest.approx(numerical, rel=1e-3)


def test_large_scores_do_not_overflow() -> None:
    packed = torch.full((1, 2, 6), 300.0)
    packed[0, 1, 2:4] = -300.0  # the second key: its weight underflows to zero
    assert torch.equal(token_attention(packed, 1, 0.0), torch.full((1, 2, 2), 300.0))


def test_a_strided_input_and_a_strided_gradient() -> None:
    torch.manual_seed(1)
    packed, slope = torch.randn(12, 4, 5).transpose(0, 2), torch.randn(4, 4, 5).transpose(0, 2)
    leaves = [packed.clone().requires_grad_() for _ in range(2)]
    (_FusedAttention.apply(leaves[0].transpose(0, 1).transpose(0, 1), 2, None) * slope).sum().backward()
    (plain_attention(leaves[1].contiguous(), 2, None) * slope).sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=1e-4, atol=1e-5)


def test_dropout_keeps_the_expectation_and_zeroes_at_its_rate() -> None:
    # equal scores and values of one: a query's output is the sum of its kept weights, 0.25 / (1 - p) each
    torch.manual_seed(0)
    packed = torch.cat([torch.zeros(2000, 4, 4), torch.ones(2000, 4, 2)], dim=2)
    out = token_attention(packed, 2, 0.3)
    counts = out * 0.7 * 4
    torch.testing.assert_close(counts, counts.round(), atol=1e-4, rtol=0.0)
    assert float(counts.mean()) == pytest.approx(4 * 0.7, abs=0.04)  # five standard deviations of the mean
    assert float(out.mean()) == pytest.approx(1.0, abs=0.015)
    assert float((counts.round() == 4).float().mean()) == pytest.approx(0.7**4, abs=0.02)  # tokens drop independently


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(7, 4, 8)
    for dropout, attention_dropout in ((0.5, 0.0), (0.0, 0.5)):
        layer = EncoderLayer(NAGphormerConfig(hidden=8, heads=2, dropout=dropout, attention_dropout=attention_dropout))
        assert not torch.equal(layer(inputs), layer(inputs))
        layer.eval()
        before = torch.get_rng_state()
        assert torch.equal(layer(inputs), layer(inputs))
        assert torch.equal(before, torch.get_rng_state())
        quiet = EncoderLayer(NAGphormerConfig(hidden=8, heads=2, dropout=0.0, attention_dropout=0.0))
        quiet.load_state_dict(layer.state_dict())
        assert torch.equal(quiet(inputs), layer(inputs))  # in training mode, too
