"""The benchmark's reference and ours check each other; tables and exit codes. No test here asserts a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.nn import functional

from bench.errors import MissingData
from bench.graph import Graph, Split
from bench.prepared import PrepareCache
from models.kernels.positional import laplacian_eigenvectors
from models.nagphormer import NAGphormer
from perf import __main__ as command
from perf.cases import Options, Skipped, Versus, reference_bytes
from perf.child import epoch_seconds
from perf.measure import Failed, Measurement, measure
from perf.reference import (
    ReferenceNAGphormer,
    Settings,
    hop_tokens,
    laplacian_encoding,
    normalised_adjacency,
    rate_factor,
    run_reference,
)
from perf.table import Row, format_table

Config = NAGphormer.Config
CONFIG = Config(hops=3, encoding_size=4, hidden=16, layers=2, heads=4, batch_size=20, max_epochs=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On matrices this small, threads that wait for each other take all the time on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small_graph(sparse: bool = True, num_nodes: int = 60) -> Graph:
    """A connected graph (a path with random chords); the features tell the three classes apart."""
    random = np.random.RandomState(3)
    chords = (random.rand(num_nodes, num_nodes) < 0.03).astype(np.float32)
    path = np.eye(num_nodes, k=1, dtype=np.float32)
    joined = sp.csr_array(((chords + chords.T + path + path.T) > 0).astype(np.float32))
    joined.sort_indices()
    labels = np.arange(num_nodes) % 3
    features = (random.rand(num_nodes, 12) < 0.2).astype(np.float32)
    features[np.arange(num_nodes), labels] += 3
    held = sp.csr_array(features) if sparse else features
    return Graph("small", joined.indptr.astype(np.int32), joined.indices.astype(np.int32), held, labels, 3, "small")


def whole_split(graph: Graph) -> Split:
    order = np.random.RandomState(0).permutation(graph.num_nodes)
    train, val, test = (np.sort(part) for part in np.split(order, [36, 48]))
    return Split(train, val, test, "uniform-60/20/20", 0)


def dense_features(graph: Graph) -> np.ndarray:
    return graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()


def with_weights_of(ours: NAGphormer, width: int, num_classes: int) -> ReferenceNAGphormer:
    """The reference network holding our weights; the packed product is cut into q, k and v."""
    own = ours.state_dict()
    renamed = {"project": "embed", "norm": "final_norm", "hop_score": "score"}
    renamed |= {"classifier.0": "inner", "classifier.2": "outer"}
    parts = {"attention_norm": "first_norm", "feed_forward_norm": "second_norm", "output": "merge"}
    parts |= {"feed_forward.0": "widen", "feed_forward.2": "narrow"}
    state = {}
    for number in range(CONFIG.layers):
        renamed |= {f"encoder.{number}.{old}": f"layers.{number}.{new}" for old, new in parts.items()}
        for kind in ("weight", "bias"):
            packed = own.pop(f"encoder.{number}.query_key_value.{kind}")
            for name, part in zip(("query", "key", "value"), packed.chunk(3), strict=True):
                state[f"layers.{number}.{name}.{kind}"] = part
    for old, new in renamed.items():
        state |= {f"{new}.{kind}": own.pop(f"{old}.{kind}") for kind in ("weight", "bias")}
    assert not own
    reference = ReferenceNAGphormer(width, num_classes, Settings.of(asdict(CONFIG)))
    reference.load_state_dict(state)
    return reference


@pytest.mark.parametrize("strategy", ["materialised", "projected"])
@pytest.mark.parametrize("sparse", [True, False])
def test_reference_and_ours_agree(strategy: str, sparse: bool) -> None:
    graph, cache = small_graph(sparse), PrepareCache()
    config = Config(**{**asdict(CONFIG), "tokens": strategy})
    torch.manual_seed(0)
    ours = NAGphormer(graph, NAGphormer.prepare(graph, whole_split(graph), config, 0, cache), config).eval()
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # biases too: the published initialisation would hide them
    structure = laplacian_eigenvectors(graph, config.encoding_size, cache)
    features = torch.from_numpy(np.concatenate([dense_features(graph), structure], axis=1))
    reference = with_weights_of(ours, features.shape[1], graph.num_classes).eval()

    nodes = torch.tensor([5, 0, 59, 17, 5])
    tokens = hop_tokens(normalised_adjacency(graph), features, config.hops)[nodes]
    targets = torch.from_numpy(graph.labels)[nodes]
    logits, log_probabilities = ours(nodes), reference(tokens)
    torch.testing.assert_close(functional.log_softmax(logits, dim=1), log_probabilities, rtol=1e-4, atol=1e-5)

    functional.cross_entropy(logits, targets).backward()
    functional.nll_loss(log_probabilities, targets).backward()
    torch.testing.assert_close(ours.project.weight.grad, reference.embed.weight.grad, rtol=1e-3, atol=1e-5)


def test_reference_tokens_are_powers_of_the_normalised_adjacency() -> None:
    graph = small_graph()
    looped = graph.adjacency().toarray().astype(np.float64) + np.eye(graph.num_nodes)
    scale = np.diag(1 / np.sqrt(looped.sum(axis=1)))
    dense = dense_features(graph)
    tokens = hop_tokens(normalised_adjacency(graph), torch.from_numpy(dense), 3).numpy()
    for hop in range(4):
        expected = np.linalg.matrix_power(scale @ looped @ scale, hop) @ dense
        np.testing.assert_allclose(tokens[:, hop], expected, rtol=1e-4, atol=1e-5)


def test_reference_encoding_has_the_smallest_positive_eigenvalues_like_ours() -> None:
    graph = small_graph()
    scale = np.diag(1 / np.sqrt(np.maximum(graph.degrees, 1)))
    laplacian = np.eye(graph.num_nodes) - scale @ graph.adjacency().toarray() @ scale
    expected = np.linalg.eigvalsh(laplacian)[1:5]
    ours, theirs = laplacian_eigenvectors(graph, 4, PrepareCache()), laplacian_encoding(graph, 4).numpy()
    np.testing.assert_allclose(np.einsum("nk,nm,mk->k", ours, laplacian, ours), expected, atol=1e-4)
    # its tolerance is loose and its start random: neighbouring vectors may mix
    np.testing.assert_allclose(np.einsum("nk,nm,mk->k", theirs, laplacian, theirs), expected, atol=0.1)


def test_reference_has_the_published_size() -> None:
    pubmed = Settings.of(asdict(Config(**NAGphormer.settings["author"]["pubmed"])))
    model = ReferenceNAGphormer(515, 3, pubmed)
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_501_124


def test_reference_learning_rates() -> None:
    factor = rate_factor(Settings.of(asdict(Config(learning_rate=1e-3, warmup_updates=400))))
    # 400 updates up to the peak, then down to a tenth of it at update 1000; 700 is half-way
    updates = {1: 1 / 400, 200: 0.5, 400: 1.0, 700: 0.55, 1000: 0.1, 5000: 0.1}
    assert {update: factor(update - 1) for update in updates} == pytest.approx(updates)


def test_reference_trains() -> None:
    graph = small_graph()
    settings = Settings.of({**asdict(CONFIG), "learning_rate": 1e-2, "warmup_updates": 1})
    labels, split = torch.from_numpy(graph.labels), whole_split(graph)
    start, end = (run_reference(graph, labels, split, settings, epochs) for epochs in (1, 20))
    assert len(end["epochs"]) == 20
    assert end["loss"] < 0.8 * start["loss"]
    assert end["accuracy"] > 0.6  # a third would be chance; the solver's start is random, so not every run is alike


def test_reference_memory_on_physics_is_what_was_measured() -> None:
    needed = reference_bytes(34_493, 8_415, asdict(Config(**NAGphormer.settings["author"]["physics"])))
    assert 16.4e9 < needed < 18e9  # measured 16.4 GB, and a little to spare


def test_epoch_seconds_share_the_time_between_two_messages() -> None:
    moments = [(0, 10.0), (1, 14.0), (3, 15.0), (4, 18.0), (4, 18.5)]
    assert epoch_seconds(moments) == [4.0, 0.5, 0.5, 3.0]


def test_seconds_per_epoch_leave_the_first_epoch_out() -> None:
    assert Measurement({"epochs": [9.0, 1.0, 2.0, 4.0]}, 0, 0).per_epoch == 2.0
    assert Measurement({"epochs": [9.0]}, 0, 0).per_epoch == 9.0


def test_table() -> None:
    rows = [
        Row("cs", "seconds per epoch", 20.31, 28.0, ratio_target=1.3),
        Row("physics", "peak memory, GB", 1.64001, 16.4, ratio_target=10),
        Row("hop", "seconds", 299.6, limit=300),
        Row("overhead", "seconds per cell", 0.05, 0.1),
    ]
    assert [row.met for row in rows] == [True, False, True, None]
    assert format_table(rows).splitlines() == [
        "| case     | measure           |   reference |   ours |   ratio | target      | met   |",
        "|----------|-------------------|-------------|--------|---------|-------------|-------|",
        "| cs       | seconds per epoch |        28.0 |   20.3 |    1.38 | ratio ≥ 1.3 | yes   |",
        "| physics  | peak memory, GB   |        16.4 |   1.64 |    10.0 | ratio ≥ 10  | NO    |",
        "| hop      | seconds           |           – |    300 |       – | ≤ 300       | yes   |",
        "| overhead | seconds per cell  |       0.100 |  0.050 |    2.00 | –           | –     |",
    ]


@dataclass(frozen=True)
class StandIn:
    """A case that measures nothing."""

    name: str
    outcome: Row | Exception
    about: str = "a stand-in"

    def run(self, options: Options) -> list[Row]:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return [self.outcome]


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        StandIn("slow", Row("slow", "seconds", 2.0, 1.0, ratio_target=1.1)),
        StandIn("tight", Skipped("too little memory")),
        StandIn("absent", MissingData("photo.npz is not here")),
        StandIn("broken", Failed("ValueError: oh")),
    ]
    monkeypatch.setattr(command, "CASES", cases)


def test_a_missed_target_is_shown_and_is_no_failure(
    stand_ins: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["slow", "--output", str(tmp_path / "table.md")]) == 0
    out = capsys.readouterr().out
    assert "| slow   | seconds   |        1.00 |   2.00 |   0.500 | ratio ≥ 1.1 | NO    |" in out
    assert (tmp_path / "table.md").read_text() == out
    assert f"torch {version('torch')}" in out


def test_cases_that_cannot_run_are_named_with_the_reason(stand_ins: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["tight", "absent"]) == 0
    out = capsys.readouterr().out
    assert "skipped tight: too little memory\nskipped absent: photo.npz is not here\n" in out
    assert command.main([]) == 1
    assert "failed broken: ValueError: oh\n" in capsys.readouterr().out


def test_mistakes_get_one_line(stand_ins: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["slw"]) == 2
    assert capsys.readouterr().err == (
        "error: there is no case 'slw'; there are slow, tight, absent, broken. Did you mean 'slow'?\n"
    )
    assert command.main(["slow", "--output", str(tmp_path / "no" / "table.md")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit, match="2"):
        command.main(["--epochs", "0"])


def test_a_process_that_breaks_gives_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path))
    with pytest.raises(Failed, match="KeyError: 'nonsense'"):
        measure({"kind": "nonsense"}, threads=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_case_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    graph = small_graph()
    adjacency, features = graph.adjacency(), graph.features
    arrays: dict[str, Any] = {"labels": graph.labels}
    for name, matrix in (("adj", adjacency), ("attr", features)):
        arrays |= {f"{name}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(tmp_path / "own.npz", **arrays)
    lines: list[str] = []
    rows = Versus(str(tmp_path / "own.npz"), epochs=2).run(Options(None, threads=1, say=lines.append))
    assert [row.measure for row in rows] == [
        "seconds per epoch",
        "seconds before the first step",
        "peak memory, GB",
        "peak anonymous memory, GB",
    ]
    assert all(row.ours > 0 and row.reference is not None and row.reference > 0 for row in rows)
    assert [line.split(": ")[1] for line in lines] == ["opening the data", "warming up"] + [
        f"{kind}, round 1 of 1" for kind in ("reference", "ours")
    ]
    json.dumps([asdict(row) for row in rows], allow_nan=False)
