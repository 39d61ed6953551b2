"""What the twins imitate: for each dataset its exact counts, and the few numbers that shape degrees, classes and words.

Exact are nodes, edges, self-loops, isolated nodes, features and classes; the rest is matched approximately. For Pubmed,
Computer, Photo, CS and Physics all numbers were measured on the real files. For the four graphs that are not at hand
the counts and the homophily are published (AMiner's homophily is not, so it is chosen); their maximum degrees and class
sizes, CoraFull's words per row, and that they have no loops and no isolated nodes, are assumptions. AMiner-CS is
published with 6,217,004 edges without saying whether both directions are counted: the twin takes them as undirected,
the dearer reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np


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


_SPECS = [
    TwinSpec(
        name="pubmed-twin",
        nodes=19_717,
        undirected_edges=44_324,
        self_loops=3,
        features=500,
        max_degree=171,
        homophily=0.802,
        classes=(4103, 7739, 7875),
        words=Words("weight", per_row=50.1, spread=0.34, skew=0.9),
    ),
    TwinSpec(
        name="corafull-twin",
        nodes=19_793,
        undirected_edges=63_421,
        features=8_710,
        max_degree=300,
        homophily=0.57,
        classes=Falling(70, ratio=30.0),
        words=Words("binary", per_row=57.0, spread=0.5, skew=1.2),
    ),
    TwinSpec(
        name="computer-twin",
        nodes=13_752,
        undirected_edges=245_861,
        isolated=281,
        features=767,
        max_degree=2_992,
        homophily=0.777,
        classes=(436, 2142, 1414, 542, 5158, 308, 487, 818, 2156, 291),
        words=Words("binary", per_row=267.2, spread=0.86, skew=0.25),
    ),
    TwinSpec(
        name="photo-twin",
        nodes=7_650,
        undirected_edges=119_081,
        self_loops=1,
        isolated=115,
        features=745,
        max_degree=1_434,
        homophily=0.827,
        classes=(369, 1686, 703, 915, 882, 823, 1941, 331),
        words=Words("binary", per_row=258.8, spread=0.84, skew=0.25),
    ),
    TwinSpec(
        name="cs-twin",
        nodes=18_333,
        undirected_edges=81_894,
        features=6_805,
        max_degree=136,
        homophily=0.808,
        classes=(708, 462, 2050, 429, 1394, 2193, 371, 924, 775, 118, 1444, 2033, 420, 4136, 876),
        words=Words("count", per_row=59.6, spread=0.72, skew=1.2),
    ),
    TwinSpec(
        name="physics-twin",
        nodes=34_493,
        undirected_edges=247_962,
        features=8_415,
        max_degree=382,
        homophily=0.931,
        classes=(5750, 5045, 17426, 2753, 3519),
        words=Words("count", per_row=33.0, spread=0.61, skew=1.2),
    ),
    TwinSpec(
        name="aminer-twin",
        nodes=593_486,
        undirected_edges=6_217_004,
        features=100,
        max_degree=2_500,
        homophily=0.7,
        classes=Falling(18, ratio=20.0),
    ),
    TwinSpec(
        name="reddit-twin",
        nodes=232_965,
        undirected_edges=11_606_919,
        features=602,
        max_degree=3_500,
        homophily=0.78,
        classes=Falling(41, ratio=80.0),
    ),
    TwinSpec(
        name="amazon2m-twin",
        nodes=2_449_029,
        undirected_edges=61_859_140,
        features=100,
        max_degree=17_500,
        homophily=0.81,
        classes=Falling(47, ratio=2e5),
    ),
]

TWINS: dict[str, TwinSpec] = {spec.name: spec for spec in _SPECS}
