"""`run --study`: which cells that means, what narrows it, what two studies share, and what is refused."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from ledgers import made_up_records
from running import _write_ring
from sklearn.datasets import load_digits
from typer.testing import CliRunner, Result

from bench import registry
from bench.cells import Cell
from bench.cli import app
from bench.commands.paper import find_study
from bench.datasets.catalogue import datasets, resolve
from bench.errors import UserError
from bench.ledger import Ledger
from bench.paper.studies import studies
from bench.request import in_turn


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BENCH_OFFLINE", "1")
    monkeypatch.delenv("BENCH_DATA", raising=False)
    _write_ring(tmp_path / "ring.npz")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def planned(result: Result) -> list[list[str]]:
    """The rows of a dry run: dataset, model, settings, how many of how many trials are to be run, …."""
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in result.stdout.splitlines() if "|" in line]
    return rows[2:]


# -- which cells ----------------------------------------------------------------------------------------------------


def test_options_narrow_a_study() -> None:
    rows = planned(bench("run", "--study", "readout", "--datasets", "ring.npz", "--trials", "2", "--dry-run"))
    assert Counter((row[1], row[3]) for row in rows) == {("nagphormer", "2 of 2"): 3, ("nagphormer+", "2 of 2"): 3}
    rows = planned(
        bench("run", "--study", "augmentation-parts", "--datasets", "ring.npz", "--models", "nagphormer+", "--dry-run")
    )
    assert [(row[1], row[3]) for row in rows] == [("nagphormer+", "10 of 10")] * 3  # all but "none"
    rows = planned(bench("run", "--study", "cost", "--datasets", "ring.npz", "--models", "gcn,pprgo", "--dry-run"))
    assert {(row[1], row[3]) for row in rows} == {("gcn", "3 of 3"), ("pprgo", "3 of 3")}


def test_without_a_study_the_usual_defaults_hold() -> None:
    rows = planned(bench("run", "--dry-run"))
    assert sorted(map(tuple, (row[:2] + row[3:4] for row in rows))) == sorted(
        ("digits", name, "10 of 10") for name in registry.models()
    )


def test_datasets_of_a_study_unless_others_are_named() -> None:
    study = find_study("hops")
    own = {dataset.name for _, dataset, _ in study.combinations(study.everywhere)}
    assert own == {"aminer", "reddit", "amazon2m", "photo", "computer", "pubmed"}
    assert {dataset.name for _, dataset, _ in study.combinations()} == own | {"digits"}  # what a report may find
    assert {dataset.name for _, dataset, _ in study.combinations("cs,small-twin")} == {
        "cs", *(dataset.name for dataset in resolve("small-twin")),
    }  # fmt: skip


def test_a_study_that_varies_nothing_takes_any_model_and_one_that_does_only_its_own() -> None:
    assert {model.name for model, _, _ in find_study("cost").combinations("digits", "gcn")} == {"gcn"}
    with pytest.raises(UserError, match=r"the study hops varies settings of nagphormer, nagphormer\+; 'gcn' has none"):
        list(find_study("hops").combinations("digits", "gcn"))


def test_a_cell_that_two_studies_share_is_run_once() -> None:
    first = ("run", "--datasets", "ring.npz", "--models", "nagphormer", "--trials", "1", "--max-epochs", "1")
    result = bench(*first, "--study", "structural-encoding", "--threads", "1")
    assert result.exit_code == 0, result.output
    assert "structural_encoding=false" in result.stdout and "structural_encoding=true" in result.stdout
    keys = {record["key"] for record in Ledger(Path("results/own"))}
    assert len(keys) == 2
    # the first readout and full augmentation's "none" are the model as it is, which has just been run
    assert "2 cells to run, 1 done" in bench(*first, "--study", "readout", "--dry-run").stdout
    for others in (("--study", "augmentation-parts"), ()):
        assert "nothing to run: 1 cell is there" in bench(*first, *others, "--dry-run").stdout


def test_repeats_are_interleaved_dataset_by_dataset() -> None:
    def cell(dataset: str, model: str, trial: int) -> Cell:
        return Cell(model, 1, dataset, dataset, {}, "uniform-60/20/20", trial, trial, {"trial": trial})

    cells = [cell(dataset, model, trial) for dataset in ("z", "a") for model in ("n", "m") for trial in (0, 1)]
    assert [(item.dataset, item.labels["trial"], item.model) for item in in_turn(cells)] == [
        ("z", 0, "n"), ("z", 0, "m"), ("z", 1, "n"), ("z", 1, "m"),
        ("a", 0, "n"), ("a", 0, "m"), ("a", 1, "n"), ("a", 1, "m"),
    ]  # fmt: skip


# -- list -----------------------------------------------------------------------------------------------------------


def test_the_list_explains_every_study() -> None:
    text = bench("list", "studies").stdout
    for study in studies().values():
        [line] = [line for line in text.splitlines() if line.startswith(f"| {study.name} ")]
        assert study.shows in line and study.about in line
    assert bench("list").stdout.endswith(f"\n{text}")


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--split-ratio", "abc"],
            "a split ratio needs three positive numbers that sum to 100, such as 60/20/20, not abc",
        ),
        (["--study", "reedout"], "Did you mean 'readout'?"),
        (["--study", "hops", "--set", "hops=3"], "--set hops: the study hops sets it itself"),
        (["--study", "hops", "--set", "layers=2"], "--set layers: the study hops sets it itself"),
        (["--study", "readout", "--models", "gcn"], "the study readout varies settings of nagphormer"),
        (["--study", "cost", "--jobs", "2"], "one cell at a time; leave out --jobs"),
        (["--study", "cost", "--datasets", "fotos"], "there is no dataset or group 'fotos'"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str) -> None:
    result = bench("run", "--dry-run", "--datasets", "ring.npz", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_graph_without_edges_or_with_one_class_leaves_the_others_alone(tmp_path: Path) -> None:
    import numpy as np

    with np.load("ring.npz") as ring:
        arrays = dict(ring)
    np.savez(
        "lonely.npz", **{**arrays, "adj_data": [], "adj_indices": np.array([], int), "adj_indptr": np.zeros(61, int)}
    )
    np.savez("uniform.npz", **{**arrays, "labels": np.zeros(60, int)})
    result = bench(
        "run", "--models", "gcn", "--trials", "1", "--datasets", "lonely.npz,ring.npz,uniform.npz", "--dry-run"
    )
    assert result.exit_code == 2
    assert "lonely.npz: the graph is empty: it has no node or no edge" in result.stderr
    assert "uniform.npz: there are fewer than two classes" in result.stderr
    assert [row[0] for row in planned(result)] == ["ring"]


def test_a_limit_too_small_to_load_the_dataset_is_out_of_memory() -> None:
    result = bench(
        "run", "--models", "gcn", "--trials", "1", "--datasets", "ring.npz", "--memory-limit", "20kB", "--threads", "1"
    )
    assert result.exit_code == 1
    [record] = Ledger(Path("results/own"))
    assert record["status"] == "oom" and "the limit is 20" in record["reason"]


def test_a_graph_that_does_not_fit_into_the_cache_is_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.request.free_space", lambda folder: 10**9)
    result = bench("run", "--models", "gcn", "--trials", "1", "--datasets", "amazon2m-twin,ring.npz", "--dry-run")
    assert result.exit_code == 2
    # 2 x 61,859,140 neighbours, 2,449,029 x (100 features, a row pointer and a label of two words), 4 bytes each
    assert "Amazon2M (twin) takes about 1.50 GB in the cache folder, where 1.00 GB are free" in result.stderr
    assert [row[0] for row in planned(result)] == ["ring"]


# -- all of it ------------------------------------------------------------------------------------------------------


def numbers_on_digits(table: str) -> int:
    """How many rows of a table of the report have a number for this graph, gains of one row over another apart."""
    with Path(f"reports/own/tables/{table}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    title = datasets()["digits"].title
    if "Dataset" in rows[0]:
        found = [row["s per epoch"] for row in rows if row["Dataset"] == title]
    else:
        found = [row[title] for row in rows if not next(iter(row.values())).endswith("gain")]
    return sum(text[:1].isdecimal() for text in found)


@pytest.mark.timeout(1500)
def test_every_study_runs_on_digits_and_the_report_draws_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, labels = load_digits(return_X_y=True)
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda return_X_y: (pixels[:200], labels[:200]))  # to be quick
    monkeypatch.setitem(datasets(), "digits", replace(datasets()["digits"], fingerprint=None))
    for name in studies():
        result = bench("run", "--study", name, "--datasets", "digits", "--trials", "1", "--max-epochs", "1")
        assert result.exit_code == 0, f"{name}: {result.output}"
    records = list(Ledger(Path("results/own")))
    assert {record["model"] for record in records} == set(registry.models())
    assert len({record["key"] for record in records}) == len(records)  # nothing ran twice
    result = bench("report")
    assert result.exit_code == 0, result.output
    for figure in ("readout", "hops", "layers", "augmentation-grid"):
        assert Path(f"reports/own/figures/{figure}.png").stat().st_size > 1000
    for name, study in studies().items():
        if study.shows.startswith("Table"):
            lines = {(model.name, variant.label) for model, _, variant in study.combinations("digits")}
            assert numbers_on_digits(name) == len(lines), name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_model_runs_on_a_graph_of_ones_own() -> None:
    result = bench(
        "run", "--models", "all", "--datasets", "ring.npz", "--split-ratio", "50/25/25", "--trials", "1",
        "--max-epochs", "2", "--threads", "1",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    records = list(Ledger(Path("results/own")))
    assert {record["model"] for record in records} == set(registry.models())
    assert {record["split"]["rule"] for record in records} == {"uniform-50/25/25"}


def test_made_up_cost_cells_are_what_the_report_looks_for() -> None:
    """The settings of the cost study are part of its cells' keys: a plain run of the model is another cell."""
    settings = dict(find_study("cost").variants[0].settings)
    [cost] = made_up_records("pprgo", "reddit-twin", [50.0], settings=settings)
    [plain] = made_up_records("pprgo", "reddit-twin", [50.0])
    assert cost["key"] != plain["key"]
    assert (cost["config"]["stop"], cost["config"]["max_epochs"]) == ("never", 10)
