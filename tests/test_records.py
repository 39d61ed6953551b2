from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UserError
from bench.records import (
    STATUSES,
    memory_used,
    newest,
    parse_statuses,
    preparation_seconds,
    wall_seconds,
)
from bench.reuse import find_reusable, satisfies

GB = 10**9


def record(status: str, memory: float | None = None, time: float | None = None, **used: Any) -> dict[str, Any]:
    """A record that took 100 s in all and 3 GB above its baseline, unless told otherwise."""
    peak = used.get("peak", 3 * GB)
    return {
        "status": status,
        "limits": {"memory": memory, "time": time},
        "phases": {
            "load": {"seconds": 9.0, "compile_seconds": 0.0, "peak_anonymous": GB},
            "train": {"seconds": used.get("seconds", 100.0) - 10, "compile_seconds": 0.5, "peak_anonymous": peak + GB},
        },
        "overhead_seconds": 0.5,
        "baseline_anonymous": GB,
        "environment": {"device": used.get("device", "cpu")},
    }


@pytest.mark.parametrize(
    ("earlier", "memory", "answer"),
    [
        (record("ok", 11 * GB), 16 * GB, True),
        (record("ok", 11 * GB), None, True),
        (record("ok", 11 * GB), 8 * GB, True),  # measured: 3 GB
        (record("ok", 11 * GB), 2 * GB, False),
        (record("ok"), 4 * GB, True),
        (record("ok"), 2 * GB, False),
        (record("oom", 8 * GB), 11 * GB, False),
        (record("oom", 8 * GB), None, False),
        (record("oom", 8 * GB), 8 * GB, True),
        (record("oom", 8 * GB), 4 * GB, True),
        (record("oom"), 4 * GB, True),
        (record("oom"), None, True),
        (record("timeout", 8 * GB, 60), 4 * GB, False),  # no time limit is asked for: it might finish
        (record("error", 8 * GB), 11 * GB, True),
        (record("diverged"), 1 * GB, True),
        (record("unsupported"), None, True),
        (record("interrupted"), None, False),
    ],
)
def test_memory_limits_are_predicates(earlier: dict[str, Any], memory: int | None, answer: bool) -> None:
    assert satisfies(earlier, memory, None) is answer


@pytest.mark.parametrize(
    ("earlier", "time", "answer"),
    [
        (record("ok", time=1200), 3600, True),
        (record("ok"), 100, True),  # it took 100 s
        (record("ok"), 99, False),
        (record("ok", time=1200), None, True),
        (record("timeout", time=60), 60, True),
        (record("timeout", time=60), 30, True),
        (record("timeout", time=60), 61, False),
        (record("timeout", time=60), None, False),
        (record("oom", GB, 60), None, False),  # nor is a memory limit asked for
    ],
)
def test_time_limits_are_predicates(earlier: dict[str, Any], time: float | None, answer: bool) -> None:
    assert satisfies(earlier, None, time) is answer


LIMITS = st.none() | st.integers(1, 10)


@given(st.sampled_from(["ok", "oom", "timeout"]), LIMITS, LIMITS, LIMITS, LIMITS, st.integers(1, 10))
def test_a_success_holds_under_looser_limits_and_a_failure_under_tighter_ones(
    status: str, own_memory: int | None, own_time: int | None, memory: int | None, time: int | None, more: int
) -> None:
    earlier = record(status, own_memory, own_time, peak=5, seconds=12.0)
    if not satisfies(earlier, memory, time):
        return
    looser = (None if memory is None else memory + more, None if time is None else time + more)
    tighter = (more if memory is None else max(memory - more, 0), more if time is None else max(time - more, 0))
    assert satisfies(earlier, *(looser if status == "ok" else tighter))


def test_memory_counts_above_the_baseline_and_on_the_device_as_reserved() -> None:
    assert memory_used(record("ok")) == 3 * GB
    on_device = record("ok")
    on_device["phases"]["train"]["peak_reserved"] = 5 * GB
    assert memory_used(on_device) == 5 * GB
    unknown = record("ok")
    for phase in unknown["phases"].values():
        phase["peak_anonymous"] = None
    assert memory_used(unknown) is None
    assert not satisfies(unknown, 100 * GB, None)
    assert wall_seconds(unknown) == pytest.approx(100.0)


