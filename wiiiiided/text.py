"""Text for people: untrusted text, escaped here and nowhere else and measured in columns; and
durations, sizes, counts and lists, each written by one rule wherever it is shown.

Names, reasons and log lines come from jobs and from users. A terminal obeys what it is
sent: an ESC can move the cursor, set its title, or paint over other rows. So everything that is
shown goes through `clean` (lines, tabs stay) or `cell` (parts of a row, one line for certain).

Widths are what terminals do: two columns for wide characters, none for combining ones. Where they
differ among each other (emoji made of several, soft hyphens, emoji newer than this Python), the
larger width is taken: a row may end early, it never wraps.

    format_duration         4m10s     ps, show, top, report: they must not differ by a second
    format_duration_words   4 min     a sentence: how long a machine is silent, when a job starts
    format_step_time        84.1 ms   a plan
    format_size             1.5 GiB   wherever there is room
    format_size_compact     1.5G      a column of four
"""

from __future__ import annotations

import math
import re
import time
import unicodedata
from collections.abc import Sequence

ELLIPSIS = "…"
SENTENCE_CHARS = 1000  # of a reason from a job or another machine

# Control characters (C0 without tab, DEL, C1), what turns the direction of text, separators of
# lines, invisible marks of order, and halves of characters, which cannot be printed at all.
_UNSAFE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u061c\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_SGR = re.compile("(\x1b\\[[0-9;:]{0,64}m)")  # what sets colours, and nothing else
# Of the characters that only direct others, those that many terminals draw: the soft hyphen, and
# signs that stand before a number.
_VISIBLE = frozenset("\u00ad\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def clean(text: str) -> str:
    """One line of text with nothing in it that a terminal would obey."""
    return _UNSAFE.sub(_escaped, text)


def clean_colours(text: str, keep: bool) -> str:
    """`clean` for text that may have colours: SGR sequences are kept, with a reset behind the last,
    or left out. Everything else that a terminal would obey is escaped."""
    pieces = _SGR.split(text)
    if not keep or len(pieces) == 1:
        return clean("".join(pieces[::2]))
    # Between two pieces of text stands the sequence that divided them.
    kept = (piece if place % 2 else clean(piece) for place, piece in enumerate(pieces))
    return "".join(kept) + "\x1b[0m"


def without_overwritten(text: str) -> str:
    """The last version of a line that was overwritten with carriage returns, as on a terminal."""
    return text.rstrip("\r").rpartition("\r")[2]


def plain(text: str, most: int = SENTENCE_CHARS) -> str:
    """Untrusted text before it is kept or logged: one line, printable, without colours, of a length
    one reads."""
    shown = "".join(char if char.isprintable() else "?" for char in _SGR.sub("", text)[:most])
    return shown.encode("utf-8", "replace").decode()


def cell(text: str) -> str:
    """`clean` for a part of a row, where a tab would move the rest."""
    return clean(text).replace("\t", "\\t")


def columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def _columns_of(char: str) -> int:
    if char == "\ufe0f":
        return 1  # makes the character before it an emoji, which may be wider
    category = unicodedata.category(char)
    if category in ("Mn", "Me", "Cf"):
        return 1 if char in _VISIBLE else 0
    if category == "Cn" and 0x1F000 <= ord(char) < 0x20000:
        return 2  # where every new version of Unicode has put its emoji
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def cut(text: str, width: int) -> str:
    """At most `width` columns of the text; an ellipsis says that there was more."""
    if columns(text) <= width:
        return text
    if width <= 0:
        return ""
    kept, used = "", 0
    for char in text:
        used += _columns_of(char)
        if used > width - 1:
            break
        kept += char
    return kept + ELLIPSIS


def pad(text: str, width: int, right: bool = False) -> str:
    """The text, cut or filled with spaces to exactly `width` columns."""
    text = cut(text, width)
    blanks = " " * (width - columns(text))
    return blanks + text if right else text + blanks


# ---- durations, sizes, counts, lists


UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
LISTED = 8  # names; of more the first ones, and how many others there are
NAME_CHARS = 64  # of a name in a list, as long as a host name may be


def format_duration(seconds: float, fine: bool = False) -> str:
    """A duration in at most two units: 8s, 4m10s, 2h05m, 3d04h. Unfinished units do not
    count: 59.9 s are 59s. `fine` tells more of short ones, by the same rule: 40ms, 8.2s."""
    # A product such as 0.29 * 100 is a hair below what it should be.
    whole = max(0, math.floor(seconds + 1e-9))
    if fine and seconds > 0 and whole < 1:
        return f"{math.floor(seconds * 1000 + 1e-6)}ms"
    tenth = math.floor(seconds * 10 + 1e-6) % 10
    if fine and whole < 10 and seconds > 0 and tenth:
        return f"{whole}.{tenth}s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02}h"
    if hours:
        return f"{hours}h{minute:02}m"
    return f"{minutes}m{second:02}s" if minutes else f"{second}s"


def format_duration_words(seconds: float) -> str:
    """About how long, in a sentence: 40 s, 5 min, 3 h, 4 days."""
    seconds = max(0.0, seconds)
    for size, most, unit in ((1, 120, "s"), (60, 120, "min"), (3600, 48, "h")):
        if seconds < size * most:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds // 86400:.0f} days"


def format_step_time(seconds: float) -> str:
    """`84.1 ms`, `2.21 s`."""
    if seconds < 0.9995:
        return f"{three_digits(1e3 * seconds)} ms"
    return f"{three_digits(seconds)} s"


def format_size(size: float) -> str:
    """Bytes: 512 B, 1.5 KiB, 20 GiB, 200 MiB."""
    power = size_unit(size)
    scaled = size / 1024**power
    digits = f"{scaled:.{0 if abs(scaled) >= 100 else 1}f}".removesuffix(".0")
    return f"{digits} {UNITS[power]}"


def size_unit(size: float) -> int:
    """The power of 1024 in which a number of bytes reads best: its place in UNITS."""
    power = 0
    while abs(size) >= 1024 and power < len(UNITS) - 1:
        size, power = size / 1024, power + 1
    return power


def format_size_compact(size: float) -> str:
    """Bytes in at most four columns: 0K, 512M, 3.1G."""
    size /= 1024
    for unit in "KMGTP":
        if size < 999.5 or unit == "P":
            break
        size /= 1024
    return f"{size:.1f}{unit}" if 0 < size < 9.95 else f"{size:.0f}{unit}"


def format_size_decimal(size: float) -> str:
    """Bytes beside the rate of a link, whose units are decimal: `26.1 MB`, `41 kB`."""
    return f"{three_digits(size / 1e6)} MB" if size >= 1e5 else f"{three_digits(size / 1e3)} kB"


def format_link_rate(bits_per_s: float) -> str:
    """`94.1 Mbit/s`."""
    return f"{three_digits(bits_per_s / 1e6)} Mbit/s"


def format_moment(at: float | None) -> str:
    """A moment in this machine's own time: 2026-11-18 12:30:00."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def three_digits(value: float) -> str:
    """Three digits of a number; one with more before its point keeps them all."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def count(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(names: Sequence[str], most: int = LISTED) -> str:
    """`a, b and c`; of many the first few: `a, b and 4 more`."""
    shown = [n if len(n) <= NAME_CHARS else n[: NAME_CHARS - 1] + ELLIPSIS for n in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most:,} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
