"""The cases on the largest graph, at a size that a test can afford."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphs import random_graph

from perf import large


def test_distance_from_a_line() -> None:
    assert large.distance_from_line([0.25, 1.0], [2.0, 8.0]) == 0.0
    # rates 0.9 and 1.1; the slope 2 / (0.81 + 1.21) brings them to 0.8911 and 1.0891
    assert large.distance_from_line([1.0, 2.0], [0.9, 2.2]) == pytest.approx(0.1089, abs=1e-4)


def test_preparation_counts_the_bytes_of_every_hop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph()
    monkeypatch.setattr(large, "open_arrays", lambda folder: graph)
    monkeypatch.setattr(large, "copy_speed", lambda: 1.0)
    values = large.prepare(
        {"threads": 1, "folder": "", "cache": str(tmp_path), "hops": 2, "encoding": 3, "storage": "float16"}
    )
    entries = graph.num_entries + 60  # Â has a self-loop for every node, in a place of its own but for one
    entries -= int(graph.adjacency().diagonal().sum())
    width = 4 * (20 + 3)
    assert values["gathered"] == 2 * (entries * (4 + 4 + width) + 60 * (4 + width))
    assert values["stored"] == 60 * (20 + 3) * 3 * 2
    assert min(values["encoding"], values["hops"], values["products"]) > 0.0


def test_inference_is_profiled_by_kind_of_operation(tmp_path: Path) -> None:
    values = large.infer({"threads": 1, "cache": str(tmp_path), "dataset": "amazon2m", "nodes": 50, "rounds": 2})
    products = sum(values["seconds"].get(name, 0.0) for name in large.MATRIX_PRODUCTS)
    assert 0.0 < products < sum(values["seconds"].values())
    assert len(values["cached"]) == len(values["whole"]) == 2
    assert min(values["cached"] + values["whole"]) > 0.0


def test_growth_is_measured_on_a_share_of_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    build = large.MaterialisedTokens.build

    def watch(graph, *rest):  # type: ignore[no-untyped-def]
        seen.append((graph.num_nodes, graph.num_entries))
        return build(graph, *rest)

    monkeypatch.setattr(large.MaterialisedTokens, "build", watch)
    values = large.grow({"threads": 1, "dataset": "amazon2m-twin", "share": 600, "hops": 1, "hidden": 8})
    assert seen[-1] == (2_449_029 // 600, 2 * (61_859_140 // 600))
    assert values["hops"] > 0.0 and values["inference"] > 0.0
