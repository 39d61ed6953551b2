"""What the README shows must work as it stands there."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from graphs import random_graph, random_split

from bench.data.canonical import canonical_graph
from bench.data.npz import read_graph_npz
from bench.prepared import PrepareCache
from bench.train import train

README = Path(__file__).parents[1] / "README.md"


def test_the_example_model_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)[0]
    file = tmp_path / "logistic.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("readme_logistic", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "readme_logistic", module)
    spec.loader.exec_module(module)

    graph, split = random_graph(sparse=True), random_split(random_graph(sparse=True))
    config = module.Logistic.Config(max_epochs=60)
    prepared = module.Logistic.prepare(graph, split, config, 0, PrepareCache())
    torch.manual_seed(0)
    curve = train(module.Logistic(graph, prepared, config), split, torch.from_numpy(graph.labels), config).curve
    assert curve[-1][0] < 0.9 * curve[0][0]  # it learns: the training loss falls
    assert "Paper:" in module.__doc__ and "Settings:" in module.__doc__  # what the contract tests ask of a file


def test_the_example_file_is_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [source] = [
        text for text in re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL) if "savez" in text
    ]
    monkeypatch.chdir(tmp_path)
    exec(compile(source, "README.md", "exec"), {})
    graph = canonical_graph("mine", read_graph_npz([Path("my_graph.npz")]), "my_graph.npz")
    assert (graph.num_nodes, graph.num_classes, graph.num_features) == (3, 2, 3)
    assert graph.adjacency().toarray().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]  # the path 0 - 1 - 2, both ways
