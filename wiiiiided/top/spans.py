"""A screen before it is written: rows of pieces of text, each with the name of a style.

    Row = (Span("  a      ", ""), Span("ok    ", "good"), …)

Styles are names until the very end, so that one picture becomes ANSI, plain text or SVG. A colour
is never the only sign: the words are the same without any. Only the terminal's own first colours
are used, none that is hard to read on a white or on a black ground (yellow, blue, white).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from wiiiiided.text import columns, cut

Style = Literal["", "bold", "dim", "good", "warn", "bad", "bar", "select"]


class Span(NamedTuple):
    text: str
    style: Style = ""


Row = tuple[Span, ...]
Frame = tuple[Row, ...]

COLOURS: dict[Style, str] = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "warn": "1;35",
    "bad": "1;31",
    "bar": "7",
    "select": "7",
}
# Without colours attributes stay: they are what tells a dimmed screen from a live one.
PLAIN: dict[Style, str] = {**COLOURS, "good": "", "warn": "1", "bad": "1"}

# Each of our own signs has one of ASCII, of the same width. Untrusted text is ASCII before that.
ASCII = str.maketrans("▸…–─│◄▁▂▃▄▅▆▇█▴▾↑↓·", ">~--|<_.:-=+*#^v^v.")


def fit(spans: Iterable[Span], width: int) -> Row:
    """At most `width` columns of them: what a row goes through last, whatever made it."""
    kept, left = [], width
    for span in spans:
        size = columns(span.text)
        if size <= left:
            kept.append(span)
            left -= size
            continue
        kept.append(span._replace(text=cut(span.text, left)))
        break
    return tuple(kept)


def restyled(row: Row, style: Style) -> Row:
    return tuple(Span(span.text, style) for span in row)


def filled(row: Row, width: int, style: Style) -> Row:
    """The row in one style over the whole width."""
    blanks = width - sum(columns(span.text) for span in row)
    return (*restyled(row, style), Span(" " * max(0, blanks), style))


def in_ascii(frame: Frame) -> Frame:
    return tuple(tuple(Span(s.text.translate(ASCII), s.style) for s in row) for row in frame)


def plain(row: Row) -> str:
    return "".join(span.text for span in row).rstrip()


def painted(row: Row, codes: dict[Style, str]) -> str:
    """With the terminal's codes for its styles; every piece ends what it began."""
    return "".join(
        f"\x1b[{code}m{span.text}\x1b[0m" if (code := codes.get(span.style)) else span.text
        for span in row
    )


def lines(frame: Sequence[Row]) -> list[str]:
    return [plain(row) for row in frame]
