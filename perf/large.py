"""The largest graph: what happens before the first step, where inference spends its time, and how both grow."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.datasets.store import cache_root, open_arrays, open_dataset
from bench.graph import Graph
from models.kernels.tokens import MaterialisedTokens
from perf.measure import Measurement, measure
from perf.table import Row

if TYPE_CHECKING:
    from perf.cases import Options  # which imports this file

GB, GiB = 1e9, 2**30
# The last one is q kᵀ and the weights times v of kernels/attention.py, with a softmax over K + 1 numbers in between.
MATRIX_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv_", "_FusedAttention"}


def _open(name: str, options: Options) -> Path:
    from bench.datasets.catalogue import resolve

    options.say(f"{name}: opening the data")
    [dataset] = resolve(name)
    return open_dataset(dataset, options.data, cache_root()).folder


# -- before the first step --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preparation:
    """Laplacian encoding and Hop2Token on the largest graph, every hop stored on disk as a cell stores it."""

    name: str = "prepare-amazon2m"
    dataset: str = "amazon2m-twin"
    hops: int = 10
    encoding: int = 3
    hop_seconds: float = 300
    all_seconds: float = 480
    anonymous: float = 16  # GiB

    @property
    def about(self) -> str:
        return f"LapPE (s = {self.encoding}) and Hop2Token (K = {self.hops}) on {self.dataset} (generated on first use)"

    def run(self, options: Options) -> list[Row]:
        small, large = _open("digits", options), _open(self.dataset, options)
        options.say(f"{self.name}: warming up")
        self._measure(small, options, hops=2)
        options.say(f"{self.name}: measuring")
        result = self._measure(large, options, hops=self.hops)
        values = result.values
        gathered = values["gathered"] / GB
        options.say(f"{self.name}: measuring with tokens in float16")
        half = self._measure(large, options, hops=self.hops, storage="float16").values
        return [
            Row(self.name, "seconds for the encoding", values["encoding"]),
            Row(self.name, "seconds for the hops", values["hops"], limit=self.hop_seconds),
            Row(self.name, "seconds in all", values["encoding"] + values["hops"], limit=self.all_seconds),
            Row(self.name, "peak anonymous memory, GiB", result.peak_anonymous / GiB, limit=self.anonymous),
            Row(self.name, "peak memory with mapped files, GiB", result.peak_resident / GiB),
            Row(self.name, "GB that the hops read and write", gathered),
            Row(self.name, "seconds for these at the speed of a plain copy", gathered / values["copy"]),
            Row(self.name, "seconds for the products alone, nothing stored", values["products"]),
            Row(self.name, "seconds for one product, nodes reordered", values["reordered"], values["one"]),
            Row(self.name, "seconds for the hops, float16", half["hops"], values["hops"]),
            Row(self.name, "GB of tokens on disk, float16", half["stored"] / GB, values["stored"] / GB),
        ]

    def _measure(self, folder: Path, options: Options, hops: int, storage: str = "float32") -> Measurement:
        task = {"kind": "perf.large:prepare", "folder": str(folder), "hops": hops, "encoding": self.encoding}
        return measure({**task, "storage": storage}, options.threads)


def prepare(task: dict[str, Any]) -> dict[str, Any]:
    """In the measured process: the encoding and the hops as a cell prepares them, then the hops' products alone."""
    import threadpoolctl
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    from bench.executors.process import use_threads
    from bench.prepared import PrepareCache
    from models.kernels.positional import laplacian_eigenvectors, laplacian_key
    from models.kernels.propagation import normalized_adjacency, sparse_dense

    use_threads(task["threads"])
    threadpoolctl.threadpool_limits(1, user_api="blas")  # as in a worker
    graph = open_arrays(Path(task["folder"]))
    cache = PrepareCache(Path(task["cache"]))
    with _clock() as encoding:
        structure = laplacian_eigenvectors(graph, task["encoding"], cache)
    key = {"encoding": laplacian_key(task["encoding"])}
    with _clock() as hops:
        tokens = MaterialisedTokens.build(graph, structure, task["hops"], cache, key, task["storage"])
    matrix, table = normalized_adjacency(graph), tokens.hops[0].float().numpy()
    with _clock() as products:
        for _ in range(task["hops"]):
            table = sparse_dense(matrix, table)
    with _clock() as one:
        sparse_dense(matrix, table)
    order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    matrix = matrix[order][:, order]
    with _clock() as reordered:
        sparse_dense(matrix, table)
    row = 4 * tokens.width
    per_hop = matrix.nnz * (8 + row) + graph.num_nodes * (4 + row)  # columns, weights, gathered rows; pointers, result
    return {
        "encoding": encoding[0],
        "hops": hops[0],
        "products": products[0],
        "one": one[0],
        "reordered": reordered[0],
        "gathered": per_hop * task["hops"],
        "stored": sum(hop.nbytes for hop in tokens.hops),
        "copy": copy_speed(),
    }


