"""Work of more than a second, drawn with Rich on a person's terminal; nothing anywhere else.

    sending the folder ━━━━━━━━╸━━━━━ 12.0 MiB of 20.1 MiB  0:00:03    counted
    ⠙ joining the cluster at 10.0.0.1:9461  0:00:04                     waiting: nothing to count

It is drawn on stderr and gone at the end. Rich is loaded when there is something to draw.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wiiiiided.cluster.client import Progress
from wiiiiided.text import clean
from wiiiiided.ui.cli import screen

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

SLOW_S = 1.0  # what takes less needs no progress


@contextmanager
def counted(what: str) -> Iterator[Progress]:
    """A bar, and the function to call with the bytes done and their number; 0: it is not known."""
    begun, bar = time.monotonic(), None

    def tell(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and sys.stderr.isatty() and time.monotonic() - begun >= SLOW_S:
            bar = _bar(what, counts=True)
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done, total=total or None)

    try:
        yield tell
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def waiting(what: str, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """A spinner with the seconds so far, while a request is under way that says nothing until it is
    done. `unless`, asked after the first second, keeps it away."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Lock()
    bars: list[Bar | None] = []

    def begin() -> None:
        if unless():
            return
        with over:
            if not bars:
                bars.append(_bar(what, counts=False))

    timer = threading.Timer(SLOW_S, begin)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with over:
            bar = bars[0] if bars else None
            bars[:] = [None]  # too late to begin
        if bar is not None:
            bar.stop()


def _bar(what: str, counts: bool) -> Bar:
    """A bar, drawn by a thread of Rich's own. stdout is left alone: it may be a pipe."""
    from rich import progress
    from rich.console import Console

    console = Console(
        stderr=True,
        color_system="auto" if screen.colourful(sys.stderr) else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    words = progress.TextColumn("{task.description}", markup=False)
    count = (progress.BarColumn(), progress.DownloadColumn(binary_units=True))
    kind = (words, *count) if counts else (progress.SpinnerColumn(), words)
    made = progress.Progress(
        *kind,
        progress.TimeElapsedColumn(),
        console=console,
        refresh_per_second=4,  # Rich's ten cost more, and `wait` may draw for days
        transient=True,
        redirect_stdout=False,
    )
    made.add_task(clean(what), total=None)
    made.tasks[0].start_time = made.get_time() - SLOW_S  # when the work began
    made.start()
    return made
