"""NAGphormer+: NAGphormer trained with neighbourhood augmentation (NrAug).

Paper: Chen, Liu, Gao, Li, He: "Tokenized Graph Transformer with Neighborhood Augmentation for Node Classification in
Large Graphs". No official code is known; this follows the text and Algorithm 2:
  * once per training batch a uniform draw decides (probability p_aug) whether the batch is augmented at all;
  * GNA mixes every sequence and its label with a partner from the batch, one λ ~ Beta(α, β) per batch, α = β = 1;
  * LNA then zeroes max(1, ⌊(K + 1) τ⌋ ) random tokens of every sequence; the node's own token is not exempt.
Readings of the text that had to be chosen:
  * Algorithm 2's last assignment returns the batch unchanged; taken as a slip, the augmented batch is used.
  * "Two sequences of different nodes": partners follow one random cycle through the batch, so no node meets itself.
Settings: the paper keeps NAGphormer's and publishes neither τ nor p_aug per dataset. The default here is the middle of
the paper's grid, τ = 0.5 and p_aug = 0.5, chosen before any result was seen.
Mixing and masking are linear, so they are applied to the projected tokens before the bias is added: the same values as
in input space, at h instead of d + s columns, under both token strategies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from models.nagphormer import NAGphormer, NAGphormerConfig


@dataclass(frozen=True)
class NAGphormerPlusConfig(NAGphormerConfig):
    """NAGphormer's settings and those of the augmentation."""

    global_augmentation: bool = True  # GNA: mix sequences and labels
    local_augmentation: bool = True  # LNA: zero some tokens
    augment_probability: float = 0.5  # p_aug: share of training batches that are augmented
    mask_ratio: float = 0.5  # τ: share of tokens that LNA zeroes
    mix_alpha: float = 1.0  # the two shape parameters of the beta distribution
    mix_beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("augment_probability", "mask_ratio"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")
        if min(self.mix_alpha, self.mix_beta) <= 0.0:
            raise ValueError("mix_alpha and mix_beta must be positive: they shape a beta distribution")


class NAGphormerPlus(NAGphormer):
    """NAGphormer whose training batches are mixed and masked."""

    name = "nagphormer+"
    title = "NAGphormer+"
    aliases = ("nagphormerplus", "nagphormer-plus", "nagphormer_plus")
    paper = "Chen et al., Tokenized Graph Transformer with Neighborhood Augmentation for Node Classification, 2023"
    revision = 1
    Config = NAGphormerPlusConfig
    spaces = {  # noqa: RUF012  NAGphormer's, and the paper's grid for the augmentation
        name: {**space, "mask_ratio": (0.25, 0.5, 0.75), "augment_probability": (0.25, 0.5, 0.75, 1.0)}
        for name, space in NAGphormer.spaces.items()
    }

    def loss(self, batch: Tensor) -> Tensor:
        if float(torch.rand(())) >= self.config.augment_probability:
            return super().loss(batch)
        tokens = self.sequences.project(batch, self.project.weight)
        labels = self.labels[batch].to(self.device)
        share, partner = 1.0, torch.arange(len(batch))
        if self.config.global_augmentation:
            share = float(torch.distributions.Beta(self.config.mix_alpha, self.config.mix_beta).sample())
            partner = different_partners(len(batch)).to(self.device)
            tokens = torch.lerp(tokens[partner], tokens, share)
        if self.config.local_augmentation:
            tokens = tokens * random_mask(len(batch), tokens.shape[1], self.config.mask_ratio).to(tokens.device)
        logits = self.classify(tokens)
        own = functional.cross_entropy(logits, labels)
        if share == 1.0:
            return own
        return share * own + (1.0 - share) * functional.cross_entropy(logits, labels[partner])


def different_partners(count: int) -> Tensor:
    """For each of `count` positions the position of its partner: one random cycle, so none meets itself."""
    cycle = torch.randperm(count)
    partner = torch.empty_like(cycle)
    partner[cycle] = cycle.roll(-1)
    return partner


def masked_tokens(length: int, ratio: float) -> int:
    """How many of `length` tokens are zeroed: at least one."""
    return max(1, math.floor(length * ratio + 1e-9))  # 1e-9: 0.7 * 10 is 6.999… in binary


def random_mask(count: int, length: int, ratio: float) -> Tensor:
    """(count, length, 1) of ones with the right number of zeros in each row, at random places."""
    mask = torch.ones((count, length))
    places = torch.rand((count, length)).argsort(dim=1)[:, : masked_tokens(length, ratio)]
    return mask.scatter_(1, places, 0.0).unsqueeze(-1)
