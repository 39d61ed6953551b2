"""What the README shows must work as it stands there."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer.main
from graphs import random_graph, random_split

from bench.cli import app
from bench.datasets.canonical import canonical_graph
from bench.datasets.npz import read_graph_npz
from bench.prepared import PrepareCache
from bench.splits import draw_split
from bench.train import train

README = Path(__file__).parents[1] / "README.md"
COMMANDS = [
    words[words.index("bench") + 1 :]
    for block in re.findall(r"```bash\n(.*?)```", README.read_text(), flags=re.DOTALL)
    for line in block.splitlines()
    if "bench" in (words := shlex.split(line, comments=True)) and words[words.index("bench") - 1] == "-m"
]


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
    assert (graph.num_nodes, graph.num_classes, graph.num_features) == (60, 3, 8)
    ring = np.roll(np.eye(60), 1, axis=1)
    assert np.array_equal(graph.adjacency().toarray(), ring + ring.T)  # both ways
    split = draw_split("uniform-60/20/20", graph.labels, graph.num_classes, 0)  # it is large enough to be run
    assert (len(split.train), len(split.val), len(split.test)) == (36, 12, 12)


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 20 and {"run", "tune", "report"} <= {verb for verb, *_ in COMMANDS}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_are_understood(words: list[str]) -> None:
    verb, *rest = words
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    command.make_context(verb, rest)  # reads the options and runs nothing; raises where it does not know one
    with pytest.raises(Exception, match="No such option"):
        command.make_context(verb, [*rest, "--no-such-option"])
