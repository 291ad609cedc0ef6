"""A frame as a picture: one SVG file, for a page or a letter. Nothing in it comes from a network.

Every piece of text says where it begins and how wide it is, so columns stand in line whatever font
the reader has. The colours are those of a dark terminal.
"""

from __future__ import annotations

from html import escape
from itertools import groupby

from wiiiiided.text import columns
from wiiiiided.top.spans import Frame, Row, Style

CELL, LINE, EDGE = 8.4, 18, 12  # a column's width, a line's height, the margin; for 14 px letters
BACK, FRONT = "#16181d", "#d8dbe2"
FILLS: dict[Style, str] = {
    "": FRONT,
    "bold": "#ffffff",
    "dim": "#868c98",
    "good": "#7fd08a",
    "warn": "#d59be8",
    "bad": "#ff7b72",
    "bar": BACK,
    "select": BACK,
}
BARS: dict[Style, str] = {"bar": "#aeb6c4", "select": "#aeb6c4"}
BOLD = ("bold", "warn", "bad", "bar")


def picture(frame: Frame, width: int) -> str:
    """The whole file."""
    wide, high = width * CELL + 2 * EDGE, len(frame) * LINE + 2 * EDGE
    rows = "\n".join(piece for number, row in enumerate(frame) for piece in _row(row, number))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.1f} {high}" '
        f'width="{wide:.0f}" height="{high}" role="img" aria-label="wiiiiide top">\n'
        f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>\n'
        "<g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', "
        'monospace" font-size="14" xml:space="preserve">\n'
        f"{rows}\n</g>\n</svg>\n"
    )


def _row(row: Row, number: int) -> list[str]:
    made: list[str] = []
    at, top = 0, EDGE + number * LINE
    for style, spans in groupby(row, key=lambda span: span.style):  # one bar has no seams
        text = "".join(span.text for span in spans)
        size = columns(text)
        x, length = EDGE + at * CELL, size * CELL
        at += size
        if style in BARS:
            made.append(
                f'<rect x="{x:.1f}" y="{top}" width="{length:.1f}" height="{LINE}" '
                f'fill="{BARS[style]}"/>'
            )
        made += _words(text, x, top + LINE - 5, style)
    return made


def _words(text: str, x: float, y: int, style: Style) -> list[str]:
    """Each stretch without two blanks in a row, in its place."""
    made, at = [], 0
    weight = ' font-weight="bold"' if style in BOLD else ""
    for piece in text.split("  "):
        shown = piece.strip(" ")
        if shown:
            begin = x + (at + columns(piece) - columns(piece.lstrip(" "))) * CELL
            made.append(
                f'<text x="{begin:.1f}" y="{y}" textLength="{columns(shown) * CELL:.1f}" '
                f'lengthAdjust="spacingAndGlyphs" fill="{FILLS[style]}"{weight}>'
                f"{escape(shown)}</text>"
            )
        at += columns(piece) + 2
    return made
