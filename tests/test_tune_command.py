"""`tune` as a user meets it: what it writes, what `run` makes of it, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
from test_cli import bench, graph, own_folders  # noqa: F401  fixtures
from tuning_toys import Imagined

from bench.cells import Cell
from bench.commands.tune import _Tune
from bench.datasets.catalogue import resolve
from bench.ledger import Ledger
from bench.planning.estimate import Forecaster
from bench.registry import find_model
from bench.request import TuneRequest
from bench.settings import resolve_settings
from bench.splits import draw_split, sealed_nodes
from bench.tuning.conclusion import asked_for
from bench.tuning.search import Search
from bench.tuning.study import Budget, Trial

TUNE = ("tune", "--datasets", "ring.npz", "--max-epochs", "2", "--threads", "1")
RUN = ("run", "--datasets", "ring.npz", "--max-epochs", "2", "--threads", "1", "--trials", "1", "--settings", "tuned")


@pytest.fixture
def imagined(monkeypatch: pytest.MonkeyPatch) -> Imagined:
    """Trainings that take no time: accurate from 64 hidden units on, slow with many."""
    executor = Imagined(seconds=lambda config: config["hidden"] / 8)
    monkeypatch.setattr("tuning_toys.imagined_accuracy", lambda config: 1.0 if config["hidden"] >= 64 else 0.5)
    monkeypatch.setattr("bench.commands.tune.make_executor", lambda *arguments: executor)
    return executor


def test_from_a_budget_to_a_lane(graph: str, tmp_path: Path) -> None:  # noqa: F811
    done = bench(*TUNE, "--model", "gcn", "--trials", "2", "--set", "hidden=16")
    assert done.exit_code == 0, done.output
    assert "study gcn-ring-wide-tpe-s0: gcn on ring, 11 settings of the space wide" in done.output
    assert "expected time: unknown" in done.output
    assert "2 trials (2 complete) in" in done.output and "best so far: " in done.output

    assert "--settings tuned --results" not in " ".join(done.output.split())  # the default needs no word

    study = json.loads(Path("results/own/tuning/gcn-ring-wide-tpe-s0.json").read_text())
    assert [trial["trial"] for trial in study["trials"]] == [0, 1]
    winner = tomllib.loads(Path("results/own/tuned/gcn-ring.toml").read_text())
    best = max(study["trials"], key=lambda trial: (trial["val_accuracy"], -trial["trial"]))
    assert winner["found"]["cell"] == best["cell"] and winner["found"]["val_accuracy"] == best["val_accuracy"]
    assert winner["settings"] == {**best["settings"], "hidden": 16}  # and the cap is no setting
    assert (winner["budget"]["trials"], winner["budget"]["outcomes"]) == (2, "2 complete")
    tuned = resolve_settings(find_model("gcn"), "", "tuned", tuned=winner["settings"])
    assert tuned.labels["settings"] == "tuned" and tuned.config.max_epochs > 2

    again = bench(*TUNE, "--model", "gcn", "--trials", "2", "--set", "hidden=16")
    assert again.exit_code == 0 and "there already: 2 trials (2 complete)" in again.output
    assert len(list(Ledger(Path("results/own")))) == 2

    planned = bench(*RUN, "--models", "gcn,appnp", "--dry-run")
    assert "ring has no tuned settings: appnp uses its defaults" in planned.output
    ran = bench(*RUN, "--models", "gcn")
    assert ran.exit_code == 0, ran.output
    assert "Splits: sealed. Settings: tuned." in ran.output
    assert "tuned: gcn on ring: 2 trials (2 complete) in 0.00 h, sampler tpe, space wide, seed 0" in ran.output
    [record] = [record for record in Ledger(Path("results/own")) if record["labels"]["settings"] == "tuned"]
    assert record["split"]["rule"] == "sealed:uniform-60/20/20" and "test" in record["metrics"]
    assert {name: record["config"][name] for name in winner["settings"]} == winner["settings"]

    fresh = bench(*RUN, "--models", "gcn", "--split", "fresh", "--dry-run")
    tested = draw_split("uniform-60/20/20", np.zeros(60, int), 3, 0).test
    share = np.mean(~np.isin(tested, sealed_nodes(60)))
    assert 0.5 < share < 1
    assert f"the tuning had seen the labels of {share:.0%} of these test nodes" in " ".join(fresh.output.split())


def test_the_command_that_tune_suggests_finds_what_it_has_found(graph: str, imagined: Imagined) -> None:  # noqa: F811
    done = bench(*TUNE, "--model", "gcn", "--trials", "1", "--results", "my results")
    assert done.exit_code == 0, done.output
    [suggested] = re.findall(r"python -m bench (run --models gcn .*--settings tuned.*)$", " ".join(done.output.split()))
    planned = bench(*shlex.split(suggested), "--dry-run")
    assert planned.exit_code == 0 and "| tuned      | 10 of 10 |" in planned.output, planned.output


def test_the_front_has_a_lane_of_its_own(graph: str, imagined: Imagined) -> None:  # noqa: F811
    done = bench(*TUNE, "--model", "gcn", "--trials", "12", "--objective", "accuracy,seconds", "--sampler", "random")
    assert done.exit_code == 0, done.output
    hidden = [job.cell.config["hidden"] for job in imagined.jobs]  # of each trial, in order
    first = min(hidden.index(size) for size in (64, 256, 512))  # of those that are accurate
    assert hidden[first] > 64 and 16 in hidden
    small, good = hidden.index(16), hidden.index(64)  # 3 seconds of preparing and 2, 8 or 32 of training
    output = " ".join(done.output.split())
    front = output.partition("no other trial is better in accuracy and seconds both: ")[2].partition(" within ")[0]
    assert re.findall(r"val (\S+) %, (\S+) s: trial (\d+),", front) == [
        ("50.00", "5.00", str(small)),
        ("100.00", "11.0", str(good)),
    ]
    slow = f"{3 + hidden[first] / 8:.1f}"
    assert f"within 0.2 points of the best, 11.0 s instead of {slow} s (trial {first})" in output
    winner = tomllib.loads(Path("results/own/tuned-cheap/gcn-ring.toml").read_text())
    assert (winner["found"]["trial"], winner["found"]["cell"]) == (good, imagined.jobs[good].cell.key)
    assert winner["settings"]["hidden"] == 64 and winner["found"]["train_seconds"] == 11.0
    assert not Path("results/own/tuned").exists()


def test_one_study_that_cannot_go_on_does_not_stop_the_others(graph: str, imagined: Imagined) -> None:  # noqa: F811
    Path("results/own/tuning").mkdir(parents=True)
    Path("results/own/tuning/gcn-ring-wide-tpe-s0.journal").mkdir()
    done = bench(*TUNE, "--model", "gcn,appnp", "--trials", "1")
    assert done.exit_code == 2 and "error: " in done.output
    assert [job.cell.model for job in imagined.jobs] == ["appnp"]
    assert Path("results/own/tuned/appnp-ring.toml").exists()


def test_limits_are_not_part_of_a_study(graph: str, imagined: Imagined) -> None:  # noqa: F811
    assert bench(*TUNE, "--model", "gcn", "--trials", "1").exit_code == 0
    done = bench(*TUNE, "--model", "gcn", "--trials", "2", "--time-limit", "1h", "--memory-limit", "9GB")
    assert done.exit_code == 0 and len(imagined.jobs) == 2, done.output
    assert [path.name for path in Path("results/own/tuning").glob("*.journal")] == ["gcn-ring-wide-tpe-s0.journal"]


def test_seconds_of_two_machines_do_not_share_a_front(graph: str, imagined: Imagined) -> None:  # noqa: F811
    asked = [*TUNE, "--model", "gcn", "--objective", "accuracy,seconds", "--sampler", "random"]
    assert bench(*asked, "--trials", "1", "--threads", "1").exit_code == 0
    other = bench(*asked, "--trials", "2", "--threads", "2")
    assert other.exit_code == 0 and "searches something else (machine was " in " ".join(other.output.split())
    assert len(imagined.jobs) == 3  # a study of the other machine has both its trials to run
    assert bench(*asked, "--trials", "2", "--threads", "1").exit_code == 0 and len(imagined.jobs) == 4


def test_a_journal_that_disappears_ends_in_one_line(graph: str, imagined: Imagined) -> None:  # noqa: F811
    def fate(job: object) -> str:
        Path("results/own/tuning/gcn-ring-wide-tpe-s0.journal").unlink(missing_ok=True)
        return "ok"

    imagined.fate = fate
    done = bench(*TUNE, "--model", "gcn", "--trials", "2")
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    assert "error: the journal gcn-ring-wide-tpe-s0.journal cannot be" in done.output
    [record] = Ledger(Path("results/own"))
    assert record["status"] == "ok"  # what was finished is kept


def test_models_without_the_space_are_left_out(graph: str, imagined: Imagined) -> None:  # noqa: F811
    done = bench(*TUNE, "--model", "gcn,nagphormer,appnp", "--trials", "1", "--space", "paper")
    assert done.exit_code == 0, done.output
    for name in ("gcn", "appnp"):
        assert f"skipped: {name} has no space 'paper' (it has: wide)\n" in done.output
    assert [job.cell.model for job in imagined.jobs] == ["nagphormer"]


def test_more_than_was_asked_for_is_said(graph: str, imagined: Imagined) -> None:  # noqa: F811
    whole = bench(*TUNE, "--model", "gcn", "--trials", "3")
    assert whole.exit_code == 0 and "more than" not in whole.output
    assert tomllib.loads(Path("results/own/tuned/gcn-ring.toml").read_text())["budget"]["asked"] == "3 trials"
    less = bench(*TUNE, "--model", "gcn", "--trials", "2")
    assert less.exit_code == 0 and "there already: 3 trials (3 complete), more than asked for" in less.output
    budget = tomllib.loads(Path("results/own/tuned/gcn-ring.toml").read_text())["budget"]
    assert budget["trials"] == 3 and budget["asked"].startswith("2 trials (more was there: 3 trials in ")


def test_the_budget_in_words() -> None:
    trials = [Trial(slot, "ok", {}, 0.5, 1800.0, 1.0, "cell") for slot in range(3)]
    assert asked_for(Budget(trials=3), trials) == "3 trials"
    assert asked_for(Budget(hours=1.2), trials) == "1.2 h"  # the third was running when they were over
    assert asked_for(Budget(hours=1.0), trials) == "1 h (more was there: 3 trials in 1.5 h)"
    assert asked_for(Budget(2, 9.0), trials) == "2 trials or 9 h (more was there: 3 trials in 1.5 h)"


@pytest.mark.parametrize(
    ("trials", "hours", "done", "expected"),
    [
        (10, None, [], 1000.0),  # a cell took 100 s before
        (10, None, [40.0, 60.0], 400.0),
        (10, 0.1, [40.0, 60.0], 260.0),
        (10, 0.5, [40.0, 60.0], 400.0),
        (None, 0.1, [40.0, 60.0], 260.0),
        (None, 0.1, [300.0, 300.0], 0.0),
        (2, None, [40.0, 60.0, 70.0], 0.0),
    ],
)
def test_the_expected_time_goes_by_the_trials_that_are_there(
    trials: int | None, hours: float | None, done: list[float], expected: float
) -> None:
    class Known(Forecaster):
        def seconds(self, cell: Cell) -> float:
            return 100.0

    [dataset] = resolve("digits")
    tune = _Tune(TuneRequest("gcn", trials=trials, hours=hours))
    earlier = [Trial(slot, "ok", {}, 0.5, seconds, 1.0, "cell") for slot, seconds in enumerate(done)]
    assert tune._expected(Search(find_model("gcn"), dataset, "data"), earlier, Known()) == pytest.approx(expected)


def test_what_is_missing_is_reported_and_the_others_go_on(graph: str) -> None:  # noqa: F811
    done = bench("tune", "--datasets", "photo,ring.npz", "--max-epochs", "1", "--model", "gcn,appnp", "--trials", "1")
    assert done.exit_code == 3
    assert "missing: " in done.output and "2 studies of 1 trial each: an unknown time" in done.output
    assert done.output.count("1 trial (1 complete) in") == 2
    assert {path.name for path in Path("results/own/tuned").iterdir()} == {"gcn-ring.toml", "appnp-ring.toml"}


def test_a_broken_plugin_leaves_the_other_studies_alone(graph: str, imagined: Imagined) -> None:  # noqa: F811
    Path("broken.py").write_text("1 / 0")
    asked = ("tune", "--plugin", "broken", "--datasets", "ring.npz,his-graph", "--trials", "1", "--max-epochs", "1")
    done = bench(*asked, "--model", "gcn,his-model")
    assert done.exit_code == 2
    assert "the plug-in 'broken' cannot be used: ZeroDivisionError" in done.output
    assert "left out: unknown model 'his-model'" in done.output and "his-graph" in done.output
    assert [job.cell.model for job in imagined.jobs] == ["gcn"]


def test_a_graph_that_does_not_fit_on_the_disk_is_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.request.free_space", lambda folder: 10**6)
    done = bench("tune", "--datasets", "photo-twin", "--model", "gcn", "--trials", "1")
    assert done.exit_code == 2 and "in the cache folder, where 1.00 MB are free" in done.output


def test_another_search_under_the_same_name_is_a_study_of_its_own_and_is_found_again(graph: str) -> None:  # noqa: F811
    assert bench(*TUNE, "--model", "gcn", "--trials", "1", "--name", "mine").exit_code == 0
    journal = Path("results/own/tuning/mine.journal").read_bytes()
    for trials in ("1", "2"):
        other = bench(*TUNE, "--model", "gcn", "--trials", trials, "--name", "mine", "--seed", "5")
        assert other.exit_code == 0, other.output
        text = " ".join(other.output.split())
        assert "the study mine searches something else (seed was 0, is 5); this is the study mine-2" in text
    assert Path("results/own/tuning/mine.journal").read_bytes() == journal
    assert len(json.loads(Path("results/own/tuning/mine-2.json").read_text())["trials"]) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "say what it may cost: --trials, --hours, or both"),
        (["--trials", "0"], "'--trials'"),
        (["--hours", "0"], "--hours must be above 0, not 0"),
        (["--hours", "nan"], "--hours must be above 0"),
        (["--trials", "1", "--space", "wid"], "gcn has no space 'wid' (it has: wide). Did you mean 'wide'?"),
        (["--trials", "1", "--space", "paper"], "gcn has no space 'paper' (it has: wide)."),
        (["--trials", "1", "--sampler", "radnom"], "there is no sampler 'radnom'"),
        (["--trials", "1", "--objective", "speed"], "there is no objective 'speed'"),
        (["--trials", "1", "--objective", "accuracy,seconds", "--prune"], "with two objectives there is no pruning"),
        (["--trials", "1", "--objective", "accuracy,seconds", "--jobs", "2"], "side by side say little"),
        (
            ["--trials", "1", "--set", "hiden=16"],
            "--set hiden: no chosen model has this setting. Did you mean 'hidden'",
        ),
        (
            ["--trials", "1", "--set", "hidden=17"],
            "--set hidden=17 is outside the space 'wide' of gcn: 16, 64, 256, 512",
        ),
        (["--trials", "1", "--set", "hidden=many"], "--set hidden=many: gcn wants a whole number"),
        (["--trials", "1", "--storage", "nowhere"], "'nowhere' is not a storage"),
        (["--trials", "1", "--storage", "postgresql://a:secret@127.0.0.1:1/b"], "cannot be reached"),
        (["--trials", "1", "--name", "x", "--datasets", "ring.npz,digits"], "--name is for one study"),
        (["--trials", "1", "--name", "a/b"], "--name 'a/b' may only have letters, digits and _ . + -"),
        (["--trials", "1", "--name", "../../x"], "--name '../../x' may only have letters"),
        (["--trials", "1", "--name", ""], "--name '' may only have letters"),
        (["--trials", "1", "--time-limit", "soon"], "'soon' is not a length of time"),
        (["--trials", "1", "--seed", "4294967296"], "the seed must lie between 0 and"),
    ],
)
def test_what_is_refused(graph: str, arguments: list[str], expected: str) -> None:  # noqa: F811
    done = bench(*TUNE, "--model", "gcn", *arguments)
    assert done.exit_code == 2
    assert expected in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output and "secret" not in done.output
    assert not Path("results/own/tuned").exists() and not list(Path().glob("results/ledger/*"))


def test_a_lane_that_somebody_has_spoilt(graph: str) -> None:  # noqa: F811
    Path("results/own/tuned").mkdir(parents=True)
    Path("results/own/tuned/gcn-ring.toml").write_text("[settings]\nhidden = 16\n")
    done = bench(*RUN, "--models", "gcn")
    assert done.exit_code == 2 and "is not what `tune` writes" in done.output
    Path("results/own/tuned/gcn-ring.toml").write_text("[settings]\nhiden = 16\n[found]\n[budget]\n")
    done = bench(*RUN, "--models", "gcn")
    assert done.exit_code == 2 and "bad tuned setting hiden=16" in done.output
