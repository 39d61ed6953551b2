"""What the README shows must work as it stands there."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from graphs import random_graph, random_split

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