def copy_speed(size: int = 2**29) -> float:
    """GB per second of a plain copy in memory, reading and writing counted, by all threads of torch."""
    import torch

    source, target = torch.ones(size // 4), torch.empty(size // 4)
    target.copy_(source)
    with _clock() as taken:
        for _ in range(5):
            target.copy_(source)
    return 5 * 2 * size / taken[0] / GB


@contextmanager
def _clock() -> Iterator[list[float]]:
    """Seconds of what is done inside, as the only element of the list, afterwards."""
    taken: list[float] = []
    start = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - start)


# -- inference --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inference:
    """Where the time of streaming inference goes: author settings, tokens mapped from a file."""

    name: str = "inference-amazon2m"
    dataset: str = "amazon2m"
    nodes: int = 20_000
    outside: float = 0.15
    rounds: int = 3

    @property
    def about(self) -> str:
        return f"streaming inference with the author settings of {self.dataset} over {self.nodes} nodes: a profile"

    def run(self, options: Options) -> list[Row]:
        options.say(f"{self.name}: measuring")
        task = {"kind": "perf.large:infer", "dataset": self.dataset, "nodes": self.nodes, "rounds": self.rounds}
        values = measure(task, options.threads).values
        seconds: dict[str, float] = values["seconds"]
        largest = sorted(seconds, key=lambda name: -seconds[name])[:6]
        total = sum(seconds.values())
        options.say(f"{self.name}: " + ", ".join(f"{name} {seconds[name] / total:.1%}" for name in largest))
        products = sum(taken for name, taken in seconds.items() if name in MATRIX_PRODUCTS)
        whole, cached = (statistics.median(values[way]) / self.nodes * 1000 for way in ("whole", "cached"))
        return [
            Row(self.name, "seconds per 1,000 nodes (against chunks of an evaluation batch)", cached, whole),
            Row(self.name, "share of time outside matrix products", 1.0 - products / total, limit=self.outside),
        ]


