"""Numbers with their units, as the report writes them on axes, in tables and in sentences."""

from __future__ import annotations

import time

from wiiiiided import text

UNKNOWN = "–"
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
NAME = 64  # characters of a name in a list, as long as a host name may be
TEXT = 1000  # characters of one piece of text; a story line is shorter, a hostile name is not
MINUTE, HOUR, DAY = 60, 3600, 86400


LATEST = 250_000_000_000  # in the year 9892; clocks that say more are broken
ABSURD = 1e30  # nothing that is counted here gets near it, and arithmetic stays finite below


def known(value: float | None) -> float | None:
    """A number that can be shown; None for none, for infinities and for what is not a number."""
    return value if value is not None and abs(value) < ABSURD else None


def short(written: str, most: int = TEXT) -> str:
    """The text, bounded, and as on a terminal: characters that turn or hide text are visible."""
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
    power = unit_of(value)
    scaled = value / 1024**power
    digits = f"{scaled:.0f}" if power == 0 or abs(scaled) >= 100 else f"{scaled:.1f}"
    return f"{digits} {BINARY[power]}"


def unit_of(value: float) -> int:
    """The power of 1024 in which a number of bytes reads best."""
    power = 0
    while abs(value) >= 1024 and power < len(BINARY) - 1:
        value, power = value / 1024, power + 1
    return power


def span(seconds: float | None) -> str:
    """A length of time, by the rule that `ps` has, short ones in finer units: 40ms, 8.2s, 4m10s."""
    if known(seconds) is None or seconds is None:
        return UNKNOWN
    return text.span(seconds, fine=True)


def moment(at: float | None, zone: bool = False) -> str:
    """A time of day in the zone of the machine that makes the report; `zone` names that zone."""
    if at is None or not 0 <= at < LATEST:
        return UNKNOWN
    return time.strftime("%F %T %z" if zone else "%F %T", time.localtime(at))


def share(value: float | None) -> str:
    """A part of a whole: 41 %, 0.3 %."""
    if known(value) is None or value is None:
        return UNKNOWN
    percent = 100 * value
    if 0 < percent < 0.05:
        return "<0.1 %"
    few = 0 < abs(percent) < 9.95
    return f"{percent:.1f} %" if few else f"{percent:.0f} %"


def count(many: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{many:,} {noun}" + ("" if many == 1 else "s")


def listed(names: tuple[str, ...], most: int = 8) -> str:
    """a, b and c; of many the first few and how many more there are."""
    rest = len(names) - most
    names = tuple(name if len(name) <= NAME else name[: NAME - 1] + "…" for name in names[:most])
    if rest > 0:
        return ", ".join(names) + f" and {rest:,} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
