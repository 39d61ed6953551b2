"""Hop2Token by hand and by dense powers; both strategies held to the same values and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graphs import dense_adjacency, dense_features, dense_normalized, make_graph, path_graph, random_graph, random_split
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bench.graph import Graph
from bench.prepared import PrepareCache, list_entries
from models.kernels.propagation import normalized_adjacency
from models.kernels.tokens import MaterialisedTokens, ProjectedTokens, _masked_product, _needed_rows, cheaper_strategy
from models.nagphormer import NAGphormer, NAGphormerConfig

KEY: dict[str, Any] = {"encoding": 0}
STRATEGIES: tuple[Literal["materialised", "projected"], ...] = ("materialised", "projected")


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fresh tensors are full of NaN, so that a row which is read before it is written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    assert torch.empty(3).isnan().all()
    yield
    torch.utils.deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(False)


def structure_of(graph: Graph, size: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((graph.num_nodes, size)).astype(np.float32)


def materialised(graph: Graph, structure: np.ndarray, hops: int, cache: PrepareCache | None = None) -> np.ndarray:
    """(N, K + 1, d + s), as the strategy stores them."""
    tokens = MaterialisedTokens.build(graph, structure, hops, cache or PrepareCache(), KEY)
    return torch.stack(tokens.hops, dim=1).numpy()


def dense_tokens(graph: Graph, structure: np.ndarray, hops: int) -> np.ndarray:
    inputs = np.concatenate([dense_features(graph), structure], axis=1)
    operator = dense_normalized(graph)
    return np.stack([np.linalg.matrix_power(operator, hop) @ inputs for hop in range(hops + 1)], axis=1)


# -- what the tokens are ----------------------------------------------------------------------------------------------


def test_tokens_of_a_path_by_hand() -> None:
    # X = (1,0), (0,6), (2,12); rows of Â: (1/2, r, 0), (r, 1/3, r), (0, r, 1/2) with r = 1/√6
    r = 1 / np.sqrt(6)
    first = np.array([[1 / 2, 6 * r], [3 * r, 2 + 12 * r], [1, 6 * r + 6]])
    # Â²: (1/4+1/6, r/2+r/3, 1/6), (5r/6, 1/6+1/9+1/6, 5r/6), mirrored
    second = np.array(
        [
            [5 / 12 + 2 / 6, 6 * 5 * r / 6 + 12 / 6],
            [5 * r / 6 + 2 * 5 * r / 6, 6 * 4 / 9 + 12 * 5 * r / 6],
            [1 / 6 + 2 * 5 / 12, 6 * 5 * r / 6 + 12 * 5 / 12],
        ]
    )
    graph = path_graph()
    tokens = materialised(graph, np.zeros((3, 0), dtype=np.float32), hops=2)
    assert tokens.shape == (3, 3, 2)
    np.testing.assert_allclose(tokens, np.stack([dense_features(graph), first, second], axis=1), rtol=1e-6)


def test_a_self_loop_of_the_graph_counts_twice_in_the_tokens() -> None:
    graph = make_graph(2, [(0, 1), (0, 0)], np.array([[3.0], [0.0]], dtype=np.float32))
    tokens = materialised(graph, np.zeros((2, 0), dtype=np.float32), hops=1)
    np.testing.assert_allclose(tokens[:, 1, 0], [2.0, 3 / np.sqrt(6)], rtol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_tokens_are_dense_powers_and_the_encoding_is_propagated_too(sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    structure = structure_of(graph, 4)
    tokens = materialised(graph, structure, hops=5)
    assert tokens.shape == (60, 6, 24)
    np.testing.assert_allclose(tokens, dense_tokens(graph, structure, 5), atol=2e-6)


def test_tokens_of_many_hops_serve_fewer_and_are_extended_for_more(tmp_path: Path) -> None:
    graph, empty = random_graph(), np.zeros((60, 0), dtype=np.float32)
    first = materialised(graph, empty, 5, PrepareCache(tmp_path))
    entries = {entry.path.name for entry in list_entries(tmp_path)}
    assert len(entries) == 6

    shorter = PrepareCache(tmp_path)
    assert np.array_equal(materialised(graph, empty, 3, shorter), first[:, :4])
    assert {entry.path.name for entry in list_entries(tmp_path)} == entries
    assert (shorter.hits, shorter.measured) == (4, 0.0)

    longer = PrepareCache(tmp_path)
    extended = materialised(graph, empty, 7, longer)
    assert longer.hits == 6 and len(list_entries(tmp_path)) == 8
    assert extended.tobytes() == materialised(graph, empty, 7).tobytes()


def test_tokens_in_half_precision_take_half_the_bytes_and_are_right_to_their_last_digit(tmp_path: Path) -> None:
    graph, hops = random_graph(), 5
    structure = structure_of(graph, 4)
    cache = PrepareCache(tmp_path)
    tokens = MaterialisedTokens.build(graph, structure, hops, cache, KEY, "float16")
    assert {table.dtype for table in tokens.hops} == {torch.float16}
    assert sum(table.nbytes for table in tokens.hops) == 60 * 24 * 6 * 2
    exact = dense_tokens(graph, structure, hops)
    # Each hop adds a rounding of at most 2^-11 of the largest entry, and Â never lengthens a vector.
    np.testing.assert_allclose(
        torch.stack(tokens.hops, 1), exact, atol=float(6 * np.sqrt(60) * np.abs(exact).max() / 2**11)
    )
    weight = torch.randn(8, 24)
    projected = tokens.project(torch.tensor([3, 59]), weight)
    assert projected.dtype == torch.float32
    np.testing.assert_allclose(projected, exact[[3, 59]] @ weight.numpy().T, atol=0.05)
    assert materialised(graph, structure, hops, cache).dtype == np.float32  # an entry of its own


# -- both strategies --------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    st.integers(0, 50),
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from([0, 3]),
    st.lists(st.integers(0, 59), min_size=1, max_size=70),
)
def test_projected_tokens_and_gradient_against_the_dense_formula(
    seed: int, sparse: bool, hops: int, size: int, nodes: list[int]
) -> None:
    graph = random_graph(seed % 3, sparse)
    structure, batch = structure_of(graph, size), torch.tensor(nodes)
    torch.manual_seed(seed)
    weight, slope = torch.randn(6, 20 + size), torch.randn(len(nodes), hops + 1, 6)
    dense = torch.from_numpy(dense_tokens(graph, structure, hops))[batch]
    expected = dense @ weight.double().T
    expected_gradient = torch.einsum("nkh,nkd->hd", slope.double(), dense)
    for tokens in (
        MaterialisedTokens.build(graph, structure, hops, PrepareCache(), KEY),
        ProjectedTokens(graph, structure, hops),
    ):
        assert tokens.width == 20 + size
        leaf = weight.clone().requires_grad_()
        result = tokens.project(batch, leaf)
        (result * slope).sum().backward()
        assert leaf.grad is not None
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(leaf.grad.double(), expected_gradient, rtol=1e-4, atol=2e-4)
        torch.testing.assert_close(tokens.projector(weight)(batch), result.detach())


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_both_strategies_give_a_model_the_same_logits_and_gradients(sparse: bool, seed: int) -> None:
    graph = random_graph(seed, sparse)
    split = random_split(graph)
    results = []
    for strategy in STRATEGIES:
        config = NAGphormerConfig(hops=3, hidden=16, heads=2, dropout=0.0, attention_dropout=0.0, tokens=strategy)
        torch.manual_seed(seed)
        model = NAGphormer(graph, NAGphormer.prepare(graph, split, config, 0, PrepareCache()), config)
        assert model.choices() == {"tokens": strategy}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.2)
        order = torch.randperm(60)[:25]
        logits = model(order)
        model.loss(order).backward()
        results.append((logits.detach(), model.predict(order).detach(), _gradients(model)))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-4, atol=1e-5)
    for name, gradient in results[0][2].items():
        torch.testing.assert_close(gradient, results[1][2][name], rtol=1e-3, atol=1e-5, msg=name)


def _gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in found.values())
    return {name: gradient for name, gradient in found.items() if gradient is not None}


# -- the masked kernels -----------------------------------------------------------------------------------------------

nodes_of_a_graph = st.lists(st.integers(0, 59), min_size=1, max_size=8)


@settings(max_examples=25)
@given(st.integers(0, 2), nodes_of_a_graph, st.integers(0, 4))
def test_needed_rows_are_the_nodes_within_reach(seed: int, nodes: list[int], hops: int) -> None:
    graph = random_graph(seed)
    steps = dense_adjacency(graph) + np.eye(60)
    reach = [np.linalg.matrix_power(steps, distance)[nodes].any(axis=0) for distance in range(hops, -1, -1)]
    found = _needed_rows(normalized_adjacency(graph), np.array(nodes), hops)
    assert [mask.tolist() for mask in found] == [mask.tolist() for mask in reach]


@settings(max_examples=25)
@given(st.integers(0, 2), st.integers(0, 1000))
def test_masked_product_is_the_dense_product_of_what_is_chosen(seed: int, draw: int) -> None:
    matrix = normalized_adjacency(random_graph(seed))
    random = np.random.default_rng(draw)
    rows, columns = random.random(60) < 0.5, random.random(60) < 0.6
    dense = random.standard_normal((60, 5)).astype(np.float32)
    expected = matrix.toarray() @ np.where(columns[:, None], dense, 0.0)
    dense[~columns] = np.nan  # what is not chosen must not even be read
    out = np.full((60, 5), 99.0, dtype=np.float32)
    _masked_product(matrix.indptr, matrix.indices, matrix.data, dense, rows, columns, out)
    np.testing.assert_allclose(out[rows], expected[rows], atol=1e-5)
    assert (out[~rows] == 99.0).all()


# -- the choice -------------------------------------------------------------------------------------------------------


def shape_only(num_nodes: int, entries: int, features: int, stored: int) -> Graph:
    """A graph of which nothing but the counts is right."""
    indptr = np.zeros(num_nodes + 1, dtype=np.int32)
    indptr[-1] = stored
    zeros = np.zeros(stored, dtype=np.int32)
    matrix = sp.csr_array((zeros.astype(np.float32), zeros, indptr), shape=(num_nodes, features))
    indices = np.zeros(entries, dtype=np.int32)
    return Graph("shape", np.zeros(num_nodes + 1, np.int32), indices, matrix, np.zeros(num_nodes, np.int64), 2)


@pytest.mark.parametrize(
    ("shape", "encoding", "hops", "expected"),
    [  # nodes, adjacency entries, features, stored features; then the authors' s and K
        pytest.param((7650, 238163, 745, 1979909), 10, 3, "materialised", id="photo"),
        pytest.param((13752, 491722, 767, 3675081), 15, 3, "materialised", id="computer"),
        pytest.param((19717, 88651, 500, 988031), 15, 7, "materialised", id="pubmed"),
        pytest.param((18333, 163788, 6805, 1092079), 10, 3, "projected", id="cs"),
        pytest.param((34493, 495924, 8415, 1137311), 10, 5, "projected", id="physics"),
    ],
)
def test_the_cheaper_strategy_depends_on_shapes_alone(
    shape: tuple[int, int, int, int], encoding: int, hops: int, expected: str
) -> None:
    graph = shape_only(*shape)
    other = replace(graph, name="other", labels=graph.labels + 1, fingerprint="other")
    assert cheaper_strategy(graph, encoding, hops, 2000) == expected
    assert cheaper_strategy(other, encoding, hops, 2000) == expected


def test_full_batch_counts_as_all_nodes() -> None:
    graph = random_graph(sparse=True)
    assert cheaper_strategy(graph, 0, 3, 0) == cheaper_strategy(graph, 0, 3, 60) == cheaper_strategy(graph, 0, 3, 10**9)
