"""The parts of panes: a frame with a title, columns for a width, and text that is not trusted.

    ╭─ nodes ─────────────────────────────────────╮
    │  node   state  samples/s  ▁▂▅▇              │   `fitted`: columns by priority, then wider
    │▸ a *    ● ok       412.0  ▅▆▇█              │   `mark`: the selection, or more above or below
    ╰─ straggler: rank 4 on c costs … ────────────╯   a sentence in the frame moves no row

Rich measures text by tables of its own. `words` lets only text pass whose width is the same by
Rich's tables and by those of `wiiiiided.text`: a frame then ends where it should on any terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from rich.box import ROUNDED
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from wiiiiided.text import cell, columns, cut
from wiiiiided.ui.top.ui import Ui

UNTRUSTED_CHARS = 512  # no row shows more, however long a name or a reason is
NAME_MOST = 24  # columns of a name: it gives way to metrics and reasons
ROOMY = 44  # columns from which on a frame has a blank inside
EDGES = 2  # lines of a frame
FRAMED = 4  # lines of a pane from which on it has one
SORTED = {True: "▾", False: "▴"}  # whether the largest come first


def words(text: str, in_ascii: bool) -> str:
    """Untrusted text, bounded, with nothing in it that a terminal would obey."""
    shown = cell(text[:UNTRUSTED_CHARS])
    if shown.isascii():
        return shown
    return shown.encode("ascii", "backslashreplace").decode() if in_ascii else _agreed(shown)


def _agreed(text: str) -> str:
    if any(cell_len(char) != columns(char) for char in text):
        text = "".join(char if cell_len(char) == columns(char) else "?" for char in text)
    if cell_len(text) != columns(text):  # characters that Rich joins to one
        joining = ("Mn", "Me", "Cf")
        text = "".join(char for char in text if unicodedata.category(char) not in joining)
    return text if cell_len(text) == columns(text) else text.encode("ascii", "replace").decode()


def line(*parts: str | Text | tuple[str, str], style: str = "", right: bool = False) -> Text:
    """One line that is cut where its place ends."""
    return Text.assemble(
        *parts,
        style=style,
        no_wrap=True,
        overflow="ellipsis",
        justify="right" if right else "left",
    )


def inside(width: int) -> int:
    """Columns within a frame."""
    return max(1, width - (4 if width >= ROOMY else 2))


def rows_of(height: int) -> int:
    """Lines within a pane of this height."""
    return height - (EDGES if height >= FRAMED else 0)


def framed(
    content: RenderableType,
    title: Text,
    width: int,
    ui: Ui,
    *,
    height: int = FRAMED,
    focus: bool = False,
    below: Text | None = None,
) -> RenderableType:
    """The content in a frame; on paper under a heading, in a few lines without either."""
    if ui.once:
        parts = [line(("── ", "dim"), title), content]
        return Group(*parts, *([below] if below else []))
    if height < FRAMED:
        return content
    room = max(1, width - 6)
    return Panel(
        content,
        title=_within(title, room),
        subtitle=_within(below, room) if below else None,
        title_align="left",
        subtitle_align="left",
        border_style="focus" if focus else "frame",
        box=ROUNDED,
        padding=(0, 1) if width >= ROOMY else (0, 0),
        width=width,
    )


def _within(text: Text, room: int) -> Text:
    """The text, cut with a sign where the frame ends: Rich cuts without one."""
    found = text.copy()
    found.truncate(room, overflow="ellipsis")
    return found


def title(name: str, about: str, focus: bool) -> Text:
    return line((name, "title" if focus else "text"), (f" {about}" if about else "", "dim"))


def fitted(least: Mapping[str, int], wider: Sequence[tuple[str, int]], room: int) -> dict[str, int]:
    """Widths of columns, a blank between two: `least` always, then each of `wider` in its order:
    a column more, or one that is wider than before, for as long as there is room."""
    made = dict(least)
    left = room - sum(made.values()) - len(made) + 1
    for key, size in wider:
        more = size - made[key] if key in made else size + 1
        if 0 < more <= left:
            made[key], left = size, left - more
    return made


def mark(place: int, shown: range, count: int, selected: int | None) -> str:
    """The sign before a row: it is selected, or there are more above or below."""
    if place == selected:
        return "▸"
    if place == shown.start and shown.start > 0:
        return "↑"
    return "↓" if place == shown.stop - 1 and shown.stop < count else " "


def nothing(filter_: str, in_ascii: bool) -> Text:
    """The line instead of rows, where a filter has left none."""
    return line(f" nothing matches '{words(filter_, in_ascii)}'", style="dim")


def short(text: str, ui: Ui) -> str:
    """A name as rows show it."""
    return words(text, ui.ascii) if ui.once else cut(words(text, ui.ascii), NAME_MOST)
