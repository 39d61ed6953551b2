"""The paper's numbers against a second transcription, typed apart from the first; claims and slips against the data."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from bench.datasets.catalogue import datasets, resolve
from bench.errors import UserError
from bench.paper import numbers as paper
from bench.paper.claims import KINDS, Claim, claims
from bench.paper.slips import SLIP_KINDS, slips
from bench.paper.studies import studies

SMALL = ("pubmed", "corafull", "computer", "photo", "cs", "physics")
LARGE = ("aminer", "reddit", "amazon2m")
MODELS = {  # not all of them are in the registry yet
    "gcn", "gat", "appnp", "gprgnn", "graphsaint", "pprgo", "grandplus", "gt", "san", "graphormer", "graphgps",
    "nodeformer", "nagphormer", "nagphormer+",
}  # fmt: skip
STUDIES = {
    "accuracy-small", "accuracy-large", "structural-encoding", "readout", "hops", "layers", "augmentation-parts",
    "augmentation-grid", "cost",
}  # fmt: skip
WITH, WITHOUT = "structural_encoding=true", "structural_encoding=false"

TABLE_1 = """
amazon2m 2,449,029 61,859,140 100 47
reddit   232,965 11,606,919 602 41
aminer   593,486 6,217,004 100 18
physics  34,493 495,924 8,415 5
cs       18,333 163,788 6,805 15
photo    7,650 238,163 745 8
computer 13,752 491,722 767 10
corafull 19,793 126,842 8,710 70
pubmed   19,717 44,324 500 3
"""
TABLE_2 = """
gcn         86.54 0.12  61.76 0.14  89.65 0.52  92.70 0.20  92.92 0.12  96.18 0.07
gat         86.32 0.16  64.47 0.18  90.78 0.13  93.87 0.11  93.61 0.14  96.17 0.08
appnp       88.43 0.15  65.16 0.28  90.18 0.17  94.32 0.14  94.49 0.07  96.54 0.07
gprgnn      89.34 0.25  67.12 0.31  89.32 0.29  94.49 0.14  95.13 0.09  96.85 0.08
graphsaint  88.96 0.16  67.85 0.21  90.22 0.15  91.72 0.13  94.41 0.09  96.43 0.05
pprgo       87.38 0.11  63.54 0.25  88.69 0.21  93.61 0.12  92.52 0.15  95.51 0.08
grandplus   88.64 0.09  71.37 0.11  88.74 0.11  94.75 0.12  93.92 0.08  96.47 0.04
gt          88.79 0.12  61.05 0.38  91.18 0.17  94.74 0.13  94.64 0.13  97.05 0.05
graphormer  oom   oom   oom   oom   oom   oom   92.74 0.14  oom   oom   oom   oom
san         88.22 0.15  59.01 0.34  89.83 0.16  94.86 0.10  94.51 0.15  oom   oom
graphgps    88.94 0.16  55.76 0.23  oom   oom   95.06 0.13  93.93 0.12  oom   oom
nodeformer  89.24 0.14  61.82 0.25  91.12 0.19  95.27 0.17  95.68 0.08  97.19 0.04
nagphormer  89.70 0.19  71.51 0.13  91.22 0.14  95.49 0.11  95.75 0.09  97.34 0.03
nagphormer+ 90.38 0.20  72.16 0.29  91.95 0.09  96.61 0.21  96.06 0.10  97.34 0.09
"""
TABLE_3 = """
pprgo       49.07 0.19  90.38 0.11  66.12 0.59
graphsaint  51.86 0.21  92.35 0.08  75.21 0.15
grandplus   54.67 0.25  92.81 0.03  75.49 0.11
nagphormer  56.21 0.42  93.58 0.05  77.43 0.24
nagphormer+ 57.02 0.38  93.74 0.06  77.98 0.16
"""
TABLE_6 = """
graphsaint  1,641 23.67  2,565 43.15   5,317 334.08
pprgo       1,075 14.21  1,093 35.73   1,097 152.62
grandplus   1,091 21.41  1,213 197.97  1,123 207.85
nagphormer  1,827 19.87  1,925 20.72   2,035 58.66
nagphormer+ 2,518 26.92  2,706 46.80   2,290 65.22
"""
# the rows of Tables 4 and 5 that stand in no other table; columns as SMALL + LARGE
WITHOUT_ENCODING = {
    "nagphormer": (89.06, 70.42, 90.44, 95.02, 95.52, 97.10, 55.64, 93.47, 76.98),
    "nagphormer+": (90.09, 71.81, 91.60, 96.20, 95.90, 97.27, 56.14, 93.53, 77.78),
}
ONE_PART = {
    "+LNA": (89.89, 71.83, 91.88, 96.36, 95.89, 97.23, 55.88, 93.26, 77.37),
    "+GNA": (90.31, 72.11, 90.99, 96.36, 95.99, 97.25, 56.56, 93.55, 77.60),
}


def numbers(text: str) -> dict[str, list[float | None]]:
    """The rows of a transcription; None where the paper prints OOM."""
    rows = (line.replace(",", "").split() for line in text.strip().splitlines())
    return {name: [None if cell == "oom" else float(cell) for cell in cells] for name, *cells in rows}


def means(table: str, row: str, variant: str = "", measure: str = "accuracy") -> dict[str, float]:
    frame = paper.published(table)
    chosen = frame[(frame["row"] == row) & (frame["variant"] == variant) & (frame["measure"] == measure)]
    return dict(zip(chosen["column"], chosen["mean"], strict=True))


@pytest.mark.parametrize(
    ("table", "lines"),
    [("tab:dataset", 36), ("tab:normal-data", 84), ("tab:large-data", 15), ("tab:ab-str", 54), ("tab:DA_result", 36),
     ("tab:cost", 30)],
)  # fmt: skip
def test_every_printed_number_has_a_line_and_only_one(table: str, lines: int) -> None:
    frame = paper.published(table)
    assert len(frame) == lines and set(frame["table"]) == {table}
    assert not frame.duplicated(["row", "variant", "column", "measure"]).any()


def test_all_tables_together_are_the_six_one_after_another() -> None:
    frame = paper.published()
    assert len(frame) == 255 and list(dict.fromkeys(frame["table"])) == list(paper.TABLES)
    assert list(frame.columns) == ["table", "row", "variant", "column", "measure", "mean", "std", "status", "bold"]
    pd.testing.assert_frame_equal(
        frame[frame["table"] == "tab:cost"].reset_index(drop=True), paper.published("tab:cost")
    )


def test_statistics_are_those_of_table_1_and_of_the_catalogue() -> None:
    frame = paper.published("tab:dataset")
    for name, expected in numbers(TABLE_1).items():
        mine = frame[frame["column"] == name].set_index("measure")["mean"]
        assert [mine[measure] for measure in ("nodes", "edges", "features", "classes")] == expected
        catalogued = datasets()[name].paper
        assert catalogued is not None
        assert expected == [catalogued.nodes, catalogued.edges, catalogued.features, catalogued.classes]


@pytest.mark.parametrize(
    ("table", "text", "columns"), [("tab:normal-data", TABLE_2, SMALL), ("tab:large-data", TABLE_3, LARGE)]
)
def test_accuracies_are_those_of_tables_2_and_3(table: str, text: str, columns: tuple[str, ...]) -> None:
    frame = paper.published(table)
    expected = numbers(text)
    assert list(dict.fromkeys(frame["row"])) == list(expected)
    for model, cells in expected.items():
        mine = frame[frame["row"] == model].set_index("column")
        for place, column in enumerate(columns):
            mean, std, status = mine.loc[column, ["mean", "std", "status"]]
            if cells[2 * place] is None:
                assert status == "oom" and pd.isna(mean) and pd.isna(std)
            else:
                assert (mean, std, status) == (cells[2 * place], cells[2 * place + 1], "")


def test_costs_are_those_of_table_6() -> None:
    for model, cells in numbers(TABLE_6).items():
        assert means("tab:cost", model, measure="memory_mb") == dict(zip(LARGE, cells[0::2], strict=True))
        assert means("tab:cost", model, measure="seconds") == dict(zip(LARGE, cells[1::2], strict=True))


def test_rows_that_two_tables_print_agree() -> None:
    for model, augmentation in [("nagphormer", "none"), ("nagphormer+", "+NrAug")]:
        main = means("tab:normal-data", model) | means("tab:large-data", model)
        assert len(main) == 9
        assert means("tab:ab-str", model, WITH) == main == means("tab:DA_result", model, augmentation)


def test_rows_of_tables_4_and_5_that_stand_nowhere_else() -> None:
    for model, row in WITHOUT_ENCODING.items():
        assert means("tab:ab-str", model, WITHOUT) == dict(zip(SMALL + LARGE, row, strict=True))
    for variant, row in ONE_PART.items():
        assert means("tab:DA_result", "nagphormer+", variant) == dict(zip(SMALL + LARGE, row, strict=True))


def test_printed_gains_are_the_differences_of_printed_accuracies() -> None:
    for model in ("nagphormer", "nagphormer+"):
        above, below = means("tab:ab-str", model, WITH), means("tab:ab-str", model, WITHOUT)
        gains = means("tab:ab-str", model, measure="gain")
        assert len(gains) == 9
        assert gains == {column: round(above[column] - below[column], 2) for column in above}


def test_bold_cells_are_the_papers() -> None:
    frame = paper.published()
    bold = frame[frame["bold"]]
    rows = bold[["table", "row", "variant", "column"]].itertuples(index=False, name=None)
    plus = {("tab:normal-data", "nagphormer+", "", column) for column in SMALL if column != "physics"}
    plus |= {("tab:large-data", "nagphormer+", "", column) for column in LARGE}
    plus |= {("tab:DA_result", "nagphormer+", "+NrAug", column) for column in SMALL + LARGE if column != "physics"}
    physics = {("tab:normal-data", "nagphormer", "", "physics"), ("tab:DA_result", "nagphormer", "none", "physics")}
    assert set(rows) == plus | physics and len(bold) == 18


def test_out_of_memory_marks() -> None:
    frame = paper.published()
    marked = frame[frame["status"] != ""]
    assert set(marked["status"]) == {"oom"} and set(marked["table"]) == {"tab:normal-data"}
    assert set(zip(marked["row"], marked["column"], strict=True)) == {
        *(("graphormer", column) for column in SMALL if column != "photo"),
        ("san", "physics"), ("graphgps", "computer"), ("graphgps", "physics"),
    }  # fmt: skip
    assert (frame["mean"].isna() == (frame["status"] == "oom")).all()


def test_every_name_in_the_tables_is_one_of_ours() -> None:
    frame = paper.published()
    for column in set(frame["column"]):
        assert [dataset.name for dataset in resolve(column)] == [column]
    assert set(frame.loc[frame["table"] != "tab:dataset", "row"]) == MODELS
    assert set(frame.loc[frame["table"] == "tab:dataset", "row"]) == {""}


def test_variants_of_the_tables_are_labelled_as_the_studies_label_them() -> None:
    for table, study in [("tab:ab-str", "structural-encoding"), ("tab:DA_result", "augmentation-parts")]:
        frame = paper.published(table)
        labels = set(frame.loc[frame["measure"] == "accuracy", "variant"])
        assert labels == {variant.label for variant in studies()[study].variants}


def test_an_unknown_table_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match=r"no table 'tab:costs'.*Did you mean 'tab:cost'"):
        paper.published("tab:costs")


# ---- claims


def test_there_are_enough_claims_and_every_kind_is_used() -> None:
    found = claims()
    assert len(found) >= 20 and len({claim.id for claim in found}) == len(found)
    assert {claim.kind for claim in found} == set(KINDS)


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.id)
def test_claim_speaks_of_things_that_exist(claim: Claim) -> None:
    assert re.match(r"[1-7]( |\.|$)|Table [1-6]", claim.section) and claim.says.endswith(".")
    assert claim.study in STUDIES and claim.study in studies()
    assert {*claim.models, *claim.versus} <= MODELS and claim.models
    assert set(claim.datasets) <= set(SMALL + LARGE) and claim.datasets
    study = studies()[claim.study]
    assert {claim.variant, *claim.versus_variants} - {""} <= {variant.label for variant in study.variants}
    assert set(claim.settings) <= set(study.varied)
    if claim.table:
        frame = paper.published(claim.table)
        cells = frame[frame["measure"] == claim.measure]
        printed = set(cells[["row", "variant", "column"]].itertuples(index=False, name=None))
        same_model = [(model, variant) for model in claim.models for variant in claim.versus_variants]
        named = [(model, claim.variant) for model in claim.models] + (claim.opponents or same_model)
        assert {(*row, column) for row in named for column in claim.datasets} <= printed


def test_claims_without_a_table_need_a_figure_or_speak_of_models_that_the_table_leaves_out() -> None:
    without = {claim.study for claim in claims() if not claim.table}
    assert without == {"readout", "hops", "layers", "augmentation-grid", "accuracy-large"}


def test_claims_of_bold_cells_name_exactly_the_bold_cells() -> None:
    frame = paper.published()
    bold = frame[frame["bold"]]
    claimed = {
        (claim.table, model, claim.variant, column)
        for claim in claims()
        for model in claim.models
        for column in claim.datasets
        if claim.kind == "best"
    }
    assert claimed == set(bold[["table", "row", "variant", "column"]].itertuples(index=False, name=None))


def test_claims_of_missing_memory_name_exactly_the_marked_cells() -> None:
    frame = paper.published("tab:normal-data")
    marked = frame[frame["status"] == "oom"]
    claimed = {
        (model, column)
        for claim in claims()
        for model in claim.models
        for column in claim.datasets
        if claim.kind == "oom" and claim.table
    }
    assert claimed == set(zip(marked["row"], marked["column"], strict=True))


def test_groups_of_datasets_are_spelled_out_and_opponents_paired() -> None:
    found = {claim.id: claim for claim in claims()}
    assert found["attention-readout-wins"].datasets == SMALL + LARGE
    assert found["large-beats-scalable-gnns"].opponents == [("pprgo", ""), ("graphsaint", ""), ("grandplus", "")]
    assert found["both-parts-above-either"].opponents == [("nagphormer+", "+LNA"), ("nagphormer+", "+GNA")]
    assert found["hops-reddit-flat"].threshold == 0.1 and found["hops-reddit-flat"].datasets == ("reddit",)
    assert found["amazon2m-pprgo-second"].measure == "seconds"


GOOD = """
[[claim]]
id = "sample"
section = "6.2"
says = "One is above the other."
kind = "beats"
study = "accuracy-small"
models = ["gcn"]
versus = ["gat"]
datasets = ["photo"]
"""


def test_a_sample_claim_is_read(tmp_path: Path) -> None:
    file = tmp_path / "claims.toml"
    file.write_text(GOOD)
    assert claims(file) == [
        Claim("sample", "6.2", "One is above the other.", "beats", "accuracy-small", ("gcn",), ("photo",),
                    versus=("gat",))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("kind = ", "knd = "), "claim sample: .*unexpected keyword argument 'knd'"),
        (GOOD.replace('section = "6.2"', ""), "claim sample: .*missing 1 required positional argument: 'section'"),
        (GOOD.replace('id = "sample"', ""), "claim number 1: .*missing 1 required positional argument: 'id'"),
        (GOOD.replace('"beats"', '"beat"'), "claim sample: there is no kind 'beat'.*Did you mean 'beats'"),
        (GOOD.replace('versus = ["gat"]', ""), "claim sample: a claim of kind 'beats' needs versus"),
        (GOOD + 'table = "tab:normal"', "claim sample: the paper has no table 'tab:normal'"),
        (GOOD + 'holds_on = "some"', "claim sample: holds_on is all or most, not 'some'"),
        (GOOD.replace('"photo"', '"phto"'), "claim sample: there is no dataset or group 'phto'"),
        (GOOD.replace('["photo"]', "[]"), "claim sample: no dataset was named"),
        (GOOD + GOOD, "claim sample: this id is used twice"),
        ("[[claim]", "cannot be read"),
        ("", r"has no \[\[claim\]\] entries"),
    ],
)
def test_a_malformed_file_names_itself_and_the_claim(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "claims.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        claims(file)
    assert str(caught.value).startswith("claims.toml") and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.toml cannot be read"):
        claims(tmp_path / "nowhere.toml")


# ---- slips


def test_slips_are_listed_and_kept_out_of_the_data() -> None:
    found = {slip.id: slip for slip in slips()}
    assert {"reddit-nodes", "dataset-spellings", "layers-caption", "parts-on-reddit", "learning-rate-grid",
            "neighbourhood-or-walk", "edges-counted-two-ways"} <= set(found)  # fmt: skip
    assert {slip.kind for slip in found.values()} == set(SLIP_KINDS)
    assert all("\n" not in f"{slip.where}{slip.printed}{slip.right}" for slip in found.values())
    nodes = paper.published("tab:dataset").query("column == 'reddit' and measure == 'nodes'")["mean"].item()
    assert nodes == 232_965


def test_numbers_that_the_slips_quote_are_in_the_tables() -> None:
    plain, local, both = (
        means("tab:DA_result", model, variant)["reddit"]
        for model, variant in [("nagphormer", "none"), ("nagphormer+", "+LNA"), ("nagphormer+", "+NrAug")]
    )
    text = {slip.id: slip.right for slip in slips()}
    assert all(f"{number:.2f}" in text["parts-on-reddit"] for number in (plain, local, both))
    assert local < plain < both
    seconds = {model: means("tab:cost", model, measure="seconds") for model in ("pprgo", "nagphormer", "nagphormer+")}
    assert round(seconds["pprgo"]["amazon2m"] / seconds["nagphormer"]["amazon2m"], 1) == 2.6
    assert seconds["nagphormer"]["amazon2m"] < seconds["nagphormer+"]["amazon2m"] < seconds["pprgo"]["amazon2m"]


def test_a_slip_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "slips.toml"
    file.write_text('[[slip]]\nid = "x"\nkind = "lie"\nwhere = "1"\nprinted = "a"\nright = "b"\n')
    with pytest.raises(UserError, match=r"slips\.toml, slip x: there is no kind 'lie'"):
        slips(file)
