"""How the demo looks: live panels on a terminal, plain lines elsewhere, one table in the end.

Nothing here measures. Text is built from Text objects and never from Rich's markup, because the
model's sample and a rank's last words may contain square brackets.
"""

import os
import termios
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from record import CLOSING_STEPS, SKIPPED_STEPS, Record, largest_difference
from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

MAX_WIDTH = 110
BESIDE_WIDTH = 72  # from here on two panels fit side by side
REFRESH_S = 0.2  # drawing takes time from the ranks where cores are few
PLAIN_EVERY = 20
BARS = "▁▂▃▄▅▆▇█"
# The same seed must give the same losses; summing in another order moves the last bits, and
# training carries such a difference on. More than this is not rounding.
LOSS_TOLERANCE = 0.01
UNEQUAL_COMPUTE = 1.1


def number(value: float | None, form: str, unit: str = "", scale: float = 1.0) -> str:
    return "–" if value is None else f"{value * scale:{form}}{unit}"


def difference(value: float | None, form: str, unit: str, scale: float) -> str:
    """A difference of two measurements, or the admission that it drowned in their noise."""
    if value is not None and value <= 0.0:
        return "in noise"
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

    def tick(self, record: Record, is_news: bool) -> None:
        """Called for every event, and now and then without one."""
        if self.live:
            if time.monotonic() - self.drawn >= REFRESH_S:
                self.draw()
        elif is_news:
            self.print_plain(record)

    def draw(self) -> None:
        if self.live:
            self.live.update(self.panels(), refresh=True)
            self.drawn = time.monotonic()

    def panels(self) -> RenderableType:
        width = min(self.console.width, MAX_WIDTH)
        if width < BESIDE_WIDTH:
            return Group(*(panel(record, width) for record in self.records))
        grid = Table.grid()
        each = width // len(self.records)
        grid.add_row(*(panel(record, each) for record in self.records))
        return grid

    def print_plain(self, record: Record) -> None:
        done = len(record.losses)
        if record.state not in ("training", "writing a sample") or done % PLAIN_EVERY or not done:
            return
        place = f"{record.backend:<8} {done:>3}/{record.steps}"
        rate = number(record.samples_per_second, ".0f")
        share = difference(record.share_outside, ".0f", " %", 100)
        if self.console.width < BESIDE_WIDTH:
            line = f"{place} loss {record.losses[-1]:.2f} {rate}/s {share}"
        else:
            line = f"{place}  loss {record.losses[-1]:.3f}  {rate} samples/s  "
            line += f"{share} outside compute"
        self.console.print(Text(line), soft_wrap=True)


def panel(record: Record, width: int) -> Panel:
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
    facts.add_row("outside compute", difference(record.share_outside, ".1f", " %", 100))
    curve = Text(sparkline(record.losses, inner) or " ", style="cyan", no_wrap=True)
    active = record.state not in ("waiting", "done", "stopped")
    return Panel(
        Group(bar, facts, curve),
        title=Text(record.backend, style="bold"),
        subtitle=Text(record.state, style="green" if record.state == "done" else ""),
        width=width,
        box=ROUNDED,
        border_style="cyan" if active else "dim",
    )


def introduce(console: Console, records: Sequence[Record]) -> None:
    names = ", then over ".join(record.backend for record in records)
    first = records[0]
    text = (
        f"Two processes train one language model on Python's help text, over {names}: "
        f"{first.steps} steps of {first.samples_per_step} samples each."
    )
    console.print(Text(text), width=min(console.width, MAX_WIDTH))
    console.print()


def summarize(console: Console, records: Sequence[Record]) -> bool:
    """Table, sample and plain words about both runs; False if their losses do not agree."""
    width = min(console.width, MAX_WIDTH)
    console.print()
    console.print(table(records))
    sentences = [disturbance(*records) or comparison(*records), agreement(*records)]
    for record in records:
        sentences += counted(record)
    for sentence in sentences:
        console.print(Text(sentence), width=width)
    console.print()
    console.print(sample_panel(records, width))
    console.print(Text(explanation(records[0]), style="dim"), width=width)
    return largest_difference(*records) <= LOSS_TOLERANCE


