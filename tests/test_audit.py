"""Claims against the paper's own numbers, where the answers are known, and against ledgers made up for the purpose."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ledgers import failed, made_up_records, write_ledger

from bench.commands.paper import find_study
from bench.ledger import Ledger
from bench.paper.audit import audit, audit_table, claim_counts
from bench.paper.audit_ours import audit_ours
from bench.paper.audit_paper import audit_paper
from bench.paper.claims import Claim, claims
from bench.paper.judgement import Check, judge
from bench.paper.trial_index import TrialIndex
from bench.records import PART_OF_INFERENCE
from bench.registry import models
from bench.report.evidence import Evidence
from bench.report.results import Setting

CLAIMS = {claim.id: claim for claim in claims()}
COST = dict(find_study("cost").variants[0].settings)  # a fixed number of epochs
STEADY = [90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.5]


def shifted(by: float) -> list[float]:
    return [value + by for value in STEADY]


def findings(results: Path, records: list[dict[str, Any]], mode: str = "fresh") -> TrialIndex:
    return TrialIndex(Evidence(Ledger(write_ledger(results, records))), Setting(mode))


def beats(datasets: tuple[str, ...] = ("photo",), **fields: Any) -> Claim:
    values: dict[str, Any] = {"kind": "beats", "versus": ("gcn",), "study": "accuracy-small", **fields}
    return Claim("id", "1", "A is above B.", models=("nagphormer",), datasets=datasets, **values)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("small-beats-gnns", "holds"),
        ("small-beats-gt-and-san", "undecided"),  # Computer: 91.22 ± 0.14 against 91.18 ± 0.17
        ("small-graphormer-out-of-memory", "holds"),
        ("small-bold-physics", "undecided"),  # 97.34 twice
        ("encoding-helps-nagphormer", "holds"),
        ("attention-readout-wins", "no numbers"),  # a figure
        ("amazon2m-pprgo-second", "fails"),  # NAGphormer+ takes 65.22 s, PPRGo 152.62 s
        ("memory-is-affordable", "holds"),
        *((claim.id, "undecided") for claim in CLAIMS.values() if claim.kind == "gain_varies"),  # it prints no spread
    ],
)
def test_the_paper_against_itself(name: str, verdict: str) -> None:
    assert audit_paper(CLAIMS[name]).verdict == verdict


def test_the_closest_call_of_the_paper() -> None:
    [check] = [c for c in audit_paper(CLAIMS["small-beats-gt-and-san"]).checks if c.dataset == "computer"]
    assert check.verdict == "undecided" and "+0.04 over GT" in check.effect and "p = 0.57" in check.effect


def test_all_and_most() -> None:
    def verdict(claim: Claim, *verdicts: str) -> str:
        return judge(claim, [Check("d", word) for word in verdicts]).verdict

    every, most = beats(), beats(holds_on="most")
    assert verdict(every, "holds", "holds") == "holds"
    assert verdict(every, "holds", "undecided") == "undecided"
    assert verdict(every, "holds", "not run") == "undecided"
    assert verdict(every, "holds", "fails", "not run") == "fails"
    assert verdict(every, "not run", "not run") == "not run"
    assert verdict(most, "holds", "holds", "fails") == "holds"
    assert verdict(most, "holds", "fails") == "fails"
    assert verdict(most, "holds", "undecided", "fails", "undecided") == "undecided"


@pytest.mark.parametrize(("lead", "verdict"), [(20.0, "holds"), (-20.0, "fails"), (0.0, "undecided")])
def test_our_trials_decide(tmp_path: Path, lead: float, verdict: str) -> None:
    jitter = [0.5, -0.5] * 5
    rival = [value + change for value, change in zip(STEADY, jitter, strict=True)]
    ahead = shifted(lead if lead < 0 else 0.0)
    behind = [value - max(lead, 0.0) for value in rival]
    records = made_up_records("nagphormer", "photo", ahead) + made_up_records("gcn", "photo", behind)
    result = audit_ours(beats(), findings(tmp_path, records))
    assert result.verdict == verdict
    assert set(result.keys) == {record["key"] for record in records}


def test_nine_trials_decide_nothing_and_missing_ones_are_not_run(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "photo", STEADY[:9]) + made_up_records("gcn", "photo", shifted(-20.0)[:9])
    found = findings(tmp_path, records)
    assert audit_ours(beats(), found).verdict == "undecided"
    assert audit_ours(beats(datasets=("computer",)), found).verdict == "not run"


def test_best_needs_a_lead_over_every_other_model_of_the_study(tmp_path: Path) -> None:
    claim = beats(kind="best", versus=())
    others = [name for name in models() if name != "nagphormer"]
    assert len(others) >= 13
    own = made_up_records("nagphormer", "photo", STEADY)
    behind = [record for model in others for record in made_up_records(model, "photo", shifted(-20.0))]
    result = audit_ours(claim, findings(tmp_path / "all", own + behind))
    assert result.verdict == "holds" and "+20.00 over " in result.checks[0].effect

    ahead = [record for record in behind if record["model"] != "san"] + made_up_records("san", "photo", shifted(5.0))
    result = audit_ours(claim, findings(tmp_path / "one", own + ahead))
    assert result.verdict == "fails" and "-5.00 over SAN" in result.checks[0].effect

    absent = [record for record in behind if record["model"] != "gat"]
    assert audit_ours(claim, findings(tmp_path / "absent", own + absent)).verdict == "not run"
    assert audit_ours(claim, findings(tmp_path / "alone", own)).verdict == "not run"


def with_encoding(dataset: str, gain: float) -> list[dict[str, Any]]:
    """Ten trials with the encoding, and as many without, lower by the gain and half a point more or less in turn."""
    turns = [0.5, -0.5] * 5
    without = [value - gain + turn for value, turn in zip(STEADY, turns, strict=True)]
    return [
        *made_up_records("nagphormer", dataset, STEADY, settings={"structural_encoding": True}),
        *made_up_records("nagphormer", dataset, without, settings={"structural_encoding": False}),
    ]


def encoding(kind: str, *datasets: str) -> Claim:
    fields = {"variant": "structural_encoding=true", "versus_variants": ("structural_encoding=false",)}
    return beats(datasets=datasets, kind=kind, versus=(), study="structural-encoding", **fields)


@pytest.mark.parametrize(("gain", "verdict"), [(5.0, "holds"), (-5.0, "fails"), (0.0, "undecided")])
def test_a_gain_is_over_the_models_own_variant(tmp_path: Path, gain: float, verdict: str) -> None:
    result = audit_ours(encoding("gain", "photo"), findings(tmp_path, with_encoding("photo", gain)))
    assert result.verdict == verdict
    assert f"{gain:+.2f} over NAGphormer structural_encoding=false, n = 10" in result.checks[0].effect


def test_a_gain_varies_where_it_is_not_the_same_on_all_graphs(tmp_path: Path) -> None:
    claim = encoding("gain_varies", "photo", "computer")
    apart = with_encoding("photo", 0.0) + with_encoding("computer", 5.0)
    result = audit_ours(claim, findings(tmp_path / "apart", apart))
    # By hand: gains -0.5 and 0.5, then 4.5 and 5.5, five of each, so ranks 3, 8, 13 and 18. Rank sums 55 and 155 give
    # H = 12 / (20 * 21) * (55² + 155²) / 10 - 3 * 21 = 14.286; four ties of five divide it by 1 - 4 * 120 / 7980.
    # Of chi-squared with one degree of freedom, erfc(sqrt(H / 2)) lies beyond that 15.2.
    assert result.verdict == "holds" and result.checks[0].effect == "Kruskal-Wallis p = 9.7e-05"
    alike = with_encoding("photo", 1.0) + with_encoding("computer", 1.0)
    assert audit_ours(claim, findings(tmp_path / "alike", alike)).verdict == "undecided"
    half = audit_ours(claim, findings(tmp_path / "half", with_encoding("photo", 1.0)))
    assert half.verdict == "undecided" and half.checks[0].effect == "1 of 2 datasets"
    assert audit_ours(claim, findings(tmp_path / "none", [])).verdict == "not run"


def sweep(
    values: dict[int, float], setting: str, study: str, dataset: str = "reddit", model: str = "nagphormer", **more: Any
) -> list[dict[str, Any]]:
    fixed = {"layers": 1} if study == "hops" else {}
    return [
        record
        for value, shift in values.items()
        for record in made_up_records(model, dataset, shifted(shift), settings={**fixed, setting: value}, **more)
    ]


def hops(**fields: Any) -> Claim:
    values = {"study": "hops", "settings": ("hops",), "versus": (), **fields}
    return beats(datasets=("reddit",), **values)


FLAT = dict.fromkeys(range(4, 21, 2), 0.0)


def of_hops(results: Path, claim: Claim, values: dict[int, float], mode: str = "frozen") -> str:
    return audit_ours(claim, findings(results, sweep(values, "hops", "hops", mode=mode), mode)).verdict


def test_a_sweep_is_judged_when_it_is_complete(tmp_path: Path) -> None:
    claim = hops(kind="change_below", threshold=0.1)
    assert of_hops(tmp_path / "part", claim, {4: 0.0, 6: 0.0}) == "undecided"
    assert of_hops(tmp_path / "whole", claim, FLAT) == "holds"
    assert of_hops(tmp_path / "bumpy", claim, {**FLAT, 8: 1.0}) == "fails"
    # fresh splits of the 20-per-class sets have no valid test: nothing is claimed
    assert of_hops(tmp_path / "fresh", claim, FLAT, "fresh") == "undecided"


def test_a_change_is_judged_by_its_interval_and_not_by_a_noisy_range(tmp_path: Path) -> None:
    noisy = [value + change for value, change in zip(STEADY, [2.0, -2.0] * 5, strict=True)]  # + 0 on average
    records = sweep(FLAT, "hops", "hops", mode="frozen")
    settings = {"layers": 1, "hops": 12}
    records = [record for record in records if record["config"]["hops"] != 12]
    records += made_up_records("nagphormer", "reddit", [*noisy[:9], noisy[9] + 2], mode="frozen", settings=settings)
    found = findings(tmp_path, records, "frozen")
    result = audit_ours(hops(kind="change_below", threshold=0.1), found)
    assert result.verdict == "undecided" and "0.20 points between highest and lowest [" in result.checks[0].effect
    assert audit_ours(hops(kind="change_below", threshold=9.0), found).verdict == "holds"


def test_the_end_of_a_sweep_against_its_best(tmp_path: Path) -> None:
    claim, falling = hops(kind="holds_at_end"), {**FLAT, 20: -30.0}
    assert of_hops(tmp_path / "level", claim, FLAT) == "holds"
    assert of_hops(tmp_path / "best", claim, {**FLAT, 20: 1.0}) == "holds"
    assert of_hops(tmp_path / "falling", claim, falling) == "fails"
    assert of_hops(tmp_path / "fresh", claim, falling, "fresh") == "undecided"  # no test is possible


def test_a_rise_is_averaged_over_the_other_setting(tmp_path: Path) -> None:
    records = []
    for mask, probability in itertools.product((0.25, 0.5, 0.75), (0.25, 0.5, 0.75, 1.0)):
        rise = 8.0 * (probability == 1.0) * (mask > 0.25)  # the first mask ratio does not move at all
        settings = {"mask_ratio": mask, "augment_probability": probability}
        records += made_up_records("nagphormer+", "photo", shifted(rise), settings=settings)
    claim = replace(
        beats(kind="rises", study="augmentation-grid", settings=("augment_probability",), versus=()),
        models=("nagphormer+",),
    )
    result = audit_ours(claim, findings(tmp_path, records))
    assert result.verdict == "holds"
    assert result.checks[0].effect.startswith("NAGphormer+: +5.33 over augment_probability=0.25, n = 10")


@pytest.mark.parametrize(
    ("photo", "computer", "trials", "verdict"),
    [
        (2, 3, 10, "holds"),
        (2, 2, 10, "fails"),
        (2, None, 10, "undecided"),  # on Computer all are alike, and 2 may be the best of them
        (2, 3, 9, "undecided"),
    ],
)
def test_whether_the_best_value_differs(
    tmp_path: Path, photo: int, computer: int | None, trials: int, verdict: str
) -> None:
    records = []
    for dataset, best in (("photo", photo), ("computer", computer)):
        values = {layers: 0.0 if best in (None, layers) else -10.0 for layers in range(1, 6)}
        records += [r for r in sweep(values, "layers", "layers", dataset) if r["seed"] < trials]
    claim = beats(("photo", "computer"), kind="best_value_differs", study="layers", settings=("layers",), versus=())
    assert audit_ours(claim, findings(tmp_path, records)).verdict == verdict


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0], "holds"),  # 2 / 5! = 0.017
        ([4.0, 3.0, 2.0, 1.0, 0.0], "fails"),
        ([0.0, 1.0, 2.0, 4.0, 3.0], "undecided"),  # one pair of ten the other way round: p = 0.083
        ([0.0] * 5, "undecided"),  # nothing moves
    ],
)
def test_whether_two_models_move_alike(tmp_path: Path, steps: list[float], verdict: str) -> None:
    rising = {layers: float(layers) for layers in range(1, 6)}
    records = sweep(rising, "layers", "layers", "photo")
    records += sweep(dict(zip(range(1, 6), steps, strict=True)), "layers", "layers", "photo", "nagphormer+")
    claim = beats(kind="same_trend", study="layers", settings=("layers",), versus=("nagphormer+",))
    assert audit_ours(claim, findings(tmp_path / "ten", records)).verdict == verdict
    few = findings(tmp_path / "three", [record for record in records if record["seed"] < 3])
    assert audit_ours(claim, few).verdict == "undecided"


def test_more_layers_are_worse(tmp_path: Path) -> None:
    claim = beats(datasets=("reddit",), kind="degrades", study="layers", settings=("layers",), versus=())
    falling = sweep({1: 0.0, 2: -5.0, 3: -10.0, 4: -15.0, 5: -20.0}, "layers", "layers")
    result = audit_ours(claim, findings(tmp_path, falling))
    assert result.checks[0].effect.startswith("NAGphormer: +20.00")
    # fresh splits of the 20-per-class sets have no valid test: nothing is claimed
    assert result.verdict == "undecided" and "frozen" in result.checks[0].effect


def test_memory_is_a_number(tmp_path: Path) -> None:
    fits = made_up_records("graphormer", "photo", [90.0], memory=5_000_000_000)
    large = made_up_records("graphormer", "computer", [90.0], memory=15_000_000_000)
    gone = [failed(record, "oom", memory=12_000_000_000) for record in made_up_records("graphormer", "cs", [90.0])]
    early = [failed(record, "oom", memory=2_000_000_000) for record in made_up_records("graphormer", "physics", [90.0])]
    found = findings(tmp_path, fits + large + gone + early)
    names = ("photo", "computer", "cs", "physics", "pubmed")
    claim = Claim("id", "1", "It does not fit.", "oom", "accuracy-small", ("graphormer",), names, threshold=11264.0)
    assert [check.verdict for check in audit_ours(claim, found).checks] == [
        "fails", "holds", "holds", "undecided", "not run",
    ]  # fmt: skip


def test_a_model_that_the_study_leaves_out_can_be_too_large_for_it(tmp_path: Path) -> None:
    gone = [failed(record, "oom", memory=11_000_000_000) for record in made_up_records("gt", "reddit", [50.0])]
    checks = audit_ours(CLAIMS["large-transformers-do-not-fit"], findings(tmp_path, gone)).checks
    assert [(check.dataset, check.effect) for check in checks if check.verdict == "holds"] == [
        ("reddit", "GT: more than 11,000 MB")  # what --memory-limit 11GB gives
    ]


def speed(results: Path, records: list[dict[str, Any]]) -> Check:
    [check] = audit_ours(CLAIMS["amazon2m-three-times-faster"], findings(results, records)).checks
    return check


def test_a_fixed_number_of_epochs_does_not_tell_how_long_training_takes(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "amazon2m-twin", [50.0], seconds=10.0, settings=COST, purpose="cost")
    records += made_up_records("pprgo", "amazon2m-twin", [50.0], seconds=31.0, settings=COST, purpose="cost")
    check = speed(tmp_path / "a", records)
    effect = "an epoch of PPRGo takes 3.10 times as long on Amazon2M (twin); whole trainings were not timed"
    assert (check.verdict, check.effect) == ("undecided", effect)
    for record, nodes in zip(records, (1000, 250), strict=True):  # half a second each
        record["phases"]["infer"]["nodes"] = nodes
    assert "inference" not in speed(tmp_path / "bound", records).effect  # one size tells nothing about all nodes
    for record, nodes in zip(records, (100, 25), strict=True):
        record["phases"][PART_OF_INFERENCE] = {**record["phases"]["infer"], "nodes": nodes, "seconds": 0.05}
    assert "3.10 times as long, inference 4.00 times on Amazon2M (twin);" in speed(tmp_path / "b", records).effect


def test_whole_trainings_are_judged_undisturbed_and_on_one_machine(tmp_path: Path) -> None:
    ours = made_up_records("nagphormer", "amazon2m", [50.0], seconds=10.0)
    theirs = made_up_records("pprgo", "amazon2m", [50.0], seconds=31.0)  # whose own recipe never stops early
    check = speed(tmp_path / "a", ours + theirs)  # 31.5 s against 10.5 s
    effect = "PPRGo takes 3.00 times as long; fewer than 3 repeats"
    assert (check.verdict, check.effect) == ("undecided", effect)
    repeated = made_up_records("nagphormer", "amazon2m", [50.0] * 3, seconds=10.0)
    for seconds, verdict in ((31.0, "holds"), (20.0, "fails")):
        rival = made_up_records("pprgo", "amazon2m", [50.0] * 3, seconds=seconds)
        assert speed(tmp_path / verdict, repeated + rival).verdict == verdict
    rival[0]["phases"]["train"]["seconds"] = 95.0  # once in three times: the median could be that, too
    assert speed(tmp_path / "wide", repeated + rival).verdict == "undecided"
    slowed = [ours[0], *made_up_records("pprgo", "amazon2m", [50.0, 51.0], seconds=500.0, others=1.0)]
    check = speed(tmp_path / "b", slowed)
    assert (check.verdict, check.keys) == ("undecided", tuple(record["key"] for record in slowed))
    mixed = [*ours, theirs[0], slowed[2]]  # one clean trial and one that others slowed down
    check = speed(tmp_path / "c", mixed)
    assert (check.effect, check.keys) == (effect, (ours[0]["key"], theirs[0]["key"]))
    away = [{**theirs[0], "environment": {**theirs[0]["environment"], "processor": "Another 2"}}]
    assert speed(tmp_path / "d", ours + away).verdict == "undecided"
    capped = made_up_records("nagphormer", "amazon2m", [50.0], seconds=1.0, max_epochs=5)
    assert speed(tmp_path / "e", capped + theirs).verdict == "undecided"
    assert speed(tmp_path / "f", ours).verdict == "not run"


def test_every_claim_can_be_audited_on_an_empty_ledger(tmp_path: Path) -> None:
    table = audit_table(audit(findings(tmp_path, [])), Setting())
    assert len(table.rows) == len(CLAIMS)
    ours, closest = (table.header.index(name) for name in ("Our trials", "our closest call"))
    assert {row[ours].text.partition(" (")[0] for row in table.rows} == {"not run"}
    assert {row[closest].text for row in table.rows} == {""}


def test_the_closest_of_the_papers_times_and_memory() -> None:
    assert audit_paper(CLAIMS["amazon2m-fastest"]).deciding == "Amazon2M: NAGphormer+ takes 1.11 times as long"
    assert audit_paper(CLAIMS["memory-is-affordable"]).deciding == "Reddit: NAGphormer+: 2,706 MB"  # the most of six


def test_what_holds_on_most_names_where_it_does_not() -> None:
    checks = [Check("photo", "holds", "+0.1", margin=0.1), Check("cs", "holds", "+0.2", margin=0.2)]
    judged = judge(beats(holds_on="most"), [*checks, Check("physics", "fails", "-0.1", margin=-0.1)])
    assert judged.deciding == "Photo: +0.1; not on Physics"


def test_what_rests_on_signs_or_on_most_datasets_says_so(tmp_path: Path) -> None:
    """Table 5 prints no spreads; of its nine datasets LNA alone is above plain NAGphormer on five."""
    assert audit_paper(CLAIMS["lna-is-useful"]).text == "holds on most (5 of 9), sign only"
    assert audit_paper(CLAIMS["amazon2m-pprgo-second"]).text == "fails (2 holds, 1 fails), sign only"
    assert audit_paper(CLAIMS["small-beats-gnns"]).text == "holds (6 holds)"
    assert "sign only" not in audit_paper(CLAIMS["small-bold-physics"]).text  # undecided by a test


def test_memory_of_our_implementation_does_not_settle_the_papers(tmp_path: Path) -> None:
    small = made_up_records("graphgps", "computer", [90.0], memory=800_000_000)
    found = findings(tmp_path / "cpu", small)
    ours = audit_ours(CLAIMS["small-graphgps-out-of-memory"], found)
    assert ours.text == "not so in our implementation, on a CPU (1 fails, 1 not run)"
    assert ours.verdict == "fails"
    counts = claim_counts(audit(found))
    assert counts.endswith("the 5 on memory, by our implementation, which need not be the paper's: 1 not so, 4 not run")
    assert "the 37 on accuracy and time: 37 not run;" in counts
    on_gpu = [{**record, "environment": {**record["environment"], "gpu": "Card 1"}} for record in small]
    assert "on a GPU" in audit_ours(CLAIMS["small-graphgps-out-of-memory"], findings(tmp_path / "gpu", on_gpu)).text


def test_one_point_of_a_sweep_is_no_sweep(tmp_path: Path) -> None:
    """The grid's middle is NAGphormer+ as it is, which other studies have run."""
    found = findings(tmp_path, made_up_records("nagphormer+", "photo", STEADY))
    along = [claim for claim in claims() if claim.study == "augmentation-grid"]
    assert along and {audit_ours(claim, found).verdict for claim in along} == {"not run"}


def test_memory_on_a_twin_is_called_that(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "reddit-twin", [50.0], settings=COST, purpose="cost", memory=700_000_000)
    records[0]["phases"]["preprocess"] |= {
        "peak_anonymous": 10**11,
        "peak_data": 10**11,
    }  # no card holds that, nor has to
    checks = audit_ours(CLAIMS["memory-is-affordable"], findings(tmp_path, records)).checks
    assert ("reddit", "holds", "NAGphormer: 700 MB on Reddit (twin)") in [
        (check.dataset, check.verdict, check.effect) for check in checks
    ]
