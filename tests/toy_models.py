"""Small models for the tests of the running room: one that learns, and several that go wrong on purpose."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import threadpoolctl
import torch
from scipy.linalg import blas
from torch import Tensor, nn

from bench.graph import UNKNOWN_LABEL, Graph, Split
from bench.model import Model, Recipe
from bench.prepared import PrepareCache

PRIVATE = "/home/somebody/file.txt"  # what no record may hold


@dataclass(frozen=True)
class ToyConfig(Recipe):
    learning_rate: float = 0.05
    batch_size: int = 16
    max_epochs: int = 5
    dropout: float = 0.5


class Toy(Model):
    """A linear classifier with dropout on features that were scaled in `prepare`."""

    name = "toy"
    Config = ToyConfig

    def __init__(self, graph: Graph, prepared: Any, config: ToyConfig) -> None:
        super().__init__(graph, prepared, config)
        self.inputs = torch.from_numpy(np.array(prepared["scaled"]))
        self.linear = nn.Linear(graph.num_features, graph.num_classes)
        self.dropout = nn.Dropout(config.dropout)

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Any:
        def scale() -> dict[str, np.ndarray]:
            torch.rand(3)  # a fresh preparation draws random numbers, one from the cache does not
            return {"scaled": np.asarray(graph.features) * 2}

        return cache.get("scaled", {"data": graph.fingerprint}, scale)

    def forward(self, nodes: Tensor) -> Tensor:
        return self.linear(self.dropout(self.inputs[nodes]))

    def choices(self) -> dict[str, str]:
        return {"strategy": "linear"}


def blas_threads() -> str:
    """Of every BLAS that is loaded; numpy and scipy may each have one."""
    pools = threadpoolctl.threadpool_info()
    return "/".join(sorted({str(pool["num_threads"]) for pool in pools if pool["user_api"] == "blas"}))


class Spy(Toy):
    """Reports which labels it was shown, and on what it was run."""

    name = "spy"
    blas_while_preparing = ""

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Any:
        cls.blas_while_preparing = blas_threads()
        return super().prepare(graph, split, config, seed, cache)

    def __init__(self, graph: Graph, prepared: Any, config: ToyConfig) -> None:
        super().__init__(graph, prepared, config)
        self.known = np.flatnonzero(graph.labels != UNKNOWN_LABEL).tolist()

    def choices(self) -> dict[str, str]:
        return {
            "known": " ".join(map(str, self.known)),
            "threads": f"{torch.get_num_threads()} {numba.get_num_threads()}",
            "blas": f"{self.blas_while_preparing} {blas_threads()}",
            "deterministic": str(torch.are_deterministic_algorithms_enabled()),
            "dgl": str("dgl" in sys.modules),
        }


class Multiplies(Toy):
    """Needs both copies of OpenBLAS, numpy's and scipy's, while it prepares."""

    name = "multiplies"

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Any:
        square = np.ones((40, 40))
        assert (square @ square == blas.dgemm(1.0, square, square)).all()
        return super().prepare(graph, split, config, seed, cache)


class Raises(Toy):
    name = "raises"

    def loss(self, batch: Tensor) -> Tensor:
        raise ValueError(f"something is wrong in {PRIVATE}")


class Nan(Toy):
    name = "nan"

    def loss(self, batch: Tensor) -> Tensor:
        return super().loss(batch) * float("nan")


class Sleeps(Toy):
    name = "sleeps"

    def loss(self, batch: Tensor) -> Tensor:
        time.sleep(60)
        return super().loss(batch)


class Aborts(Toy):
    name = "aborts"

    def loss(self, batch: Tensor) -> Tensor:
        os.abort()


class Killed(Toy):
    name = "killed"

    def loss(self, batch: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(batch)


class Hungry(Toy):
    """Takes 400 MB of anonymous memory while preparing."""

    name = "hungry"

    @classmethod
    def prepare(cls, graph: Graph, split: Split, config: Any, seed: int, cache: PrepareCache) -> Any:
        np.ones(400_000_000, dtype=np.uint8).sum()
        return super().prepare(graph, split, config, seed, cache)


class HungryTensor(Toy):
    name = "hungry-tensor"

    def loss(self, batch: Tensor) -> Tensor:
        torch.ones(400_000_000, dtype=torch.uint8).sum()
        return super().loss(batch)


class Announced(Toy):
    """Knows in advance that it will need more than anybody has."""

    name = "announced"

    @classmethod
    def estimate_memory(cls, graph: Graph, config: Any) -> int | None:
        return 10**15


class Choosy(Toy):
    name = "choosy"

    @classmethod
    def unsupported(cls, graph: Graph, config: Any) -> str | None:
        return "only graphs with a name of seven letters"


class Slow(Toy):
    """Takes at least a fifth of a second per epoch, in any number of updates."""

    name = "slow"

    def batches(self, nodes: Tensor, training: bool) -> Iterator[Any]:
        time.sleep(0.2 if training else 0)
        return super().batches(nodes, training)


_MODELS: list[type[Model]] = [Toy, *Toy.__subclasses__()]
ALL = {model.name: model for model in _MODELS}


def find(name: str) -> type[Model]:
    return ALL[name]
