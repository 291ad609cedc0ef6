"""Numbers as cells of a few columns, whatever their size. An unknown one is `–`."""

from __future__ import annotations

import math

from wiiiiided.text import format_duration

UNKNOWN = "–"
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def known(value: float | None) -> float | None:
    """The value; None also for one that is no number: it may come from a page that a job wrote."""
    return value if value is not None and math.isfinite(value) else None


def _three(size: float) -> str:
    """Three digits of a number below 999.5."""
    if size == int(size):
        return str(int(size))
    return f"{size:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"


def short(value: float | None) -> str:
    """Three digits and a power of 1000, in at most 5 columns: 0, 12, 61.2M, 1.90G; below 0 in 6."""
    found = known(value)
    if found is None:
        return UNKNOWN
    size, prefix = abs(found), 0
    while size >= 999.5 and prefix < len(_PREFIXES) - 1:
        size, prefix = size / 1000, prefix + 1
    if size >= 999.5:
        return ">999E"
    return ("-" if found < 0 else "") + _three(size) + _PREFIXES[prefix]


def rate(value: float | None, width: int) -> str:
    """A rate with digits behind the point as long as it fits; `width` is at least 6."""
    found = known(value)
    if found is None:
        return UNKNOWN
    for digits in (2, 1, 0) if abs(found) < 100 else (1, 0):
        if len(text := f"{found:.{digits}f}") <= width and abs(found) < 1e12:
            return text
    return short(found)[:width]


def byte_rate(value: float | None) -> str:
    """Bytes a second with their unit: 0 B/s, 61.2 MB/s."""
    text = short(value)
    if text == UNKNOWN:
        return text
    digits = text.rstrip("".join(_PREFIXES))
    return f"{digits} {text[len(digits) :]}B/s"


def loss(value: float | None) -> str:
    """A loss in at most 8 columns, with four digits always: 2.300, and not 2.3 between others."""
    return figure(value, "#.4g")


def figure(value: float | None, plain: str = ".4g") -> str:
    """A number in at most 8 columns."""
    found = known(value)
    if found is None:
        return UNKNOWN
    if found == 0 or 1e-3 <= abs(found) < 1e4:
        return f"{found:{plain}}"[:8].rstrip(".")
    return f"{found:.1e}"[:8]


def percent(share: float | None) -> str:
    """A share from 0 to 1 in at most 3 columns; what is beyond is cut there."""
    found = known(share)
    return UNKNOWN if found is None else str(round(100 * min(9.99, max(0.0, found))))


def times(ratio: float | None) -> str:
    """A ratio in at most 5 columns: 2.1x."""
    found = known(ratio)
    if found is None:
        return UNKNOWN
    return f"{found:.1f}x" if 0 <= found < 99.95 else ">99x"


def age(seconds: float | None) -> str:
    """An age in at most 3 columns: 0s, 59s, 3m, 99h, 12d."""
    found = known(seconds)
    if found is None:
        return UNKNOWN
    for size, unit in ((1.0, "s"), (60.0, "m"), (3600.0, "h"), (86400.0, "d")):
        if found < 100 * size and (unit != "s" or found < 60):
            return f"{max(0, int(found / size))}{unit}"
    return ">9y" if found > 10 * 365 * 86400 else f"{int(found / (365 * 86400))}y"


def clock(seconds: float | None) -> str:
    """A duration in at most 8 columns: 00:41:12; from 100 hours on 4d04h."""
    found = known(seconds)
    if found is None:
        return UNKNOWN
    whole = max(0, int(min(found, 1e11)))
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours < 100:
        return f"{hours:02}:{minutes:02}:{whole % 60:02}"
    days = whole // 86400
    return f"{days}d{hours % 24:02}h" if days < 10000 else ">27y"


def steps(step: int | None, total: int | None) -> str:
    """A step and the number of steps in at most 13 columns: 7951/23460."""
    if step is None:
        return UNKNOWN
    text = str(step) if total is None else f"{step}/{total}"
    if len(text) <= 13:
        return text
    return short(step) if total is None else f"{short(step)}/{short(total)}"


def time_of_day(at: float, offset_s: int) -> str:
    """The time of day of a moment in seconds since 1970: 14:27:52."""
    seconds = int(at + offset_s) % 86400 if abs(at) < 1e15 else 0
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def step_time(steps: float | None) -> str:
    """The length of a step at so many per second: 91 ms, 1.2 s, 2m05s."""
    found = known(steps)
    if found is None or found < 1e-9:  # a step of thirty years is none
        return UNKNOWN
    seconds = 1 / found
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.00995 else f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 99.95 else format_duration(seconds)
