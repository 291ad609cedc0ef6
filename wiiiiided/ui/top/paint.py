"""A renderable as rows of a terminal, as plain text, or as a picture.

Rich's Console draws; `Terminal` writes. Rich's Live is not used: it writes whole frames through a
file that blocks, from a thread of its own or under its lock. Here a terminal may take nothing for
minutes (Ctrl-S, a network that is away) while signals and snapshots go on, only rows that changed
are sent, and a frame is never seen half drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from functools import cache

from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style

from wiiiiided.ui.top.theme import GROUND, Palette, theme

Line = list[Segment]

# An ASCII sign for each of our own, of the same width. Untrusted text is ASCII before that.
ASCII = str.maketrans(
    "▸…–─│━◄▁▂▃▄▅▆▇█▴▾↑↓·●○⊘✗✓▶▷◷‖■↻╭╮╰╯→↵",
    ">~--|=<_.:-=+*#^v^v.*o0x+>>@=#%++++>.",
)


@cache
def console(palette: Palette) -> Console:
    """A console that writes nowhere: it turns renderables into segments."""
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="truecolor", theme=theme(palette),
        markup=False, emoji=False, highlight=False, legacy_windows=False,
        width=80, height=24, _environ={},
    )  # fmt: skip


def lines(
    renderable: RenderableType, width: int, height: int | None = None, palette: Palette = "none"
) -> list[Line]:
    """The renderable's lines: as many as it has, or exactly `height`."""
    drawn = console(palette)
    options = drawn.options.update(width=width, height=height)
    if height is None:
        options = options.update(max_width=width).reset_height()
    return drawn.render_lines(renderable, options, pad=height is not None)


def texts(
    renderable: RenderableType, width: int, height: int | None, ascii_only: bool
) -> list[str]:
    """The renderable's lines as plain text, with all their blanks."""
    found = lines(renderable, width, height)
    rows = in_ascii(found) if ascii_only else found
    return ["".join(segment.text for segment in row) for row in rows]


def in_ascii(rows: Iterable[Line]) -> list[Line]:
    return [[Segment(text.translate(ASCII), style) for text, style, _ in row] for row in rows]


class Painter:
    """Turns renderables into rows with the codes of a terminal that has so many colours."""

    def __init__(self, colours: int, ascii_only: bool = False) -> None:
        self.encoding = "ascii" if ascii_only else "utf-8"
        self._ascii = ascii_only
        self._palette: Palette = "any" if colours > 16 else "ansi" if colours else "none"
        self._system = ColorSystem.EIGHT_BIT if colours < 1 << 24 else ColorSystem.TRUECOLOR

    def rows(self, renderable: RenderableType, width: int, height: int | None) -> list[str]:
        found = lines(renderable, width, height, self._palette)
        return [self._painted(row) for row in (in_ascii(found) if self._ascii else found)]

    def _painted(self, row: Line) -> str:
        made = [self._piece(text, style) for text, style, _ in Segment.simplify(row)]
        return "".join(made).rstrip(" ")

    def _piece(self, text: str, style: Style | None) -> str:
        if style is None or not style:
            return text
        return style.render(text, color_system=self._system)


class Faded:
    """A renderable without its colours, dim: it may not be true any more."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        dim = Style(dim=True)
        for segment in console.render(self._renderable, options):
            yield Segment(segment.text, dim) if segment.text != "\n" else segment


class Scrolled:
    """The part of a renderable that begins at a line, as high as its place."""

    def __init__(self, renderable: RenderableType, top: int) -> None:
        self._renderable, self._top = renderable, top

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.height or options.max_height
        found = console.render_lines(self._renderable, options.reset_height(), pad=False)
        top = max(0, min(self._top, len(found) - room))
        for row in found[top : top + room]:
            yield from row
            yield Segment.line()


# ---- pictures

# Rich's own template loads fonts from a network, and draws the frame of a window.
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 WIDE HIGH" width="WIDE" \
height="HIGH" role="img" aria-label="wiiiiide top">
<style>
.{unique_id}-matrix {{ font-size: 21px; white-space: pre; font-family:
ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; }}
{styles}
</style>
<rect width="100%" height="100%" rx="10" fill="#16181d"/>
<g transform="translate(EDGE, EDGE)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
# A column's width and a line's height, as Rich has them, and a margin. Letters of 21 pixels and not
# Rich's 20: frames and bars then touch each other.
CELL, HIGH, EDGE = 12.2, 24.4, 12


def picture(renderable: RenderableType, width: int, height: int, ascii_only: bool = False) -> str:
    """One SVG file. Nothing in it comes from a network."""
    drawn = Console(
        file=io.StringIO(), force_terminal=True, color_system="truecolor", theme=theme("dark"),
        record=True, width=width, legacy_windows=False, _environ={},
    )  # fmt: skip
    found = lines(renderable, width, height, "dark")
    for row in in_ascii(found) if ascii_only else found:
        drawn.print(_PaintedRow(row), end="")
    form = SVG.replace("EDGE", f"{EDGE}").replace("WIDE", f"{width * CELL + 2 * EDGE:.0f}")
    form = form.replace("HIGH", f"{len(found) * HIGH + 2 * EDGE:.0f}")
    text = drawn.export_svg(theme=GROUND, code_format=form, unique_id="top")
    text = re.sub(r' clip-path="[^"]*"', "", text).replace("</text>", "</text>\n")
    return text.replace("textLength=", 'lengthAdjust="spacingAndGlyphs" textLength=')


class _PaintedRow:
    def __init__(self, row: Line) -> None:
        self._row = row

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._row
        yield Segment.line()
