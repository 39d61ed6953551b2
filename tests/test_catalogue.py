"""Names, groups, aliases, typos, and a user's own files."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from raw_files import write_npz

from bench.datasets.catalogue import GROUPS, datasets, resolve
from bench.datasets.counts import Counts, count, differences, explain_edges
from bench.errors import UserError
from bench.text import nearest

SMALL = ["pubmed", "corafull", "computer", "photo", "cs", "physics"]
LARGE = ["aminer", "reddit", "amazon2m"]


def names(text: str) -> list[str]:
    return [dataset.name for dataset in resolve(text)]


def test_groups_hold_the_papers_datasets_in_its_order() -> None:
    assert names("small") == SMALL and names("large") == LARGE and names("all") == SMALL + LARGE
    assert names("small-twin") == [f"{name}-twin" for name in SMALL]
    assert names("large-twin") == [f"{name}-twin" for name in LARGE]
    assert names("all-twin") == [f"{name}-twin" for name in SMALL + LARGE]


@pytest.mark.parametrize(
    ("typed", "name"),
    [("Photo", "photo"), ("Computers", "computer"), ("AMiner-CS", "aminer"), ("ogbn-products", "amazon2m"),
     ("CoraFull", "corafull"), ("Coauthor-CS-twin", "cs-twin"), (" digits ", "digits")],
)  # fmt: skip
def test_aliases_and_case(typed: str, name: str) -> None:
    assert names(typed) == [name]


def test_each_dataset_comes_once_in_the_order_asked_for() -> None:
    assert names("reddit,photo,large,Photo") == ["reddit", "photo", "aminer", "amazon2m"]


@pytest.mark.parametrize(
    ("typed", "says"),
    [("phto", "Did you mean 'photo'"), ("lage", "Did you mean 'large'"), ("zzz", "no dataset or group 'zzz'"),
     ("", "no dataset"), (",", "no dataset"), ("nowhere/graph.npz", "there is no file nowhere/graph.npz")],
)  # fmt: skip
def test_unknown_names_are_the_users_mistake(typed: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        resolve(typed)
    assert "\n" not in str(caught.value)


def test_no_two_datasets_share_a_name_alias_or_group_name() -> None:
    spellings = [*GROUPS, *(word for dataset in datasets().values() for word in (dataset.name, *dataset.aliases))]
    assert len(spellings) == len(set(spellings)) and all(word == word.lower() for word in spellings)


def test_twins_take_rule_and_settings_of_their_originals_but_never_their_name() -> None:
    for name in SMALL + LARGE:
        real, twin = datasets()[name], datasets()[f"{name}-twin"]
        assert (twin.split_rule, twin.settings_name, twin.paper) == (real.split_rule, name, real.paper)
        assert twin.is_twin and not real.is_twin and "twin" in twin.title and twin.fingerprint is None
        assert real.twin in GROUPS and set(twin.groups).isdisjoint(real.groups)


def test_rules_of_the_large_sets() -> None:
    rules = {dataset.name: dataset.split_rule for dataset in resolve("large,photo,digits")}
    assert rules["aminer"] == rules["reddit"] == "per-class-20/30" and rules["amazon2m"] == "total-20/30"
    assert rules["photo"] == rules["digits"] == "uniform-60/20/20"


def test_a_split_ratio_takes_the_place_of_every_rule() -> None:
    assert {dataset.split_rule for dataset in resolve("photo,reddit", "50/25/25")} == {"uniform-50/25/25"}
    with pytest.raises(UserError, match="sum to 100"):
        resolve("photo", "50/25/30")


def test_a_file_of_ones_own_is_named_by_its_stem_but_never_takes_a_known_name(tmp_path: Path) -> None:
    own = resolve(str(write_npz(tmp_path / "mine.npz")))[0]
    assert (own.name, own.split_rule, own.settings_name, own.groups) == ("mine", "uniform-60/20/20", "", ())
    assert names(str(write_npz(tmp_path / "Photo.npz"))) == ["Photo.npz"]
    assert names(str(write_npz(tmp_path / "ogbn-products.npz"))) == ["ogbn-products.npz"]


def test_two_files_of_one_name_are_refused_and_one_file_twice_is_one(tmp_path: Path) -> None:
    one, two = (write_npz(tmp_path / folder / "graph.npz") for folder in ("a", "b"))
    assert names(f"{one},{one}") == ["graph"]
    with pytest.raises(UserError, match="both be called 'graph'"):
        resolve(f"{one},{two}")


def test_own_stamp_follows_the_file(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz")
    dataset = resolve(str(path))[0]
    before = dataset.stamp(None)
    assert before == dataset.stamp(None)
    write_npz(path, labels=np.arange(60) % 2)
    assert dataset.stamp(None) != before
    path.unlink()
    assert dataset.stamp(None) is None


def test_every_package_that_the_data_room_imports_is_declared() -> None:
    root = Path(__file__).parent.parent
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", (root / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert listed is not None
    declared = {
        name.replace("scikit-learn", "sklearn") for name in re.findall(r'^ *"([\w-]+)', listed[1], re.MULTILINE)
    }
    imported = set()
    for file in (root / "bench" / "datasets").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names - {"bench"} <= declared
    assert {"numpy", "sklearn"} <= imported & declared


def test_nearest_is_silent_where_nothing_is_near() -> None:
    assert nearest("Phto", ["photo", "cs"]) == " Did you mean 'photo'?"
    assert nearest("gnc", ["gnn", "gcn"]) == nearest("gnc", ["gcn", "gnn"]) == " Did you mean 'gcn'?"
    assert nearest("xyz", ["photo", "cs"]) == ""


PUBMED = Counts(nodes=19_717, entries=88_651, self_loops=3, isolated=0, features=500, classes=3)


def test_edge_counts_are_compared_the_way_the_paper_counts() -> None:
    paper = datasets()["pubmed"].paper
    assert paper is not None and differences(paper, PUBMED) == []
    assert "44,324" in explain_edges(paper, PUBMED) and "88,651" in explain_edges(paper, PUBMED)
    fewer = Counts(nodes=19_716, entries=88_649, self_loops=3, isolated=0, features=500, classes=3)
    assert differences(paper, fewer) == [
        "19,716 nodes instead of 19,717",
        f"44,323 edges instead of 44,324 (counting {paper.edges_mean})",
    ]


@pytest.mark.parametrize(("entries", "reading"), [(6_217_004, "each edge twice"), (2 * 6_217_004, "each edge once")])
def test_aminers_edges_may_be_counted_either_way(entries: int, reading: str) -> None:
    paper = datasets()["aminer"].paper
    counts = Counts(nodes=593_486, entries=entries, self_loops=0, isolated=0, features=100, classes=18)
    assert paper is not None and differences(paper, counts) == [] and reading in explain_edges(paper, counts)
    off = Counts(nodes=593_486, entries=entries + 2, self_loops=0, isolated=0, features=100, classes=18)
    assert "neither" in differences(paper, off)[0]


def test_counts_of_a_small_graph(tmp_path: Path) -> None:
    graph = resolve(str(write_npz(tmp_path / "ring.npz")))[0].load(None)
    assert count(graph) == Counts(nodes=60, entries=181, self_loops=1, isolated=0, features=5, classes=3)
    assert "2 x 90 edges + 1 self-loop)" in str(count(graph))
