"""Values as problems describe them: short, on one line, harmless to a terminal.

A job file is untrusted: a name full of escape codes, or a number of a million digits, must
neither paint the screen nor fill it.
"""

from __future__ import annotations

import datetime
import re

LONGEST = 60  # characters of a value in a message; enough to recognize it

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def printable(text: str, longest: int = LONGEST) -> str:
    """The text without control characters, cut where it is too long."""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def quoted(text: str, longest: int = LONGEST) -> str:
    """A string as the file would write it."""
    escaped = text[: longest + 1].replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped, longest)}"'


def show(value: object) -> str:
    """A value as the file would write it."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return quoted(value)
        case int():
            # Python refuses to print very long numbers: hexadecimal ones can be in a file.
            return str(value) if value.bit_length() < 200 else "a number of more than 60 digits"
        case float():
            return repr(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case list():
            return "[]" if not value else "[…]"
        case _:
            return "{}" if not value else "{…}"


def describe(value: object) -> str:
    """The value found, in words."""
    match value:
        case bool():
            return show(value)
        case str():
            return f"the text {show(value)}"
        case int():
            return f"the number {show(value)}" if value.bit_length() < 200 else show(value)
        case float():
            return f"the number {show(value)}"
        case datetime.date() | datetime.time():
            return f"the date or time {show(value)}"
        case list():
            return "an empty list" if not value else "a list"
        case _:
            return "an empty table" if not value else "a table"


def as_list(texts: list[str]) -> str:
    """A list of strings as the file would write it; empty where that would be too long."""
    line = "[" + ", ".join(quoted(text, 200) for text in texts) + "]"
    return line if len(line) <= 200 else ""


def spell(path: tuple[str | int, ...]) -> str:
    """A path as TOML would write it, with [n] for the elements of a list, counted from 0."""
    spelled = ""
    for part in path:
        if isinstance(part, int):
            spelled += f"[{part}]"
        else:
            name = printable(part) if _BARE.fullmatch(part) else quoted(part)
            spelled += f".{name}" if spelled else name
    return spelled
