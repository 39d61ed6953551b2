"""A graph's counts beside those the paper prints, with the reason where they look different."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.datasets.catalogue import PaperStatistics
from bench.graph import Graph


@dataclass(frozen=True)
class Counts:
    """How large a graph is."""

    nodes: int
    entries: int  # stored: both directions of each edge, a self-loop once
    self_loops: int
    isolated: int  # nodes without any edge
    features: int
    classes: int

    @property
    def undirected(self) -> int:
        """Edges counted once, without self-loops."""
        return (self.entries - self.self_loops) // 2

    def __str__(self) -> str:
        loops = f" + {self.self_loops:,} self-loop{'s'[: self.self_loops - 1]}" if self.self_loops else ""
        return (
            f"{self.nodes:,} nodes ({self.isolated:,} isolated), {self.entries:,} stored entries "
            f"(2 x {self.undirected:,} edges{loops}), {self.features:,} features, {self.classes} classes"
        )


def count(graph: Graph) -> Counts:
    """Count once; the store keeps the result."""
    degrees = graph.degrees
    rows = np.repeat(np.arange(graph.num_nodes, dtype=graph.indices.dtype), degrees)
    return Counts(
        nodes=graph.num_nodes,
        entries=graph.num_entries,
        self_loops=int(np.count_nonzero(rows == graph.indices)),
        isolated=int(np.count_nonzero(degrees == 0)),
        features=graph.num_features,
        classes=graph.num_classes,
    )


def differences(paper: PaperStatistics, counts: Counts) -> list[str]:
    """What is not as in the paper, under the paper's own way of counting edges; empty where all agrees."""
    found = [
        f"{have:,} {what} instead of {want:,}"
        for what, have, want in (
            ("nodes", counts.nodes, paper.nodes),
            ("features", counts.features, paper.features),
            ("classes", counts.classes, paper.classes),
        )
        if have != want
    ]
    if paper.edges not in _readings(paper, counts):
        found.append(
            f"{counts.undirected:,} edges counted once and {counts.entries:,} stored entries, "
            f"neither of which is the {paper.edges:,} that count {paper.edges_mean}"
            if paper.counting == "unknown"
            else f"{_readings(paper, counts)[0]:,} edges instead of {paper.edges:,} (counting {paper.edges_mean})"
        )
    return found


def explain_edges(paper: PaperStatistics, counts: Counts) -> str:
    """Why the paper's number of edges and the number stored here may both be right."""
    if paper.counting == "unknown":
        reading = {counts.undirected: "each edge once", counts.entries: "each edge twice"}.get(paper.edges)
        known = f"; in these files it is {reading}" if reading else ""
        return (
            f"the paper's {paper.edges:,} edges are {paper.edges_mean}{known}; stored here: {counts.entries:,} entries"
        )
    return f"the paper's {paper.edges:,} counts {paper.edges_mean}; stored here: {counts.entries:,} entries"


def _readings(paper: PaperStatistics, counts: Counts) -> list[int]:
    """The numbers of edges that the paper may mean by its way of counting."""
    ways = {"entries": counts.entries, "undirected": counts.undirected}
    return [ways[paper.counting]] if paper.counting in ways else list(ways.values())
