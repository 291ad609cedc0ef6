"""What all charts share: a drawing that stretches to any width while its words keep their size.

    ┌ svg, width 100 % less the margin ────────────────┐
    │ y labels hang out to the left (overflow visible) │   heights are pixels,
    │ ┌ inner svg, 1000 wide, stretched: the data ───┐ │   places from left to right per cent:
    │ └──────────────────────────────────────────────┘ │   no text is ever scaled,
    │ 0        5m        10m        15m            20m │   one drawing serves 320 and 1400 px
    └──────────────────────────────────────────────────┘

Lines keep their width by vector-effect. Every second or third tick hides on narrow screens (class
`wide`). Hovering is the browser's own: a <title> in a transparent rectangle.
"""

from __future__ import annotations

from collections.abc import Iterable

from wiiiiided.report.markup import Markup, joined, tag
from wiiiiided.report.ticks import Scale

WIDTH = 1000  # units of the stretched drawing
NARROW = 220.0  # pixels of a plot on the narrowest screen
MARGIN = 72  # pixels left of every plot over time, so that their axes lie below each other
FOOT = 24  # pixels below the plot, for the labels of the time axis
LETTER = 7.0  # pixels a character of a label takes, about


def percent(part: float) -> str:
    return f"{100 * part:.2f}".rstrip("0").rstrip(".") + "%"


def drawing(height: float, sentence: str, *parts: str, class_: str = "chart") -> Markup:
    """A whole chart; the sentence says to those who cannot see it what it shows."""
    return tag(
        "svg", *parts, class_=class_, height=height, role="img", aria_label=sentence, width="100%"
    )


def stretched(height: float, *parts: str, top: float = 0) -> Markup:
    """The part that is stretched: WIDTH units wide, pixels high."""
    return tag(
        "svg",
        *parts,
        x=0,
        y=top,
        width="100%",
        height=height,
        viewBox=f"0 0 {WIDTH} {height:g}",
        preserveAspectRatio="none",
    )


def rows(scale: Scale, height: float) -> Markup:
    """Lines across and their labels, left of the plot."""
    parts: list[str] = []
    for value, label in scale.ticks:
        y = height * (1 - scale.place(value))
        parts.append(tag("line", x1=0, x2="100%", y1=y, y2=y, class_="grid"))
        parts.append(tag("text", label, x=-8, y=y, dy=".32em", class_="end"))
    return joined(parts)


def columns(axis: Scale, height: float) -> Markup:
    """The time axis: ticks and labels below the plot, or of whatever runs from left to right."""
    longest = max((len(label) for _, label in axis.ticks), default=1)
    room = max(2, int(NARROW / (LETTER * longest + 16)))
    few = -(-len(axis.ticks) // room)
    parts: list[str] = []
    for number, (value, label) in enumerate(axis.ticks):
        part = axis.place(value)
        wide = "wide" if number % few else None
        x = percent(part)
        parts.append(tag("line", x1=x, x2=x, y1=height, y2=height + 4, class_=wide))
        # The first and the last would stick out of the drawing.
        anchor = "start" if part < 0.02 else "end" if part > 0.97 else "middle"
        kind = f"{anchor} {wide}" if wide else anchor
        parts.append(tag("text", label, x=x, y=height + 17, class_=kind))
    base = tag("line", x1=0, x2="100%", y1=height, y2=height, class_="base")
    return joined([base, *parts])


def hover(begin: float, end: float, height: float, text: str, top: float = 0) -> Markup:
    """A stretch of the plot that says something when a pointer rests on it."""
    return tag(
        "rect",
        tag("title", text),
        x=begin * WIDTH,
        y=top,
        width=max((end - begin) * WIDTH, 1.0),
        height=height,
        class_="hover",
    )


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """(class, words) of everything that has a colour; each has its words too."""
    keys = (
        tag("li", tag("span", class_=f"key {kind}", aria_hidden="true"), words)
        for kind, words in entries
    )
    return tag("ul", *keys, class_="legend")
