"""Attempts on one axis; a gap is a gap."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from tests.ui.report.runs import point, records, restarted, run
from wiiiiided.domain.metrics import Point
from wiiiiided.ui.report.run_history import ATTEMPTS, DRAWN, history, length_of


def loss(each: Point) -> float | None:
    return each.loss


def test_what_was_looked_at_all_the_time_is_one_line() -> None:
    past = history(records(run()))
    (line,) = past.lines(loss, ends=True)
    assert (len(line), line[0][0], line[-1][0]) == (100, 1.0, 100.0)
    assert past.length == 100.0


def test_a_daemon_that_was_away_leaves_a_gap() -> None:
    seen = tuple(point(float(at)) for at in range(1, 101) if not 40 < at <= 60)
    first, second = history(records(run(points=seen))).lines(loss, ends=True)
    assert (first[-1][0], second[0][0]) == (40.0, 61.0)


def test_a_sample_that_came_late_leaves_none() -> None:
    seen = (point(1.0), point(2.9, 1.0), point(5.4, 1.0))
    assert len(history(records(run(points=seen))).lines(loss)) == 1


def test_a_value_that_is_not_known_ends_the_line_too() -> None:
    seen = (point(1.0), point(2.0, loss=None), point(3.0), point(4.0))
    assert [len(line) for line in history(records(run(points=seen))).lines(loss)] == [1, 2]


def test_means_stand_in_the_middle_and_values_at_the_end() -> None:
    past = history(records(run(points=(point(10.0, 10.0),))))
    assert past.lines(loss)[0][0][0] == 5.0
    assert past.lines(loss, ends=True)[0][0][0] == 10.0


def test_attempts_follow_each_other_with_their_pause() -> None:
    past = history(restarted())
    first, second = past.attempts
    assert (first.begin, first.end) == (0.0, 40.0)
    assert (second.begin, second.end, second.pause) == (60.0, 360.0, 20.0)
    assert past.cut == 0


def test_a_pause_of_days_does_not_press_the_runs_together() -> None:
    later = run(2, started_at=1_000_110.0 + 86400, ended_at=1_000_210.0 + 86400)
    past = history(records(run(), later))
    assert past.length == pytest.approx(400.0)  # as much pause as running
    assert past.cut == pytest.approx(86400 - 200)
    assert past.attempts[1].pause == 86400


def test_a_clock_set_back_does_not_turn_the_order() -> None:
    past = history(records(run(), run(2, started_at=900_000.0, ended_at=900_100.0)))
    assert past.attempts[1].begin == past.attempts[0].end


def test_points_that_overlap_or_come_in_any_order_are_drawn_once() -> None:
    seen = (point(3.0), point(1.0), point(2.0, 5.0), point(2.5, 0.1), point(500.0))
    past = history(records(run(points=seen)))
    stretches = list(past.stretches())
    assert all(a.end <= b.begin + 1e-9 for a, b in itertools.pairwise(stretches))
    assert all(s.end <= 100.0 for s in stretches)


def test_many_points_are_thinned_and_their_mean_stays() -> None:
    seen = tuple(point(at / 10, 0.1) for at in range(1, 1001))
    past = history(records(*[run(n, points=seen) for n in range(1, 4)]))
    first = [s for line in past.attempts[0].seen for s in line]
    assert len(list(past.stretches())) <= DRAWN + 3
    weighted = sum((s.point.rates.samples or 0) * (s.end - s.begin) for s in first)
    assert weighted == pytest.approx(sum((p.rates.samples or 0) * p.span for p in seen))


def test_what_is_not_measured_does_not_thin_what_is() -> None:
    seen = [point(at / 10, 0.1) for at in range(1, 1001)]
    blind = [replace(p, rates=replace(p.rates, measured=False, exchange=0.0)) for p in seen[::2]]
    seen[::2] = blind
    drawn = list(history(records(run(points=tuple(seen)))).stretches())
    assert len(drawn) < len(seen)
    assert {(s.point.rates.measured, round(s.point.rates.exchange, 9)) for s in drawn} == {
        (True, 0.2)
    }
    none = history(records(run(points=tuple(blind * 2)))).stretches()
    assert not any(s.point.rates.measured for s in none)


def test_only_the_latest_attempts_are_drawn() -> None:
    past = history(records(*[run(n, points=()) for n in range(1, 101)]))
    assert [past.attempts[0].run.attempt, past.earlier] == [101 - ATTEMPTS, 100 - ATTEMPTS]


def test_an_attempt_whose_end_was_not_seen_is_as_long_as_it_was_seen() -> None:
    assert length_of(run(ended_at=None)) == 100.0
    assert length_of(run(ended_at=None, points=(), observed_s=7.0)) == 7.0
