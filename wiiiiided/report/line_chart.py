"""Values over time: lines with gaps, marks where an attempt began, words on hovering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wiiiiided.domain.figures import Point
from wiiiiided.report import axes, words
from wiiiiided.report.history import History, Line
from wiiiiided.report.markup import Markup, joined, tag
from wiiiiided.report.ticks import Scale, times

HEIGHT = 190.0
EDGE = 2.0  # pixels that keep a line at the very top from being cut in half


@dataclass(frozen=True)
class Series:
    kind: str  # the class its colour comes from: one, two
    lines: Sequence[Line]


def line_chart(
    past: History,
    series: Sequence[Series],
    scale: Scale,
    sentence: str,
    tells: Callable[[Point], str],
    ends: Sequence[float] = (),
    mark: str = "",
) -> Markup:
    """`tells` is what a stretch says when a pointer rests on it; nothing where it is empty.
    `ends` are moments from which on there is no value to draw; `mark` says why."""
    axis = times(past.length)
    drawn = (path(one, axis, scale) for one in series)
    inner = axes.stretched(HEIGHT, *_starts(past, axis), *drawn, *_hovers(past, axis, tells))
    return axes.drawing(
        HEIGHT + axes.FOOT,
        sentence,
        axes.rows(scale, HEIGHT),
        axes.columns(axis, HEIGHT),
        inner,
        *(_end(axis.place(at), mark, labelled=at == max(ends)) for at in ends),
    )


def _end(place: float, mark: str, labelled: bool) -> Markup:
    """A line up, its word beside it; the last one's only, since words could meet."""
    x, side = axes.percent(place), "end" if place > 0.5 else "start"
    line = tag("line", tag("title", mark), x1=x, x2=x, y1=0, y2=HEIGHT, class_="lost")
    away = -4 if place > 0.5 else 4
    word = tag("text", mark, x=x, dx=away, y=12, class_=f"{side} lost")
    return joined([line, word] if labelled else [line])


def path(series: Series, axis: Scale, scale: Scale, title: str = "") -> Markup:
    """One path for all its lines; a line of one point is a dot, by its round ends. `title` is what
    it says when a pointer rests on it."""
    strokes: list[str] = []
    for line in series.lines:
        places = [f"{axis.place(x) * axes.WIDTH:.1f} {_height(scale, y):.1f}" for x, y in line]
        strokes.append("M" + "L".join(places if len(places) > 1 else places * 2))
    drawn = Markup("".join(strokes))  # of numbers alone, and longer than any text may be
    said = (tag("title", title),) if title else ()
    return tag("path", *said, d=drawn, class_=f"line {series.kind}", data_lines=len(strokes))


def _height(scale: Scale, value: float) -> float:
    return EDGE + (HEIGHT - 2 * EDGE) * (1 - scale.place(value))


def _starts(past: History, axis: Scale) -> list[Markup]:
    """A line up where an attempt began, but for the first."""
    found = []
    for attempt in past.attempts[1:]:
        x = axis.place(attempt.begin) * axes.WIDTH
        told = f"attempt {attempt.run.attempt} began"
        found.append(tag("line", tag("title", told), x1=x, x2=x, y1=0, y2=HEIGHT, class_="start"))
    return found


def _hovers(past: History, axis: Scale, tells: Callable[[Point], str]) -> Markup:
    several = len(past.attempts) > 1
    found: list[Markup] = []
    for attempt in past.attempts:
        which = f"attempt {attempt.run.attempt}, " if several else ""
        for stretch in (s for line in attempt.seen for s in line):
            if text := tells(stretch.point):
                at = words.span(stretch.end - attempt.begin)
                begin, end = axis.place(stretch.begin), axis.place(stretch.end)
                found.append(axes.hover(begin, end, HEIGHT, f"{which}{at}: {text}"))
    return joined(found)
