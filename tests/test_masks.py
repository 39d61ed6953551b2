"""Public splits and metrics of a dataset: read through a plug-in, used by run, tune and report."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner, Result

from bench.cli import app
from bench.errors import UserError
from bench.ledger import Ledger
from bench.plugins import load_plugins
from bench.predictions import PredictionStore
from bench.splits import draw_split, masks_rule, rule_for, sealed_nodes, tuning_rule

PLUGIN = """import numpy as np
import scipy.sparse as sp

from bench.plugins import OwnDataset, RawGraph


class Ring(OwnDataset):
    name, split_rule, metric = "masked-ring", "masks", "{metric}"

    def read(self):
        nodes = np.arange(60)
        ring = sp.coo_array((np.ones(60), (nodes, (nodes + 1) % 60)), shape=(60, 60))
        features = np.random.default_rng(0).normal(size=(60, 4))
        labels = (features[:, 0] > 0).astype(int) + {classes} * (nodes == 0)
        masks = [np.array([(nodes + shift) % 6 == part for shift in range({splits})]) for part in (0, 1, 2)]
        {change}
        return RawGraph(ring, features, labels, tuple(masks))
"""
MASKS = np.array([[1, 1, 2, 3, 0, 3], [3, 2, 1, 1, 2, 3]], dtype=np.uint8)
LABELS = np.zeros(6, dtype=np.int64)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry_as_it_was: None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BENCH_OFFLINE", "1")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def write_plugin(metric: str = "roc_auc", classes: int = 0, splits: int = 3, change: str = "pass") -> None:
    Path("ring.py").write_text(PLUGIN.format(metric=metric, classes=classes, splits=splits, change=change))


def run_ring(*more: str) -> Result:
    return bench("run", "--plugin", "ring.py", "--models", "gcn", "--datasets", "masked-ring", "--threads", "1", *more)


def test_a_seed_takes_the_mask_of_its_number_modulo_how_many_there_are() -> None:
    rule = masks_rule(MASKS)
    for seed, row in ((0, 0), (1, 1), (2, 0), (7, 1)):
        split = draw_split(rule, LABELS, 1, seed, MASKS)
        parts = [split.train.tolist(), split.val.tolist(), split.test.tolist()]
        assert parts == [np.flatnonzero(MASKS[row] == part).tolist() for part in (1, 2, 3)]
    assert masks_rule(MASKS) != masks_rule(MASKS[::-1].copy())
    with pytest.raises(UserError, match="this one has none"):
        draw_split(rule, LABELS, 1, 0)


def test_tuning_never_sees_what_is_sealed() -> None:
    many = np.random.default_rng(0).integers(1, 4, size=(3, 100)).astype(np.uint8)
    sealed = sealed_nodes(100)
    for rule in (tuning_rule(masks_rule(many)), rule_for(masks_rule(many), "sealed")):
        split = draw_split(rule, np.zeros(100, int), 1, 4, many)
        assert split.test.tolist() == sealed.tolist()
        assert not np.isin(np.concatenate([split.train, split.val]), sealed).any()
        assert (many[1][split.train] == 1).all() and (many[1][split.val] == 2).all()
    one = many[:1]
    split = draw_split(tuning_rule(masks_rule(one)), np.zeros(100, int), 1, 4, one)
    assert split.test.tolist() == np.flatnonzero(one[0] == 3).tolist() == sealed_nodes(100, one).tolist()
    assert split.train.tolist() == np.flatnonzero(one[0] == 1).tolist()


def test_a_dataset_is_judged_and_stopped_by_its_own_metric_on_its_own_masks() -> None:
    write_plugin()
    result = run_ring("--trials", "4", "--max-epochs", "12", "--set", "stop=accuracy")
    assert result.exit_code == 0, result.output
    assert "masked-ring (ROC AUC)" in result.output
    records = sorted(Ledger(Path("results/own")), key=lambda record: record["seed"])
    assert len({record["key"] for record in records}) == 4
    fingerprints = [record["split"]["fingerprint"] for record in records]
    assert fingerprints[3] == fingerprints[0] and len(set(fingerprints)) == 3  # trial 3 has mask 0 again
    nodes = np.arange(60)
    labels = (np.random.default_rng(0).normal(size=(60, 4))[:, 0] > 0).astype(int)
    store = PredictionStore(Path("results/own"))
    for record in records:
        assert record["config"]["metric"] == "roc_auc" and record["split"]["rule"].startswith("masks-")
        tested = (nodes + record["seed"] % 3) % 6 == 2
        margins = store.load(record["predictions"]).test_margins
        expected = roc_auc_score(labels[tested], margins)
        assert record["metrics"]["test"]["roc_auc"] == pytest.approx(expected)
        curve = store.curve(record["predictions"], record["key"])[:, 2]
        best = record["training"]["best_epoch"] - 1
        assert curve[best] == pytest.approx(record["metrics"]["val"]["roc_auc"], abs=1e-6)
        assert best == max(np.flatnonzero(curve == curve.max()))  # the later of equals
    assert bench("report", "--plugin", "ring.py").exit_code == 2  # the process knows the dataset already
    assert bench("report").exit_code == 0
    assert "(ROC AUC)" in Path("reports/own/report.md").read_text()


def test_tuning_goes_by_the_metric() -> None:
    write_plugin()
    done = bench(
        "tune", "--plugin", "ring.py", "--model", "gcn", "--datasets", "masked-ring", "--trials", "2",
        "--max-epochs", "3", "--threads", "1",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    records = list(Ledger(Path("results/own")))
    assert all(record["split"]["rule"].startswith("tuning:masks-") for record in records)
    best = max(100 * record["metrics"]["val"]["roc_auc"] for record in records)
    assert f"val {best:.2f} %" in done.output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": 1}, "the metric roc_auc is for 2 classes and the labels have 3"),
        ({"change": "masks[1] = masks[0]"}, "its masks overlap"),
        ({"change": "masks[2][1] = False"}, "a test mask has no node"),
        ({"change": "masks[2] = masks[2][:, 1:]"}, "must be booleans of 60 nodes each"),
        ({"metric": "auroc"}, "there is no metric 'auroc'"),
    ],
)
def test_what_does_not_fit_is_one_line(settings: dict[str, str], message: str) -> None:
    write_plugin(**settings)  # type: ignore[arg-type]
    result = run_ring("--trials", "1")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_the_metric_is_the_datasets_to_name() -> None:
    result = bench("run", "--models", "gcn", "--set", "metric=macro_f1", "--trials", "1")
    assert result.exit_code == 2 and "--set metric: the dataset names its metric" in " ".join(result.output.split())


def test_heterophilous_graphs_come_with_ten_masks() -> None:
    folder = os.environ.get("BENCH_DATA")
    if not folder or not (Path(folder) / "heterophilous").is_dir():
        pytest.skip("BENCH_DATA names no folder with heterophilous/")
    example = Path(__file__).parent.parent / "docs" / "heterophilous.py"
    assert len([line for line in example.read_text().splitlines() if line.strip()]) <= 20
    assert not load_plugins([str(example)]).broken
    from bench.datasets.catalogue import datasets

    for name, nodes, metric in (("minesweeper", 10_000, "roc_auc"), ("chameleon_filtered", 890, "accuracy")):
        graph = datasets()[name].load(None)
        assert (graph.num_nodes, datasets()[name].metric) == (nodes, metric)
        assert graph.masks is not None and graph.masks.shape == (10, nodes)
        assert np.mean(graph.masks == 1) == pytest.approx(0.5, abs=0.03)  # half of the nodes train
