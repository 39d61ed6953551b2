"""Twins: generated graphs with a dataset's exact shape, to measure seconds and memory where the real files are absent.

A degree-corrected block model: every node has a weight from a Lomax law whose tail follows from the mean and the
maximum degree, ends of edges are drawn in proportion to it, and a fixed number of edges stays within a class. Every
node that is not meant to be isolated draws one partner first. Features depend on the class, so that a model has
something to learn, but what it learns says nothing about the real dataset. The same name gives the same bytes at every
call: one random stream, one thread.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy.optimize import brentq

from bench.datasets.twin_features import dense_features, word_features
from bench.datasets.twin_specs import TWINS, TwinSpec
from bench.errors import UserError
from bench.graph import Graph

__all__ = ["GENERATOR_VERSION", "TWINS", "TwinSpec", "build_twin", "generate_twin"]

GENERATOR_VERSION = 1  # raised whenever the bytes of a twin may change

_CHUNK = 1 << 22  # random numbers drawn at once
_WEIGHT_UNIT = 64  # weights are whole numbers of 1/64 of an edge: sums are then exact


def generate_twin(name: str) -> Graph:
    """The twin of this name, for instance "photo-twin"."""
    if name not in TWINS:
        raise UserError(f"There is no twin named '{name}'; known are {', '.join(sorted(TWINS))}.")
    return build_twin(TWINS[name])


def build_twin(spec: TwinSpec) -> Graph:
    """A graph of this shape."""
    seed = hashlib.sha256(f"{spec.name} {GENERATOR_VERSION}".encode()).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(seed[:16], "little")))
    sizes = spec.class_sizes
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    indptr, indices = _csr(_edge_keys(spec, labels, rng), spec.nodes)
    words = spec.words
    features = word_features(spec, words, labels, rng) if words else dense_features(spec, labels, rng)
    return Graph(spec.name, indptr, indices, features, labels, spec.num_classes)


# -- edges -------------------------------------------------------------------------------------------------------------
# An edge u <= v is the key u * nodes + v, so that sorted keys are edges in row order and equal keys are duplicates.


@dataclass(frozen=True)
class _Urn:
    """The connected nodes in class order ("positions"), each holding as many tickets as its weight."""

    nodes: int
    order: np.ndarray  # position -> node
    class_of: np.ndarray  # position -> class
    tickets: np.ndarray  # position -> first ticket; one more entry with the total
    bounds: np.ndarray  # class -> first ticket; one more entry with the total
    guide: np.ndarray  # ticket // step -> where to start looking for its position
    step: int

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return _find(rng.integers(0, self.tickets[-1], count), self.tickets, self.guide, self.step)

    def partners(self, rng: np.random.Generator, first: np.ndarray, same: bool) -> np.ndarray:
        """Keys of edges from these positions to a random partner within the class, or outside it."""
        luck = rng.random(len(first))
        urn = (self.order, self.class_of, self.tickets, self.bounds, self.guide)
        return _partner_keys(first, luck, same, *urn, self.step, self.nodes)


def _edge_keys(spec: TwinSpec, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sorted keys of all edges and self-loops; the number of edges within classes is exact."""
    urn = _fill_urn(spec, labels, rng)
    positions = np.arange(len(urn.order), dtype=np.int32)
    members = np.bincount(urn.class_of, minlength=spec.num_classes)
    stays = (rng.random(len(positions)) < spec.homophily) & (members[urn.class_of] > 1)
    within = round(spec.homophily * spec.undirected_edges)
    _check_room(within, spec.undirected_edges - within, members)
    loop_nodes = np.sort(rng.choice(urn.order, spec.self_loops, replace=False)).astype(np.int64)
    return _merge(
        _distinct_keys(urn, rng, within, positions[stays], same=True),
        _distinct_keys(urn, rng, spec.undirected_edges - within, positions[~stays], same=False),
        loop_nodes * (spec.nodes + 1),
    )


