"""From a model's defaults, a lane of published settings and the user's `--set` to one checked configuration."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from bench.errors import UserError
from bench.recipe import Recipe
from bench.text import as_typed, nearest

if TYPE_CHECKING:
    from bench.cards import Card
    from bench.model import Model

DEFAULT_LANE = "default"  # the Config's own defaults, which every model has
AUTHOR_LANE = "author"  # what the paper's authors published; every model may be asked for it
# What `tune` found, in a folder of that name below the results: the most accurate settings, and the cheapest of those
# that are about as accurate. Every model may be asked for them.
TUNED_LANE, CHEAP_LANE = TUNED_LANES = ("tuned", "tuned-cheap")
_NEVER_NEGATIVE = ("weight_decay", "clip_norm", "final_learning_rate")  # the recipe's floats that may be 0
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True)
class Resolved:
    """A full configuration and the labels that say where it came from."""

    config: Recipe
    labels: Mapping[str, Any] = field(default_factory=dict)  # settings, and `set` and `cap` where they had an effect

    @property
    def values(self) -> dict[str, Any]:
        """The configuration as cells and records hold it: without later settings that still have their default."""
        values = dataclasses.asdict(self.config)
        for item in dataclasses.fields(self.config):
            if item.metadata.get("added") and values[item.name] == item.default:
                del values[item.name]
        return values


def resolve_settings(
    model: type[Model],
    settings_name: str,
    lane: str = AUTHOR_LANE,
    overrides: Mapping[str, Any] | None = None,
    max_epochs: int | None = None,
    tuned: Mapping[str, Any] | None = None,
) -> Resolved:
    """Model defaults, then the lane's settings for this dataset if it has any, then the user's own, then the cap.

    A tuned lane's settings are no part of the model: the caller has looked them up (bench/tuning/winners.py).
    """
    published = tuned if lane in TUNED_LANES else model.settings.get(lane, {}).get(settings_name)
    hints = field_types(model)
    values: dict[str, Any] = {}
    for key, value in (published or {}).items():
        try:
            values[key] = coerce(hints[key], value)
        except (KeyError, ValueError) as error:
            raise UserError(f"{model.name}: bad {lane} setting {key}={value!r} for {settings_name} ({error})") from None
    values.update(overrides or {})
    config = _configure(model, values)

    labels: dict[str, Any] = {"settings": DEFAULT_LANE if published is None else lane}
    if overrides:
        labels["set"] = dict(overrides)
    if max_epochs is not None and max_epochs < config.max_epochs:
        labels["cap"] = max_epochs
        config = _configure(model, {**values, "max_epochs": max_epochs})
    return Resolved(config, labels)


def check_config(model: type[Model]) -> None:
    """Refuse a model whose configuration no run could use; a UserError says what is wrong with it."""
    kind: Any = model.Config
    if not (isinstance(kind, type) and issubclass(kind, Recipe)):
        raise UserError(f"{model.name}: its Config must be a class that derives from bench.model.Recipe")
    own = vars(kind)
    if "__dataclass_fields__" not in own:
        ignored = own.get("__annotations__", {}).keys() | (
            own.keys() & {item.name for item in dataclasses.fields(kind)}
        )
        if ignored:
            raise UserError(
                f"{model.name}: its Config needs @dataclass(frozen=True); without it {', '.join(sorted(ignored))} "
                "would be ignored"
            )
    try:
        field_types(model)
    except NameError as error:
        raise UserError(f"{model.name}: the types of its settings cannot be read: {error}") from None
    resolve_settings(model, "", DEFAULT_LANE)
    for lane, published in model.settings.items():
        for name in published:
            resolve_settings(model, name, lane)


def _configure(model: type[Model], values: Mapping[str, Any]) -> Recipe:
    try:
        check_values(model.Config, values)
        return model.Config(**values)
    except ValueError as error:  # a Config may check its own fields against each other
        raise UserError(f"{model.name}: {' '.join(str(error).split())}") from None
    except (ArithmeticError, TypeError) as error:  # or stumble over what it did not expect
        chosen = ", ".join(f"{key}={as_typed(value)}" for key, value in values.items()) or "its own defaults"
        raise UserError(f"{model.name} cannot use {chosen}: {' '.join(str(error).split())}") from None


def check_values(kind: type[Recipe], values: Mapping[str, Any]) -> None:
    """Refuse what no run could use, before the Config computes with it; ValueError says which, and what is allowed.

    What Recipe declares is judged by Recipe's default: a model whose own batch size is 500 may still be told 0, "all".
    """
    defaults = {item.name: _default(item) for item in dataclasses.fields(kind)}
    full = {**defaults, **values}
    defaults.update((item.name, _default(item)) for item in dataclasses.fields(Recipe))
    for name, value in full.items():
        for number in value if isinstance(value, tuple) else (value,):
            allowed = _unless_allowed(name, number, defaults.get(name))
            if allowed:
                raise ValueError(f"{name} must be {allowed}, not {as_typed(value)}")
    warmup, decay = full["warmup_updates"], full["decay_updates"]
    if full["schedule"].startswith("warmup-") and decay <= warmup:
        raise ValueError(
            f"decay_updates must be above warmup_updates ({warmup}) where schedule is {full['schedule']}, not {decay}"
        )
    if not 0 < full["plateau_factor"] < 1:
        raise ValueError(f"plateau_factor must lie between 0 and 1, not {full['plateau_factor']}")


def _unless_allowed(name: str, number: Any, default: Any) -> str:
    """What this field allows if this is not it, otherwise nothing."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return ""
    if isinstance(number, float) and not math.isfinite(number):
        return "a finite number"
    if name.endswith("dropout"):
        return "" if 0 <= number < 1 else "at least 0 and below 1"
    if name == "learning_rate":
        return "" if number > 0 else "above 0"
    if name in _NEVER_NEGATIVE:
        return "" if number >= 0 else "at least 0"
    if isinstance(number, float) or isinstance(default, float):
        return ""
    usual = default if isinstance(default, tuple) else (default,)
    least = 1 if usual and all(isinstance(item, int) and item >= 1 for item in usual) else 0
    return "" if number >= least else f"at least {least}"


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return None if item.default is dataclasses.MISSING else item.default


