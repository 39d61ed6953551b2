"""Models and datasets from outside the repository: what `--plugin` takes in, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from bench.cli import app
from bench.datasets.catalogue import datasets, resolve
from bench.datasets.store import open_dataset
from bench.errors import BadData, UserError
from bench.plugins import load_plugins
from bench.registry import find_model, source_hash
from bench.source_code import hash_file

README = Path(__file__).parents[1] / "README.md"
LOGISTIC, MOONS, _ = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
# under other names: a reader may have saved them into models/ and bench/datasets/
LOGISTIC, MOONS = LOGISTIC.replace('"logistic"', '"readmes"'), MOONS.replace('"two-moons"', '"readmes-moons"')
DATASET = """
import numpy as np
import scipy.sparse as sp
from bench.plugins import OwnDataset, RawGraph

class Mine(OwnDataset):
    name = "{name}"

    def read(self):
        {read}
"""


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry_as_it_was: None) -> None:
    """A working folder and a cache of its own, and nothing that a plug-in registers outlives the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BENCH_OFFLINE", "1")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for file in Path("results/own/ledger").glob("*") for line in file.read_text().splitlines()]


def test_the_readmes_plugins_run_as_they_stand_there() -> None:
    Path("logistic.py").write_text(LOGISTIC)
    Path("elsewhere").mkdir()
    Path("elsewhere/moons.py").write_text(MOONS)
    assert max(len(source.splitlines()) for source in (LOGISTIC, MOONS)) <= 40
    result = bench(
        "run", "--plugin", "logistic", "--plugin", "elsewhere/moons.py", "--models", "readmes",
        "--datasets", "readmes-moons", "--trials", "1", "--max-epochs", "60", "--threads", "1",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    [record] = records()
    assert (record["model"], record["dataset"], record["status"]) == ("readmes", "readmes-moons", "ok")
    assert record["source"] == source_hash(find_model("readmes"))
    assert 0.7 < record["metrics"]["test"]["accuracy"] < 0.97  # two arcs that a straight line cannot part
    assert "Two moons" in result.output

    before = bench("why", "readmes", "readmes-moons")
    assert before.exit_code == 0 and "0 of 1 cells failed" in before.output
    result = bench("list", "both", "--plugin", "logistic", "--plugin", "elsewhere/moons.py")
    assert result.exit_code == 2  # the same process knows the dataset already
    assert "'readmes-moons' already" in result.output and "| readmes " in result.output


def test_a_package_is_found_where_it_lies() -> None:
    Path("pack/inner").mkdir(parents=True)
    Path("pack/__init__.py").write_text("")
    Path("pack/inner/__init__.py").write_text(LOGISTIC)
    assert load_plugins(["pack.inner"]).paths == (str(Path.cwd()),)
    assert find_model("readmes").__module__ == "pack.inner"


OWN_CONFIG = """from __future__ import annotations
from dataclasses import dataclass
from bench.model import Model, Recipe

class Loose(Recipe):
    hidden: int = 3
    patience = 7

@dataclass(frozen=True)
class Riddle(Recipe):
    hidden: Enigma = 3

@dataclass(frozen=True)
class Negative(Recipe):
    learning_rate: float = -1.0

class Own(Model):
    name = "own"
    Config = {kind}
    settings = {settings}
"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'plug_a'"),
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("x = 1", "neither a model"),
        ("def broken(:", "SyntaxError"),
        ("raise MemoryError('much')", "MemoryError: much"),
        ("import sys\nsys.exit(4)", "SystemExit: 4"),
        ("from bench.model import Model\nclass M(Model):\n    name = 'gcn'", "both register a model called 'gcn'"),
        ("from bench.model import Model\nclass M(Model):\n    name = 'all'", "a group's name"),
        (DATASET.format(name="photo", read="pass"), "called 'photo' already"),
        (DATASET.format(name="amazon-photo", read="pass"), "called 'amazon-photo' already"),
        (DATASET.format(name="small", read="pass"), "called 'small' already"),
        (DATASET.format(name="x", read="pass") + "    split_rule = 'halves'", "'halves' is not a split rule"),
        (
            OWN_CONFIG.format(kind="None", settings={}),
            "its Config must be a class that derives from bench.model.Recipe",
        ),
        (
            OWN_CONFIG.format(kind="Loose", settings={}),
            "needs @dataclass(frozen=True); without it hidden, patience would be ignored",
        ),
        (
            OWN_CONFIG.format(kind="Riddle", settings={}),
            "the types of its settings cannot be read: name 'Enigma' is not defined",
        ),
        (OWN_CONFIG.format(kind="Negative", settings={}), "own: learning_rate must be above 0, not -1.0"),
        (
            OWN_CONFIG.format(kind="Recipe", settings={"author": {"digits": {"hiden": 3}}}),
            "own: bad author setting hiden=3",
        ),
    ],
)
def test_a_broken_plugin_is_one_line_and_the_others_go_on(source: str | None, reason: str) -> None:
    Path("good.py").write_text(LOGISTIC)
    if source is not None:
        Path("plug_a.py").write_text(source)
    loaded = load_plugins(["plug_a", "good.py"])
    [line] = loaded.broken
    assert line.startswith("the plug-in 'plug_a' cannot be used: ") and reason in line and "\n" not in line
    assert loaded.paths == (str(Path.cwd()),)
    assert find_model("readmes").title == "Logistic"
    assert find_model("gcn").__module__ == "models.gcn"
    assert datasets()["photo"].title == "Photo"


def test_cells_of_others_run_where_a_plugin_is_broken() -> None:
    Path("broken.py").write_text("1 / 0")
    asked = ("--plugin", "broken", "--datasets", "digits,his-graph", "--trials", "1", "--dry-run")
    result = bench("run", "--models", "gcn,his-model", *asked)
    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.output
    assert "left out: unknown model 'his-model'" in result.output
    assert "left out: there is no dataset or group 'his-graph'" in result.output
    assert "1 cell to run, 0 done" in result.output

    result = bench("run", "--models", "his-model", *asked)
    assert result.exit_code == 2
    assert "nothing is left to run; the plug-in 'broken' cannot be used" in result.output


def test_a_file_that_is_not_there_or_is_called_like_another_module() -> None:
    Path("json.py").write_text(LOGISTIC)
    one, other = load_plugins(["no/such.py", "json.py"]).broken
    assert "there is no such file" in one
    assert "already called 'json'; rename the file" in other


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        ("return RawGraph(sp.csr_array((4, 4)), np.eye(4), np.arange(4) % 2)", "no node or no edge"),
        ("return RawGraph(sp.csr_array(np.ones((4, 4))), np.eye(4), np.zeros(4, int))", "fewer than two classes"),
        ("raise KeyError('edges')", "KeyError: 'edges'"),
        ("return None", "AttributeError"),
        ("raise MemoryError('much')", "MemoryError: much"),
        ("import sys; sys.exit('no files')", "SystemExit: no files"),
        ("pass\n\n    def stamp(self):\n        raise OSError('gone')", "its stamp fails: OSError: gone"),
    ],
)
def test_a_dataset_that_cannot_be_used_leaves_the_others_alone(read: str, reason: str) -> None:
    Path("mine.py").write_text(DATASET.format(name="mine", read=read))
    result = bench(
        "run", "--plugin", "mine", "--models", "gcn", "--datasets", "mine,digits", "--trials", "1", "--dry-run"
    )
    assert result.exit_code == 2
    assert "bad data: the dataset 'mine' of a plug-in" in result.output.replace("\n", " ") and reason in result.output
    assert "1 cell to run, 0 done" in result.output


def test_a_disk_that_is_full_for_one_dataset_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = "return RawGraph(sp.csr_array(np.ones((4, 4))), np.eye(4), np.arange(4) % 2)"
    Path("mine.py").write_text(DATASET.format(name="mine", read=graph))
    save = np.save

    def full(file: Any, array: np.ndarray, **options: Any) -> None:
        if isinstance(file, Path) and file.parent.name.startswith(".mine-"):
            raise OSError(28, "No space left on device")
        save(file, array, **options)

    monkeypatch.setattr(np, "save", full)
    result = bench(
        "run", "--plugin", "mine", "--models", "gcn", "--datasets", "mine,digits", "--trials", "1", "--dry-run"
    )
    assert result.exit_code == 2
    lines = [line for line in result.stderr.splitlines() if "mine cannot be kept" in line]
    assert len(lines) == 1 and "No space left on device" in lines[0]
    assert "1 cell to run, 0 done" in result.output


def test_memory_that_runs_out_over_one_dataset_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(root: Path | None) -> None:
        raise MemoryError

    monkeypatch.setitem(datasets(), "photo-twin", replace(datasets()["photo-twin"], load=load))
    result = bench("run", "--models", "gcn", "--datasets", "photo-twin,digits", "--trials", "1", "--dry-run")
    assert result.exit_code == 2
    assert "takes more memory than there is" in result.output and "1 cell to run, 0 done" in result.output


def test_a_broken_plugin_takes_nothing_from_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_DATA", raising=False)
    Path("broken.py").write_text("1 / 0")
    result = bench("run", "--study", "readout", "--plugin", "broken", "--trials", "1", "--dry-run")
    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.output and "missing: " in result.output  # no data here
    assert "left out" not in result.output


def test_a_dataset_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    graph = "return RawGraph(sp.csr_array(np.ones((4, 4))), np.eye(4), np.arange(4) % {classes})"
    found = []
    for classes in (2, 3):
        text = DATASET.format(name="mine", read=graph.format(classes=classes))
        Path("mine.py").write_text(text + "\n" * classes)  # by size and second Python knows what it has compiled
        assert load_plugins(["mine.py"]).broken == []
        [dataset] = resolve("mine")
        found.append(open_dataset(dataset, None, tmp_path / "cache").graph.num_classes)
        del datasets()["mine"], sys.modules["mine"]
    assert found == [2, 3]


def test_errors_of_the_dataset_itself_keep_their_kind(tmp_path: Path) -> None:
    Path("mine.py").write_text(DATASET.format(name="mine", read="raise KeyError('edges')"))
    load_plugins(["mine.py"])
    with pytest.raises(BadData, match="cannot be read: KeyError"):
        datasets()["mine"].load(None)
    with pytest.raises(UserError, match="Did you mean 'mine'"):
        resolve("mien")


def test_what_lies_beside_a_plugin_counts_as_its_source() -> None:
    Path("bench").mkdir()
    Path("bench/model.py").write_text("the harness, in whose folder a plug-in may lie")
    Path("helping.py").write_text("HIDDEN = 3")
    Path("user.py").write_text("import torch\nfrom bench.model import Model\nfrom helping import HIDDEN\n")
    before = hash_file(Path("user.py"), "")
    hash_file.cache_clear()
    Path("helping.py").write_text("HIDDEN = 4")
    assert hash_file(Path("user.py"), "") != before
