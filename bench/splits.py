"""Which nodes train, validate and test: the rules by name, each a pure function of labels and seed.

* `uniform-60/20/20`: a random permutation of all nodes; train and val are rounded down, test is the rest.
* `per-class-20/30`: 20 nodes of every class train, 30 of every class validate, all others test (GRAND+).
* `total-20/30`: the same totals, 20 and 30 times the number of classes, drawn without regard to class (GRAND+).
* `masks-0123abcd`: the public splits that the dataset brings, by their hash; seed i takes mask i modulo their number.
* `sealed:` before any of these: one fixed fifth of the nodes is test whatever the seed; the seed draws only among
  the others, which are all that tuning may look at. Where there is one mask, its test nodes are the sealed ones.
* `tuning:` before any of these: the nodes of `sealed:`, under a name that says that its test nodes are never scored.

The GRAND+ rules consume numpy's legacy generator exactly as the reference does, so a seed gives the same split there.
"""

from __future__ import annotations

import hashlib
import re
from fractions import Fraction

import numpy as np

from bench.errors import UserError
from bench.graph import PARTS, Split
from bench.text import nearest

MODES = ("fresh", "frozen", "sealed")
MASKS = "masks"  # a dataset's own rule where it brings public splits
_SEALED, _TUNING = "sealed:", "tuning:"
_RATIO = "a split ratio needs three positive numbers that sum to 100, such as 60/20/20, not {}"
_SEALED_SEED = 20230511  # any constant: it must only never change


def draw_split(rule: str, labels: np.ndarray, num_classes: int, seed: int, masks: np.ndarray | None = None) -> Split:
    """The split that this rule and seed give; `rule` as in the module's description."""
    if not 0 <= seed < 2**32:
        raise UserError(f"a split seed must lie between 0 and 2^32 - 1, not be {seed}")
    sealed = rule.startswith((_SEALED, _TUNING))
    kind, numbers = parse_rule(rule.partition(":")[2] if sealed else rule)
    if kind == MASKS:
        return _public(rule, masks, len(labels), seed, sealed)
    nodes = np.arange(len(labels))
    test = sealed_nodes(len(labels)) if sealed else None
    if test is not None:
        nodes = np.delete(nodes, test)
    random = np.random.RandomState(seed)
    if kind == "uniform":
        train, val = _uniform(random, nodes, numbers, sealed)
    elif kind == "per-class":
        quota = (int(numbers[0]), int(numbers[1]))
        train, val = _per_class(random, nodes, labels[nodes], num_classes, quota, leave=0 if sealed else 1)
    else:
        train, val = _total(random, nodes, num_classes, int(numbers[0]), int(numbers[1]))
    if test is None:
        test = _without(nodes, np.concatenate([train, val]))
    if not (len(train) and len(val) and len(test)):
        raise UserError(f"{len(labels)} nodes are too few for the split rule {rule}: one of its parts would be empty")
    return Split(np.sort(train), np.sort(val), np.sort(test), rule, seed)


def _public(rule: str, masks: np.ndarray | None, num_nodes: int, seed: int, sealed: bool) -> Split:
    if masks is None:
        raise UserError(f"the split rule {rule} is for a dataset that brings masks, and this one has none")
    row = masks[seed % len(masks)]
    train, val, test = (np.flatnonzero(row == number) for number in range(1, len(PARTS) + 1))
    if sealed:
        test = sealed_nodes(num_nodes, masks)
        train, val = _without(train, test), _without(val, test)
    return Split(train, val, test, rule, seed)


def masks_rule(masks: np.ndarray) -> str:
    """The rule of public splits, named by their content."""
    return f"{MASKS}-{hashlib.sha256(f'{masks.shape}'.encode() + masks.tobytes()).hexdigest()[:12]}"


def rule_for(dataset_rule: str, mode: str) -> str:
    """The rule that a dataset's own rule becomes under a split mode."""
    _check_mode(mode)
    return _SEALED + dataset_rule if mode == "sealed" else dataset_rule


def base_rule(rule: str) -> str:
    """The dataset's own rule behind one that a split mode made."""
    return rule.rpartition(":")[2]


def tuning_rule(dataset_rule: str) -> str:
    """The rule of a tuning trial: training and validation nodes of `sealed`, nothing scored on the others."""
    return _TUNING + dataset_rule


def is_scored(rule: str) -> bool:
    """Whether predictions for the test nodes of such a split are held against their labels."""
    return not rule.startswith(_TUNING)


def seeds_for(mode: str, base_seed: int, trial: int) -> tuple[int, int]:
    """(split seed, init seed) of a trial; only `frozen` keeps one split for all trials."""
    _check_mode(mode)
    return (base_seed if mode == "frozen" else base_seed + trial), base_seed + trial


