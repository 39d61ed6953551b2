"""Which settings a slot gets: the same whatever happened in between."""

from __future__ import annotations

import itertools

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from bench.errors import UserError
from bench.space import Even, Log, Space, Whole
from bench.tuning.sampling import SlotSampler, describe, distributions

SPACE: Space = {"hidden": (64, 128), "hops": Whole(2, 4), "rate": Log(1e-4, 1e-1), "share": Even(0.0, 1.0)}
FINITE: Space = {"hidden": (64, 128), "hops": Whole(2, 4)}


def drawn(sampler: SlotSampler, space: Space, slots: list[int]) -> dict[int, dict[str, object]]:
    """What each slot gets when they are asked for in this order; every result is the slot's own number."""
    study = optuna.create_study(direction="maximize")
    found = {}
    for slot in slots:
        found[slot] = sampler.draw(slot, study)
        add(study, found[slot], space, float(slot))
    return found


def add(study: optuna.Study, settings: dict[str, object], space: Space, value: float | None) -> None:
    """A complete trial with this value, or one that is running."""
    state = TrialState.RUNNING if value is None else TrialState.COMPLETE
    study.add_trial(create_trial(state=state, params=settings, distributions=distributions(space), value=value))


def test_a_space_in_optunas_words() -> None:
    assert distributions(SPACE) == {
        "hidden": CategoricalDistribution((64, 128)),
        "hops": IntDistribution(2, 4),
        "rate": FloatDistribution(1e-4, 1e-1, log=True),
        "share": FloatDistribution(0.0, 1.0),
    }


def test_domains_that_differ_are_described_differently() -> None:
    domains = [(1, 5), Whole(1, 5), Even(1, 5), Log(1, 5), (1, 4), Whole(1, 4), Even(1, 4), Log(1, 4)]
    assert len({describe(domain) for domain in domains}) == len(domains)


def test_random_settings_depend_on_seed_and_slot_alone() -> None:
    slots = list(range(12))
    first = drawn(SlotSampler("random", 3, SPACE, None), SPACE, slots)
    again = drawn(SlotSampler("random", 3, SPACE, None), SPACE, slots[::-1])
    other = drawn(SlotSampler("random", 4, SPACE, None), SPACE, slots)
    assert first == again
    assert len({tuple(point.values()) for point in first.values()}) == 12  # no slot repeats another
    assert first != other


def test_tpe_goes_on_as_if_it_had_never_stopped() -> None:
    slots = list(range(20))  # TPE draws its first ten at random
    whole = drawn(SlotSampler("tpe", 0, SPACE, None), SPACE, slots)
    study = optuna.create_study(direction="maximize")
    pieces: dict[int, dict[str, object]] = {}
    for slot in slots:  # a new sampler for every single trial
        pieces[slot] = SlotSampler("tpe", 0, SPACE, None).draw(slot, study)
        add(study, pieces[slot], SPACE, float(slot))
    assert pieces == whole


@pytest.mark.parametrize("running", [1, 4])
def test_trials_that_are_running_change_nothing(running: int) -> None:
    """Theirs may be dead drivers, which a study that was never stopped would not have."""
    found = []
    for others in (0, running):
        sampler = SlotSampler("tpe", 0, SPACE, None)
        study = optuna.create_study(direction="maximize")
        for slot in range(15):
            add(study, sampler.draw(slot, study), SPACE, float(slot))
        for other in range(others):
            add(study, sampler.draw(100 + other, study), SPACE, None)
        found.append(sampler.draw(15, study))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["tpe", "random", "grid"])
def test_the_first_slot_gets_what_is_tried_first(name: str) -> None:
    first = {"hidden": 128, "hops": 3}
    found = drawn(SlotSampler(name, 0, FINITE, first), FINITE, [0, 1, 2])
    assert found[0] == first
    without = drawn(SlotSampler("random", 0, FINITE, None), FINITE, [0, 1, 2])
    if name == "random":
        assert found[1] == without[1] and found[2] == without[2]


@pytest.mark.parametrize("first", [None, {"hidden": 128, "hops": 3}])
def test_a_grid_has_every_point_once(first: dict[str, int] | None) -> None:
    sampler = SlotSampler("grid", 0, FINITE, first)
    assert sampler.size == 6
    points = list(drawn(sampler, FINITE, list(range(6))).values())
    everything = [{"hidden": hidden, "hops": hops} for hidden, hops in itertools.product((64, 128), (2, 3, 4))]
    assert sorted(points, key=str) == sorted(everything, key=str)
    assert points != everything  # shuffled: a part of the grid is a fair part


def test_what_cannot_be_sampled() -> None:
    with pytest.raises(UserError, match=r"there is no sampler 'tep'.*Did you mean 'tpe'"):
        SlotSampler("tep", 0, FINITE, None)
    with pytest.raises(UserError, match="rate is any number"):
        SlotSampler("grid", 0, SPACE, None)
    with pytest.raises(UserError, match="1,002,001 points"):
        SlotSampler("grid", 0, {"a": Whole(0, 1000), "b": Whole(0, 1000)}, None)
