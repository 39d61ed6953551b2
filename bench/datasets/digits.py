"""The embedded default: scikit-learn's real handwritten digits, joined to their nearest neighbours."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import scipy.sparse as sp

from bench.datasets.canonical import RawGraph, canonical_graph
from bench.datasets.sources import REVISION
from bench.graph import Graph

NEIGHBOURS = 8


def load_digits_graph() -> Graph:
    """1,797 images of 8 x 8 pixels; an edge where one image is among the nearest of the other."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)  # whole numbers from 0 to 16
    rows = np.repeat(np.arange(len(pixels)), NEIGHBOURS)
    columns = nearest_neighbours(pixels, NEIGHBOURS).reshape(-1)
    adjacency = sp.coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(len(pixels),) * 2)
    return canonical_graph("digits", RawGraph(adjacency, pixels / 16, labels), "digits", num_classes=10)


def stamp_digits() -> str:
    """Identity of the input; the library's version is asked for without importing it, which takes a second."""
    return f"digits r{REVISION} k={NEIGHBOURS} scikit-learn {version('scikit-learn')}"


def nearest_neighbours(points: np.ndarray, count: int) -> np.ndarray:
    """The `count` nearest other points of each, ascending by number; ties go to the lower number.

    The points are whole numbers, so distances are exact (also in floating point, where the product is fast) and the
    result is the same on every machine.
    """
    points = points.astype(np.float64)
    squares = (points * points).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * (points @ points.T)
    order = distances.astype(np.int64) * len(points) + np.arange(len(points))  # no two alike within a row
    np.fill_diagonal(order, np.iinfo(np.int64).max)
    return np.sort(np.argpartition(order, count - 1, axis=1)[:, :count], axis=1)
