"""The training loop: best states, counts, what is evaluated and how, optimisers, and divergence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from graphs import random_graph, random_split
from torch import Tensor, nn

from bench.graph import Graph
from bench.model import Model, Recipe
from bench.train import Diverged, evaluate, train

GRAPH = random_graph()
SPLIT = random_split(GRAPH)
LABELS = torch.from_numpy(GRAPH.labels)


class Linear(Model):
    """One linear layer with dropout on the features."""

    def __init__(self, graph: Graph, prepared: Any, config: Recipe) -> None:
        super().__init__(graph, prepared, config)
        self.inputs = torch.from_numpy(graph.features)
        self.linear = nn.Linear(graph.num_features, graph.num_classes)
        self.dropout = nn.Dropout(0.3)

    def forward(self, nodes: Tensor) -> Tensor:
        return self.linear(self.dropout(self.inputs[nodes]))


class Scripted(Model):
    """Its one weight counts the updates; validation accuracy and loss follow a script, one entry per epoch."""

    def __init__(self, script: list[tuple[int, float]], config: Recipe) -> None:
        super().__init__(GRAPH, None, config)
        self.script = script
        self.weight = nn.Parameter(torch.zeros(()))
        self.epoch: Tensor
        self.register_buffer("epoch", torch.zeros((), dtype=torch.long))

    def batches(self, nodes: Tensor, training: bool) -> Iterator[Any]:
        self.epoch += 1
        yield nodes

    def loss(self, batch: Any) -> Tensor:
        return -self.weight

    def validate(self, nodes: Tensor) -> Tensor:
        """Scores with the scripted number of right answers and, over all of them, the scripted mean loss."""
        correct, loss = self.script[int(self.epoch) - 1]
        right = torch.arange(len(nodes)) < correct
        labels = LABELS[nodes]
        scores = torch.full((len(nodes), 4), -30.0)
        rows = torch.arange(len(nodes))
        scores[rows, labels] = 0.0
        scores[rows, (labels + 1) % 4] = torch.where(right, -1e-3, 1e-3)
        missing = loss * len(nodes) - float(nn.functional.cross_entropy(scores, labels, reduction="sum"))
        if missing > 0:  # the last node is always wrong and carries the rest of the loss
            scores[-1, (labels[-1] + 1) % 4] += missing
        return scores


# -- the loop ---------------------------------------------------------------------------------------------------------


def test_the_loop_changes_the_rate_with_every_update() -> None:
    # the gradient of -w is -1 throughout: without decay, Adam moves by exactly the rate, so the weight is their sum
    recipe = Recipe(
        optimizer="adam",
        learning_rate=0.4,
        schedule="warmup-linear",
        warmup_updates=2,
        decay_updates=4,
        final_learning_rate=0.1,
        stop="never",
        max_epochs=5,
    )
    model = Scripted([(1, 1.0)] * 10, recipe)
    train(model, SPLIT, LABELS, recipe)
    assert float(model.weight.detach()) == pytest.approx(0.2 + 0.4 + 0.25 + 0.1 + 0.1, rel=1e-4)


def scripted(
    script: list[tuple[int, float]], stop: Literal["ranked", "loss", "never"], **settings: Any
) -> tuple[Scripted, Any]:
    recipe = Recipe(optimizer="adam", learning_rate=1.0, stop=stop, **settings)
    model = Scripted(script, recipe)
    return model, train(model, SPLIT, LABELS, recipe)


def test_a_group_with_a_rate_of_its_own_keeps_its_ratio_to_the_schedule() -> None:
    """Adam's first step has the length of the rate, whatever the gradient: the weights show the rates themselves."""

    class TwoRates(Scripted):
        def __init__(self, config: Recipe) -> None:
            super().__init__([(1, 1.0)], config)
            self.slow = nn.Parameter(torch.zeros(()))

        def loss(self, batch: Any) -> Tensor:
            return -self.weight - 5 * self.slow

        def param_groups(self) -> list[dict[str, Any]]:
            return [{"params": [self.weight]}, {"params": [self.slow], "lr": 0.02}]

    recipe = Recipe(learning_rate=0.1, weight_decay=0.0, schedule="constant", stop="never", max_epochs=1)
    model = TwoRates(recipe)
    train(model, SPLIT, LABELS, recipe)
    assert float(model.weight.detach()) == pytest.approx(0.1, rel=1e-4)
    assert float(model.slow.detach()) == pytest.approx(0.02, rel=1e-4)


