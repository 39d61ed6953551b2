"""Defaults, lanes, `--set` and the cap make one checked configuration."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UserError
from bench.model import Model, Recipe
from bench.settings import check_lane, coerce, parse_overrides, parse_value, resolve_settings


@dataclass(frozen=True)
class TokenConfig(Recipe):
    hidden: int = 64
    dropout: float = 0.5
    readout: Literal["attention", "sum"] = "attention"
    encode: bool = True
    ranks: int | None = None
    widths: tuple[int, ...] = (8, 8)

    def __post_init__(self) -> None:
        if self.hidden % 8:
            raise ValueError("hidden must be a multiple of 8")


class Tokens(Model):
    name = "tokens"
    Config = TokenConfig
    settings: ClassVar[dict] = {
        "author": {"photo": {"hidden": 128, "dropout": 0}, "plain": {}},
        "tuned-baseline": {"photo": {"hidden": 256}},
    }


@dataclass(frozen=True)
class PlainConfig(Recipe):
    hidden: int = 16
    alpha: float = 0.1


class Plain(Model):
    name = "plain"
    Config = PlainConfig


def test_each_layer_overrides_the_one_before() -> None:
    resolved = resolve_settings(Tokens, "photo", "author", {"dropout": 0.25})
    assert resolved.config == TokenConfig(hidden=128, dropout=0.25)
    assert resolved.labels == {"settings": "author", "set": {"dropout": 0.25}}


def test_a_lane_without_this_dataset_is_labelled_default() -> None:
    assert resolve_settings(Tokens, "reddit", "author").labels == {"settings": "default"}
    assert resolve_settings(Tokens, "reddit", "author").config == TokenConfig()
    assert resolve_settings(Plain, "photo", "tuned-baseline").labels == {"settings": "default"}
    assert resolve_settings(Tokens, "photo", "default").config == TokenConfig()


def test_author_settings_that_equal_the_defaults_are_still_author_settings() -> None:
    assert resolve_settings(Tokens, "plain", "author").labels == {"settings": "author"}


def test_whole_numbers_become_floats_where_the_field_is_one() -> None:
    config = resolve_settings(Tokens, "photo", "author").config
    assert isinstance(config, TokenConfig)
    dropout = config.dropout
    assert dropout == 0.0
    assert isinstance(dropout, float)


def test_the_cap_lowers_and_never_raises() -> None:
    capped = resolve_settings(Tokens, "photo", max_epochs=7)
    assert capped.config.max_epochs == 7
    assert capped.labels["cap"] == 7
    free = resolve_settings(Tokens, "photo", overrides={"max_epochs": 5}, max_epochs=7)
    assert free.config.max_epochs == 5
    assert "cap" not in free.labels


def test_a_config_that_refuses_its_values_is_the_users_error() -> None:
    with pytest.raises(UserError, match="tokens: hidden must be a multiple of 8"):
        resolve_settings(Tokens, "photo", overrides={"hidden": 12})


@pytest.mark.parametrize(
    "wrong", [{"hiden": 1}, {"hidden": 1.5}, {"readout": "mean"}, {"encode": 1}, {"dropout": None}]
)
def test_wrong_published_settings_are_found(wrong: dict) -> None:
    broken = type("Broken", (Tokens,), {"settings": {"author": {"photo": wrong}}})
    with pytest.raises(UserError, match=f"bad author setting {next(iter(wrong))}="):
        resolve_settings(broken, "photo")


def test_lanes() -> None:
    check_lane("author", [Plain])
    check_lane("default", [Plain])
    check_lane("tuned-baseline", [Plain, Tokens])
    with pytest.raises(UserError, match=r"unknown settings 'tuned-baselin'.*Did you mean 'tuned-baseline'"):
        check_lane("tuned-baselin", [Plain, Tokens])
    with pytest.raises(UserError, match="unknown settings 'tuned-baseline'"):
        check_lane("tuned-baseline", [Plain])


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("hidden=32", 32),
        ("dropout=0", 0.0),
        ("dropout=1e-1", 0.1),
        ("readout=sum", "sum"),
        ("encode=off", False),
        ("encode=TRUE", True),
        ("ranks=none", None),
        ("ranks=3", 3),
        ("widths=4,2", (4, 2)),
        (" patience = 9 ", 9),
    ],
)
def test_typed_values(item: str, value: object) -> None:
    overrides, notes = parse_overrides([item], [Tokens])
    (parsed,) = overrides["tokens"].values()
    assert parsed == value
    assert type(parsed) is type(value)
    assert notes == []


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("hidden=many", "--set hidden=many: tokens wants a whole number, not 'many'"),
        ("hidden=1.5", "a whole number"),
        ("dropout=nan", "a finite number"),
        ("dropout=inf", "a finite number"),
        ("dropout=", "a finite number"),
        ("readout=atention", "one of attention, sum. Did you mean 'attention'?"),
        ("encode=maybe", "true or false"),
        ("ranks=x", "a whole number or none"),
        ("widths=4,x", "a whole number"),
        ("hiden=4", "no chosen model has this setting. Did you mean 'hidden'?"),
        ("hidden", "write it as key=value"),
        ("=3", "write it as key=value"),
    ],
)
def test_bad_overrides(item: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_overrides([item], [Tokens])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_given_twice() -> None:
    with pytest.raises(UserError, match="hidden is given twice"):
        parse_overrides(["hidden=8", "hidden=16"], [Tokens])


def test_a_key_applies_to_the_models_that_have_it() -> None:
    overrides, notes = parse_overrides(["alpha=0.2", "hidden=8"], [Tokens, Plain])
    assert overrides == {"tokens": {"hidden": 8}, "plain": {"alpha": 0.2, "hidden": 8}}
    assert notes == ["--set alpha has no effect on tokens"]
    with pytest.raises(UserError, match="no chosen model"):
        parse_overrides(["alpha=0.2"], [Tokens])


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_being_written(value: float) -> None:
    assert parse_value(float, repr(value)) == float(value)
    if isinstance(value, int):
        assert parse_value(int, str(value)) == value
        assert coerce(float, value) == float(value)
