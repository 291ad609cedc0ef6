"""Untrusted text on a terminal: escaped here and nowhere else, and measured in columns.

Names, reasons and log lines come from jobs and from users. A terminal obeys what it is
sent: an ESC can move the cursor, set its title, or paint over other rows. So everything that is
shown goes through `clean` (lines, tabs stay) or `cell` (parts of a row, one line for certain).

Widths are what terminals do: two columns for wide characters, none for combining ones. Where they
differ among each other (emoji made of several, soft hyphens, emoji newer than this Python), the
larger width is taken: a row may end early, it never wraps.

Lengths of time are written here too: `ps`, `show` and the report must not differ by a second.
"""

from __future__ import annotations

import math
import re
import unicodedata

ELLIPSIS = "…"
SENTENCE_CHARS = 1000  # of a reason that a job or another machine gave

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
    """The same for a terminal, of text that may have colours: SGR sequences are kept, with a reset
    behind the last, or left out. Everything else that a terminal would obey is escaped."""
    pieces = _SGR.split(text)
    if not keep or len(pieces) == 1:
        return clean("".join(pieces[::2]))
    # Between two pieces of text stands the sequence that divided them.
    kept = (piece if place % 2 else clean(piece) for place, piece in enumerate(pieces))
    return "".join(kept) + "\x1b[0m"


def plain(text: str, most: int = SENTENCE_CHARS) -> str:
    """Untrusted text before it is kept or logged: one line, printable, of a length one reads."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:most])
    return shown.encode("utf-8", "replace").decode()


def cell(text: str) -> str:
    """The same for a part of a row: a tab would move the rest."""
    return clean(text).replace("\t", "\\t")


def columns(text: str) -> int:
    """How many columns a terminal takes for it."""
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


def compact_bytes(size: float) -> str:
    """In at most four columns: 0K, 512M, 3.1G."""
    size /= 1024
    for unit in "KMGTP":
        if size < 999.5 or unit == "P":
            break
        size /= 1024
    return f"{size:.1f}{unit}" if 0 < size < 9.95 else f"{size:.0f}{unit}"


def span(seconds: float, fine: bool = False) -> str:
    """A length of time in at most two units: 8s, 4m10s, 2h05m, 3d04h. Unfinished units do not
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


def cut(text: str, width: int) -> str:
    """At most `width` columns of it; an ellipsis says that there was more."""
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
    """Cut or filled with spaces to exactly `width` columns."""
    text = cut(text, width)
    blanks = " " * (width - columns(text))
    return blanks + text if right else text + blanks
