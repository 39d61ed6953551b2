"""Fixtures that several test files share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A first call compiles, and a busy machine is slow: neither is a failure.
settings.register_profile("patient", parent=settings(), deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def our_own_turns(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever measures costs on this machine meanwhile, tests neither wait for it nor make it wait."""
    monkeypatch.setattr("bench.runner.TURNS", Path(tmp_path_factory.mktemp("turns")))


@pytest.fixture(autouse=True)
def reference(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty archive, so that no test depends on which records are committed."""
    folder = tmp_path_factory.mktemp("reference")
    monkeypatch.setattr("bench.reference.REFERENCE", folder)
    return folder


@pytest.fixture(autouse=True)
def no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test writes need not survive one, and waiting for the disk took half the time of an imagined study."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def registry_as_it_was() -> Iterator[None]:
    """Nothing that a plug-in registers or imports outlives the test."""
    from bench.datasets.catalogue import datasets
    from bench.registry import scan

    registry = scan()
    cards, names, graphs = dict(registry.cards), dict(registry.names), dict(datasets())
    modules, path = set(sys.modules), list(sys.path)
    yield
    registry.cards, registry.names = cards, names
    datasets().clear()
    datasets().update(graphs)
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path