def test_the_best_state_comes_back_and_is_a_real_copy() -> None:
    script = [(3, 0.9), (8, 0.8), (5, 0.85), (4, 0.9), (4, 0.9), (4, 0.9)]
    model, result = scripted(script, "ranked", patience=3, max_epochs=100)
    assert (result.epochs, result.best_epoch, result.stopped_by) == (5, 2, "ranked")
    assert float(model.weight.detach()) == pytest.approx(2.0, rel=1e-4)  # two updates of 1, not five
    assert int(model.epoch) == 2  # buffers come back too


def test_restored_weights_are_those_of_the_best_epoch() -> None:
    recipe = Recipe(learning_rate=0.5, batch_size=7, stop="loss", patience=5, max_epochs=60)
    seen: list[dict[str, Tensor]] = []
    torch.manual_seed(0)
    model = Linear(GRAPH, None, recipe)
    result = train(
        model,
        SPLIT,
        LABELS,
        recipe,
        lambda epoch, accuracy: seen.append({name: value.clone() for name, value in model.state_dict().items()}),
    )
    assert result.best_epoch < result.epochs == len(seen) < 60
    losses = [val_loss for _, val_loss, _ in result.curve]
    assert losses[result.best_epoch - 1] == min(losses)
    for name, value in model.state_dict().items():
        assert torch.equal(value, seen[result.best_epoch - 1][name])
        assert not torch.equal(value, seen[-1][name])
    val = torch.from_numpy(SPLIT.val)
    assert evaluate(model, val, LABELS[val]).loss == min(losses)


def test_the_last_epoch_is_the_last() -> None:
    _, result = scripted([(1, 0.9)] * 7, "never", max_epochs=7)
    assert (result.epochs, result.updates, result.stopped_by, len(result.curve)) == (7, 7, "max_epochs", 7)
    assert result.best_epoch == 7 and result.seconds_to_best > 0


def test_updates_are_counted_over_batches() -> None:
    recipe = Recipe(batch_size=10, stop="never", max_epochs=3)
    assert len(SPLIT.train) == 29
    assert train(Linear(GRAPH, None, recipe), SPLIT, LABELS, recipe).updates == 3 * 3


def test_every_training_node_is_seen_once_per_epoch_in_a_new_order() -> None:
    seen: list[list[int]] = []

    class Noting(Linear):
        def loss(self, batch: Tensor) -> Tensor:
            assert self.training
            seen.append(batch.tolist())
            return super().loss(batch)

    recipe = Recipe(batch_size=20, stop="never", max_epochs=2)
    train(Noting(GRAPH, None, recipe), SPLIT, LABELS, recipe)
    assert [len(batch) for batch in seen] == [20, 9, 20, 9]
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == SPLIT.train.tolist()
    assert seen[0] != seen[2]


def test_evaluations_at_intervals_and_always_at_the_end() -> None:
    recipe = Recipe(stop="never", max_epochs=7, evaluate_every=3)
    epochs: list[int] = []
    result = train(Linear(GRAPH, None, recipe), SPLIT, LABELS, recipe, lambda epoch, accuracy: epochs.append(epoch))
    assert epochs == [3, 6, 7] and len(result.curve) == 3


