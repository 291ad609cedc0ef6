"""Axes: round numbers that surround what is drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.ui.report.ticks import Scale, amounts, around, sizes, times

values = st.floats(-1e29, 1e29)


def labels(scale: Scale) -> list[str]:
    return [label for _, label in scale.ticks]


def test_ticks_are_round_and_have_no_dust() -> None:
    assert labels(amounts(0.0, 1.1)) == ["0", "0.5", "1", "1.5"]
    assert labels(amounts(0.31, 0.69)) == ["0.3", "0.4", "0.5", "0.6", "0.7"]
    assert labels(amounts(0.0, 352.0)) == ["0", "100", "200", "300", "400"]


def test_sizes_count_in_one_binary_unit() -> None:
    assert labels(sizes(900 << 20)) == ["0 MiB", "500 MiB", "1,000 MiB"]
    assert sizes(3 << 30).ticks[1] == (1 << 30, "1 GiB")


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (0.0, "0"),
        (12.0, "0 2s 4s 6s 8s 10s 12s"),
        (200.0, "0 30s 1m 1m30 2m 2m30 3m"),
        (5400.0, "0 10m 20m 30m 40m 50m 1h 1h10 1h20 1h30"),
        (40 * 86400.0, "0 5d 10d 15d 20d 25d 30d 35d 40d"),
    ],
)
def test_times_are_those_of_a_clock(length: float, shown: str) -> None:
    assert labels(times(length))[: len(shown.split())] == shown.split()


def test_values_of_very_different_size_get_decades() -> None:
    scale = around([0.02, 3.0, 900.0])
    assert scale.log
    assert labels(scale) == ["0.01", "0.1", "1", "10", "100", "1,000"]
    assert scale.place(0.01) == 0
    assert scale.place(10.0) == pytest.approx(0.6)


@given(st.lists(values, min_size=1, max_size=5))
def test_every_value_lies_on_its_axis(some: list[float]) -> None:
    scale = around(some)
    assert 2 <= len(scale.ticks) <= 24
    assert scale.low < scale.high
    slack = 1e-6 * (abs(scale.low) + abs(scale.high))
    assert all(scale.low - slack <= value <= scale.high + slack for value in some)
    places = [scale.place(value) for value, _ in scale.ticks]
    assert places == sorted(places)
    assert all(0 <= scale.place(value) <= 1 for value in some)


@given(st.floats(0, 1e9))
def test_a_time_axis_ends_with_its_time_and_has_few_ticks(length: float) -> None:
    scale = times(length)
    assert len(scale.ticks) <= 24
    assert all(0 <= value <= scale.high * 1.0001 for value, _ in scale.ticks)
