"""A run's points: never more than there may be, and nothing of what they say is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from wiiiiided.domain.metrics import POINTS, Point, Rates
from wiiiiided.metrics.point_history import PointHistory, halved, mean, merge

spans = st.floats(0.1, 100.0)
rates = st.builds(
    Rates,
    steps=st.one_of(st.none(), st.floats(0, 1e3)),
    samples=st.floats(0, 1e6),
    wire_out=st.floats(0, 1e9),
    exchange=st.floats(0, 1),
)


def points_of(drawn: list[tuple[float, float, Rates]]) -> list[Point]:
    """One after the other, with the gaps that were drawn."""
    found, at = [], 0.0
    for span, gap, rate in drawn:
        at += gap + span
        found.append(Point(at, span, rate, straggler=len(found) % 3))
    return found


def total(points: list[Point], name: str) -> float:
    return sum(getattr(point.rates, name) * point.span for point in points)


def point(at: float, span: float = 1.0, **fields: object) -> Point:
    return Point(at, span, **{"rates": Rates(operations=1.0), **fields})  # type: ignore[arg-type]


@settings(deadline=None, max_examples=examples(15))
@given(
    st.lists(st.tuples(spans, st.sampled_from([0.0, 0.0, 0.0, 7.0]), rates), max_size=40),
    st.integers(1, 60),
)
def test_totals_stay_and_there_are_never_too_many(
    drawn: list[tuple[float, float, Rates]], times: int
) -> None:
    given_points = points_of(drawn * times)
    history = PointHistory()
    for one in given_points:
        history.add(one)
        assert len(history.points) < POINTS
    for name in ("samples", "wire_out", "exchange"):
        assert total(history.points, name) == pytest.approx(total(given_points, name), rel=1e-6)
    assert sum(p.span for p in history.points) == pytest.approx(sum(p.span for p in given_points))
    ends = [p.at for p in history.points]
    assert ends == sorted(ends)
    if given_points:
        assert history.points[-1].at == given_points[-1].at


@given(rates, spans, rates, spans)
def test_a_mean_lies_between_the_two(
    one: Rates, one_s: float, other: Rates, other_s: float
) -> None:
    found = mean(one, one_s, other, other_s)
    for name in Rates.__struct_fields__:
        known = [v for v in (getattr(one, name), getattr(other, name)) if v is not None]
        value = getattr(found, name)
        if not known:
            assert value is None
        else:
            assert min(known) * (1 - 1e-9) - 1e-9 <= value <= max(known) * (1 + 1e-9) + 1e-9


def test_a_full_history_is_halved_and_its_points_become_twice_as_long() -> None:
    history = PointHistory()
    for second in range(POINTS):
        assert history.grain_s == 1.0
        history.add(point(second + 1.0))
    assert len(history.points) == POINTS // 2
    assert history.grain_s == 2.0
    assert {p.span for p in history.points} == {2.0}


def test_a_gap_stays_a_gap() -> None:
    before = [point(1.0), point(2.0), point(3.0)]
    after = [point(60.0), point(61.0), point(62.0)]
    found = halved(before + after, over_gaps=False)
    assert [(p.at - p.span, p.at) for p in found] == [(0, 2), (2, 3), (59, 61), (61, 62)]


def test_gaps_everywhere_are_given_up_rather_than_the_bound() -> None:
    history = PointHistory()
    for number in range(2 * POINTS):
        history.add(point(number * 10.0, 1.0))
    assert len(history.points) < POINTS
    assert sum(p.span for p in history.points) == 2 * POINTS


def test_values_are_those_at_the_end_and_the_straggler_that_of_most_of_it() -> None:
    one = point(1.0, 1.0, step=5, loss=0.5, memory=10, straggler=1)
    other = point(4.0, 3.0, step=8, loss=None, memory=None, straggler=2)
    found = merge(one, other)
    assert (found.at, found.span, found.step, found.loss, found.memory) == (4.0, 4.0, 8, 0.5, 10)
    assert found.straggler == 2
    assert merge(point(3.0, 3.0, straggler=1), point(4.0, 1.0)).straggler == 1


def test_a_history_goes_on_as_coarse_as_it_was() -> None:
    history = PointHistory(point(4.0 * n, 4.0) for n in range(1, 101))
    assert history.grain_s == 4.0
    assert PointHistory(point(float(n)) for n in range(1, 3 * POINTS)).grain_s >= 4.0
    assert len(PointHistory(point(float(n)) for n in range(1, 3 * POINTS)).points) < POINTS
