"""Amounts of memory and time as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UserError
from bench.sizes import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("11GB", 11_000_000_000),
        ("11g", 11_000_000_000),
        ("1.5 GiB", 1_610_612_736),
        ("800mb", 800_000_000),
        ("64KiB", 65_536),
        ("2TB", 2_000_000_000_000),
        (" 7 B ", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "11 apples", "0GB", "1,5GB", "1GBs", "nan", "1e3"])
def test_bad_sizes_are_one_line(text: str) -> None:
    with pytest.raises(UserError, match="is not an amount of memory") as caught:
        parse_size(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["5", " 1.5 ", "0"])
def test_a_size_without_a_unit_is_not_guessed(text: str) -> None:
    with pytest.raises(UserError, match=f"^'{text}' has no unit; write for example 11GB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20m", 1200), ("90", 90), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800), ("1 h 5 s", 3605)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "0", "0s", "-5m", "5x", "30m1h", "soon", "5 5"])
def test_bad_durations_are_one_line(text: str) -> None:
    with pytest.raises(UserError, match="is not a length of time") as caught:
        parse_duration(text)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 10**6), st.sampled_from([("kB", 1000), ("MB", 1000**2), ("GiB", 1024**3)]))
def test_a_size_is_number_times_unit(number: int, unit: tuple[str, int]) -> None:
    assert parse_size(f"{number}{unit[0]}") == number * unit[1]


@given(st.floats(1, 9e14))
def test_what_is_printed_reads_back_within_its_three_digits(size: float) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.006, abs=0.6)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1_234_000, "1.23 MB"), (45.6e9, "45.6 GB"), (999e9, "999 GB")]
)
def test_printed_sizes(size: float, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.418, "0.42 s"),
        (12.34, "12.3 s"),
        (59.96, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3569.4, "59 min 29 s"),
        (3580, "1 h 00 min"),
        (7380, "2 h 03 min"),
        (float("nan"), "unknown"),
    ],
)
def test_printed_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