def test_what_the_limit_counts_is_taken_where_it_was_measured() -> None:
    measured = record("ok")  # 3 GB of it resident
    measured["phases"]["load"]["peak_data"] = GB
    measured["phases"]["train"]["peak_data"] = 4 * GB
    assert memory_used(measured) == 4 * GB
    assert satisfies(measured, 4 * GB, None) and not satisfies(measured, 4 * GB - 1, None)
    short_peak = record("ok")  # one that came and went between two samples, but not unseen by the kernel
    short_peak["phases"]["train"]["peak_data"] = 2 * GB
    assert memory_used(short_peak) == 3 * GB
    stopped = record("timeout")
    stopped["phases"]["load"]["peak_data"] = 5 * GB
    stopped["phases"]["train"] |= {"peak_anonymous": None, "peak_data": None}
    assert memory_used(stopped) == 5 * GB


def test_the_newest_record_stands_unless_an_ok_outlives_it() -> None:
    ok, tight_oom = record("ok", 11 * GB), record("oom", 2 * GB)
    same_oom, error, interrupted = record("oom", 11 * GB), record("error", 11 * GB), record("interrupted", 11 * GB)
    assert newest([]) is None
    assert newest([ok, tight_oom]) is ok
    assert newest([ok, interrupted]) is ok
    assert newest([ok, same_oom]) is same_oom
    assert newest([ok, error]) is error
    assert newest([tight_oom, ok]) is ok
    assert newest([error, interrupted]) is interrupted
    later = record("ok", 11 * GB)
    assert newest([ok, tight_oom, later]) is later


def test_each_limit_is_answered_by_the_newest_record_that_can() -> None:
    ok, oom = record("ok", peak=6 * GB), record("oom", 4 * GB)
    assert find_reusable([ok, oom], 4 * GB, None) is oom  # not run again and again
    assert find_reusable([ok, oom], 8 * GB, None) is ok
    assert find_reusable([ok, oom], 5 * GB, None) is None


def test_statuses_from_the_command_line() -> None:
    assert parse_statuses("oom, ERROR") == {"oom", "error"}
    assert parse_statuses(",".join(STATUSES)) == set(STATUSES)
    with pytest.raises(UserError, match=r"unknown status 'timout'.*Did you mean 'timeout'\?"):
        parse_statuses("oom,timout")
    with pytest.raises(UserError, match="no status"):
        parse_statuses(" ,")


def test_memory_ran_out_for_good_only_where_there_is_no_more_of_it() -> None:
    out = {"status": "oom", "limits": {"memory": 12 * GB, "time": None}}
    assert satisfies(out, None, None, capacity=12 * GB)  # no limit is all that there is
    assert not satisfies(out, None, None, capacity=80 * GB)
    assert satisfies(out, 8 * GB, None, capacity=80 * GB)
    unlimited = {"status": "oom", "limits": {"memory": None, "time": None}}  # of an older version
    assert satisfies(unlimited, None, None, capacity=80 * GB)


def test_preparation_counts_once_whoever_did_it() -> None:
    phase = {"seconds": 61.0, "waited_seconds": 60.0, "reused_seconds": 58.0}
    assert preparation_seconds({"phases": {"preprocess": phase}}) == 59.0
    assert preparation_seconds({"phases": {"preprocess": {"seconds": 7.0}}}) == 7.0


@pytest.mark.parametrize(
    ("status", "made_on", "wanted_on", "memory", "answer"),
    [
        ("oom", "cpu", "cuda:0", 4 * GB, False),  # 8 GB were not enough, but of another memory
        ("oom", "cuda:1", "cuda:0", 4 * GB, True),
        ("timeout", "cpu", "cuda", None, False),
        ("error", "cuda", "cpu", None, False),
        ("ok", "cuda", "cpu", 4 * GB, False),  # 3 GB of the GPU's, and nobody knows how many of the machine's
        ("ok", "cuda", "cpu", None, True),
        ("diverged", "cuda", "cpu", 4 * GB, True),
        ("unsupported", "cpu", "cuda", 4 * GB, True),
    ],
)
def test_limits_are_those_of_a_kind_of_device(
    status: str, made_on: str, wanted_on: str, memory: int | None, answer: bool
) -> None:
    earlier = record(status, 8 * GB, 60.0, device=made_on)
    assert satisfies(earlier, memory, None, device=wanted_on) is answer


def test_who_waited_for_others_was_not_slow() -> None:
    waited = record("ok", seconds=100.0)
    waited["phases"]["preprocess"] = {"seconds": 50.0, "compile_seconds": 0.0, "waited_seconds": 45.0}
    assert wall_seconds(waited) == 150.0
    assert satisfies(waited, None, 105.0) and not satisfies(waited, None, 104.9)
