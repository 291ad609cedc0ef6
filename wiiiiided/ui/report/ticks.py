"""Axes: where round numbers lie, and how they are written. Pure arithmetic.

A scale takes a value to 0 … 1. Its ticks are at steps of 1, 2 or 5 times a power of ten, of time at
those of a clock; sizes count in the binary unit that fits the largest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wiiiiided.text import UNITS, size_unit
from wiiiiided.ui.report import formats

MOST = 12  # ticks of an axis; more cannot be read
DECADES = 100.0  # largest against smallest: from here on an even scale hides the small ones
_CLOCK = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]  # value and label, all within low and high
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high one; never outside."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        part = (value - low) / (high - low) if high > low else 0.5
        return min(1.0, max(0.0, part))


def amounts(low: float, high: float, wanted: int = 4) -> Scale:
    """The scale of plain numbers; both ends are ticks."""
    low, high = _apart(low, high)
    step = _round_step((high - low) / wanted)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((i * step, formats.number(_tidy(i * step, step))) for i in range(first, last + 1))
    return Scale(first * step, last * step, ticks[: 2 * MOST])


def sizes(high: float) -> Scale:
    """The scale of bytes from 0 on."""
    power = size_unit(high)
    unit = 1024.0**power
    even = amounts(0.0, max(high / unit, 1.0))
    ticks = tuple((value * unit, f"{text} {UNITS[power]}") for value, text in even.ticks)
    return Scale(0.0, even.high * unit, ticks)


def decades(low: float, high: float) -> Scale:
    """The scale of values above 0 of very different size: a tick at each power of ten, or fewer."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / 6))
    powers = range(first, last + 1, step)
    return Scale(
        10.0**first, 10.0**last, tuple((10.0**p, formats.number(10.0**p)) for p in powers), log=True
    )


def around(values: list[float]) -> Scale:
    """The scale that shows these best: of decades where they differ that much."""
    low, high = min(values), max(values)
    # A single outlier of a million times makes decades, one below 1e-300 would divide by nothing.
    if low > 1e-30 and high < 1e30 and high / low >= DECADES:
        return decades(low, high)
    return amounts(low, high)


def times(length: float, wanted: int = 9) -> Scale:
    """The scale of seconds since something began; it ends where the time does."""
    length = max(length, 1e-3)
    step = _clock_step(length / wanted)
    ticks = tuple((i * step, _clock(i * step)) for i in range(int(length / step + 1e-9) + 1))
    return Scale(0.0, length, ticks[: 2 * MOST])


def _apart(low: float, high: float) -> tuple[float, float]:
    """Two ends of an axis that are really two, also where all values are the same."""
    largest = max(abs(low), abs(high))
    if largest < 1e-30:  # nothing, or so little that steps of it cannot be counted
        return 0.0, 1.0
    if high - low > 1e-9 * largest:
        return low, high
    return (0.0, 2 * low) if low > 0 else (2 * low, 0.0)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n for n in (1, 2, 5, 10) if n * power >= rough * 0.999) * power


def _tidy(value: float, step: float) -> float:
    """The value without the error of arithmetic: 3 × 0.1 is 0.3, not 0.30000000000000004."""
    return round(value, max(0, 1 - math.floor(math.log10(step)))) if step < 1e15 else value


def _clock_step(rough: float) -> float:
    if rough <= 1:
        return _round_step(rough)
    if rough > _CLOCK[-1]:
        return max(1.0, _round_step(rough / formats.DAY)) * formats.DAY
    return next(step for step in _CLOCK if step >= rough)


def _clock(seconds: float) -> str:
    """Seconds as a tick says them: 0, 30s, 5m, 1m30, 2h, 2h30, 3d."""
    if seconds == 0:
        return "0"
    if seconds < formats.MINUTE:
        return formats.duration(seconds) if seconds < 1 else f"{seconds:g}s"
    for unit, below, sign in (
        (formats.DAY, formats.HOUR, "d"),
        (formats.HOUR, 60, "h"),
        (60, 1, "m"),
    ):
        if seconds >= unit:
            rest = round(seconds % unit / below)
            return f"{int(seconds // unit)}{sign}" + (f"{rest:02}" if rest else "")
    raise AssertionError("not reached")
