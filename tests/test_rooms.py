"""Which room of bench/ may import which, and that the paper can be deleted without breaking the others."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import ring_dataset

import bench

ROOT = Path(str(bench.__file__)).parent.parent
NOUNS = ("graph", "splits", "metrics", "errors", "text", "files", "source_code")
ROOMS = {  # room -> the rooms that it may import; the spine are the flat files of bench/, and only commands know papers
    "entry": {"entry", "commands", "report", "spine"},
    "spine": {"spine", "datasets", "executors"},
    "datasets": {"datasets", "spine"},
    "executors": {"executors", "spine"},
    "planning": {"planning", "spine", "datasets"},
    "tuning": {"tuning", "spine", "datasets", "executors"},
    "report": {"report", "spine", "datasets", "tuning"},
    "paper": {"paper", "report", "spine", "datasets"},
    "commands": {"commands", "paper", "report", "tuning", "planning", "executors", "spine", "datasets"},
}


def room_of(module: str) -> str:
    """The room of bench.room.module; flat modules are the spine, the command line is what nothing imports."""
    first = module.split(".")[1] if "." in module else ""
    if first in ("cli", "__main__"):
        return "entry"
    return first if (ROOT / "bench" / first).is_dir() and first else "spine"


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module of bench that is imported, at the top or in a function; what only types need does not count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("bench"))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bench"):
            yield from ([f"bench.{alias.name}" for alias in node.names] if node.module == "bench" else [node.module])
        yield from imports(node)


def arrows() -> Iterator[tuple[str, str, str]]:
    """File, its room, and a module that it imports."""
    for path in sorted((ROOT / "bench").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for module in imports(ast.parse(path.read_text(encoding="utf-8"))):
            yield name, room_of(name.removesuffix(".py").replace("/", ".")), module


def test_imports_point_one_way() -> None:
    found = list(arrows())
    assert {room for _, room, _ in found} == ROOMS.keys()
    assert [(name, module) for name, room, module in found if room_of(module) not in ROOMS[room]] == []


def test_datasets_know_nothing_but_nouns() -> None:
    known = {module for _, room, module in arrows() if room == "datasets" and room_of(module) == "spine"}
    assert known <= {f"bench.{noun}" for noun in NOUNS}


CHAIN = """
import sys
from bench.cli import app
for line in sys.argv[1:]:
    print(">", line)
    code = app(line.split(), standalone_mode=False)
    print("exit", code)
"""
SHORT = "--max-epochs 3 --threads 1"


@pytest.mark.timeout(300)
def test_without_the_paper_run_tune_and_report_work(tmp_path: Path) -> None:
    for folder in ("bench", "models"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("paper"))
    ring_dataset(tmp_path)
    lines = [
        f"run --models gcn --datasets digits,ring.npz --trials 2 {SHORT}",
        f"tune --models gcn --datasets digits --trials 1 {SHORT}",
        "report",
        "verify",
        "list studies",
        "run --study cost",
    ]
    done = subprocess.run(
        [sys.executable, "-c", CHAIN, *lines],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "BENCH_CACHE": str(tmp_path / "cache"), "BENCH_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    assert re.findall(r"^exit (.*)$", done.stdout, re.MULTILINE) == ["0", "0", "0", "0", "0", "2"], said
    assert "unknown study 'cost' (known: frontier)" in said and "| frontier |" in said
    text = (tmp_path / "reports" / "own" / "report.md").read_text()
    assert "(1 model of 2 trials, 0 with 10 or more), ring (1 model of 2 trials" in text  # a user's own
    assert "### Tuning" in text and "Paper:" not in text
    tables = {path.stem for path in (tmp_path / "reports" / "own" / "tables").iterdir()}
    assert tables >= {"accuracy", "behind-best", "conditions", "costs", "machines", "models", "tuning"}
    assert tables.isdisjoint({"accuracy-small", "claims", "datasets", "scorecard", "slips"})
