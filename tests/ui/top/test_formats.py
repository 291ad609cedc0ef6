"""Numbers in a few columns, whatever they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.ui.top import formats

ANY = st.none() | st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"), (math.nan, "–"), (math.inf, "–"), (0, "0"), (12, "12"), (0.5, "0.50"),
        (999, "999"), (999.4, "999"), (999.5, "1.00k"), (61_200_000, "61.2M"), (1.9e9, "1.90G"),
        (612e6, "612M"), (999.96e6, "1.00G"), (1e300, ">999E"), (-1.5e6, "-1.50M"),
    ],
)  # fmt: skip
def test_short_numbers(value: float | None, shown: str) -> None:
    assert formats.short(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(3.222, "3.22"), (412.04, "412.0"), (99999.94, "99999.9"), (1e7, "10000000"), (1e9, "1G")],
)
def test_rates_keep_digits_as_long_as_they_fit(value: float, shown: str) -> None:
    assert formats.rate(value, 8) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.9, "0s"), (59.9, "59s"), (60, "1m"), (312, "5m"), (6000, "1h"), (1e6, "11d"), (1e9, ">9y")],
)
def test_ages(seconds: float, shown: str) -> None:
    assert formats.age(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (4810, "01:20:10"), (360_000, "4d04h"), (-5, "00:00:00"), (1e30, ">27y")],
)
def test_lengths_of_time(seconds: float | None, shown: str) -> None:
    assert formats.clock(seconds) == shown


@pytest.mark.parametrize(
    ("step", "total", "shown"),
    [(None, 9, "–"), (7951, 23460, "7951/23460"), (5, None, "5"), (10**9, 10**12, "1G/1T")],
)
def test_steps(step: int | None, total: int | None, shown: str) -> None:
    assert formats.steps(step, total) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.412, "0.4120"), (2.302585, "2.303"), (2.3, "2.300"), (0.0, "0.000"), (1234.56, "1235"),
        (1.5e-5, "1.5e-05"), (-3e9, "-3.0e+09"),
    ],
)  # fmt: skip
def test_losses_have_one_width_whatever_their_digits(value: float, shown: str) -> None:
    assert formats.loss(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.5, "0.5"), (3.0, "3"), (0.0, "0"), (1e6, "1.0e+06")]
)
def test_other_metrics_have_the_digits_they_need(value: float, shown: str) -> None:
    assert formats.figure(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0 B/s"), (61.2e6, "61.2 MB/s"), (None, "–"), (1e30, ">999 EB/s")]
)
def test_bytes_a_second_have_their_unit_apart(value: float | None, shown: str) -> None:
    assert formats.byte_rate(value) == shown


def test_a_moment_is_a_time_of_day_here() -> None:
    assert formats.time_of_day(0.0, 3600) == "01:00:00"
    assert formats.time_of_day(1e18, 0) == "00:00:00"


@pytest.mark.parametrize(
    ("steps", "text"),
    [(None, "–"), (0.0, "–"), (10.9, "92 ms"), (200.0, "5.0 ms"), (0.5, "2.0 s"), (0.005, "3m20s")],
)
def test_the_length_of_a_step(steps: float | None, text: str) -> None:
    assert formats.step_time(steps) == text


@given(ANY, st.integers(6, 12))
def test_no_number_is_wider_than_its_column(value: float | None, width: int) -> None:
    assert len(formats.short(value)) <= 6
    assert value is None or value < 0 or len(formats.short(value)) <= 5
    assert len(formats.rate(value, width)) <= width
    assert len(formats.loss(value)) <= 8
    assert len(formats.percent(value)) <= 3
    assert len(formats.times(value)) <= 5
    assert len(formats.age(value)) <= 3
    assert len(formats.clock(value)) <= 8


@given(st.integers(0, 1 << 63), st.none() | st.integers(0, 1 << 63))
def test_no_step_is_wider_than_its_column(step: int, total: int | None) -> None:
    assert len(formats.steps(step, total)) <= 13
