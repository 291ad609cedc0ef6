"""The small drawings of the screen, as Rich renderables: each fills the width it is given.

    Sparkline   ▁▂▅▇▇▆      values from 0 to the largest, the newest on the right
    ShareMeter  ━━━━━───    a share, green to red
    ProgressBar ━━━━━───    a share, in one colour
    TimeBar     ▆▆▆▄▂▂▂▂    compute, exchange, waiting: the taller, the more is done
    Chart                   values as an area of several lines, with its largest and smallest
    Cell                    text, cut or filled
    RowStrip                these side by side, each with a width of its own: a row

Rows are strips and not rows of a Rich Table: a frame has two hundred cells, and with Table and Text
it took 28 ms instead of 10 (8 nodes, 120 × 40, one core of the development machine).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from wiiiiided.text import columns, pad
from wiiiiided.ui.top import formats
from wiiiiided.ui.top.theme import HEATS

BARS = "▁▂▃▄▅▆▇█"
FULL, REST = "━", "─"
COMPUTE, EXCHANGE, WAITING = "▆", "▄", "▂"
AXIS_LEAST = 24  # columns from which on a chart says its largest and smallest value

Pieces = Iterator[tuple[str, str]]  # text, and the name of its style


class Mark:
    """One line that fills its width, drawn in pieces."""

    def pieces(self, width: int) -> Pieces:
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style in self.pieces(options.max_width):
            yield Segment(text, console.get_style(style) if style else None)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


def heights(values: Sequence[float], width: int) -> list[float]:
    """The latest values as shares of the largest."""
    known = [max(0.0, formats.known(value) or 0.0) for value in values[-width:]]
    top = max(known, default=0.0)
    if top <= 0 or not math.isfinite(1 / top):
        return [0.0] * len(known)
    return [value / top for value in known]


@dataclass(frozen=True)
class Cell(Mark):
    """Text in pieces of a style each, cut or filled to the width."""

    parts: tuple[tuple[str, str], ...]
    right: bool = False

    def pieces(self, width: int) -> Pieces:
        left = width - sum(columns(text) for text, _ in self.parts)
        if left < 0:
            yield from self._cut(width)
            return
        if left and self.right:
            yield " " * left, ""
        yield from self.parts
        if left and not self.right:
            yield " " * left, ""

    def _cut(self, width: int) -> Pieces:
        for text, style in self.parts:
            size = columns(text)
            if size > width:
                yield pad(text, width), style
                return
            yield text, style
            width -= size
            if width <= 0:
                return


def cell(*parts: str | tuple[str, str], style: str = "", right: bool = False) -> Cell:
    """Each part is a text, or a text and its style; others have `style`."""
    found = tuple((part, style) if isinstance(part, str) else part for part in parts)
    return Cell(tuple(part for part in found if part[0]), right)


@dataclass(frozen=True)
class Sparkline(Mark):
    values: Sequence[float]
    style: str = "spark"

    def pieces(self, width: int) -> Pieces:
        last = len(BARS) - 2  # the full block would touch the row above
        shares = heights(self.values, width)
        yield "".join(BARS[int(share * last + 0.5)] for share in shares).rjust(width), self.style


@dataclass(frozen=True)
class ProgressBar(Mark):
    share: float
    style: str = "run"

    def pieces(self, width: int) -> Pieces:
        full = int(min(1.0, max(0.0, self.share)) * width)
        yield FULL * full, self.style
        yield REST * (width - full), "rest"


@dataclass(frozen=True)
class ShareMeter(Mark):
    """A share with its per cent behind it; without room for a bar the per cent alone."""

    share: float | None

    def pieces(self, width: int) -> Pieces:
        share = formats.known(self.share)
        text = formats.UNKNOWN if share is None else f"{formats.percent(share)}%"
        room = width - 5
        shown = min(1.0, max(0.0, share or 0.0))
        if room >= 3 and share is not None:
            full = math.ceil(shown * room) if shown > 0.005 else 0
            heats = [place * HEATS // room for place in range(full)]
            for heat, places in groupby(heats):
                yield FULL * len(list(places)), f"heat.{heat}"
            yield REST * (room - full), "rest"
        elif room >= 3:
            yield " " * room, ""
        size = 5 if room >= 3 else width
        hot = share is not None and share >= 0.9
        yield text.rjust(size), "bad" if hot else "" if share is not None else "dim"


@dataclass(frozen=True)
class TimeBar(Mark):
    """Shares of the time: an exchange under way, and of that waiting for a peer."""

    exchange: float
    waiting: float

    def pieces(self, width: int) -> Pieces:
        exchange = min(1.0, max(0.0, formats.known(self.exchange) or 0.0))
        waiting = min(exchange, max(0.0, formats.known(self.waiting) or 0.0))
        computes = round((1 - exchange) * width)
        waits = min(width - computes, round(waiting * width))
        yield COMPUTE * computes, "compute"
        yield EXCHANGE * (width - computes - waits), "exchange"
        yield WAITING * waits, "waiting"


@dataclass(frozen=True)
class Chart:
    """An area from `low`, or the smallest value, to the largest; as high as `height` or its place
    says. Its labels are of what is drawn, means where values are more than columns."""

    values: Sequence[float]
    style: str = "loss"
    height: int | None = None
    low: float | None = None

    def rows(self, width: int, height: int) -> list[Text]:
        known = [value for value in self.values if math.isfinite(value)]
        if not known or height < 1:
            return [Text(" no values yet", style="dim")]
        labels = [formats.loss(value) for value in (min(known), max(known))]
        edge = max(map(len, labels)) if width >= AXIS_LEAST else 0
        drawn = stretched(known, max(1, width - edge - 2 * bool(edge)))
        high, low = max(drawn), min(drawn) if self.low is None else self.low
        names = [""] * height
        if edge:
            names[0], names[-1] = formats.loss(high), formats.loss(low)
        shares = [_share(value, low, high) for value in drawn]
        return [
            Text.assemble(
                (f"{name[:edge]:>{edge}} │" if edge else "", "dim"),
                (_slice(shares, height, height - 1 - place), self.style),
                no_wrap=True,
            )
            for place, name in enumerate(names)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.rows(options.max_width, self.height or options.height or 5)


def _share(value: float, low: float, high: float) -> float:
    span = high - low
    return (value - low) / span if 0 < span < math.inf else 0.5


def _slice(shares: Sequence[float], height: int, place: int) -> str:
    """One line of the area; the smallest value still has a bar."""
    made = ""
    for share in shares:
        eighths = round((share * (height - 0.125) + 0.125 - place) * 8)
        made += " " if eighths < 1 else BARS[min(8, eighths) - 1]
    return made


def stretched(values: Sequence[float], width: int) -> list[float]:
    """The values as `width` ones: means of neighbours where there are more, else each repeated."""
    count = len(values)
    made = []
    for place in range(width):
        first = place * count // width
        part = values[first : max(first + 1, (place + 1) * count // width)]
        made.append(sum(value / len(part) for value in part))
    return made


@dataclass(frozen=True)
class RowStrip:
    """A row of marks side by side, a blank between two."""

    parts: Sequence[tuple[Mark, int]]

    def pieces(self) -> Pieces:
        for place, (part, width) in enumerate(self.parts):
            if place:
                yield " ", ""
            yield from part.pieces(width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style in self.pieces():
            yield Segment(text, console.get_style(style) if style else None)
        yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = sum(size for _, size in self.parts) + len(self.parts) - 1
        return Measurement(width, width)


@dataclass(frozen=True)
class Inner(Mark):
    """A strip as a part of another; blanks fill its width."""

    strip: RowStrip

    def pieces(self, width: int) -> Pieces:
        left = width
        for text, style in self.strip.pieces():
            left -= columns(text)
            yield text, style
        yield " " * max(0, left), ""


BLANK = Cell(())