@pytest.mark.parametrize("size", [1, 4, 7, 0])
def test_the_monitored_loss_is_a_mean_over_nodes_whatever_the_batch(size: int) -> None:
    torch.manual_seed(0)
    model = Linear(GRAPH, None, Recipe(evaluation_batch=size))
    val = torch.from_numpy(SPLIT.val)
    found = evaluate(model, val, LABELS[val])
    weight, bias = (value.detach().double().numpy() for value in (model.linear.weight, model.linear.bias))
    scores = GRAPH.features[SPLIT.val] @ weight.T + bias
    right = scores[np.arange(len(val)), GRAPH.labels[SPLIT.val]]
    expected = float((np.log(np.exp(scores).sum(axis=1)) - right).mean())
    assert found.loss == pytest.approx(expected, rel=1e-6)
    assert len(val) == 15
    right_ones = (scores.argmax(axis=1) == GRAPH.labels[SPLIT.val]).sum()
    assert found.score == right_ones / 15


def test_evaluation_is_without_dropout_and_without_gradients() -> None:
    class Checking(Linear):
        def validate(self, nodes: Tensor) -> Tensor:
            assert not self.training and not torch.is_grad_enabled()
            return super().validate(nodes)

    recipe = Recipe(max_epochs=2)
    train(Checking(GRAPH, None, recipe), SPLIT, LABELS, recipe)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_training_loss_that_is_no_number_is_divergence(value: float) -> None:
    class Broken(Linear):
        def loss(self, batch: Tensor) -> Tensor:
            return super().loss(batch) * value

    recipe = Recipe(max_epochs=3)
    with pytest.raises(Diverged, match=r"training loss became (nan|inf) at update 1 \(epoch 1\)"):
        train(Broken(GRAPH, None, recipe), SPLIT, LABELS, recipe)


def test_scores_that_are_no_numbers_are_divergence() -> None:
    class Broken(Linear):
        def validate(self, nodes: Tensor) -> Tensor:
            return super().validate(nodes) * math.nan

    recipe = Recipe(max_epochs=3)
    with pytest.raises(Diverged, match="validation loss became nan"):
        train(Broken(GRAPH, None, recipe), SPLIT, LABELS, recipe)


def test_clipping_bounds_the_gradients_norm() -> None:
    norms: list[float] = []

    class Steep(Linear):
        def loss(self, batch: Tensor) -> Tensor:
            return super().loss(batch) * 1000.0

    def run(clip: float) -> None:
        recipe = Recipe(clip_norm=clip, max_epochs=1)
        model = Steep(GRAPH, None, recipe)
        train(model, SPLIT, LABELS, recipe)
        norms.append(math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None)))

    run(0.0)
    run(0.5)
    assert norms[0] > 10.0
    assert norms[1] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(("optimizer", "expected"), [("adam", 0.0), ("adamw", -0.1 * 0.5 * 8.0)])
def test_adam_couples_weight_decay_with_the_gradient_and_adamw_does_not(
    optimizer: Literal["adam", "adamw"], expected: float
) -> None:
    # one step from w = 8 with gradient -1 and decay 0.5: Adam steps by the sign of -1 + 4, AdamW by that of -1
    recipe = Recipe(optimizer=optimizer, learning_rate=0.1, weight_decay=0.5, max_epochs=1)
    model = Scripted([(1, 1.0)] * 2, recipe)
    with torch.no_grad():
        model.weight.fill_(8.0)
    train(model, SPLIT, LABELS, recipe)
    step = -0.1 if optimizer == "adam" else 0.1
    assert float(model.weight.detach()) == pytest.approx(8.0 + expected + step, rel=1e-5)


def test_only_the_labels_of_validation_nodes_are_read() -> None:
    recipe = Recipe(max_epochs=4, learning_rate=0.1)
    hidden = torch.full_like(LABELS, -1)
    hidden[SPLIT.val] = LABELS[SPLIT.val]
    states = []
    for labels in (LABELS, hidden):
        torch.manual_seed(0)
        model = Linear(GRAPH, None, recipe)
        result = train(model, SPLIT, labels, recipe)
        states.append((model.linear.weight.detach().clone(), result.curve))
    assert torch.equal(states[0][0], states[1][0]) and states[0][1] == states[1][1]


def test_a_recipe_is_replaced_not_changed() -> None:
    recipe = Recipe(max_epochs=2)
    with pytest.raises(AttributeError):
        recipe.max_epochs = 3  # type: ignore[misc]
    assert replace(recipe, max_epochs=3).max_epochs == 3
