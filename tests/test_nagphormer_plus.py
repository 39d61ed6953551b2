"""NrAug: what is mixed and masked, how often, and that it equals augmentation in input space."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from graphs import random_graph, random_split
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from bench.prepared import PrepareCache
from models import nagphormer_plus
from models.nagphormer import NAGphormer
from models.nagphormer_plus import (
    NAGphormerPlus,
    NAGphormerPlusConfig,
    different_partners,
    masked_tokens,
    random_mask,
)

SMALL: dict[str, Any] = {"hidden": 16, "heads": 4, "hops": 3, "encoding_size": 5}
QUIET: dict[str, Any] = {**SMALL, "dropout": 0.0, "attention_dropout": 0.0}


def build(model: type[NAGphormer] = NAGphormerPlus, sparse: bool = False, **settings: Any) -> Any:
    """In training mode, with weights large enough to matter; the same weights for both classes."""
    graph = random_graph(sparse=sparse)
    config = NAGphormerPlusConfig(**settings)
    torch.manual_seed(0)
    built = model(graph, model.prepare(graph, random_split(graph), config, 0, PrepareCache()), config)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    return built.train()


class Watched:
    """Stands in for the three sources of randomness, counts how often each is asked, and answers as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float, partner: Tensor, mask: Tensor) -> None:
        self.beta, self.partners, self.masks = 0, 0, 0
        self.share, self.partner, self.mask = share, partner, mask
        monkeypatch.setattr(torch.distributions, "Beta", self._beta)
        monkeypatch.setattr(nagphormer_plus, "different_partners", self._partners)
        monkeypatch.setattr(nagphormer_plus, "random_mask", self._masks)

    def _beta(self, alpha: float, beta: float) -> SimpleNamespace:
        assert (alpha, beta) == (1.0, 1.0)
        self.beta += 1
        return SimpleNamespace(sample=lambda: torch.tensor(self.share))

    def _partners(self, count: int) -> Tensor:
        self.partners += 1
        return self.partner[:count]

    def _masks(self, count: int, length: int, ratio: float) -> Tensor:
        self.masks += 1
        return self.mask

    @property
    def calls(self) -> tuple[int, int, int]:
        return self.beta, self.partners, self.masks


# -- the pieces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hops", "counts"), [(3, (1, 2, 3)), (5, (1, 3, 4)), (7, (2, 4, 6)), (10, (2, 5, 8)), (16, (4, 8, 12))]
)
def test_number_of_masked_tokens(hops: int, counts: tuple[int, int, int]) -> None:
    assert tuple(masked_tokens(hops + 1, ratio) for ratio in (0.25, 0.5, 0.75)) == counts
    assert masked_tokens(hops + 1, 0.0) == 1  # never less than one
    assert masked_tokens(hops + 1, 1.0) == hops + 1


def test_a_share_that_binary_fractions_miss() -> None:
    assert masked_tokens(10, 0.7) == 7  # 10 * 0.7 is a little less than 7 in floating point


@given(st.integers(2, 200), st.integers(0, 2**32 - 1))
def test_everybody_gets_somebody_else(count: int, seed: int) -> None:
    torch.manual_seed(seed)
    partner = different_partners(count)
    assert sorted(partner.tolist()) == list(range(count))
    assert (partner != torch.arange(count)).all()


def test_one_node_alone_is_its_own_partner() -> None:
    assert different_partners(1).tolist() == [0]


@given(st.integers(1, 30), st.integers(2, 17), st.sampled_from([0.25, 0.5, 0.75]), st.integers(0, 2**32 - 1))
def test_every_row_of_the_mask_has_the_right_number_of_zeros(count: int, length: int, ratio: float, seed: int) -> None:
    torch.manual_seed(seed)
    mask = random_mask(count, length, ratio)
    assert mask.shape == (count, length, 1)
    assert set(mask.unique().tolist()) <= {0.0, 1.0}
    assert ((mask == 0).sum(dim=(1, 2)) == masked_tokens(length, ratio)).all()


def test_all_positions_are_masked_alike() -> None:
    torch.manual_seed(0)
    share = (random_mask(8000, 4, 0.5) == 0).float().mean(dim=(0, 2))
    torch.testing.assert_close(share, torch.full((4,), 0.5), atol=0.03, rtol=0.0)  # the node's own token too


# -- the loss ---------------------------------------------------------------------------------------------------------


def test_without_augmentation_the_loss_is_nagphormers() -> None:
    plus, base, batch = build(augment_probability=0.0, **SMALL), build(NAGphormer, **SMALL), torch.arange(5, 40)
    torch.manual_seed(3)
    ours = plus.loss(batch)
    torch.manual_seed(3)
    torch.rand(())  # the draw that decides
    assert torch.equal(ours, base.loss(batch))  # dropout included


