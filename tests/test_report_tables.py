"""Tables from ledgers made up for the purpose: what an entry says, what is bold, what the scorecard decides."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ledgers import failed, made_up_records, write_ledger

from bench.commands.paper import find_study
from bench.datasets.catalogue import datasets
from bench.errors import UserError
from bench.ledger import Ledger
from bench.paper.sections import paper_sections
from bench.paper.tables import dataset_table, study_tables
from bench.paper.trial_index import TrialIndex
from bench.records import PART_OF_INFERENCE, address, machine_of
from bench.report.costs import in_brief
from bench.report.evidence import Evidence
from bench.report.page import Head, make_page
from bench.report.results import Setting, split_sizes
from bench.report.sections import plain_sections
from bench.report.statistics import SplitSizes
from bench.report.table import Entry, Table, entry, to_csv, to_markdown

COST = dict(find_study("cost").variants[0].settings)  # a fixed number of epochs
STEADY = [90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.0, 90.5, 91.0, 90.5]  # mean 90.5


def findings(results: Path, records: list[dict[str, Any]], **setting: str) -> TrialIndex:
    return TrialIndex(Evidence(Ledger(write_ledger(results, records))), Setting(**setting))


def tables(found: TrialIndex) -> dict[str, Table]:
    return {"datasets": dataset_table(), **study_tables(found)}


def place(table: Table, row: str, column: str, method: str = "") -> Entry:
    [found] = [
        entries for entries in table.rows if entries[0].text == row and (not method or entries[1].text == method)
    ]
    return found[table.header.index(column)]


def shifted(by: float) -> list[float]:
    return [value + by for value in STEADY]


def test_an_entry_says_mean_spread_and_n_and_names_its_records(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "photo", [90.0, 91.0, 93.0])
    table = tables(findings(tmp_path, records))["accuracy-small"]
    found = place(table, "NAGphormer", "Photo")
    assert found.text == "91.33 ± 1.53 (3)"  # deviations -4/3, -1/3, 5/3: variance 42/9/2
    assert set(found.keys) == {record["key"] for record in records}
    missing = place(table, "GCN", "Photo")
    assert missing.text == "–"
    assert missing.note == "python -m bench run --models gcn --datasets photo\nthe paper has 92.70 ± 0.20"


def test_one_trial_has_no_spread_and_failures_are_named(tmp_path: Path) -> None:
    first, second = made_up_records("nagphormer", "photo", [90.0, 91.0])
    alone = made_up_records("gcn", "photo", [92.0])
    table = tables(findings(tmp_path, [first, failed(second, "timeout"), *alone]))["accuracy-small"]
    assert place(table, "NAGphormer", "Photo").text == "90.00 (1) [1 timeout]"
    assert place(table, "GCN", "Photo").text == "92.00 (1)†"
    gone = failed(made_up_records("nagphormer", "computer", [90.0])[0], "oom", "needs 3 TB")
    table = tables(findings(tmp_path / "b", [gone]))["accuracy-small"]
    found = place(table, "NAGphormer", "Computer")
    assert (found.text, found.note) == ("oom", "needs 3 TB\nthe paper has 91.22 ± 0.14")


def test_bold_is_the_group_that_is_not_worse_than_the_best(tmp_path: Path) -> None:
    jitter = [0.5, -0.5, 0.0, 0.5, -0.5, 0.0, 0.5, -0.5, 0.0, 0.0]
    near = [value + change for value, change in zip(STEADY, jitter, strict=True)]
    records = [
        *made_up_records("nagphormer", "photo", STEADY),
        *made_up_records("nagphormer+", "photo", near),
        *made_up_records("gcn", "photo", shifted(-20.0)),
    ]
    table = tables(findings(tmp_path, records))["accuracy-small"]
    bold = {row[0].text for row in table.rows if place(table, row[0].text, "Photo").bold}
    assert bold == {"NAGphormer", "NAGphormer+"}
    assert "Photo: 2 of 3 models lead (bold)." in table.caption


def test_below_ten_trials_nothing_is_bold(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "photo", STEADY[:9]) + made_up_records("gcn", "photo", shifted(-20.0)[:9])
    table = tables(findings(tmp_path, records))["accuracy-small"]
    assert not any(item.bold for row in table.rows for item in row)
    assert "Photo: undecided, fewer than two models have 10 trials." in table.caption


def everything(found: TrialIndex) -> dict[str, Table]:
    sections = [*plain_sections(found.evidence, found.setting), *paper_sections(found.evidence, found.setting)]
    return {part.name: part for section in sections for part in section.parts if isinstance(part, Table)}


def test_deleting_one_record_changes_the_entries_that_rest_on_it_and_no_others(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "photo", STEADY) + made_up_records("gcn", "computer", [88.0, 89.5, 91.0])
    records += made_up_records("nagphormer", "photo", shifted(-3.0), settings={"structural_encoding": False})
    records += made_up_records("gat", "photo", shifted(1.0)) + made_up_records("nagphormer", "computer", STEADY[:4])
    whole = everything(findings(tmp_path / "whole", records))
    for gone in (0, 12):  # a trial that makes ten, one that makes three
        rest = everything(findings(tmp_path / f"without-{gone}", records[:gone] + records[gone + 1 :]))
        changed = 0
        for name, table in whole.items():
            for before, after in zip(table.rows, rest[name].rows, strict=True):
                for old, new in zip(before, after, strict=True):
                    rests = records[gone]["key"] in (*old.keys, *old.mark_keys)
                    assert (old != new) == rests
                    changed += rests
        assert changed > 10


def test_gains_are_paired_differences(tmp_path: Path) -> None:
    with_it = made_up_records("nagphormer", "photo", shifted(2.0))
    without = made_up_records("nagphormer", "photo", STEADY, settings={"structural_encoding": False})
    table = tables(findings(tmp_path, with_it + without))["structural-encoding"]
    assert place(table, "NAGphormer, gain", "Photo").text == "+2.00 [+2.00, +2.00] (10); +0.47"  # 95.49 - 95.02
    assert place(table, "NAGphormer, structural_encoding=false", "Photo").text.startswith("90.50 ± ")
    assert place(table, "NAGphormer+, gain", "Photo").text == "–; +0.41"  # 96.61 - 96.20


def test_a_sweep_in_numbers_has_the_graphs_that_only_we_ran_it_on(tmp_path: Path) -> None:
    records = [
        record
        for hops, accuracy in ((4, 95.0), (6, 94.0))
        for record in made_up_records("nagphormer", "photo", [accuracy], settings={"layers": 1, "hops": hops})
    ]
    table = tables(findings(tmp_path, records))["hops"]
    # no column for Pubmed, where there is no record
    assert table.header[1:] == ("AMiner-CS", "Reddit", "Amazon2M", "Photo (not in the paper)")
    texts = {row[0].text: row[-1].text for row in table.rows if row[-1].keys}
    assert texts == {"NAGphormer, hops=4": "95.00 (1)", "NAGphormer, hops=6": "94.00 (1)"}


def test_twins_never_stand_in_a_real_column(tmp_path: Path) -> None:
    records = made_up_records("nagphormer", "reddit-twin", [50.0], seconds=123.0, settings=COST, purpose="cost")
    found = tables(findings(tmp_path, records))
    assert all(
        row[table.header.index("Reddit")].text in ("–", "") for table in [found["accuracy-large"]] for row in table.rows
    )
    cost = found["cost"]
    [row] = [row for row in cost.rows if row[0].text == datasets()["reddit-twin"].title and row[1].text == "NAGphormer"]
    values = dict(zip(cost.header, (item.text for item in row), strict=True))
    assert values["s per epoch"] == "24.6" and values["train + infer MB"] == "300"  # 123 s for 5 epochs
    assert (values["paper: GPU MB"], values["paper: s"]) == ("1,925", "20.72")  # of the dataset that it is a twin of
    on_reddit = [row[1].text for row in cost.rows if row[0].text == "Reddit"]
    assert on_reddit == ["GraphSAINT", "PPRGo", "GRAND+", "NAGphormer+"]  # of whose costs the paper alone knows


def test_timings_of_two_machines_are_two_rows(tmp_path: Path) -> None:
    first, second = made_up_records("nagphormer", "reddit-twin", [50.0, 51.0], settings=COST, purpose="cost")
    second["environment"] = {**second["environment"], "processor": "Another 2"}
    cost = tables(findings(tmp_path, [first, second]))["cost"]
    machines = {row[cost.header.index("machine")].text for row in cost.rows if row[0].keys or row[2].keys}
    assert machines == {"Paper Tiger 1, 2 thread(s)", "Another 2, 2 thread(s)"}


def cost_record(
    model: str, epoch: float, thousand: float, memory: int, graph: float = 0.0, **others: Any
) -> dict[str, Any]:
    """20 epochs on Amazon2M's twin after 7 s of preparation, inference measured on 20,000 and 200,000 nodes.

    Inference takes so long for the graph and for every 1,000 nodes; `memory` is that of training, preparation had 9 GB.
    """
    [found] = made_up_records(model, "amazon2m-twin", [50.0], settings=COST, purpose="cost", memory=memory, **others)
    found["training"]["epochs"] = 20
    found["phases"]["preprocess"]["seconds"] = 7.0
    found["phases"]["train"] |= {
        "seconds": 999.0,
        "first_evaluation": [1, 9.0],
        "last_evaluation": [11, 9.0 + 10 * epoch],
    }
    found["phases"]["preprocess"] |= {"peak_anonymous": 9 * 10**9, "peak_data": 9 * 10**9}
    found["phases"]["infer"] |= {"seconds": graph + 200 * thousand, "nodes": 200_000}
    found["phases"][PART_OF_INFERENCE] = {**found["phases"]["infer"], "seconds": graph + 20 * thousand, "nodes": 20_000}
    return found


TWIN = "Amazon2M (twin)"
TIME, MEMORY = "time × NAGphormer, ours / paper", "memory × NAGphormer, ours / paper"


def test_costs_stand_as_ratios_beside_the_papers_with_the_whole_pipeline(tmp_path: Path) -> None:
    records = [
        cost_record("nagphormer", epoch=2.0, thousand=0.01, memory=500_000_000),
        cost_record("pprgo", epoch=1.0, thousand=0.04, memory=250_000_000, graph=9.0),
    ]
    cost = tables(findings(tmp_path, records))["cost"]
    # of 2,449,029 nodes: 20 * 2 + 2449.029 * 0.01 = 64.49029 and 20 * 1 + 9 + 2449.029 * 0.04 = 126.96116, + 7 before
    assert place(cost, TWIN, "train + infer s", "NAGphormer").value == pytest.approx(64.49029)
    assert place(cost, TWIN, "train + infer s", "PPRGo").value == pytest.approx(126.96116)
    assert place(cost, TWIN, "whole pipeline s", "PPRGo").value == pytest.approx(133.96116)
    assert place(cost, TWIN, TIME, "NAGphormer").text == "1 / 1"
    ratio = place(cost, TWIN, TIME, "PPRGo")
    assert ratio.text == "1.97 / 2.6"  # 126.96116 / 64.49029, the paper has 152.62 / 58.66
    assert set(ratio.keys) == set(map(address, records))
    assert place(cost, TWIN, MEMORY, "PPRGo").text == "0.5 / 0.539"  # 1097 / 2035
    assert place(cost, TWIN, "whole pipeline × NAGphormer", "PPRGo").text == "1.87"  # 133.96116 / 71.49029
    assert place(cost, TWIN, "preprocess MB", "PPRGo").text == "9,000"
    assert place(cost, TWIN, "paper: s", "PPRGo").text == "152.62"
    assert place(cost, "Amazon2M", TIME, "GRAND+").text == "– / 3.54"  # not run at all: 207.85 / 58.66
    caption = " ".join(cost.caption)
    assert "measured on 200,000 of 2,449,029 nodes of Amazon2M (twin)" in caption
    assert "whole pipeline s: preprocess s + train + infer s" in caption and "fixed number of epochs" in caption


def test_on_a_gpu_what_is_reserved_counts_and_the_rest_stands_beside_it(tmp_path: Path) -> None:
    record = cost_record("nagphormer", 2.0, 0.01, 10**9)
    record["phases"]["train"] |= {"peak_reserved": 3 * 10**9, "peak_allocated": 2 * 10**9, "device_used": 4 * 10**9}
    cost = tables(findings(tmp_path, [record]))["cost"]
    names = ("train + infer MB", "GPU allocated MB", "GPU used by all MB")
    assert [place(cost, TWIN, name, "NAGphormer").text for name in names] == ["3,000", "2,000", "4,000"]


def test_what_one_part_of_the_nodes_took_is_a_bound_for_all(tmp_path: Path) -> None:
    records = [cost_record("nagphormer", 2.0, 0.01, 10**9), cost_record("pprgo", 1.0, 0.04, 10**9)]
    for record in records:
        del record["phases"][PART_OF_INFERENCE]
    cost = tables(findings(tmp_path, records))["cost"]
    assert place(cost, TWIN, "train + infer s", "PPRGo").text == "≤ 118"  # 20 * 1 + 2449.029 * 0.04
    assert place(cost, TWIN, TIME, "PPRGo").text == "~ 1.83 / 2.6"
    assert "≤: only one part was measured" in " ".join(cost.caption)
    exact = [cost_record("nagphormer", 2.0, 0.01, 10**9), cost_record("pprgo", 1.0, 0.04, 10**9)]
    cost = tables(findings(tmp_path / "reference", [records[0], exact[1]]))["cost"]
    assert place(cost, TWIN, TIME, "PPRGo").text == "≥ 1.83 / 2.6"  # the reference may be faster than it seems
    cost = tables(findings(tmp_path / "other", [exact[0], records[1]]))["cost"]
    assert place(cost, TWIN, TIME, "PPRGo").text == "≤ 1.83 / 2.6"


def on_other_machine(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "environment": {**record["environment"], "processor": "another"}}


def test_every_machine_has_rows_of_its_own_that_open_its_own_records(tmp_path: Path) -> None:
    here = cost_record("nagphormer", epoch=2.0, thousand=0.01, memory=10**9)
    there = on_other_machine(cost_record("nagphormer", epoch=4.0, thousand=0.02, memory=10**9))
    assert here["key"] == there["key"]  # the same cell
    found = findings(tmp_path, [here, there])
    cost = tables(found)["cost"]
    column = cost.header.index("s per epoch")
    rows = {row[column].text: row for row in cost.rows if row[0].text == TWIN and row[column].text}
    assert rows.keys() == {"2", "4"}
    for epoch, record in (("2", here), ("4", there)):
        assert set(rows[epoch][column].keys) == {address(record)}
    page = make_page([cost], found.evidence.records, Head(), [])
    [data] = map(json.loads, re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S))
    shown = {
        row[column]["text"]: [data["records"][at] for at in data["groups"][row[column]["group"]]]
        for row in data["parts"][0]["rows"]
        if "group" in row[column]
    }
    assert [record[data["recordHeader"].index("machine")] for record in shown["4"]] == [machine_of(there)]
    assert [record[data["recordHeader"].index("machine")] for record in shown["2"]] == [machine_of(here)]


def test_what_failed_beside_a_cost_is_counted_on_its_own_machine(tmp_path: Path) -> None:
    good = cost_record("nagphormer", epoch=2.0, thousand=0.01, memory=10**9)
    _, second = made_up_records("nagphormer", "amazon2m-twin", [50.0, 50.0], settings=COST, purpose="cost")
    elsewhere = on_other_machine(cost_record("nagphormer", epoch=4.0, thousand=0.01, memory=10**9))
    cost = tables(findings(tmp_path, [good, failed(second, "oom"), elsewhere]))["cost"]
    column = cost.header.index("n")
    texts = {row[cost.header.index("s per epoch")].text: row[column].text for row in cost.rows if row[0].text == TWIN}
    assert texts["2"] == "1 [1 oom]" and texts["4"] == "1"


@pytest.mark.parametrize("reason", ["disturbed", "machine", "epochs"])
def test_nothing_is_divided_by_what_cannot_be_compared(tmp_path: Path, reason: str) -> None:
    reference = cost_record("nagphormer", 2.0, 0.01, 10**9, others=1.5 if reason == "disturbed" else 0.0)
    if reason == "machine":
        reference["environment"] = {**reference["environment"], "processor": "Another 2"}
    if reason == "epochs":
        reference["training"]["epochs"] = 10
    cost = tables(findings(tmp_path, [reference, cost_record("pprgo", 1.0, 0.04, 10**9)]))["cost"]
    found = place(cost, TWIN, TIME, "PPRGo")
    assert (found.text, found.keys) == ("– / 2.6", ())


def test_the_cost_study_reads_measurements_and_the_others_do_not(tmp_path: Path) -> None:
    """A plain run of the very same cell hides no measurement, nor does a measurement change another table."""
    clean = cost_record("nagphormer", 2.0, 0.01, 10**9)
    [later] = made_up_records("nagphormer", "amazon2m-twin", [50.0], settings=COST, seconds=5000.0)
    later["started"] = "2027"
    assert later["key"] == clean["key"]
    cost = tables(findings(tmp_path / "a", [clean, later]))["cost"]
    assert place(cost, TWIN, "s per epoch", "NAGphormer").text == "2"
    alone = tables(findings(tmp_path / "b", [later]))["cost"]
    assert not [row for row in alone.rows if row[0].text == TWIN]
    [plain] = made_up_records("nagphormer", "photo", [90.0])
    measured = {**made_up_records("nagphormer", "photo", [40.0], purpose="cost")[0], "started": "2027"}
    accuracy = tables(findings(tmp_path / "c", [plain, failed(measured, "oom")]))["accuracy-small"]
    assert place(accuracy, "NAGphormer", "Photo").text == "90.00 (1)"


def test_one_machines_measurement_does_not_hide_anothers(tmp_path: Path) -> None:
    here = cost_record("nagphormer", 2.0, 0.01, 10**9)
    there = {**cost_record("nagphormer", 1.0, 0.01, 10**9), "started": "2027"}
    there["environment"] = {**there["environment"], "processor": "Another 2"}
    cost = tables(findings(tmp_path, [here, there]))["cost"]
    epoch, machine = (cost.header.index(name) for name in ("s per epoch", "machine"))
    assert {(row[machine].text, row[epoch].text) for row in cost.rows if row[0].text == TWIN} == {
        ("Paper Tiger 1, 2 thread(s)", "2"),
        ("Another 2, 2 thread(s)", "1"),
    }


def test_a_reader_gets_one_clean_row_and_what_never_changes_below_the_table(tmp_path: Path) -> None:
    elsewhere = [
        on_other_machine(cost_record(model, epoch, 0.01, 10**9))
        for model, epoch in (("nagphormer", 4.0), ("pprgo", 3.0))
    ]
    records = [
        cost_record("nagphormer", 9.0, 0.01, 10**9, others=1.5),  # disturbed
        cost_record("pprgo", 1.0, 0.01, 10**9),  # clean, on a machine where nothing else is
        cost_record("grandplus", 7.0, 0.01, 10**9, others=1.5),  # disturbed, and all there is
        *elsewhere,
    ]
    full = tables(findings(tmp_path, records))["cost"]
    short = in_brief(full)
    epoch = short.header.index("s per epoch")
    shown = [(row[1].text, row[epoch].text) for row in short.rows if row[0].text == TWIN]
    assert shown == [("PPRGo", "3"), ("GRAND+", "7"), ("NAGphormer", "4")]
    assert [row[1].text for row in full.rows if row[0].text == TWIN].count("NAGphormer") == 2
    assert short.caption[0].startswith("2 more rows stand in cost.csv only")
    alone = replace(full, rows=tuple(row for row in full.rows if row[0].text == TWIN))
    short = in_brief(alone)
    assert "In every row: " in short.caption[0] and "epochs 20" in short.caption[0] and "epochs" not in short.header
    assert {"machine", "disturbed", "paper: s"} <= set(short.header)  # which are not the same in every row


def test_what_is_not_measured_yet_names_the_study_that_measures_it(tmp_path: Path) -> None:
    cost = tables(findings(tmp_path, []))["cost"]
    missing = place(cost, "Reddit", "preprocess s", "PPRGo")
    assert missing.note == "python -m bench run --study cost --models pprgo --datasets reddit"


def test_what_the_corrected_t_knows_about_splits() -> None:
    assert split_sizes(datasets()["photo"]) == SplitSizes(test=20, train=60)
    assert split_sizes(datasets()["reddit"]) == SplitSizes(test=232_965, train=820)
    unknown = replace(datasets()["reddit"], name="mine", paper=None)
    with pytest.raises(UserError, match=r"the rule per-class-20/30 does not say them; use a split_rule such as"):
        split_sizes(unknown)


# -- forms ------------------------------------------------------------------------------------------------------------

AWKWARD = Table(
    "awkward",
    "50% of <b>all</b> & more",
    ("a_b", "c|d"),
    (
        (entry("x_1"), Entry("1 ± 2 | 3", ("k1", "k2"), bold=True)),
        (entry("[1, 2]"), entry("\\end{document} " + "a long sentence " * 4)),
    ),
    ("one $ two",),
)


def test_markdown_escapes_what_it_would_read_as_markup() -> None:
    text = to_markdown(AWKWARD)
    assert "**1 ± 2 \\| 3**" in text and "a\\_b" in text and "\\<b\\>" in text
    commands = to_markdown(replace(AWKWARD, caption=("a_b `run --set a_b=1|2` and `",)))
    assert "a\\_b `run --set a_b=1\\|2` and \\`" in commands  # a lone backtick begins no command


def test_csv_names_the_records() -> None:
    assert to_csv(AWKWARD).startswith('a_b,c|d,records\nx_1,1 ± 2 | 3,k1 k2\n"[1, 2]",')
