"""A cell's key is a function of what is computed and of nothing else."""

import dataclasses
import json
import random
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cells import Cell, Protocol, canonical_json, make_cells
from bench.datasets.catalogue import datasets
from bench.errors import UserError
from bench.model import Model, Recipe
from bench.settings import Resolved, resolve_settings

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
CONFIGS = st.dictionaries(st.text(min_size=1), VALUES, max_size=6)
CELL = Cell("net", 1, "photo", "f" * 32, {"hidden": 8, "dropout": 0.5}, "uniform-60/20/20", 3, 4, {"trial": 3})


@given(CONFIGS, st.randoms())
def test_the_key_ignores_the_order_of_the_configuration(config: dict[str, Any], generator: random.Random) -> None:
    items = list(config.items())
    generator.shuffle(items)
    assert dataclasses.replace(CELL, config=config).key == dataclasses.replace(CELL, config=dict(items)).key


@given(CONFIGS, CONFIGS)
def test_different_configurations_have_different_keys(one: dict[str, Any], other: dict[str, Any]) -> None:
    same = dataclasses.replace(CELL, config=one).key == dataclasses.replace(CELL, config=other).key
    assert same == (canonical_json(one) == canonical_json(other))


@given(st.text(), CONFIGS)
def test_the_key_ignores_names_and_labels(name: str, labels: dict[str, Any]) -> None:
    assert dataclasses.replace(CELL, dataset=name, labels=labels).key == CELL.key


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"revision": 2},
        {"data": "0" * 32},
        {"config": {"hidden": 9, "dropout": 0.5}},
        {"config": {"hidden": 8}},
        {"split_rule": "sealed:uniform-60/20/20"},
        {"split_seed": 4},
        {"seed": 3},
        {"split_seed": 4, "seed": 3},
    ],
)
def test_the_key_sees_everything_else(change: dict[str, Any]) -> None:
    assert dataclasses.replace(CELL, **change).key != CELL.key


def test_the_key_never_changes() -> None:
    """The ledger lives on keys: this one was worked out apart from the code, with sha256sum on the text below."""
    text = (
        '{"config":{"dropout":0.5,"hidden":8},"data":"ffffffffffffffffffffffffffffffff","model":"net","revision":1,'
        '"seed":4,"split_rule":"uniform-60/20/20","split_seed":3}'
    )
    assert canonical_json(json.loads(text)) == text
    assert CELL.key == "0bcf454c4cfcc0a5fce1"


def test_not_a_number_has_no_canonical_form() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"dropout": float("nan")})


class Net(Model):
    name = "net"
    revision = 7
    settings: ClassVar[dict] = {"author": {"photo": {"patience": 9}}}


TWIN = datasets()["photo-twin"]


def cells(mode: str = "fresh", trials: int = 3, seed: int = 0) -> list[Cell]:
    resolved = resolve_settings(Net, TWIN.settings_name)
    return make_cells(Net, TWIN, "abc", resolved, Protocol(trials, seed, mode))


def test_the_cells_of_one_model_on_one_dataset() -> None:
    made = cells(trials=2, seed=5)
    assert [(cell.split_seed, cell.seed) for cell in made] == [(5, 5), (6, 6)]
    first = made[0]
    assert (first.model, first.revision, first.dataset, first.data) == ("net", 7, "photo-twin", "abc")
    later = {item.name for item in dataclasses.fields(Recipe) if item.metadata.get("added")}
    assert later >= {"plateau_factor", "plateau_patience", "metric"}
    recipe = {name: value for name, value in dataclasses.asdict(Recipe()).items() if name not in later}
    assert first.config == {**recipe, "patience": 9}
    assert [dict(cell.labels) for cell in made] == [
        {"settings": "author", "mode": "fresh", "trial": 0},
        {"settings": "author", "mode": "fresh", "trial": 1},
    ]


def test_settings_that_came_later_are_part_of_the_key_only_where_they_are_used() -> None:
    def made(**overrides: float) -> Cell:
        return make_cells(Net, TWIN, "abc", resolve_settings(Net, "photo", overrides=overrides), Protocol(1))[0]

    assert made(plateau_factor=0.5).key == made().key
    changed = made(plateau_factor=0.3)
    assert changed.key != made().key and changed.config["plateau_factor"] == 0.3
    assert Net.Config(**made().config) == resolve_settings(Net, "photo").config


def test_modes_share_what_they_share() -> None:
    fresh, frozen, sealed = cells("fresh"), cells("frozen"), cells("sealed")
    assert fresh[0].key == frozen[0].key
    assert len({cell.key for cell in fresh + frozen + sealed}) == 8
    assert {cell.split_seed for cell in frozen} == {0}
    assert {cell.split_rule for cell in sealed} == {"sealed:uniform-60/20/20"}


@given(st.integers(0, 50), st.integers(1, 8), st.integers(1, 8))
def test_more_trials_only_add_cells(seed: int, few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert [cell.key for cell in cells(trials=more, seed=seed)][:few] == [c.key for c in cells(trials=few, seed=seed)]


@pytest.mark.parametrize(("trials", "seed"), [(1, -1), (1, 2**32), (2, 2**32 - 1), (10, 99999999999)])
@pytest.mark.parametrize("mode", ["fresh", "frozen", "sealed"])
def test_seeds_that_no_generator_takes_are_refused(trials: int, seed: int, mode: str) -> None:
    with pytest.raises(UserError, match=f"seed .* not {seed}") as caught:
        Protocol(trials, seed, mode)
    assert "\n" not in str(caught.value)


def test_the_last_seed_that_generators_take() -> None:
    assert [cell.seed for cell in cells(trials=2, seed=2**32 - 2)] == [2**32 - 2, 2**32 - 1]


def test_a_cap_that_caps_nothing_is_the_same_cell() -> None:
    def key(resolved: Resolved) -> str:
        return make_cells(Net, TWIN, "abc", resolved, Protocol(1))[0].key

    free = key(resolve_settings(Net, "photo"))
    assert key(resolve_settings(Net, "photo", max_epochs=1000)) == free
    assert key(resolve_settings(Net, "photo", max_epochs=999)) != free
