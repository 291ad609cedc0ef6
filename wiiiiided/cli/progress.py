"""One line on a person's terminal about what takes longer than a second; nothing anywhere else.

    sending the folder: 12.0 MiB of 20.1 MiB, 59 %      counted: whoever moves bytes tells how many
    joining the cluster at 10.0.0.1:9461: 4s            waiting: there is nothing to count

The line is drawn over itself, at most ten times a second, and wiped at the end.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from wiiiiided.cli.text import clean, cut
from wiiiiided.cli.words import span
from wiiiiided.client import Progress

SLOW_S = 1.0  # what takes less needs no progress
REDRAW_S = 0.1
TICK_S = 0.5
ROW = 79  # columns; a line that wraps could not be drawn over


class Line:
    """The line itself; it knows whether it is to be seen."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.begun = self._shown = time.monotonic()
        self._visible = False

    def draw(self, words: str, now: float) -> None:
        if not sys.stderr.isatty() or now - self.begun < SLOW_S or now - self._shown < REDRAW_S:
            return
        self._shown, self._visible = now, True
        text = cut(clean(f"{self._what}: {words}"), ROW)
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def wipe(self) -> None:
        if self._visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def counted(what: str) -> Iterator[Progress]:
    """To be told how many bytes of how many are done; of 0 when nobody knows how many."""
    line = Line(what)

    def tell(done: int, total: int) -> None:
        line.draw(share(done, total), time.monotonic())

    try:
        yield tell
    finally:
        line.wipe()


def share(done: int, total: int) -> str:
    from wiiiiided.ship.survey import size_words

    if not total:
        return f"{size_words(done)} so far"
    return f"{size_words(done)} of {size_words(total)}, {100 * done // total} %"


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """While something is under way that says nothing until it is done: the seconds so far."""
    if not sys.stderr.isatty():
        yield
        return
    line, done = Line(what), threading.Event()

    def tick() -> None:
        while not done.wait(TICK_S):
            now = time.monotonic()
            line.draw(span(now - line.begun), now)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
        line.wipe()
