"""The one training loop: it trains every model by its recipe and knows none of them."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bench.graph import Split
from bench.metrics import ACCURACY, Predicted, find_metric
from bench.model import Model, Recipe
from bench.stopping import STOPPING_RULES, Evaluation

_LEAST_PROGRESS = 1e-4  # a loss is lower than another if it is lower by this share


class Diverged(Exception):
    """The loss or the scores stopped being finite numbers."""


@dataclass
class Training:
    """What came of a training: how long it ran, which epoch was best, and why it ended."""

    epochs: int = 0
    updates: int = 0
    best_epoch: int = 0
    seconds_to_best: float = 0.0
    stopped_by: str = ""  # the stopping rule's name, "plateau" or "max_epochs"
    curve: list[tuple[float, float, float]] = field(default_factory=list)  # train loss, val loss, val score


def least_epochs(recipe: Mapping[str, Any]) -> int:
    """How long a training by this recipe takes at the very least: no rule runs out of patience before."""
    if recipe["schedule"] == "plateau":
        return 1  # too low a rate ends training as well
    if recipe["stop"] == "never":
        return int(recipe["max_epochs"])
    return int(min(recipe["max_epochs"], (recipe["patience"] + 1) * recipe["evaluate_every"]))


# -- learning rate ----------------------------------------------------------------------------------------------------


def learning_rate(recipe: Recipe, update: int) -> float:
    """The rate of the given update, counted from 1, as far as no evaluation has a say in it."""
    if not recipe.schedule.startswith("warmup-"):
        return recipe.learning_rate
    if update <= recipe.warmup_updates:
        return recipe.learning_rate * update / recipe.warmup_updates
    if update >= recipe.decay_updates:
        return recipe.final_learning_rate
    left = (recipe.decay_updates - update) / (recipe.decay_updates - recipe.warmup_updates)
    if recipe.schedule == "warmup-cosine":
        left = (1.0 - math.cos(math.pi * left)) / 2.0
    return recipe.final_learning_rate + left * (recipe.learning_rate - recipe.final_learning_rate)


class Plateau:
    """How far the rate has been lowered because the validation loss did not fall; 1 for every other schedule."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.factor, self.lowest, self.since = recipe, 1.0, math.inf, 0

    def observe(self, loss: float) -> bool:
        """Take note of an evaluation; whether the rate has become too low to go on."""
        if self.recipe.schedule != "plateau":
            return False
        self.since = 0 if loss < self.lowest * (1.0 - _LEAST_PROGRESS) else self.since + 1
        if self.since == 0:
            self.lowest = loss
        elif self.since > self.recipe.plateau_patience:
            self.factor, self.since = self.factor * self.recipe.plateau_factor, 0
        return self.recipe.learning_rate * self.factor < self.recipe.final_learning_rate


def _optimizer(model: Model, recipe: Recipe) -> torch.optim.Optimizer:
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimizer]
    groups = [
        {**group, "share": group.get("lr", recipe.learning_rate) / recipe.learning_rate}
        for group in model.param_groups()
    ]
    return kind(groups, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)


# -- the loop ---------------------------------------------------------------------------------------------------------


def train(
    model: Model,
    split: Split,
    labels: Tensor,
    recipe: Recipe,
    on_epoch: Callable[[int, float], None] = lambda epoch, accuracy: None,
) -> Training:
    """Train until the recipe's rule or its last epoch says stop; the model then holds its best state.

    `labels` must be known for the training and validation nodes; only the latter are read here.
    """
    start = time.perf_counter()
    train_nodes, val_nodes = torch.from_numpy(split.train), torch.from_numpy(split.val)
    val_labels = labels[val_nodes]
    optimizer, plateau = _optimizer(model, recipe), Plateau(recipe)
    rule = STOPPING_RULES[recipe.stop](recipe.patience)
    result = Training(stopped_by="max_epochs")
    best_state: dict[str, Tensor] | None = None
    for epoch in range(1, recipe.max_epochs + 1):
        result.epochs = epoch
        train_loss = _epoch(model, train_nodes, optimizer, plateau, result)
        if epoch % recipe.evaluate_every and epoch < recipe.max_epochs:
            continue
        now = evaluate(model, val_nodes, val_labels, recipe.metric)
        result.curve.append((train_loss, now.loss, now.score))
        on_epoch(epoch, now.score)
        if rule.better(now):
            best_state = copy.deepcopy(model.state_dict())  # a real copy: live tensors would go on changing
            result.best_epoch, result.seconds_to_best = epoch, time.perf_counter() - start
        if rule.finished(now):
            result.stopped_by = recipe.stop
            break
        if plateau.observe(now.loss):
            result.stopped_by = recipe.schedule
            break
    if best_state is not None:
        model.load_state_dict(best_state)
    return result


def _epoch(model: Model, nodes: Tensor, optimizer: torch.optim.Optimizer, plateau: Plateau, result: Training) -> float:
    """One pass over the training batches; returns the mean of the losses that were minimised."""
    recipe = plateau.recipe
    model.train()
    total, steps = 0.0, 0
    for batch in model.batches(nodes, training=True):
        result.updates += 1
        for group in optimizer.param_groups:  # a group with its own rate keeps its ratio to the recipe's
            group["lr"] = learning_rate(recipe, result.updates) * plateau.factor * group["share"]
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(batch)
        loss.backward()
        if recipe.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimizer.step()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise Diverged(f"the training loss became {value} at update {result.updates} (epoch {result.epochs})")
        total, steps = total + value, steps + 1
    return total / max(steps, 1)


@torch.no_grad()
def evaluate(model: Model, nodes: Tensor, labels: Tensor, metric: str = ACCURACY) -> Evaluation:
    """Judge validation scores by the metric and the mean loss over nodes."""
    model.eval()
    scores = model.validate(nodes)
    labels = labels.to(scores.device)
    loss = float(functional.cross_entropy(scores.double(), labels))
    if not math.isfinite(loss):
        raise Diverged(f"the validation loss became {loss}")
    if metric == ACCURACY:  # where the scores are: a GPU need not send them
        return Evaluation(int((scores.argmax(1) == labels).sum()) / len(nodes), loss)
    chosen, classes = find_metric(metric), scores.argmax(1).cpu().numpy()
    margins = margins_of(scores) if chosen.needs_scores else None
    value = chosen.compute(Predicted(labels.cpu().numpy(), classes, margins))
    return Evaluation(value if chosen.higher_is_better else -value, loss)


def margins_of(scores: Tensor) -> np.ndarray:
    """How much more the second of two classes scores."""
    margins: np.ndarray = (scores[:, 1] - scores[:, 0]).float().cpu().numpy()
    return margins
