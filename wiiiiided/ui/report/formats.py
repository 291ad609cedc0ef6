"""Numbers with their units, as the report writes them on axes, in tables and in sentences."""

from __future__ import annotations

import time

from wiiiiided import text

UNKNOWN = "–"
TEXT = 1000  # characters of one piece of text; a story line is shorter, a hostile name is not
MINUTE, HOUR, DAY = 60, 3600, 86400
LATEST = 250_000_000_000  # in the year 9892; clocks that say more are broken
ABSURD = 1e30  # nothing that is counted here gets near it, and arithmetic stays finite below


def known(value: float | None) -> float | None:
    """A number that can be shown; None for none, for infinities and for what is not a number."""
    return value if value is not None and abs(value) < ABSURD else None


def short(written: str, most: int = TEXT) -> str:
    """The text, bounded and cleaned as for a terminal: no character turns or hides it."""
    return text.clean(written if len(written) <= most else written[: most - 1] + "…")


def number(value: float | None) -> str:
    """Four digits that count: 0.01234, 4.56, 1,049; very small and very large as powers of ten."""
    if known(value) is None or value is None:
        return UNKNOWN
    size = abs(value)
    if size and (size < 1e-4 or size >= 1e9):
        return f"{value:.2e}"
    return f"{value:,.0f}" if size >= 1000 or value == int(value) else f"{value:.4g}"


def size(value: float | None) -> str:
    """Bytes: 512 B, 1.5 KiB, 12 GiB."""
    if known(value) is None or value is None:
        return UNKNOWN
    return text.format_size(value)


def duration(seconds: float | None) -> str:
    """A length of time, by the rule that `ps` has, short ones in finer units: 40ms, 8.2s, 4m10s."""
    if known(seconds) is None or seconds is None:
        return UNKNOWN
    return text.format_duration(seconds, fine=True)


def moment(at: float | None, zone: bool = False) -> str:
    """A time of day in the zone of the machine that makes the report; `zone` names that zone."""
    if at is None or not 0 <= at < LATEST:
        return UNKNOWN
    return text.format_moment(at) + (time.strftime(" %z", time.localtime(at)) if zone else "")


def share(value: float | None) -> str:
    """A part of a whole: 41 %, 0.3 %."""
    if known(value) is None or value is None:
        return UNKNOWN
    percent = 100 * value
    if 0 < percent < 0.05:
        return "<0.1 %"
    few = 0 < abs(percent) < 9.95
    return f"{percent:.1f} %" if few else f"{percent:.0f} %"