def table(records: Sequence[Record]) -> Table:
    result = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    result.add_column("", no_wrap=True)
    for record in records:
        result.add_column(Text(record.backend), justify="right", no_wrap=True)
    rows = [
        ("samples/s", [number(r.samples_per_second, ".1f") for r in records]),
        ("time per step", [number(r.step_time, ".1f", " ms", 1e3) for r in records]),
        ("outside compute", [difference(r.outside_compute, ".1f", " ms", 1e3) for r in records]),
        ("share of step", [difference(r.share_outside, ".1f", " %", 100) for r in records]),
        ("closing loss", [number(r.closing_loss, ".4f") for r in records]),
        ("whole run", [number(r.wall_s, ".1f", " s") for r in records]),
    ]
    for name, values in rows:
        result.add_row(name, *values)
    return result


def comparison(one: Record, other: Record) -> str:
    if not one.samples_per_second or not other.samples_per_second:
        return "The runs were too short to compare their speed."
    fast, slow = sorted((one, other), key=lambda r: -(r.samples_per_second or 0.0))
    ratio = (fast.samples_per_second or 0.0) / (slow.samples_per_second or 1.0)
    if f"{ratio:.2f}" == "1.00":
        return "Both runs train equally fast."
    return f"The run over {fast.backend} trains {ratio:.2f} times as fast as {slow.backend}."


def disturbance(one: Record, other: Record) -> str:
    """Takes the place of the comparison where other work on the machine has favoured one run."""
    if one.compute is None or other.compute is None:
        return ""
    low, high = sorted((one.compute, other.compute))
    if high < low * UNEQUAL_COMPUTE:
        return ""
    return (
        "These speeds cannot be compared: the pass without exchange, the same work in both runs, "
        f"took {one.compute * 1e3:.0f} ms in the first and {other.compute * 1e3:.0f} ms in the "
        "second. Try again when the machine is quiet."
    )


def agreement(one: Record, other: Record) -> str:
    apart = largest_difference(one, other)
    if apart == 0.0:
        return f"The losses of all {one.steps} steps are equal to the last bit."
    if apart <= LOSS_TOLERANCE:
        return f"The losses of all {one.steps} steps agree within {apart:.1e}."
    return f"THE LOSSES DIFFER by up to {apart:.3g}: one of the backends computes wrongly."


def counted(record: Record) -> list[str]:
    """What the backend says of itself, where it counts; not what the table is made from."""
    if record.counters is None:
        return []
    counters = record.counters
    sentence = (
        f"{record.backend} itself counted on rank 0: {counters['operations']:.0f} operations, "
        f"{counters['bytes_shm'] / 1e9:.2f} GB through shared memory, "
        f"{counters['exchange_s']:.1f} s with an operation in progress, "
        f"{counters['waiting_s']:.1f} s waiting."
    )
    return [sentence]


def sample_panel(records: Sequence[Record], width: int) -> Panel:
    first = records[0]
    same = all(record.sample == first.sample for record in records)
    kept = "".join(sign for sign in first.sample if sign.isprintable() or sign == "\n")
    source = "both models write" if same else f"the {first.backend} model writes"
    return Panel(Text(kept.strip()), title=Text(source), width=width, box=ROUNDED)


def explanation(record: Record) -> str:
    millions = record.parameters / 1e6
    return (
        f"The model has {millions:.1f} million parameters, so {4 * millions:.1f} MB of gradients "
        "are exchanged in every step. Outside compute is a forward and backward pass with "
        "exchange minus the same pass without (DDP's no_sync(), every 5th step), so it includes "
        "waiting for the other rank and DDP's own copying. Times are medians by rank 0's clock, "
        f"without the first {SKIPPED_STEPS} steps; closing loss is the mean of "
        f"the last {CLOSING_STEPS}."
    )
