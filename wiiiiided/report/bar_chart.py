"""Bars from left to right, a row each: the parts of a whole, or amounts beside each other.

    c · rank 4          4 % exchange, 11 % waiting
    ████████████████████████████████▒▒▒░░░░░░░░░░░

The words stand above their bar, so that long names have the whole width of a telephone, and what a
colour says is always said in words too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wiiiiided.report import axes
from wiiiiided.report.markup import Markup, plain, tag
from wiiiiided.report.ticks import Scale

TEXT, BAR, GAP = 17.0, 13.0, 9.0  # pixels of a row: its words, its bar, the space below
NAME = 22  # characters of a name; the whole of it shows on hovering
ROW = TEXT + BAR + GAP


@dataclass(frozen=True)
class Bar:
    name: str
    told: str  # its numbers in words, at the right; short
    parts: tuple[tuple[str, float, str], ...]  # class, value, what it says on hovering
    more: str = ""  # words that only a wide screen has room for
    whisker: tuple[float, float] | None = None  # a line across it, from the least to the most


def bar_chart(bars: Sequence[Bar], scale: Scale, sentence: str, stacked: bool = True) -> Markup:
    """`stacked` parts follow each other in one bar; others lie below each other."""
    deepest = 1 if stacked else max((len(bar.parts) for bar in bars), default=1)
    row = ROW + (deepest - 1) * BAR
    height = row * len(bars)
    drawn = (_row(bar, number * row, scale, stacked) for number, bar in enumerate(bars))
    return axes.drawing(
        height + axes.FOOT, sentence, *drawn, axes.columns(scale, height), class_="chart bars"
    )


def _row(bar: Bar, top: float, scale: Scale, stacked: bool) -> Markup:
    texts = (
        tag("text", plain(bar.name, NAME), tag("title", bar.name), x=0, y=top + 12),
        tag(
            "text",
            bar.told,
            tag("tspan", bar.more, class_="wide"),
            x="100%",
            y=top + 12,
            class_="end",
        ),
    )
    shapes: list[str] = []
    left, y = 0.0, top + TEXT
    for kind, value, told in bar.parts:
        right = scale.place(left + value) if stacked else scale.place(value)
        begin = scale.place(left) if stacked else 0.0
        wide = axes.percent(max(right - begin, 0.0))
        shapes.append(
            tag(
                "rect",
                tag("title", f"{bar.name}: {told}"),
                x=axes.percent(begin),
                y=y,
                width=wide,
                height=BAR,
                class_=kind,
            )
        )
        if stacked:
            left += value
        else:
            y += BAR
    return tag("g", *texts, *shapes, *_whisker(bar, top + TEXT + BAR / 2, scale))


def _whisker(bar: Bar, y: float, scale: Scale) -> list[Markup]:
    if bar.whisker is None or bar.whisker[0] == bar.whisker[1]:
        return []
    low, high = (axes.percent(scale.place(value)) for value in bar.whisker)
    ends = [tag("line", x1=x, x2=x, y1=y - 4, y2=y + 4, class_="whisker") for x in (low, high)]
    return [tag("line", x1=low, x2=high, y1=y, y2=y, class_="whisker"), *ends]