@pytest.mark.parametrize("tokens", ["materialised", "projected"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("mix", "hide"), [(True, True), (True, False), (False, True), (False, False)])
def test_augmentation_equals_that_in_input_space(
    tokens: str, sparse: bool, mix: bool, hide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, partner = torch.tensor([4, 17, 2, 50, 9, 33]), torch.tensor([1, 2, 0, 5, 3, 4])
    mask = torch.ones(6, 4, 1)
    mask[torch.arange(6), torch.tensor([0, 1, 2, 3, 0, 2])] = 0.0
    watched = Watched(monkeypatch, 0.3, partner, mask)
    settings = {"global_augmentation": mix, "local_augmentation": hide, "augment_probability": 1.0, **QUIET}
    model = build(tokens=tokens, sparse=sparse, **settings)
    loss = model.loss(batch)
    loss.backward()
    assert watched.calls == (int(mix), int(mix), int(hide))  # one share per batch

    reference = build(sparse=False, tokens="materialised", **settings)
    raw = torch.stack([hop[batch] for hop in reference.sequences.hops], dim=1)
    targets = functional.one_hot(torch.from_numpy(random_graph().labels)[batch], 4).float()
    if mix:
        raw, targets = 0.3 * raw + 0.7 * raw[partner], 0.3 * targets + 0.7 * targets[partner]
    if hide:
        raw = raw * mask
    with_bias = reference.project(raw)
    logits = reference.classifier(reference.read_out(reference.norm(reference.encoder(with_bias))))
    expected = -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_a_share_of_one_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = torch.arange(10, 30)
    Watched(monkeypatch, 1.0, torch.arange(20).roll(1), torch.ones(1))
    model = build(augment_probability=1.0, local_augmentation=False, **QUIET)
    torch.testing.assert_close(model.loss(batch), build(NAGphormer, **QUIET).loss(batch), rtol=1e-6, atol=1e-6)


def test_a_share_of_nothing_trains_on_the_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, partner = torch.arange(10, 30), torch.arange(20).roll(1)
    Watched(monkeypatch, 0.0, partner, torch.ones(1))
    model = build(augment_probability=1.0, local_augmentation=False, **QUIET)
    expected = build(NAGphormer, **QUIET).loss(batch[partner])
    torch.testing.assert_close(model.loss(batch), expected, rtol=1e-5, atol=1e-6)


def test_batches_are_augmented_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(augment_probability=0.25, **{**QUIET, "hidden": 4, "heads": 1})
    watched = Watched(monkeypatch, 0.5, torch.tensor([1, 0]), torch.ones(2, 4, 1))
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(400):
            model.loss(torch.tensor([3, 4]))
    assert watched.beta == watched.partners == watched.masks
    assert watched.beta == pytest.approx(100, abs=35)  # four standard deviations of 400 draws


def test_shares_are_uniform_and_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    # with partners swapped and no masks, the loss of two nodes shows the share that was drawn
    model = build(augment_probability=1.0, local_augmentation=False, **QUIET)
    drawn: list[float] = []
    real = torch.lerp

    def lerp(start: Tensor, end: Tensor, weight: float) -> Tensor:
        drawn.append(weight)
        return real(start, end, weight)

    monkeypatch.setattr(torch, "lerp", lerp)
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(200):
            model.loss(torch.tensor([3, 4]))
    assert len(set(drawn)) == 200
    deciles = torch.histc(torch.tensor(drawn), bins=4, min=0.0, max=1.0)
    assert (deciles - 50).abs().max() < 25  # four standard deviations


def test_evaluation_never_augments(monkeypatch: pytest.MonkeyPatch) -> None:
    plus, base = build(augment_probability=1.0, **SMALL).eval(), build(NAGphormer, **SMALL).eval()
    watched = Watched(monkeypatch, 0.5, torch.arange(60), torch.ones(1))
    before = torch.get_rng_state()
    nodes = torch.arange(60)
    with torch.no_grad():
        assert torch.equal(plus.predict(nodes), base.predict(nodes))
        assert torch.equal(plus.validate(nodes), base.predict(nodes))
    assert watched.calls == (0, 0, 0)
    assert torch.equal(before, torch.get_rng_state())


def test_a_batch_of_one_node_survives() -> None:
    model = build(augment_probability=1.0, **SMALL)
    loss = model.loss(torch.tensor([8]))
    loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize("setting", ["augment_probability", "mask_ratio"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_shares_outside_zero_and_one_are_refused(setting: str, value: float) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(ValueError, match=f"{setting} must lie between 0 and 1"):
        NAGphormerPlusConfig(**settings)


def test_nagphormers_own_checks_still_hold() -> None:
    with pytest.raises(ValueError, match="hops"):
        NAGphormerPlusConfig(hops=0)
