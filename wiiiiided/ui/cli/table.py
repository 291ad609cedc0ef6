"""Rows in columns that fit the screen, whatever its width: pure, no I/O.

Columns have a natural width, that of their widest cell. When the screen is too narrow, columns give
way in this order, and a row never wraps:

    1. those with a `least` width are cut, the last one first, as far as they are still `readable`
    2. minor columns leave, the highest `leaves` first
    3. columns are cut further, to their `least` width
    4. other columns leave that may
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wiiiiided.text import cell, columns, pad

GAP = 2
MINOR = 3  # from here on `leaves` is a column that leaves before others become unreadable


@dataclass(frozen=True)
class TableColumn:
    title: str
    right: bool = False  # justified: numbers are
    leaves: int = 0  # the highest leaves first; 0: the column stays however narrow it gets
    least: int = 0  # columns it can be cut to; 0: never cut
    readable: int = 0  # where it is better to let minor columns go
    painted: bool = False  # its cells are states
    style: str = ""  # of Rich's, on a terminal


def layout(
    wanted: Sequence[TableColumn], rows: Sequence[Sequence[str]], width: int | None
) -> list[tuple[int, int]]:
    """Which columns are shown, and how wide: (index, width) of each."""
    natural = [
        max(columns(column.title), *(columns(row[index]) for row in rows), 0)
        for index, column in enumerate(wanted)
    ]
    shown = list(range(len(wanted)))
    if width is None:
        return [(index, natural[index]) for index in shown]
    for leaving, floors in (
        (MINOR, [max(column.least, column.readable) for column in wanted]),
        (1, [column.least for column in wanted]),
    ):
        while True:
            widths = _squeeze(floors, natural, shown, width)
            if widths is not None:
                return list(zip(shown, widths, strict=True))
            free = [index for index in shown if wanted[index].leaves >= leaving]
            if not free:
                break
            shown.remove(max(free, key=lambda index: wanted[index].leaves))
    # Not even what must stay fits: it is cut at the screen's edge.
    return list(zip(shown, _clip([natural[index] for index in shown], width), strict=True))


def _squeeze(
    floors: Sequence[int], natural: Sequence[int], shown: Sequence[int], width: int
) -> list[int] | None:
    """Widths that fit, with cuttable columns cut from the last on; None when that is not enough."""
    widths = [natural[index] for index in shown]
    over = sum(widths) + GAP * (len(widths) - 1) - width
    for place in reversed(range(len(shown))):
        floor = floors[shown[place]]
        if over > 0 and floor:
            given = min(over, max(0, widths[place] - floor))
            widths[place] -= given
            over -= given
    return widths if over <= 0 else None


def _clip(widths: list[int], width: int) -> list[int]:
    left, clipped = width, []
    for one in widths:
        clipped.append(max(0, min(one, left)))
        left -= one + GAP
    return clipped


def render(
    wanted: Sequence[TableColumn], rows: Sequence[Sequence[str]], width: int | None
) -> list[str]:
    """The heading and every row."""
    cells = [[cell(text) for text in row] for row in rows]
    places = layout(wanted, cells, width)
    return [_row(wanted, places, row) for row in ([c.title for c in wanted], *cells)]


def _row(
    wanted: Sequence[TableColumn], places: Sequence[tuple[int, int]], row: Sequence[str]
) -> str:
    shown = [pad(row[index], size, wanted[index].right) for index, size in places if size]
    return (" " * GAP).join(shown).rstrip()
