"""Charts as data: what is drawn, on which scales, in which words. templates/charts.html draws them.

    LineChart    values over time or over steps, with gaps where no daemon looked
    BarChart     a row each: parts of a whole behind each other, or amounts below each other
    StripChart   stretches of time, a row for each thing that was going on

A `kind` is the CSS class from which a shape has its colour; the same thing is always said in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wiiiiided.ui.report.run_history import Line
from wiiiiided.ui.report.ticks import Scale

WIDTH = 1000  # units from left to right of the part that is stretched
NARROW = 220.0  # pixels of a plot on the narrowest screen
LETTER = 7.0  # pixels a character of a label takes, about
EDGE = 2.0  # pixels that keep a line at the very top from being cut in half
ROW, BAR = 39, 13  # pixels of a row with its words and the space below, of the bar in it

Keys = tuple[tuple[str, str], ...]  # kind and words of everything that has a colour


@dataclass(frozen=True)
class Curve:
    kind: str
    lines: Sequence[Line]
    title: str = ""  # shown while a pointer rests on it


@dataclass(frozen=True)
class LineChart:
    across: Scale
    up: Scale
    curves: Sequence[Curve]
    hovers: Sequence[tuple[float, float, str]] = ()  # from, to, what it says there
    starts: Sequence[tuple[float, str]] = ()  # where something began, and what
    ends: Sequence[float] = ()  # from here on there is no value to draw
    mark: str = ""  # the reason, written there
    form = "lines"
    height = 190

    def path(self, curve: Curve) -> str:
        """The curve as an SVG path. A line of one point is a dot, for its ends are round."""
        places = ([self._place(point) for point in line] for line in curve.lines)
        return "".join("M" + "L".join(ps if len(ps) > 1 else ps * 2) for ps in places)

    def _place(self, point: tuple[float, float]) -> str:
        y = EDGE + (self.height - 2 * EDGE) * (1 - self.up.place(point[1]))
        return f"{self.across.place(point[0]) * WIDTH:.1f} {y:.1f}"


@dataclass(frozen=True)
class Bar:
    name: str
    told: str  # its numbers in words, at the right; short
    parts: tuple[tuple[str, float, str], ...]  # kind, value, what it says on hovering
    more: str = ""  # words that only a wide screen has room for
    whisker: tuple[float, float] | None = None  # a line across it, from the least to the most


@dataclass(frozen=True)
class BarChart:
    across: Scale
    bars: Sequence[Bar]
    stacked: bool = True
    form = "bars"

    @property
    def row(self) -> int:
        below = 1 if self.stacked else max((len(bar.parts) for bar in self.bars), default=1)
        return ROW + (below - 1) * BAR

    @property
    def height(self) -> int:
        return self.row * len(self.bars)


@dataclass(frozen=True)
class Strip:
    name: str
    told: str
    parts: Sequence[tuple[float, float, str, str]]  # from, to, what it says on hovering, kind


@dataclass(frozen=True)
class StripChart:
    across: Scale
    strips: Sequence[Strip]
    form = "strips"

    @property
    def height(self) -> int:
        return ROW * len(self.strips)


@dataclass(frozen=True)
class ChartFigure:
    """A chart with its title and the sentence that also says it to people who cannot see it."""

    title: str
    told: str
    chart: LineChart | BarChart | StripChart
    keys: Keys = ()


def label_every(axis: Scale) -> int:
    """On a narrow screen, one of how many ticks has room for its label."""
    longest = max((len(label) for _, label in axis.ticks), default=1)
    room = max(2, int(NARROW / (LETTER * longest + 16)))
    return max(1, -(-len(axis.ticks) // room))
