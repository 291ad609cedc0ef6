"""Facts in sections: framed on a terminal, plain lines in a pipe.

job 17: digits                       ╭─ job 17: digits ────────────────╮
  state      running on a            │ state   running on a            │
  owner      ada, priority 0         │ owner   ada, priority 0         │
                                     ╰─────────────────────────────────╯
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from wiiiiided.ui.cli import screen

Row = Sequence[str]


def fact(row: Row) -> str:
    """A row of a title and a text; the texts stand below each other."""
    return f"  {row[0]:<10} {row[1]}"


@dataclass(frozen=True)
class FactSection:
    """A heading and rows of clean cells; the first cell says what the row is about."""

    title: str
    rows: Sequence[Row]
    plain: Callable[[Row], str] = fact  # a row in a pipe
    loud: Collection[str] = ()  # first cells of rows that must not be overlooked
    state: str = ""  # in whose colour the frame is


def put(sections: Iterable[FactSection], between: str | None = "") -> None:
    """Print all sections on stdout; in a pipe with a line between two, or none."""
    if sys.stdout.isatty():
        from wiiiiided.ui.cli import rich_drawing

        rich_drawing.sections(sections)
        return
    for line in lines(sections, between):
        screen.put(line)


def lines(sections: Iterable[FactSection], between: str | None = "") -> Iterator[str]:
    for place, one in enumerate(sections):
        if place and between is not None:
            yield between
        yield one.title
        yield from map(one.plain, one.rows)
