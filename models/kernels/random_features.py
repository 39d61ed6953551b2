"""Positive random features of the softmax kernel: attention over all nodes in time and memory linear in their number.

Paper: Choromanski et al.: "Rethinking Attention with Performers", ICLR 2021.

With features q' = softmax_features(q, w) and k' = softmax_features(k, w, keys_along=...), the product q' · k' has the
expected value exp(q · k / sqrt(width)), up to a factor per query and one factor per set of keys. Both cancel in
attention, where sums over keys are divided by each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-6  # added to every feature, so that no query is without weight; it is the official codes' value


def orthogonal_directions(count: int, width: int, generator: torch.Generator) -> Tensor:
    """`count` directions (count x width, float32), each distributed as a standard Gaussian vector.

    Blocks of `width` rows are orthogonal to each other, which lowers the variance; their lengths are those of
    independent Gaussian vectors. Everything is drawn from `generator`, on its device.
    """
    blocks = []
    for first in range(0, count, width):
        gaussian = torch.randn(width, width, generator=generator, device=generator.device)
        orthogonal, triangle = torch.linalg.qr(gaussian)
        # Without the signs the rows would not be uniform on the sphere: LAPACK prefers one sign of the diagonal.
        blocks.append((orthogonal * torch.sign(triangle.diagonal())).T[: count - first])
    lengths = torch.randn(count, width, generator=generator, device=generator.device).norm(dim=1, keepdim=True)
    return torch.cat(blocks) * lengths


def softmax_features(x: Tensor, directions: Tensor, keys_along: int | None = None, epsilon: float = EPSILON) -> Tensor:
    """exp(w·x − |x|²/2 − largest) + epsilon, divided by sqrt(count): (..., width) becomes (..., count).

    x is first divided by width^(1/4), which gives the usual 1/sqrt(width) in the exponent of attention. The largest
    exponent is taken away against overflow: for queries the one of the same row; for keys, whose features are compared
    with each other, the one over all keys, which lie along the dimension `keys_along` of x (any but the last).
    Gradients go to x; only the features and x are kept for them. The largest exponent counts as a constant.
    """
    features: Tensor = _SoftmaxFeatures.apply(x, directions.to(x), keys_along, epsilon)
    return features


class _SoftmaxFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, directions: Tensor, keys_along: int | None, epsilon: float) -> Tensor:
        count, width = directions.shape
        directions = directions * width**-0.25
        features = x @ directions.T
        over = -1 if keys_along is None else (-1, keys_along)
        largest = features.amax(dim=over, keepdim=True)
        halved = x.square().sum(dim=-1, keepdim=True) * (0.5 * width**-0.5)
        features.sub_(halved + largest).exp_().add_(epsilon).mul_(count**-0.5)
        ctx.save_for_backward(x, directions, features)
        ctx.epsilon = epsilon * count**-0.5
        return features

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        x, directions, features = ctx.saved_tensors
        of_exponent = (features - ctx.epsilon).mul_(gradient)
        of_norm = of_exponent.sum(dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        return of_exponent @ directions - of_norm * x, None, None, None
