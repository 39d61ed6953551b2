"""Features of the twins: they depend on a node's class, and have the density and the values of the real ones."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numba import njit
from scipy.optimize import brentq
from scipy.special import ndtri

from bench.datasets.twin_specs import TwinSpec, Words

_CHUNK = 1 << 22  # random numbers drawn at once
_SEPARATION = 2.5  # distance of two class means in standard deviations of a node's features


def dense_features(spec: TwinSpec, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Unit Gaussian noise around a mean of the class."""
    scale = np.float32(_SEPARATION / np.sqrt(2 * spec.features))
    means = scale * rng.standard_normal((spec.num_classes, spec.features), dtype=np.float32)
    features = np.empty((spec.nodes, spec.features), dtype=np.float32)
    rows = _CHUNK // spec.features
    for start in range(0, spec.nodes, rows):
        part = features[start : start + rows]
        rng.standard_normal(dtype=np.float32, out=part)
        part += means[labels[start : start + rows]]
    return features


def word_features(spec: TwinSpec, words: Words, labels: np.ndarray, rng: np.random.Generator) -> sp.csr_array:
    """Rows of different words, common ones and those of the class more often than others."""
    lengths = rng.permutation(_row_lengths(words, spec.nodes, spec.features))
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices = np.empty(indptr[-1], dtype=np.int32)
    popularity = rng.permutation((np.arange(spec.features) / spec.features + 0.02) ** -words.skew)
    taste = rng.standard_normal((spec.num_classes, spec.features)) * (_SEPARATION / np.sqrt(2 * words.per_row))
    rates = (popularity * np.exp(taste)).astype(np.float32)
    rows = _CHUNK // spec.features
    for start in range(0, spec.nodes, rows):
        part = slice(start, start + rows)
        arrivals = rng.standard_exponential((len(labels[part]), spec.features), dtype=np.float32) / rates[labels[part]]
        _first_arrivals(arrivals, indptr[start:], indices)
    matrix = sp.csr_array((_word_values(words, indptr, rng), indices, indptr), shape=(spec.nodes, spec.features))
    matrix.has_sorted_indices = True
    return matrix


def _row_lengths(words: Words, nodes: int, limit: int) -> np.ndarray:
    """Words per row: log-normal, at least one and at most all, with the wanted mean after that cut."""
    shape = np.exp(words.spread * ndtri((np.arange(nodes) + 0.5) / nodes))

    def cut(median: float) -> np.ndarray:
        return np.clip(np.rint(median * shape), 1, limit)

    median = brentq(lambda median: cut(median).mean() - words.per_row, 1e-3, 100.0 * limit, xtol=1e-3)
    return cut(median).astype(np.int64)


def _word_values(words: Words, indptr: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    count = int(indptr[-1])
    if words.values == "binary":
        return np.ones(count, dtype=np.float32)
    if words.values == "count":  # P(value >= k) = 1 / k^2, as in the co-author graphs, where a hundred is the most
        return np.minimum(np.floor(1 / np.sqrt(1 - rng.random(count))), 100).astype(np.float32)
    values = np.exp(0.85 * rng.standard_normal(count))  # the spread of Pubmed's weights
    sums = np.add.reduceat(values, indptr[:-1])
    return (values / np.repeat(sums, np.diff(indptr))).astype(np.float32)


@njit(cache=True, nogil=True)
def _first_arrivals(arrivals, indptr, indices):  # type: ignore[no-untyped-def]
    """For each row the words that arrive first, as many as the row is long, in ascending order."""
    for row in range(len(arrivals)):
        filled, end = indptr[row], indptr[row + 1]
        last = np.partition(arrivals[row], end - filled - 1)[end - filled - 1]
        for word in range(arrivals.shape[1]):
            if arrivals[row, word] <= last and filled < end:
                indices[filled] = word
                filled += 1
