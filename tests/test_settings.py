"""Defaults, lanes, `--set` and the cap make one checked configuration."""

import dataclasses
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


@dataclass(frozen=True)
class FragileConfig(Recipe):
    share: float = 0.5
    skipped: int = 0
    input_dropout: bool = True
    widths: tuple[int, ...] = (8, 8)
    ranks: int | None = None

    def __post_init__(self) -> None:
        if self.max_epochs < 3:
            raise ValueError("three epochs\nare the least")
        if 1 / self.share > 1e6:
            raise TypeError("share is odd")


class Fragile(Model):
    name = "fragile"
    Config = FragileConfig


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0, not 0.0"),
        ({"learning_rate": -1e-3}, "learning_rate must be above 0, not -0.001"),
        ({"weight_decay": -1e-9}, "weight_decay must be at least 0, not -1e-09"),
        ({"clip_norm": -1.0}, "clip_norm must be at least 0, not -1.0"),
        ({"final_learning_rate": -1.0}, "final_learning_rate must be at least 0, not -1.0"),
        ({"batch_size": -1}, "batch_size must be at least 0, not -1"),
        ({"evaluation_batch": -1}, "evaluation_batch must be at least 0, not -1"),
        ({"warmup_updates": -1}, "warmup_updates must be at least 0, not -1"),
        ({"decay_updates": -1}, "decay_updates must be at least 0, not -1"),
        ({"max_epochs": 0}, "max_epochs must be at least 1, not 0"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1, not 0"),
        ({"patience": 0}, "patience must be at least 1, not 0"),
        ({"learning_rate": float("inf")}, "learning_rate must be a finite number, not inf"),
        ({"clip_norm": float("nan")}, "clip_norm must be a finite number, not nan"),
        (
            {"schedule": "warmup-linear", "warmup_updates": 9, "decay_updates": 9},
            "decay_updates must be above warmup_updates (9) where schedule is warmup-linear, not 9",
        ),
        ({"hidden": 0}, "hidden must be at least 1, not 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, not -0.1"),
        ({"ranks": -1}, "ranks must be at least 0, not -1"),
        ({"widths": (8, 0)}, "widths must be at least 1, not 8,0"),
        ({"hidden": -(10**400)}, "hidden must be at least 1, not -1000"),
    ],
)
def test_values_that_no_run_could_use_are_refused(values: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_settings(Tokens, "reddit", overrides=values)
    assert str(caught.value).startswith(f"tokens: {says}")
    broken = type("Broken", (Tokens,), {"settings": {"author": {"photo": values}}})
    with pytest.raises(UserError):
        resolve_settings(broken, "photo")


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (Tokens, {"weight_decay": 0.0, "clip_norm": 0.0, "batch_size": 0, "evaluation_batch": 0}),
        (Tokens, {"max_epochs": 1, "evaluate_every": 1, "patience": 1, "dropout": 0.0}),
        (Tokens, {"schedule": "warmup-linear", "warmup_updates": 0, "decay_updates": 1}),
        (Tokens, {"warmup_updates": 9, "decay_updates": 9}),  # the constant schedule asks neither
        (Tokens, {"dropout": 0.999, "ranks": 0, "widths": (1,)}),
        (Fragile, {"skipped": 0, "input_dropout": False, "ranks": None, "share": -2.5}),
    ],
)
def test_values_at_the_edge_are_taken(model: type[Model], values: dict[str, object]) -> None:
    config = resolve_settings(model, "reddit", overrides=values).config
    assert {name: getattr(config, name) for name in values} == values


def test_a_models_own_default_does_not_narrow_what_a_recipe_allows() -> None:
    batched = dataclasses.make_dataclass("Batched", [("batch_size", int, 500)], bases=(Recipe,), frozen=True)
    model = type("Batches", (Model,), {"name": "batches", "Config": batched})
    assert resolve_settings(model, "photo", overrides={"batch_size": 0}).config.batch_size == 0


@given(st.integers(-3, 3), st.floats(-2, 2))
def test_what_is_refused_and_what_is_taken_leave_no_gap(number: int, share: float) -> None:
    def is_taken(**values: object) -> bool:
        try:
            resolve_settings(Tokens, "reddit", overrides=values)
        except UserError:
            return False
        return True

    assert is_taken(evaluate_every=number) == (number >= 1)
    assert is_taken(batch_size=number) == (number >= 0)
    assert is_taken(dropout=share) == (0 <= share < 1)
    assert is_taken(learning_rate=share) == (share > 0)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"share": 0.0}, "fragile cannot use share=0.0: float division by zero"),
        ({"share": 1e-7}, "fragile cannot use share=1e-07: share is odd"),
        ({"shares": 2}, "fragile cannot use shares=2: "),
        ({"max_epochs": 2}, "fragile: three epochs are the least"),
    ],
)
def test_a_config_that_breaks_is_one_line(values: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_settings(Fragile, "photo", overrides=values)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)


def test_a_cap_is_held_to_the_same_rules() -> None:
    with pytest.raises(UserError, match="three epochs are the least"):
        resolve_settings(Fragile, "photo", max_epochs=2)
    with pytest.raises(UserError, match="max_epochs must be at least 1, not 0"):
        resolve_settings(Tokens, "photo", max_epochs=0)


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
