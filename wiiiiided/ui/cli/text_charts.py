"""Charts made of characters: pure, each returns lines of at most the width it was given.

    2.5 │█▇▆▅                    columns over time: a blank one was not looked at
    1.2 │████▇▆▅▅▄▄▄   ▃▃▃▃▃
        └──────────────────      time below
         0        5m    10m

    rank 4 on c  ████████████████▓▓░░░░   61 · 20 · 19 %

Where only ASCII can be shown `Marks` has other characters; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wiiiiided.domain.metrics import Point
from wiiiiided.text import pad
from wiiiiided.ui.report.run_history import RunHistory, Stretch
from wiiiiided.ui.report.ticks import Scale, times

ROWS = 5  # of a chart over time


@dataclass(frozen=True)
class Marks:
    """The characters that draw."""

    levels: str  # from a little to a whole cell
    parts: str  # of a stacked bar: each is told from its neighbour without colour
    side: str
    corner: str
    floor: str


BLOCKS = Marks("▁▂▃▄▅▆▇█", "█▓░", "│", "└", "─")
ASCII = Marks(".:|#", "#=.", "|", "+", "-")


def over_time(
    past: RunHistory,
    value: Callable[[Point], float | None],
    scale: Scale,
    place: tuple[int, int],
    marks: Marks,
) -> list[str]:
    """A chart of filled columns, its scale on the left and the time below. `place` is how many
    columns are left of the plot, its side among them, and how many it has."""
    top, bottom = ends(scale)
    label, room = place[0] - 2, place[1]
    filled = [None if v is None else scale.place(v) * ROWS for v in _columns(past, value, room)]
    lines = []
    for row in reversed(range(ROWS)):
        name = top if row == ROWS - 1 else bottom if row == 0 else ""
        cells = "".join(_cell(height, row, marks.levels) for height in filled)
        lines.append(f"{pad(name, label, right=True)} {marks.side}{cells}".rstrip())
    lines.append(" " * (label + 1) + marks.corner + marks.floor * room)
    return [*lines, " " * (label + 2) + time_labels(past.length, room)]


def ends(scale: Scale) -> tuple[str, str]:
    """The labels of the top and of the bottom of a scale."""
    return scale.ticks[-1][1], scale.ticks[0][1]


def _cell(height: float | None, row: int, levels: str) -> str:
    """The character of a column in a row: none, a part, all. A known value is never invisible."""
    if height is None:
        return " "
    part = height - row
    if part <= 0:
        return levels[0] if row == 0 else " "
    return levels[min(int(part * len(levels)), len(levels) - 1)]


def _columns(
    past: RunHistory, value: Callable[[Point], float | None], room: int
) -> Iterator[float | None]:
    """The mean of what was seen in each of `room` equal parts of the axis."""
    found: list[list[float]] = [[] for _ in range(room)]
    for stretch in past.stretches():
        if (seen := value(stretch.point)) is not None:
            for column in _covered(stretch, past.length, room):
                found[column].append(seen)
    return (sum(some) / len(some) if some else None for some in found)


def _covered(stretch: Stretch, length: float, room: int) -> range:
    return _between(stretch.begin, stretch.end, length, room)


def _between(begin: float, end: float, length: float, room: int) -> range:
    """The columns of a part of the axis: at least one, none that it only touches at its end."""
    if length <= 0:
        return range(1)
    first = min(int(begin / length * room), room - 1)
    return range(first, max(first + 1, min(-int(-end / length * room // 1), room)))


def time_labels(length: float, room: int) -> str:
    """Round times below the columns they belong to; those that find no room are left out."""
    axis = times(length, wanted=max(2, room // 12))
    text = ""
    for value, label in axis.ticks:
        at = min(round(axis.place(value) * (room - 1)), room - len(label))
        if at >= len(text) + (2 if text else 0):
            text += " " * (at - len(text)) + label
    return text


def strip(
    parts: Sequence[tuple[float, float]], signs: Sequence[str], length: float, room: int
) -> str:
    """A strip of the axis whose stretches are drawn with a sign each."""
    cells = [" "] * room
    for (begin, end), sign in zip(parts, signs, strict=True):
        for column in _between(begin, end, length, room):
            cells[column] = sign
    return "".join(cells).rstrip()


def bar(shares: Sequence[float], room: int, marks: Marks) -> str:
    """Parts of a whole behind each other, never longer than `room` whatever is rounded; what is
    more than nothing is at least one mark where it stands alone."""
    text, reached = "", 0.0
    for share, sign in zip(shares, marks.parts, strict=False):
        reached += share
        text += sign * (min(round(reached * room), room) - len(text))
    return text or marks.parts[0] * (reached > 0)
