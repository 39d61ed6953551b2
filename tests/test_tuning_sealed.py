"""No label of the sealed fifth reaches tuning: not the driver, not a worker, not a record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import ring_dataset
from tuning_toys import Imagined, drive, make_search, ring_search

from bench.commands.tune import tune_request
from bench.datasets.catalogue import resolve
from bench.datasets.store import Stored
from bench.executors.local import LocalExecutor
from bench.graph import UNKNOWN_LABEL, graph_fingerprint
from bench.ledger import Ledger
from bench.predictions import PredictionStore
from bench.request import TuneRequest
from bench.runner import Summary, run_stream
from bench.splits import draw_split, is_scored, sealed_nodes, tuning_rule
from bench.tuning.search import sealed_away
from bench.tuning.study import Budget, Trial

RULES = ("uniform-60/20/20", "uniform-50/40/10", "per-class-5/7", "total-5/7")
LABELS = np.random.RandomState(1).permutation(np.repeat(np.arange(4), 50))
every_split = given(st.sampled_from(RULES), st.integers(0, 2**32 - 1))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@every_split
@settings(max_examples=100)
def test_tuning_learns_and_validates_where_sealed_runs_do_and_never_on_sealed_nodes(rule: str, seed: int) -> None:
    tuning, sealed = (draw_split(prefix + rule, LABELS, 4, seed) for prefix in ("tuning:", "sealed:"))
    for part in ("train", "val", "test"):
        assert np.array_equal(getattr(tuning, part), getattr(sealed, part))
    assert not np.isin(sealed_nodes(200), np.concatenate([tuning.train, tuning.val])).any()
    assert len(sealed_nodes(200)) == 40 and np.array_equal(sealed_nodes(200), tuning.test)
    assert tuning.rule == tuning_rule(rule) and not is_scored(tuning.rule) and is_scored(sealed.rule)


@every_split
@settings(max_examples=100)
def test_the_split_itself_depends_on_no_sealed_label(rule: str, seed: int) -> None:
    hidden = LABELS.copy()
    hidden[sealed_nodes(200)] = UNKNOWN_LABEL
    with_labels, without = (draw_split(tuning_rule(rule), labels, 4, seed) for labels in (LABELS, hidden))
    assert with_labels.fingerprint == without.fingerprint


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_neither_driver_nor_worker_nor_record_has_a_sealed_label(
    data: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    results = tmp_path_factory.mktemp("results")
    search, stored = ring_search(data, seed=seed)
    sealed = sealed_nodes(60)
    assert (stored.graph.labels[sealed] == UNKNOWN_LABEL).all()
    assert (np.delete(stored.graph.labels, sealed) != UNKNOWN_LABEL).all()
    executor = Imagined()
    drive(search, stored, results, Budget(trials=2), executor)
    for job in executor.jobs:
        known = np.flatnonzero(job.labels != UNKNOWN_LABEL)
        assert not np.isin(known, sealed).any()
        assert np.array_equal(known, np.sort(np.concatenate([job.split.train, job.split.val])))
    for record in Ledger(results):
        assert list(record["metrics"]) == ["val"]
        assert len(PredictionStore(results).load(record["predictions"]).test) == 0
        assert "test" not in json.dumps({**record, "environment": {}})


def shuffled(stored: Stored) -> Stored:
    """The same graph, except that every sealed node has another label."""
    labels = stored.graph.labels.copy()
    sealed = sealed_nodes(len(labels))
    labels[sealed] = (labels[sealed] + 1) % stored.graph.num_classes
    graph = stored.graph.with_labels(labels)
    return replace(stored, graph=replace(graph, fingerprint=graph_fingerprint(graph)))


def test_other_sealed_labels_leave_the_study_unchanged(data: Path, tmp_path: Path) -> None:
    """With real trainings, and all labels where the driver could find them: it is given the sealed graph itself.

    There are enough trials for pruning (after five) and for TPE (after ten) to act on what it had learned by then.
    """
    original = ring_dataset(data)["ring"]
    [dataset] = resolve(str(data / "ring.npz"))
    studies: list[list[Trial]] = []
    for name, stored in (("as-it-is", original), ("shuffled", shuffled(original))):
        search = make_search(dataset, stored, sampler="tpe", prune=True, fixed={"max_epochs": 34})
        executor = LocalExecutor(tmp_path / name / "logs")
        studies.append(drive(search, stored, tmp_path / name, Budget(trials=12), executor))
    first, second = (
        [(trial.slot, trial.outcome, trial.settings, trial.accuracy) for trial in trials] for trials in studies
    )
    assert first == second and len(first) == 12
    assert "pruned" in [outcome for _, outcome, _, _ in first]
    drawn = drive(make_search(dataset, original), original, tmp_path / "random", Budget(trials=12))
    alike = [trial.settings == settings for trial, (_, _, settings, _) in zip(drawn, first, strict=True)]
    assert not any(alike[10:])  # what TPE chose is not what the seed alone gives
    assert {trial.cell for trial in studies[0]}.isdisjoint(trial.cell for trial in studies[1])  # nothing was reused
    for record in Ledger(tmp_path / "shuffled"):
        assert list(record["metrics"]) == (["val"] if record["status"] == "ok" else [])


@pytest.mark.parametrize("seed", [0, 1, 4_294_967_295])
def test_the_command_itself_hands_on_no_sealed_label(
    seed: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `tune` gives to the loop, to the workers and to the ledger."""
    truth = ring_dataset(data)["ring"].graph.labels
    executor, graphs = Imagined(), []

    def spied(*arguments: Any) -> Summary:
        graphs.extend(stored.graph for stored in arguments[2].values())
        return run_stream(*arguments)

    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("bench.commands.tune.make_executor", lambda *arguments: executor)
    monkeypatch.setattr("bench.commands.tune.run_stream", spied)
    request = TuneRequest("gcn", str(data / "ring.npz"), trials=2, seed=seed, max_epochs=2, results=tmp_path)
    assert tune_request(request) == 0
    sealed = sealed_nodes(60)
    others = np.delete(np.arange(60), sealed)
    [graph] = graphs
    assert (graph.labels[sealed] == UNKNOWN_LABEL).all() and np.array_equal(graph.labels[others], truth[others])
    assert len(executor.jobs) == 2
    for job in executor.jobs:
        assert (job.labels[sealed] == UNKNOWN_LABEL).all() and (job.labels[others] != UNKNOWN_LABEL).all()
        assert np.array_equal(job.split.test, sealed)
    assert all(list(record["metrics"]) == ["val"] for record in Ledger(tmp_path))


def test_sealing_changes_nothing_else(data: Path) -> None:
    stored = ring_dataset(data)["ring"]
    sealed = sealed_away(stored)
    assert sealed.graph.fingerprint == stored.graph.fingerprint and sealed.folder == stored.folder
    assert UNKNOWN_LABEL not in stored.graph.labels  # the original is as it was
