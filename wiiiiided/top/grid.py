"""Columns of a pane: which there are at a width, how wide each is, and a row of them.

    ▸a *     ok       412.0  ▅▆▇▇▇▇  …  swapping
    │└ first: as wide as its longest cell was so far, as far as there is room
    └ mark: the selection, or that there is more above (↑) or below (↓)
                                          last: what is left, where it is worth it

All between has a fixed width that its numbers never exceed, so nothing jumps while figures change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wiiiiided.text import cell, columns, pad
from wiiiiided.top.spans import Row, Span, Style, filled, fit

UNTRUSTED_CHARS = 512  # no row shows more, however long a name or a reason is
LAST_LEAST = 8  # narrower text says nothing
ROOMY = 120  # from here on two blanks between columns
NAME_MOST = 24  # columns of a name: it gives way to figures and reasons
SORTED = {True: "▾", False: "▴"}  # whether the largest come first


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    width: int
    right: bool = True


@dataclass(frozen=True)
class Cell:
    text: str
    style: Style = ""


@dataclass(frozen=True)
class Grid:
    """Columns with the widths they have on this screen."""

    columns: tuple[Column, ...]
    gap: int
    width: int

    def title(self, sorted_by: str, falling: bool, focus: bool) -> Row:
        """The heading; the column that rows are sorted by has an arrow before it."""
        text = ""
        for column in self.columns:
            mark = SORTED[falling] if column.key == sorted_by else " "
            if not column.right:
                text += mark.rjust(self.gap if text else 1) + pad(column.title, column.width)
                continue
            name = pad(column.title, column.width, right=True)
            blanks = " " * (self.gap if text else 1) + name[: -len(column.title) or None]
            text += blanks[:-1] + mark + column.title[: column.width]
        return fit((Span(text.rstrip(), "bold" if focus else "dim"),), self.width)

    def row(self, cells: Mapping[str, Cell], mark: str = " ", selected: bool = False) -> Row:
        spans = [Span(mark)]
        for number, column in enumerate(self.columns):
            if number:
                spans.append(Span(" " * self.gap))
            one = cells.get(column.key, Cell(""))
            spans.append(Span(pad(one.text, column.width, column.right), one.style))
        row = fit(spans, self.width)
        return filled(row, self.width, "select") if selected else row


def grid(
    width: int, first: tuple[Column, int], fixed: Sequence[Column], last: tuple[Column, int] | None
) -> Grid:
    """`first` and `last` come with the width of their longest cell; `width` of `first` is its
    least."""
    column, longest = first
    gap = 2 if width >= ROOMY else 1
    free = width - 1 - sum(each.width + gap for each in fixed)
    size = max(min(longest, free), min(column.width, free), 1)
    made = [_sized(column, size), *fixed]
    left = free - size - gap
    if last is not None and left >= min(LAST_LEAST, last[1]) > 0:
        made.append(_sized(last[0], min(left, max(last[1], columns(last[0].title)))))
    return Grid(tuple(made), gap, width)


def _sized(column: Column, width: int) -> Column:
    return Column(column.key, column.title, width, column.right)


def words(text: str, in_ascii: bool) -> str:
    """Text of others, bounded and with nothing in it that a terminal would obey."""
    shown = cell(text[:UNTRUSTED_CHARS])
    return shown.encode("ascii", "backslashreplace").decode() if in_ascii else shown


def nothing(filter_: str, in_ascii: bool, width: int) -> Row:
    """Instead of rows, where a filter has left none."""
    return fit((Span(f" nothing matches '{words(filter_, in_ascii)}'", "dim"),), width)


def mark(place: int, shown: range, count: int, selected: int | None) -> str:
    """The sign before a row."""
    if place == selected:
        return "▸"
    if place == shown.start and shown.start > 0:
        return "↑"
    return "↓" if place == shown.stop - 1 and shown.stop < count else " "
