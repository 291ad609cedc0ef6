"""The report of a sweep on a terminal: a plot in which each letter is a job, and the table."""

from __future__ import annotations

from collections.abc import Iterator

from wiiiiided.domain.sweep import short_names
from wiiiiided.text import cell, columns, cut, pad
from wiiiiided.ui.cli import text_charts
from wiiiiided.ui.cli.report_lines import TITLE, Heading, ReportStyle, ascii_only, wrapped
from wiiiiided.ui.cli.table import TableColumn, render
from wiiiiided.ui.report.sweep import LETTERS, Comparison, facts, rows, titles, told

ROWS = 12  # of the plot
_COLUMNS = (
    TableColumn("LINE"),
    TableColumn("JOB", right=True),
    TableColumn("STATE", leaves=4),
    TableColumn("STEPS", right=True, leaves=3),
    TableColumn("LOSS", right=True),
    TableColumn("LOWEST", right=True, leaves=2),
    TableColumn("RAN FOR", right=True, leaves=1),
)
COLUMNS = {column.title.lower(): column for column in _COLUMNS}  # by titles(…)


def lines(found: Comparison, look: ReportStyle) -> Iterator[str]:
    """The whole report. Everything in it is clean."""
    for line in _all(found, look):
        yield line if look.marks is text_charts.BLOCKS else ascii_only(line)


def _all(found: Comparison, look: ReportStyle) -> Iterator[str]:
    name = cell(f"sweep {found.sweep}: {found.name}")
    yield Heading(name if look.width is None else cut(name, look.width))
    for title, text in facts(found):
        yield from wrapped(text, look, f"  {title:<{TITLE}} ")
    yield ""
    if found.drawn:
        yield Heading("loss")
        yield from wrapped(told(found), look, "  ")
        yield from _plot(found, look)
        yield ""
    yield from _table(found, look)


def _plot(found: Comparison, look: ReportStyle) -> Iterator[str]:
    """Losses from left to right; where lines meet, the smaller last loss is seen."""
    across, up = found.scales()
    top, bottom = text_charts.ends(up)
    margin = max(columns(top), columns(bottom)) + 2
    room = max(look.room - margin, 4)
    cells = [[" "] * room for _ in range(ROWS)]
    for letter, line in reversed(list(zip(LETTERS, found.lines(), strict=False))):
        places = [(across.place(x) * (room - 1), up.place(y) * (ROWS - 1)) for x, y in line]
        for (x0, y0), (x1, y1) in zip(places, places[1:] or places, strict=False):
            for column in range(round(x0), round(x1) + 1):  # also where points are far apart
                part = (column - x0) / (x1 - x0) if x1 > x0 else 1.0
                height = y0 + (y1 - y0) * min(1.0, max(0.0, part))
                cells[ROWS - 1 - round(height)][column] = letter
    for row, drawn in enumerate(cells):
        name = top if row == 0 else bottom if row == ROWS - 1 else ""
        side = f"{pad(name, margin - 2, right=True)} {look.marks.side}"
        yield (side + "".join(drawn)).rstrip()
    yield " " * (margin - 1) + look.marks.corner + look.marks.floor * room
    first, last = across.ticks[0][1], across.ticks[-1][1]
    unit = " steps" if found.by_steps else ""
    yield " " * margin + first + pad(last + unit, room - columns(first), right=True)


def _table(found: Comparison, look: ReportStyle) -> Iterator[str]:
    swept = set(short_names(found.keys))
    wanted = [
        COLUMNS[title] if title not in swept else TableColumn(cell(title), least=4, readable=8)
        for title in titles(found)
    ]
    yield from render(wanted, [list(row) for row in rows(found)], look.width)
