"""A run's points, never more than POINTS of them, however long it runs.

    full:      1 1 1 1 1 1 1 1        every two become one, weighted by their length,
    halved:    2   2   2   2          and from then on a point is twice as long

While no daemon looked there is a gap: a point ends where it ends, and begins `span` before. Two
points with a gap between them stay two, unless there is no other way to make room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wiiiiided.domain.metrics import POINTS, Point, Rates

GRAIN_S: Final = 1.0  # the length of the first points
SAID: Final = ("steps", "samples")  # the rates that are known of ranks that are not measured
TOUCH_S: Final = 0.05  # points nearer than this to each other have no gap between them


class PointHistory:
    """The points of one attempt. `grain_s` is how long the next ones should be."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self.points = list(points)
        self.grain_s = GRAIN_S
        spans = sorted(point.span for point in self.points)
        while spans and self.grain_s * 2 <= spans[len(spans) // 2]:
            self.grain_s *= 2
        self._make_room()

    def add(self, point: Point) -> None:
        self.points.append(point)
        self._make_room()

    def _make_room(self) -> None:
        # One place stays free, for the stretch that is still open.
        while len(self.points) >= POINTS:
            fewer = halved(self.points, over_gaps=False)
            # With a gap at every other point nothing is won: then gaps are given up.
            many = len(fewer) > POINTS * 3 // 4
            self.points = halved(self.points, over_gaps=True) if many else fewer
            self.grain_s *= 2


def halved(points: list[Point], *, over_gaps: bool) -> list[Point]:
    """The points with every two neighbours made one."""
    found: list[Point] = []
    alone: Point | None = None
    for point in points:
        if alone is None:
            alone = point
        elif over_gaps or touch(alone, point):
            found.append(merge(alone, point))
            alone = None
        else:
            found.append(alone)
            alone = point
    return found if alone is None else [*found, alone]


def touch(first: Point, second: Point) -> bool:
    return second.at - second.span - first.at < TOUCH_S


def merge(first: Point, second: Point) -> Point:
    """Two points as one: means by length, values at the end. A gap counts for nothing."""
    longer = first if first.span > second.span else second
    return Point(
        at=second.at,
        span=first.span + second.span,
        rates=mean(first.rates, first.span, second.rates, second.span),
        step=first.step if second.step is None else second.step,
        loss=first.loss if second.loss is None else second.loss,
        memory=first.memory if second.memory is None else second.memory,
        straggler=longer.straggler,
        cpu=_weighted(first.cpu, first.span, second.cpu, second.span),
        metrics={**first.metrics, **second.metrics},
    )


def _weighted(one: float | None, one_s: float, other: float | None, other_s: float) -> float | None:
    if one is None or other is None or one_s + other_s <= 0:
        return other if one is None else one
    return (one * one_s + other * other_s) / (one_s + other_s)


def mean(first: Rates, first_s: float, second: Rates, second_s: float) -> Rates:
    """The mean of two rates by time. A value that only one of them has is taken from that one."""
    whole = first_s + second_s
    if whole <= 0:
        return second
    share = first_s / whole
    found: dict[str, float | None] = {"measured": first.measured or second.measured}
    for name in Rates.__struct_fields__:
        if name == "measured":
            continue
        one, other = getattr(first, name), getattr(second, name)
        if name not in SAID and first.measured != second.measured:
            found[name] = one if first.measured else other
        elif one is None or other is None:
            found[name] = other if one is None else one
        else:
            found[name] = one * share + other * (1.0 - share)
    return Rates(**found)  # type: ignore[arg-type]
