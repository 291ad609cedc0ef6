"""Keys of a job file changed in its text: as few characters as possible, comments stay.

Where a key stands, `locate` knows. tomllib decides what a text means: an edit counts
when the document it gives is the old one with the new values, and nothing else. They are tried from
the smallest on:

    every = 4  # as told      the value behind the key
    [network]                 a line below the header of its table
    network.every = 4         a line before the first table
                              a table of its own at the end
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from wiiiiided.errors import WiiiiideError
from wiiiiided.ui.jobfile.locate import locate
from wiiiiided.ui.jobfile.to_toml import toml

Keys = Mapping[tuple[str, str], object]  # (table, key) → its value

_VALUE = re.compile(
    r"""(?P<key>[^=\n]*=[ \t]*)(?P<value>\[[^\[\]\n#]*\]|"[^"\\\n]*"|'[^'\n]*'|[^\s,#\[\]{}"']+)"""
)


class NotEditable(WiiiiideError):
    """The file is written in a way that no small edit changes."""


def changed(text: str, keys: Keys) -> str:
    """The text with these values; NotEditable names the key that has to be changed by hand."""
    for (table, key), value in keys.items():
        text = _with(text, table, key, value)
    return text


def _with(text: str, table: str, key: str, value: object) -> str:
    wanted = copy.deepcopy(tomllib.loads(text))
    wanted.setdefault(table, {})[key] = value
    for edited in _edits(text, table, key, toml(value)):
        if _document(edited) == wanted:
            return edited
    raise NotEditable(f"{table}.{key} = {toml(value)} cannot be written there by a small change")


def _edits(text: str, table: str, key: str, value: str) -> Iterator[str]:
    lines, places = text.splitlines(keepends=True), locate(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    if (at := places.get((table, key))) is not None:
        yield _replaced(lines, at.line - 1, at.column - 1, value)
        return
    if (header := places.get((table,))) is not None:
        yield _inserted(lines, header.line, f"{key} = {value}", newline)
    first = next((i for i, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    yield _inserted(lines, first, f"{table}.{key} = {value}", newline) if header else text
    yield _inserted(lines, len(lines), f"{newline}[{table}]{newline}{key} = {value}", newline)


def _replaced(lines: list[str], line: int, column: int, value: str) -> str:
    before, rest = lines[line][:column], lines[line][column:]
    found = _VALUE.match(rest)
    if found is None:
        return ""
    edited = before + found["key"] + value + rest[found.end() :]
    return "".join([*lines[:line], edited, *lines[line + 1 :]])


def _inserted(lines: list[str], at: int, line: str, newline: str) -> str:
    above = lines[:at]
    if above and not above[-1].endswith("\n"):
        above[-1] += newline
    return "".join([*above, line + newline, *lines[at:]])


def _document(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except ValueError:
        return None
