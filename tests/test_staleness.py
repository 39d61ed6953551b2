"""When a record of an older source still counts: worked through by hand on a few records."""

from __future__ import annotations

from typing import Any

from bench.staleness import Sources

PRESENT = {"m": "new", "other": "new"}


def record(key: str, source: str, predictions: str | None = "p", **changed: Any) -> dict[str, Any]:
    fields = {"model": "m", "data": "d", "revision": 1, "config": {"hidden": 8}, "key": key, "source": source}
    return {**fields, "predictions": predictions, **changed}


def stale(*records: dict[str, Any]) -> list[str]:
    sources = Sources(records, PRESENT)
    return [found["key"] + "/" + found["source"] for found in records if sources.is_stale(found)]


def test_another_source_is_stale_until_it_is_seen_to_agree() -> None:
    assert stale(record("a", "old"), record("b", "old")) == ["a/old", "b/old"]
    assert stale(record("a", "old"), record("b", "old"), record("a", "new")) == []
    assert stale(record("a", "old"), record("b", "old"), record("a", "new", "q")) == ["a/old", "b/old"]


def test_the_proof_is_for_one_model_one_graph_and_one_configuration() -> None:
    proof = record("a", "old"), record("a", "new")
    for changed in ({"model": "other"}, {"data": "e"}, {"revision": 2}, {"config": {"hidden": 16}}):
        assert stale(*proof, record("b", "old", **changed)) == ["b/old"]


def test_agreement_is_passed_on() -> None:
    chain = record("a", "older"), record("a", "old"), record("b", "old"), record("b", "new")
    assert stale(*chain) == []
    assert stale(*chain, record("c", "odd"), record("c", "odder")) == ["c/odd", "c/odder"]


def test_failed_cells_prove_nothing() -> None:
    assert stale(record("a", "old", None), record("a", "new", None)) == ["a/old"]