def check_lane(lane: str, models: Iterable[type[Model] | Card]) -> None:
    """A lane must be declared by one of the chosen models; `author`, `default` and the tuned ones are always there."""
    known = {DEFAULT_LANE, AUTHOR_LANE, *TUNED_LANES}.union(*(model.settings for model in models))
    if lane not in known:
        raise UserError(
            f"unknown settings '{lane}'; these models have: {', '.join(sorted(known))}.{nearest(lane, known)}"
        )


def check_keys(items: Sequence[str], known: Mapping[str, Collection[str]]) -> None:
    """Refuse what is not written as key=value, and keys that none of the models has; `known` are theirs by name."""
    for key in _pairs(items):
        if not any(key in keys for keys in known.values()):
            card = next(iter(known)) if len(known) == 1 else "MODEL"
            guess = nearest(key, {name for keys in known.values() for name in keys})
            raise UserError(f"--set {key}: no chosen model has this setting.{guess} `list {card}` shows them")


def parse_overrides(items: Sequence[str], models: Sequence[type[Model]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """`key=value` texts as typed values per model name, and a line for each key that some of the models do not have."""
    check_keys(items, {model.name: field_types(model) for model in models})
    overrides: dict[str, dict[str, Any]] = {model.name: {} for model in models}
    notes = []
    for key, text in _pairs(items).items():
        having = [model for model in models if key in field_types(model)]
        for model in having:
            try:
                overrides[model.name][key] = parse_value(field_types(model)[key], text)
            except ValueError as error:
                raise UserError(f"--set {key}={text}: {model.name} wants {error}") from None
        ignoring = [model.name for model in models if model not in having]
        if ignoring:
            notes.append(f"--set {key} has no effect on {', '.join(ignoring)}")
    return overrides, notes


def _pairs(items: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, text = item.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UserError(f"--set {item}: write it as key=value")
        if key in pairs:
            raise UserError(f"--set {key} is given twice")
        pairs[key] = text.strip()
    return pairs


def field_types(model: type[Model]) -> Mapping[str, Any]:
    """Setting → its type, for every field of the model's configuration."""
    return _types(model.Config)  # type: ignore[arg-type]  # a class is hashable; mypy looks at its instances


@functools.cache
def _types(kind: type[Recipe]) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind) if item.init}


def parse_value(kind: Any, text: str) -> Any:
    """A typed value from what the user wrote; ValueError says what would have been right."""
    if get_origin(kind) is Literal:
        for choice in get_args(kind):
            if text == str(choice):
                return choice
        raise ValueError(_wanted(kind) + "." + nearest(text, [str(choice) for choice in get_args(kind)]))
    if get_origin(kind) in (Union, types.UnionType):
        return _first_that_fits(kind, text, parse_value)
    if get_origin(kind) is tuple:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return tuple(parse_value(get_args(kind)[0], part) for part in parts)
    if kind is types.NoneType and text.lower() == "none":
        return None
    if kind is bool and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    if kind is str:
        return text
    if kind in (int, float):
        try:
            return coerce(kind, kind(text))
        except ValueError:
            pass  # the message below is the better one
    raise ValueError(f"{_wanted(kind)}, not '{text}'")


def coerce(kind: Any, value: Any) -> Any:
    """A Python value as a field of this type holds it, so that 0 and 0.0 give one configuration and one key."""
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if get_origin(kind) in (Union, types.UnionType):
        return _first_that_fits(kind, value, coerce)
    if get_origin(kind) is tuple and isinstance(value, (tuple, list)):
        return tuple(coerce(get_args(kind)[0], part) for part in value)
    if kind is types.NoneType and value is None:
        return None
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind in (bool, int, str) and type(value) is kind:
        return value
    raise ValueError(f"{_wanted(kind)}, not {value!r}")


def _first_that_fits(kind: Any, value: Any, convert: Any) -> Any:
    for option in sorted(get_args(kind), key=lambda option: option is str):  # text fits anything: try it last
        try:
            return convert(option, value)
        except ValueError:
            continue
    raise ValueError(f"{_wanted(kind)}, not {value!r}")


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_wanted(option) for option in get_args(kind))
    if get_origin(kind) is tuple:
        return f"a comma-separated list ({_wanted(get_args(kind)[0])})"
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a finite number",
        str: "text",
        types.NoneType: "none",
    }
    return names.get(kind, str(kind))
