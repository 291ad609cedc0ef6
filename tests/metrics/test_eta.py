"""When a job will be done."""

from __future__ import annotations

import pytest

from wiiiiided.metrics.eta import Pace


def after(*steps: tuple[float, int | None]) -> Pace:
    pace = Pace()
    for at, step in steps:
        pace.take(at, step)
    return pace


def test_the_steps_that_are_left_at_the_pace_of_the_last_ones() -> None:
    pace = after((0.0, 0), (10.0, 5), (20.0, 10))
    assert pace.left_s(20.0, 100) == pytest.approx(180.0)
    assert pace.left_s(21.0, 100) == pytest.approx(179.0)


@pytest.mark.parametrize(
    ("pace", "total"),
    [
        (after(), 10),
        (after((0.0, 3)), 10),
        (after((0.0, 1), (1.0, 2)), None),
        (after((0, None)), 9),
    ],
)
def test_without_a_pace_or_an_end_nothing_is_said(pace: Pace, total: int | None) -> None:
    assert pace.left_s(5.0, total) is None


def test_only_the_last_minute_counts() -> None:
    slow = [(float(at), at // 10) for at in range(0, 600, 10)]
    fast = [(600.0 + at, 60 + at) for at in range(120)]
    pace = after(*slow, *fast)
    assert pace.left_s(719.0, 1000) == pytest.approx((1000 - 179) * 1.0, rel=0.01)


def test_steps_of_many_minutes_have_a_pace_too() -> None:
    pace = after((0.0, 1), (500.0, 2), (1000.0, 3))
    assert pace.left_s(1000.0, 5) == pytest.approx(1000.0)


def test_an_overdue_step_takes_the_estimate_away() -> None:
    pace = after((0.0, 1), (1.0, 2))
    assert pace.left_s(29.0, 100) is not None
    assert pace.left_s(32.0, 100) is None


def test_a_new_epoch_begins_a_new_pace() -> None:
    pace = after((0.0, 98), (1.0, 99), (2.0, 0))
    assert pace.left_s(2.0, 100) is None
    pace.take(4.0, 1)
    assert pace.left_s(4.0, 100) == pytest.approx(198.0)


def test_it_is_never_below_nothing() -> None:
    assert after((0.0, 99), (1.0, 100)).left_s(10.0, 100) == 0.0
