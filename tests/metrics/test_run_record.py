"""What stays of a run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.metrics.samples import empty_record, sample, steady
from wiiiiided.domain.metrics import POINTS, Rates, RunRecord
from wiiiiided.metrics.attempt_metrics import AttemptMetrics
from wiiiiided.metrics.rates import blank


def run(course: AttemptMetrics, seconds: range, waits: tuple[float, ...] = (0.5, 0.0)) -> None:
    for second in seconds:
        at = float(second)
        course.take(
            at, {"a": [steady(rank, at, share, step=second) for rank, share in enumerate(waits)]}
        )


def new(began: float = 0.0, at: float = 0.0, record: RunRecord | None = None) -> AttemptMetrics:
    return AttemptMetrics(record or empty_record(), began, at)


def test_a_point_a_second_with_what_happened_in_it() -> None:
    course = new()
    run(course, range(11))
    record = course.record()
    assert [point.at for point in record.points] == [float(n) for n in range(1, 11)]
    assert {point.span for point in record.points} == {1.0}
    assert record.points[4].rates.operations == pytest.approx(20.0)  # of both ranks
    assert record.points[4].rates.waiting == pytest.approx(0.25)
    assert record.points[4].step == 5
    assert record.observed_s == 10.0


def test_a_run_of_a_day_has_no_more_points_than_one_may_have() -> None:
    course = new()
    run(course, range(0, 86400, 10))
    record = course.record()
    assert POINTS // 3 < len(record.points) <= POINTS
    assert sum(point.span for point in record.points) == pytest.approx(86390)


def test_the_totals_are_the_last_counters() -> None:
    course = new()
    run(course, range(21))
    assert [rank.totals.operations for rank in course.record().ranks] == [200, 200]
    assert [rank.rank for rank in course.record().ranks] == [0, 1]


def test_which_rank_was_late_and_for_how_long() -> None:
    course = new()
    run(course, range(46))
    record = course.record()
    first, second = record.ranks
    assert first.straggled_s == 0.0
    assert 20 <= second.straggled_s <= 25
    assert record.points[-1].straggler == 1
    assert record.points[0].straggler is None


def test_the_peak_of_memory_stays() -> None:
    course = new()
    for at, memory in ((1.0, 10), (2.0, 30), (3.0, 20), (4.0, None)):
        course.take(at, {"a": [sample(0, at, operations=int(at), memory=memory)]})
    (rank,) = course.record().ranks
    assert rank.memory_peak == 30


def test_a_short_run_is_recorded_from_its_beginning() -> None:
    course = new()
    last = sample(0, 0.8, operations=4, samples=64)
    course.begin(0.3, blank(last, 0.3))
    course.take(0.8, {"a": [last]})
    record = course.record(ended_at=1000.8, state="done", code=0)
    (point,) = record.points
    assert (point.at, point.span) == (0.8, pytest.approx(0.5))
    assert point.rates.samples == pytest.approx(128.0)
    assert (record.state, record.code, record.ended_at) == ("done", 0, 1000.8)


def test_a_run_whose_begin_was_not_seen_has_totals_and_no_points() -> None:
    course = new(began=0.0, at=500.0)
    course.take(500.0, {"a": [sample(0, 500.0, operations=400)]})
    record = course.record()
    assert record.points == ()
    assert record.ranks[0].totals.operations == 400
    assert record.observed_s == 0.0


def test_after_a_restart_what_was_counted_meanwhile_is_one_stretch() -> None:
    """Also what was seen and not written: the record is of a while before the end."""
    course = new()
    run(course, range(31))
    again = new(began=0.0, at=60.0, record=course.record())
    run(again, range(60, 71))
    record = again.record()
    starts = [point.at - point.span for point in record.points]
    assert starts == [*(float(n) for n in range(31)), *(float(n) for n in range(60, 70))]
    assert record.points[30].rates.operations == pytest.approx(20.0)
    assert record.points[30].rates.waiting == pytest.approx(0.25)
    assert counted(record) == pytest.approx(2 * 700)
    assert record.observed_s == 40.0
    assert record.ranks[1].straggled_s >= course.record().ranks[1].straggled_s > 0


def counted(record: RunRecord) -> float:
    """Operations, as the points have them."""
    return sum(point.span * point.rates.operations for point in record.points)


def test_ranks_that_are_heard_of_later_are_in_the_same_stretch() -> None:
    """Those of other machines: their links are dialled again first."""
    course = new()
    run(course, range(31))
    again = new(began=0.0, at=60.0, record=course.record())
    for second in range(60, 63):
        again.take(float(second), {"a": [steady(0, float(second), 0.5, step=second)]})
    run(again, range(63, 71))
    record = again.record()
    assert [point.span for point in record.points[30:32]] == [33.0, 1.0]
    assert counted(record) == pytest.approx(2 * 700)


def test_after_a_restart_another_process_does_not_go_on_where_the_last_was() -> None:
    course = new()
    run(course, range(31))
    again = new(began=0.0, at=60.0, record=course.record())
    for second in range(60, 72):
        found = replace(steady(0, float(second), 0.5, step=second), pid=9)
        again.take(float(second), {"a": [found]})
    starts = [point.at - point.span for point in again.record().points]
    assert starts[30] >= 60.0


def test_a_stretch_without_an_end_is_closed_after_a_minute() -> None:
    course = new()
    for second in range(200):
        course.take(float(second), {"a": [sample(0, float(second), operations=1)]})
    spans = [point.span for point in course.record().points]
    assert spans == [60.0, 60.0, 60.0, 19.0]


def test_long_steps_make_long_points_with_their_true_shares() -> None:
    course = new()
    for second in range(101):
        ended = second // 10
        found = sample(0, float(second), operations=ended, waiting_s=9.0 * ended)
        course.take(float(second), {"a": [found]})
    points = course.record().points[1:]
    assert [point.rates.waiting for point in points] == pytest.approx([0.9] * len(points))


def test_a_rank_that_never_wrote_is_not_in_it() -> None:
    course = new()
    course.take(1.0, {"a": []})
    record = course.record()
    assert (record.ranks, record.points, record.observed_s) == ((), (), 1.0)


def test_the_last_moments_of_a_run_are_no_rate_of_nothing() -> None:
    course = new()
    run(course, range(11))
    for at in (10.4, 10.9):  # it saves its model, and ends
        last = [steady(rank, 10.0, 0.5, step=10) for rank in range(2)]
        course.take(at, {"a": [replace(one, at=at) for one in last]})
    *others, end = course.record(ended_at=1010.9, state="done", code=0).points
    assert (end.at, end.step, end.rates) == (10.9, 10, Rates(measured=False))
    assert all(point.rates.steps for point in others)


def test_slow_steps_make_points_of_whole_steps() -> None:
    course = new()
    for second in range(61):
        at, step = float(second), second // 2
        found = [
            sample(rank, at, operations=8 * second, step=step, said_at=2.0 * step)
            for rank in range(2)
        ]
        course.take(at, {"a": found})
    points = course.record().points[1:]
    assert [point.rates.steps for point in points] == pytest.approx([0.5] * len(points))
    assert {point.span for point in points} == {2.0}