def uniform_rule(ratio: str) -> str:
    """The rule behind a user's ratio such as 60/20/20, checked."""
    rule = f"uniform-{ratio.strip()}"
    if not re.fullmatch(r"[\d.]+(/[\d.]+)*", ratio.strip()):
        raise UserError(_RATIO.format(ratio.strip()))
    parse_rule(rule)
    return rule


def parse_rule(rule: str) -> tuple[str, tuple[Fraction, ...]]:
    """A rule's kind and its numbers: `uniform-60/20/20` gives ("uniform", (60, 20, 20))."""
    if rule == MASKS or rule.startswith(f"{MASKS}-"):
        return MASKS, ()
    kind, _, text = rule.rpartition("-")
    parts = text.split("/")
    if kind not in ("uniform", "per-class", "total") or not all(re.fullmatch(r"\d+(\.\d+)?", part) for part in parts):
        raise UserError(f"'{rule}' is not a split rule; they look like uniform-60/20/20, per-class-20/30, total-20/30")
    numbers = tuple(Fraction(part) for part in parts)
    if kind == "uniform" and (len(numbers) != 3 or sum(numbers) != 100 or min(numbers) <= 0):
        raise UserError(_RATIO.format(text))
    if kind != "uniform" and (len(numbers) != 2 or any(n < 1 or n.denominator != 1 for n in numbers)):
        raise UserError(f"the split rule {kind} needs two whole numbers above zero, such as {kind}-20/30, not {text}")
    return kind, numbers


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise UserError(f"there is no split mode '{mode}'; choose {', '.join(MODES)}.{nearest(mode, MODES)}")


def sealed_nodes(num_nodes: int, masks: np.ndarray | None = None) -> np.ndarray:
    """The fifth of the nodes that is test for ever; it depends on their number alone.

    With one public split, its test nodes are.
    """
    if masks is not None and len(masks) == 1:
        return np.flatnonzero(masks[0] == len(PARTS))
    return np.sort(np.random.RandomState([_SEALED_SEED, num_nodes]).permutation(num_nodes)[: num_nodes // 5])


def _uniform(
    random: np.random.RandomState, nodes: np.ndarray, percent: tuple[Fraction, ...], sealed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Shares of all nodes; where a fifth is sealed off, shares of what is left (scaled down if they do not fit)."""
    train, val, _ = percent
    whole = max(Fraction(80), train + val) if sealed else Fraction(100)
    order = random.permutation(nodes)
    first = int(len(nodes) * train / whole)
    second = len(nodes) - first if train + val == whole else int(len(nodes) * val / whole)
    return order[:first], order[first : first + second]


def _per_class(
    random: np.random.RandomState,
    nodes: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    quota: tuple[int, int],
    leave: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Training nodes of all classes are drawn before the first validation node.

    A class that cannot fill both quotas fills training first, but keeps one node for validation and `leave` for test;
    a class too small even for that is an error.
    """
    train, val = quota
    members = [nodes[labels == number] for number in range(num_classes)]
    quotas = []
    for number, group in enumerate(members):
        if len(group) < 2 + leave:
            raise UserError(
                f"class {number} has only {len(group)} nodes to draw from: the rule per-class-{train}/{val} needs at "
                f"least {2 + leave}; use a ratio such as --split-ratio 60/20/20 instead"
            )
        if len(group) >= train + val:
            quotas.append((train, val))
        else:
            smaller = min(train, len(group) - 1 - leave)
            quotas.append((smaller, len(group) - smaller - leave))
    chosen = [random.choice(group, n, replace=False) for group, (n, _) in zip(members, quotas, strict=True)]
    rests = [_without(group, taken) for group, taken in zip(members, chosen, strict=True)]
    second = [random.choice(group, n, replace=False) for group, (_, n) in zip(rests, quotas, strict=True)]
    return np.concatenate(chosen), np.concatenate(second)


def _total(
    random: np.random.RandomState, nodes: np.ndarray, num_classes: int, train: int, val: int
) -> tuple[np.ndarray, np.ndarray]:
    wanted = (train + val) * num_classes
    if wanted > len(nodes):
        raise UserError(
            f"the rule total-{train}/{val} wants {wanted} nodes for {num_classes} classes, but there are {len(nodes)} "
            "to draw from; use a ratio such as --split-ratio 60/20/20 instead"
        )
    chosen = random.choice(nodes, train * num_classes, replace=False)
    return chosen, random.choice(_without(nodes, chosen), val * num_classes, replace=False)


def _without(nodes: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """The nodes that are not among `taken`, still ascending."""
    return nodes[np.isin(nodes, taken, assume_unique=True, invert=True)]
