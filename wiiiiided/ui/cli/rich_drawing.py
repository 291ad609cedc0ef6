"""Commands' drawings on a terminal, with Rich. Pipes and files get plain text, and never load this.

Every text that is drawn went through `wiiiiided.text` before, and becomes a Text of Rich's: its
markup ("[red]") is not looked at in what people and jobs have written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from wiiiiided.text import cell, cut
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.report_lines import FRAMED, BoldLine, Heading
from wiiiiided.ui.cli.sections import FactSection
from wiiiiided.ui.cli.table import GAP, TableColumn, layout

BORDER = "bright_black"
TITLE_MARGIN = 6  # corners, lines and blanks beside a frame's title
# The styles of a bar's parts, compute, exchange and waiting, and of axes.
CHART_STYLES = {"[▁-█]+": "green", "▓+": "cyan", "░+": "yellow", "[│└─]+": BORDER}
STATES = {
    "running": "green",
    "starting": "green",
    "done": "bright_black",
    "cancelled": "bright_black",
    "failed": "bold red",
    "hung": "bold red",
    "stopping": "yellow",
    "backoff": "yellow",
    "held": "cyan",
    # and of machines
    "ok": "green",
    "drained": "cyan",
    "lost": "bold red",
    # and of a doctor's findings
    "warn": "yellow",
    "fail": "bold red",
}


def console() -> Console:
    """The terminal behind stdout."""
    return Console(
        width=screen.width(),
        color_system="auto" if screen.colourful(sys.stdout) else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def table(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]]) -> None:
    """Rows below a heading; columns that find no room leave, and no row wraps."""
    cells = [[cell(text) for text in row] for row in rows]
    terminal = console()
    drawn = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1),
        collapse_padding=True,
        header_style="bold",
        border_style=BORDER,
    )
    places = layout(columns, cells, terminal.width)
    for index, width in places:
        column = columns[index]
        drawn.add_column(
            Text(cut(column.title, width)),
            width=width,
            no_wrap=True,
            justify="right" if column.right else "left",
            style=column.style,
        )
    for row in cells:
        drawn.add_row(*(_cell(columns[index], row[index], width) for index, width in places))
    terminal.print(drawn)


def _cell(column: TableColumn, text: str, width: int) -> Text:
    style = STATES.get(text, "") if column.painted else ""
    return Text(cut(text, width), style=BORDER if text == "-" else style)


def sections(found: Iterable[FactSection]) -> None:
    """Each section in a frame of its own, as wide as the terminal; long cells are wrapped. A title
    that is too long for its frame stands above it."""
    terminal = console()
    for one in found:
        title = Text(one.title, "bold")
        if title.cell_len > terminal.width - TITLE_MARGIN:
            terminal.print(title, soft_wrap=True)
            title = Text()
        terminal.print(frame(title, _grid(one), STATES.get(one.state, BORDER)))


def report(lines: Iterable[str]) -> None:
    """A report's lines, in a frame below each heading."""
    terminal, title, inside = console(), Text(), list[Text]()
    if terminal.width < FRAMED:
        for line in lines:
            loud = isinstance(line, Heading | BoldLine)
            terminal.print(Text(line, "bold" if loud else ""), soft_wrap=True)
        return
    for line in lines:
        if not isinstance(line, Heading):
            inside.append(_report_line(line))
            continue
        if inside:
            terminal.print(frame(title, _without_ends(inside)))
        title, inside = Text(line, "bold"), []
    terminal.print(frame(title, _without_ends(inside)))


def _report_line(line: str) -> Text:
    text = Text(
        str(line), "bold" if isinstance(line, BoldLine) else "", no_wrap=True, overflow="crop"
    )
    for marks, style in CHART_STYLES.items():
        text.highlight_regex(marks, style)
    return text


def _without_ends(lines: list[Text]) -> Text:
    """The lines without the blank one before the next heading."""
    return Text("\n", no_wrap=True).join(lines[:-1] if lines and not lines[-1].plain else lines)


def frame(title: Text, inside: RenderableType, style: str = BORDER) -> Panel:
    return Panel(inside, title=title or None, title_align="left", border_style=style)


def _grid(section: FactSection) -> Table:
    """The rows of a section; what is long is wrapped in the last column."""
    grid = Table.grid(padding=(0, 2), expand=True)
    last = max(map(len, section.rows), default=1) - 1
    for place in range(last):
        grid.add_column(style="cyan" if place == 0 else "", no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    for row in section.rows:
        loud = "bold" if row and row[0] in section.loud else ""
        grid.add_row(*(Text(text, STATES.get(text, loud)) for text in row))
    return grid