def infer(task: dict[str, Any]) -> dict[str, Any]:
    """In the measured process: seconds of an inference in each round, in chunks of either size, and of its operations.

    `seconds` has those of each kind of operation, all rounds together, in a separate profile.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from bench.executors.process import use_threads
    from bench.settings import resolve_settings
    from models import nagphormer

    use_threads(task["threads"])
    config = resolve_settings(nagphormer.NAGphormer, task["dataset"]).config
    model = _model_over(_stored_tokens(task, config), config)
    nodes, fits = torch.arange(task["nodes"]), nagphormer._CACHED
    taken: dict[str, list[float]] = {"cached": [], "whole": []}
    seconds: Counter[str] = Counter()
    with torch.inference_mode():
        model.predict(nodes[:4000])  # compiles and warms up
        for _ in range(task["rounds"]):
            for way, nagphormer._CACHED in (("whole", 2**62), ("cached", fits)):
                with _clock() as clock:
                    model.predict(nodes)
                taken[way] += clock
            with profile(activities=[ProfilerActivity.CPU]) as profiled:
                model.predict(nodes)
            seconds.update({entry.key: entry.self_cpu_time_total / 1e6 for entry in profiled.key_averages()})
    return {**taken, "seconds": dict(seconds)}


def _stored_tokens(task: dict[str, Any], config: Any, features: int = 100) -> list[Any]:
    """Random tokens in files, mapped as a cell maps them."""
    from bench.prepared import PrepareCache, as_tensor

    cache, random = PrepareCache(Path(task["cache"])), np.random.default_rng(0)
    shape = (task["nodes"], features + config.encoding_size)
    return [
        as_tensor(cache.get("hop", {"hop": hop}, lambda: {"tokens": random.random(shape, dtype=np.float32)})["tokens"])
        for hop in range(config.hops + 1)
    ]


def _model_over(hops: list[Any], config: Any, classes: int = 47) -> Any:
    from models.nagphormer import NAGphormer

    nodes = len(hops[0])
    nothing = np.zeros((nodes, 0), dtype=np.float32)
    graph = Graph("none", np.zeros(nodes + 1, np.int64), np.zeros(0, np.int32), nothing, np.zeros(nodes, int), classes)
    return NAGphormer(graph, MaterialisedTokens(hops), config).eval()


# -- growth -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaling:
    """Hop2Token and inference on parts of the largest graph's shape: time must grow like the graph."""

    name: str = "scaling-amazon2m"
    dataset: str = "amazon2m-twin"
    shares: tuple[int, ...] = (16, 4, 1)  # the graph has a 16th, a quarter, all of the nodes and edges
    hops: int = 3
    hidden: int = 64
    apart: float = 0.2  # how far a time may lie from the line, as a share of it

    @property
    def about(self) -> str:
        return f"Hop2Token (K = {self.hops}) and inference (h = {self.hidden}) on 1/16, 1/4 and all of {self.dataset}"

    def run(self, options: Options) -> list[Row]:
        taken: dict[str, list[float]] = {"hops": [], "inference": []}
        for share in self.shares:
            task = {"kind": "perf.large:grow", "share": share, **asdict(self)}
            values = measure(task, options.threads).values
            options.say(f"{self.name}: 1/{share}: {values['hops']:.2f} s, {values['inference']:.2f} s")
            for part, seconds in taken.items():
                seconds.append(values[part])
        sizes = [1.0 / share for share in self.shares]
        return [
            Row(
                self.name, f"{part}: largest distance from a line", distance_from_line(sizes, seconds), limit=self.apart
            )
            for part, seconds in taken.items()
        ]


def distance_from_line(sizes: list[float], seconds: list[float]) -> float:
    """The largest relative distance of a time from the line through the origin that fits best in relative terms."""
    rates = np.array(seconds) / np.array(sizes)
    slope = rates.sum() / (rates**2).sum()  # minimises the sum of (rate * slope - 1)^2
    return float(np.abs(rates * slope - 1.0).max())


def grow(task: dict[str, Any]) -> dict[str, Any]:
    """In the measured process: seconds of the hops' products, stored nowhere, and of an inference over all nodes."""
    import torch

    from bench.datasets.twins import TWINS, build_twin
    from bench.executors.process import use_threads
    from bench.prepared import PrepareCache
    from models.nagphormer import NAGphormerConfig

    use_threads(task["threads"])
    whole, share = TWINS[task["dataset"]], task["share"]
    nodes, edges = whole.nodes // share, whole.undirected_edges // share
    graph = build_twin(replace(whole, name=f"{whole.name} / {share}", nodes=nodes, undirected_edges=edges))
    nothing = np.zeros((nodes, 0), dtype=np.float32)
    MaterialisedTokens.build(_tiny(), np.zeros((2, 0), np.float32), 1, PrepareCache(), {})  # compiles
    with _clock() as hops:
        tokens = MaterialisedTokens.build(graph, nothing, task["hops"], PrepareCache(), {})
    config = NAGphormerConfig(hops=task["hops"], hidden=task["hidden"], structural_encoding=False)
    model = _model_over(tokens.hops, config)
    with torch.inference_mode():
        model.predict(torch.arange(4000))
        with _clock() as inference:
            model.predict(torch.arange(nodes))
    return {"hops": hops[0], "inference": inference[0]}


def _tiny() -> Graph:
    return Graph(
        "pair", np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones((2, 3), np.float32), np.zeros(2, int), 1
    )