def _check_room(within: int, across: int, members: np.ndarray) -> None:
    """Random drawing ends only where enough pairs stay free."""
    pairs_within = int((members * (members - 1) // 2).sum())
    pairs_across = int(members.sum() * (members.sum() - 1) // 2) - pairs_within
    if 2 * within > pairs_within or 2 * across > pairs_across:
        raise ValueError("too many edges: more than half of the possible pairs within or across the classes")


def _fill_urn(spec: TwinSpec, labels: np.ndarray, rng: np.random.Generator) -> _Urn:
    connected = np.sort(rng.permutation(spec.nodes)[spec.isolated :])
    order = connected[np.argsort(labels[connected], kind="stable")].astype(np.int32)
    class_of = labels[order]
    degrees = _expected_degrees(spec, len(order))
    weights = rng.permutation(degrees)
    class_starts = np.searchsorted(class_of, np.arange(spec.num_classes + 1))
    for members in map(slice, class_starts[:-1], class_starts[1:]):
        weights[members] = _make_up_for_duplicates(weights[members], degrees, spec.homophily)
    tickets = np.concatenate([[0], np.cumsum(np.maximum(np.rint(weights * _WEIGHT_UNIT), 1).astype(np.int64))])
    bounds = tickets[class_starts]
    step = int(tickets[-1]) // len(order) + 1
    guide = np.searchsorted(tickets, np.arange(0, tickets[-1], step), side="right") - 1
    return _Urn(spec.nodes, order, class_of, tickets, bounds, guide, step)


def _expected_degrees(spec: TwinSpec, count: int) -> np.ndarray:
    """Expected degrees beyond the first partner: quantiles of a Lomax law with the wanted mean and maximum."""
    mean = 2 * spec.undirected_edges / count - 1
    levels = (np.arange(count) + 0.5) / count

    def law(tail: float) -> np.ndarray:
        weights = np.expm1(-np.log1p(-levels) / tail)
        return weights * (mean / weights.mean())

    heavy, light = 1.05, 50.0  # the tails between which the maximum can be met; beyond them the nearest one is taken
    maximum = np.clip(spec.max_degree - 1, law(light)[-1], law(heavy)[-1])
    return law(brentq(lambda tail: law(tail)[-1] - maximum, heavy, light))


def _make_up_for_duplicates(wanted: np.ndarray, degrees: np.ndarray, homophily: float) -> np.ndarray:
    """Weights with which the nodes of a class reach these degrees, although a hub draws many a partner twice."""
    if not len(wanted):
        return wanted
    typical = degrees[:: len(degrees) // 256 + 1] / degrees.mean()
    weights = np.geomspace(0.01, 10 * degrees[-1], 128)
    reached = np.zeros(len(weights))
    for share, partners in ((homophily, len(wanted)), (1 - homophily, len(degrees) - len(wanted))):
        if partners:
            reached -= partners * np.expm1(-share / partners * np.outer(weights, typical)).mean(axis=1)
    return np.interp(wanted, reached, weights)


def _distinct_keys(urn: _Urn, rng: np.random.Generator, quota: int, cover: np.ndarray, same: bool) -> np.ndarray:
    """Exactly `quota` different edges, among them one for each position in `cover`."""
    keys = _unique(urn.partners(rng, cover, same))
    if len(keys) > quota:
        raise ValueError(f"{quota} edges are too few to give each of {len(cover)} nodes one")
    while len(keys) < quota:
        missing = quota - len(keys)
        wanted = missing + missing // 16 + 64  # some will be there already
        sizes = [min(_CHUNK, wanted - start) for start in range(0, wanted, _CHUNK)]
        fresh = _unique(np.concatenate([urn.partners(rng, urn.draw(rng, size), same) for size in sizes]))
        fresh = fresh[~_contains(keys, fresh)]
        if len(fresh) > missing:
            fresh = np.delete(fresh, rng.choice(len(fresh), len(fresh) - missing, replace=False, shuffle=False))
        keys = _merge(keys, fresh)
    return keys


def _unique(keys: np.ndarray) -> np.ndarray:
    keys.sort()
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


def _merge(*parts: np.ndarray) -> np.ndarray:
    keys = np.concatenate(parts)
    keys.sort()
    return keys


def _contains(keys: np.ndarray, sought: np.ndarray) -> np.ndarray:
    if not len(keys):
        return np.zeros(len(sought), dtype=bool)
    return keys[np.minimum(np.searchsorted(keys, sought), len(keys) - 1)] == sought


@njit(cache=True, nogil=True)
def _position(ticket, tickets, guide, step):  # type: ignore[no-untyped-def]
    position = guide[ticket // step]
    while tickets[position + 1] <= ticket:
        position += 1
    return position


@njit(cache=True, nogil=True)
def _find(drawn, tickets, guide, step):  # type: ignore[no-untyped-def]
    found = np.empty(len(drawn), np.int32)
    for i in range(len(drawn)):
        found[i] = _position(drawn[i], tickets, guide, step)
    return found


@njit(cache=True, nogil=True)
def _partner_keys(first, luck, same, order, class_of, tickets, bounds, guide, step, nodes):  # type: ignore[no-untyped-def]
    """A partner holds a ticket of the own class without the node itself, or any ticket outside the own class."""
    keys = np.empty(len(first), np.int64)
    filled = 0
    for i in range(len(first)):
        u, own = first[i], class_of[first[i]]
        if same:
            low, high, barred_from, barred_to = bounds[own], bounds[own + 1], tickets[u], tickets[u + 1]
        else:
            low, high, barred_from, barred_to = 0, tickets[-1], bounds[own], bounds[own + 1]
        open_tickets = (high - low) - (barred_to - barred_from)
        if open_tickets == 0:
            continue  # none there: the only node of its class
        ticket = low + min(np.int64(luck[i] * open_tickets), open_tickets - 1)
        if ticket >= barred_from:
            ticket += barred_to - barred_from
        a, b = np.int64(order[u]), np.int64(order[_position(ticket, tickets, guide, step)])
        keys[filled] = min(a, b) * nodes + max(a, b)
        filled += 1
    return keys[:filled]


@njit(cache=True, nogil=True)
def _csr(keys, nodes):  # type: ignore[no-untyped-def]
    """CSR of both directions: in key order a row's smaller neighbours come ascending, and so do its larger ones."""
    smaller = np.zeros(nodes, np.int32)
    larger = np.zeros(nodes, np.int32)
    for key in keys:
        u, v = key // nodes, key % nodes
        larger[u] += 1
        if u != v:
            smaller[v] += 1
    indptr = np.zeros(nodes + 1, np.int32)
    for row in range(nodes):
        indptr[row + 1] = indptr[row] + smaller[row] + larger[row]
        larger[row] = indptr[row] + smaller[row]  # from here on both are the next free places
        smaller[row] = indptr[row]
    indices = np.empty(indptr[nodes], np.int32)
    for key in keys:
        u, v = key // nodes, key % nodes
        indices[larger[u]] = v
        larger[u] += 1
        if u != v:
            indices[smaller[v]] = u
            smaller[v] += 1
    return indptr, indices
