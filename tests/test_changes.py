"""Changes that a newcomer would make, kept as patches in tests/changes/: none needs an edit anywhere else.

All of them are applied to one copy of the code, where the tests that concern them run and each is seen in action.
`-m slow` runs all tests with each patch alone, which takes as many times as long as there are patches.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_rooms import CHAIN

ROOT = Path(__file__).parent.parent
PATCHES = sorted((ROOT / "tests" / "changes").glob("*.patch"))
CODE = ("bench", "models", "perf", "docs", "tests", "README.md", "ARCHITECTURE.md", "pyproject.toml")
CONCERNED = (
    "contracts", "golden", "list_command", "registry", "plugins", "readme", "catalogue", "masks", "metrics", "stopping",
    "settings", "space", "studies", "summary", "design", "audit", "report_overview", "cli",
)  # fmt: skip
LONG = "contracts or golden or list_command or audit or report_overview or cli"  # here only what may meet the new ones
CHOSEN = f"logistic or graphsage or smooth or names_no_model or every_other_model or where_its_settings or not ({LONG})"

each_patch = pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)


def copy_to(folder: Path, *more: str) -> Path:
    """Copy the code, with what has been compiled of it, and more if asked for."""
    for name in (*CODE, *more):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("own"))
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


def git_apply(patch: Path, folder: Path, *options: str) -> str:
    """Apply a patch whether or not the folder is a repository; return what git says."""
    done = subprocess.run(
        ["git", "apply", *options, patch],
        cwd=folder,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(folder: Path, *arguments: str, timeout: int = 280) -> str:
    """Run Python on the copy; return what it prints, if it ends well."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "BENCH_CACHE": str(folder / "cache"), "BENCH_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-8000:]
    return said


@each_patch
def test_a_patch_says_what_it_shows_and_applies_alone_to_at_most_two_files(patch: Path) -> None:
    head, blank, first, *_ = patch.read_text().split("\n")
    assert head.endswith(".") and not blank and first.startswith("diff --git ")
    assert len(git_apply(patch, ROOT, "--check", "--numstat").splitlines()) <= 2


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with all patches."""
    folder = copy_to(tmp_path_factory.mktemp("changed"))
    for patch in PATCHES:
        git_apply(patch, folder)
    return folder


def test_two_of_them_are_the_readmes_examples_word_for_word(changed: Path) -> None:
    model, dataset, _ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert (changed / "models" / "logistic.py").read_text() == model
    assert (changed / "bench" / "datasets" / "moons.py").read_text() == dataset


def test_the_tests_that_concern_them_pass(changed: Path) -> None:
    files = [f"tests/test_{name}.py" for name in CONCERNED]
    said = python(changed, "-m", "pytest", "-p", "no:cacheprovider", "-k", CHOSEN, *files)
    assert re.search(r"^[1-9]\d\d passed", said, re.MULTILINE), said[-2000:]


JUDGED = """
from bench.datasets.karate import KarateClub

class Judged(KarateClub):
    name, title, aliases, metric = "judged", "Judged", (), "weighted_f1"
"""
SHORT = "--trials 1 --threads 1 --set stop=smooth --set patience=3"


def test_each_change_in_action(changed: Path) -> None:
    (changed / "judged.py").write_text(JUDGED)
    said = python(
        changed,
        *("-c", CHAIN),
        f"run --models logistic,graphsage --datasets two-moons,karate,breast-cancer --jobs 1 {SHORT}",
        f"run --models logistic --plugin judged.py --datasets judged --executor inline {SHORT}",
        "report",
        "verify",
        "run --executor inlnie",
    )
    assert re.findall(r"^exit (.*)$", said, re.MULTILINE) == ["0", "0", "0", "0", "2"], said
    assert "there is no executor 'inlnie'. Did you mean 'inline'?" in said
    header, *rows = [line.split("|")[1:-1] for line in said.splitlines() if line.startswith(("| dataset", "| Breast"))]
    assert "epochs" in map(str.strip, header) and rows[0][0].strip() == "Breast cancer (ROC AUC)"

    lines = [line for file in (changed / "results/own/ledger").iterdir() for line in file.read_text().splitlines()]
    records = {(record["dataset"], record["model"]): record for record in map(json.loads, lines)}
    assert len(records) == 7
    assert {record["config"]["stop"] for record in records.values()} == {"smooth"}
    public = {data for (data, _), record in records.items() if record["split"]["rule"].startswith("masks-")}
    assert public == {"breast-cancer"}
    judged = records["judged", "logistic"]
    assert judged["config"]["metric"] == "weighted_f1" and 0 < judged["metrics"]["test"]["weighted_f1"] <= 1
    assert not (changed / f"results/own/logs/{judged['key']}.log").exists()  # it ran in the process of the command
    endings = (changed / "reports/own/tables/endings.csv").read_text()
    assert len(re.findall("(?:GraphSAGE|Logistic),.*,1 (?:smooth|max_epochs),", endings)) == 7
    assert "1 smooth," in endings


@pytest.mark.slow
@pytest.mark.timeout(3600)
@each_patch
def test_all_tests_pass_with_each_alone(patch: Path, tmp_path: Path) -> None:
    folder = copy_to(tmp_path, "results/reference", "reports")
    git_apply(patch, folder)
    python(folder, "-m", "ruff", "check", ".")
    python(folder, "-m", "ruff", "format", "--check", ".")
    python(folder, "-m", "mypy")
    python(folder, "-m", "pytest", "-p", "no:cacheprovider", "--ignore", "tests/test_changes.py", timeout=3500)
