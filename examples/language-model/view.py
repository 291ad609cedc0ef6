"""How the demo looks while jobs run: live panels on a terminal, plain lines elsewhere.

    ╭── wide.parallel ──╮╭ DDP over wiiiiide ╮╭── DDP over gloo ──╮
    │ ━━━━━━━━━  96/200 ││ ━━━━━━━━━   0/200 ││ ━━━━━━━━━   0/200 │
    │ loss        2.512 ││ loss            – ││ loss            – │
    │ …                 ││ …                 ││ …                 │
    ╰─ job 1: training ─╯╰── job 2: queued ──╯╰── job 3: queued ──╯
    job 1 runs on a                                  what `wiiiiide why` says
    job 2 waits for a, which runs job 1

Nothing here measures. Text is built from Text objects and never from Rich's markup, because a
name or a reason may contain square brackets.
"""

import os
import termios
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from record import Record
from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

MAX_WIDTH = 110
PANEL_WIDTH = 26  # from here on panels stand side by side
SHORT_WIDTH = 72  # below this a plain line is shortened
REFRESH_S = 0.2  # drawing takes time from the ranks where cores are few
PLAIN_EVERY = 20
STYLES = {"done": "green", "failed": "red", "cancelled": "yellow"}
BARS = "▁▂▃▄▅▆▇█"


def number(value: float | None, form: str, unit: str = "", scale: float = 1.0) -> str:
    return "–" if value is None else f"{value * scale:{form}}{unit}"


def difference(value: float | None, form: str, unit: str, scale: float) -> str:
    """The excess of one measurement over another, if it is."""
    if value is not None and value <= 0.0:
        return "none"
    return number(value, form, unit, scale)


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of the loss in one line; each sign is the mean of a stretch of steps."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    cuts = [round(i * len(values) / count) for i in range(count + 1)]
    means = [fmean(values[a:b]) for a, b in pairwise(cuts)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(BARS[round((mean - low) / span * (len(BARS) - 1))] for mean in means)


class QuietKeys:
    """Keeps typed keys from being echoed into the live panels, where "^C" would shift a row."""

    def __init__(self) -> None:
        self.before: list[Any] | None = None

    def start(self) -> None:
        try:
            # In the background, touching the terminal would suspend the demo.
            if os.tcgetpgrp(0) == os.getpgrp():
                self.before = termios.tcgetattr(0)
                quiet = termios.tcgetattr(0)
                quiet[3] &= ~termios.ECHO
                termios.tcsetattr(0, termios.TCSANOW, quiet)
        except (OSError, termios.error):
            pass  # stdin is no terminal: nothing is echoed

    def stop(self) -> None:
        if self.before is not None:
            termios.tcsetattr(0, termios.TCSANOW, self.before)


class View:
    """Shows records while they fill. Use as a context; it decides itself between live and plain."""

    def __init__(self, console: Console, records: Sequence[Record]) -> None:
        self.console = console
        self.records = records
        self.live: Live | None = None
        self.keys = QuietKeys()
        self.drawn = 0.0
        if console.is_terminal and not console.is_dumb_terminal:
            self.live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "View":
        if self.live:
            self.keys.start()
            self.live.start()
            self.draw()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.live:
            self.draw()
            self.live.stop()
            self.keys.stop()

    def tick(self) -> None:
        """Called now and then: a live view is drawn when it is time."""
        if self.live and time.monotonic() - self.drawn >= REFRESH_S:
            self.draw()

    def job_changed(self, record: Record) -> None:
        """A plain view says so at once; a live one shows it at the next tick."""
        if not self.live and record.state != "queued":  # that, `submit` has said
            self.console.print(Text(about(record)), width=min(self.console.width, MAX_WIDTH))

    def step_done(self, record: Record) -> None:
        if not self.live and len(record.losses) % PLAIN_EVERY == 0:
            self.print_progress(record)

    def draw(self) -> None:
        if self.live:
            self.live.update(self.panels(), refresh=True)
            self.drawn = time.monotonic()

    def panels(self) -> RenderableType:
        width = min(self.console.width, MAX_WIDTH)
        reasons = [Text(about(record), "dim", no_wrap=True) for record in self.records]
        each = width // len(self.records)
        if each < PANEL_WIDTH:  # one below the other, and low: they have to fit into 24 lines
            panels = [panel(record, width, has_curve=False) for record in self.records]
            return Group(*panels, *reasons)
        grid = Table.grid()
        grid.add_row(*(panel(record, each) for record in self.records))
        return Group(grid, *reasons)

    def print_progress(self, record: Record) -> None:
        done = len(record.losses)
        place = f"{record.way.name:<17} {done:>3}/{record.steps}"
        rate = number(record.samples_per_second, ".0f")
        share = difference(record.share_outside, ".0f", " %", 100)
        if self.console.width < SHORT_WIDTH:
            line = f"{place} loss {record.losses[-1]:.2f} {rate}/s {share}"
        else:
            line = f"{place}  loss {record.losses[-1]:.3f}  {rate} samples/s  "
            line += f"{share} outside compute"
        self.console.print(Text(line), soft_wrap=True)


def about(record: Record) -> str:
    """One line on what becomes of the job."""
    said = record.sentence
    if record.state == "stopped":
        said = "is cancelled"
    elif record.state == "done" and record.wall_s is not None:
        said = f"is done after {record.wall_s:.0f} s"
    return f"job {record.job} {said}"


def panel(record: Record, width: int, has_curve: bool = True) -> Panel:
    """One run: how far it is, the course of its loss, and what it reaches."""
    inner = width - 4
    done = len(record.losses)
    count = f" {done:>{len(str(record.steps))}}/{record.steps}"
    bar = Table.grid()
    bar.add_row(
        ProgressBar(total=record.steps, completed=done, width=inner - len(count)), Text(count)
    )
    facts = Table.grid(expand=True)
    facts.add_column(no_wrap=True)
    facts.add_column(justify="right", no_wrap=True)
    loss = record.losses[-1] if record.losses else None
    facts.add_row("loss", number(loss, ".3f"))
    facts.add_row("samples/s", number(record.samples_per_second, ".1f"))
    facts.add_row("not compute", difference(record.share_outside, ".1f", " %", 100))
    rows: list[RenderableType] = [bar, facts]
    if has_curve:
        rows.append(Text(sparkline(record.losses, inner) or " ", style="cyan", no_wrap=True))
    active = record.state in ("starting", "training", record.way.closing)
    return Panel(
        Group(*rows),
        title=Text(record.way.name, style="bold"),
        subtitle=Text(f"job {record.job}: {record.state}", STYLES.get(record.state, "")),
        width=width,
        box=ROUNDED,
        border_style="cyan" if active else "dim",
    )
