"""Search spaces: what a domain admits, and that every model's spaces fit its configuration."""

from __future__ import annotations

from typing import Any

import pytest

from bench import registry
from bench.model import Model
from bench.settings import coerce, field_types, resolve_settings
from bench.space import Domain, Even, Log, Whole, admits


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        ((1, 8), [1, 8], [2, "8"]),
        (("none", "layer"), ["none"], ["batch"]),
        (Whole(2, 5), [2, 3, 5], [1, 6, 2.5]),
        (Even(0.2, 0.8), [0.2, 0.5, 0.8], [0.1, 0.81]),
        (Log(1e-4, 1e-2), [1e-4, 5e-3], [0.0, 0.1]),
    ],
)
def test_what_a_domain_admits(domain: Domain, inside: list[Any], outside: list[Any]) -> None:
    assert all(admits(domain, value) for value in inside)
    assert not any(admits(domain, value) for value in outside)


every_model = pytest.mark.parametrize(
    "model", [pytest.param(m, id=name) for name, m in registry.models().items() if m.spaces]
)


@every_model
def test_every_model_has_a_space_of_valid_settings(model: type[Model]) -> None:
    types = field_types(model)
    assert "wide" in model.spaces
    for space in model.spaces.values():
        assert len(space) >= 3 and space.keys() <= types.keys()
        for name, domain in space.items():
            ends = domain if isinstance(domain, tuple) else (domain.low, domain.high)
            assert len(set(ends)) == len(ends) >= 2, name
            for value in ends:
                assert coerce(types[name], value) == value, name
                if not isinstance(domain, tuple):
                    assert domain.low < domain.high


@every_model
def test_the_wide_space_admits_what_was_published(model: type[Model]) -> None:
    lanes = {("author", dataset) for dataset in model.settings.get("author", {})} | {("default", "photo")}
    for lane, dataset in lanes:
        config = resolve_settings(model, dataset, lane).config
        for name, domain in model.spaces["wide"].items():
            assert admits(domain, getattr(config, name)), (lane, dataset, name, getattr(config, name))
