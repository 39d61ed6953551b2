"""What the twins imitate: each dataset's exact counts, and the few numbers that shape degrees, classes and words.

Exact are nodes, edges, self-loops, isolated nodes, features and classes; the rest is matched approximately. The numbers
and where they come from are in entries.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bench.datasets.entries import TABLE


@dataclass(frozen=True)
class Words:
    """A bag-of-words feature matrix: few entries per row, some words far more common than others."""

    values: Literal["binary", "count", "weight"]  # ones; whole numbers with a long tail; reals that sum to 1 per row
    per_row: float  # mean number of different words in a row
    spread: float  # standard deviation of the logarithm of that number
    skew: float  # how fast words get rarer: 0 means all are equally common


@dataclass(frozen=True)
class Falling:
    """Class sizes that fall off geometrically, where the real ones are not known."""

    count: int
    ratio: float  # largest / smallest


@dataclass(frozen=True)
class TwinSpec:
    """The shape of one twin; `words=None` means dense features."""

    name: str
    nodes: int
    undirected_edges: int  # without self-loops
    features: int
    max_degree: int  # together with the mean it fixes the tail of the degrees
    homophily: float  # share of edges whose ends have the same class
    classes: tuple[int, ...] | Falling  # nodes per class
    words: Words | None = None
    self_loops: int = 0
    isolated: int = 0

    @property
    def num_entries(self) -> int:
        """Adjacency entries as they are stored: both directions of every edge, and the loops."""
        return 2 * self.undirected_edges + self.self_loops

    @property
    def class_sizes(self) -> np.ndarray:
        """Nodes per class; every class has at least one and they add up to all nodes."""
        if not isinstance(self.classes, Falling):
            return np.array(self.classes, dtype=np.int64)
        shares = self.classes.ratio ** -np.linspace(0.0, 1.0, self.classes.count)
        sizes = 1 + np.floor((self.nodes - len(shares)) * shares / shares.sum()).astype(np.int64)
        sizes[0] += self.nodes - sizes.sum()
        return sizes

    @property
    def num_classes(self) -> int:
        return len(self.class_sizes)


def _spec(name: str, paper: Mapping[str, Any], twin: Mapping[str, Any]) -> TwinSpec:
    classes, words = twin["classes"], twin.get("words")
    loops = twin.get("self_loops", 0)
    both_ways = paper.get("counting", "entries") == "entries"
    return TwinSpec(
        name=f"{name}-twin",
        nodes=paper["nodes"],
        undirected_edges=(paper["edges"] - loops) // 2 if both_ways else paper["edges"],
        features=paper["features"],
        max_degree=twin["max_degree"],
        homophily=twin["homophily"],
        classes=Falling(**classes) if isinstance(classes, dict) else tuple(classes),
        words=None if words is None else Words(**words),
        self_loops=loops,
        isolated=twin.get("isolated", 0),
    )


TWINS = {f"{name}-twin": _spec(name, entry["paper"], entry["twin"]) for name, entry in TABLE.items()}
