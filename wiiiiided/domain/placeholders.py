"""{id}, {name}, {state}, {code} and {reason} in notify.command: which there are, and their filling.

A word in braces is a placeholder; all other braces are left alone, so JSON and shell variables need
no escaping:

    job {id} {state}      filled in
    {"text": "{name}"}    the inner one is filled in, the outer braces stay
    ${HOME}               stays
    {jobid}               refused when the file is read
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from wiiiiided.errors import WiiiiideError

NAMES = ("id", "name", "state", "code", "reason")

_WORD = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")


def unknown(text: str) -> list[str]:
    """The words in braces that nothing will ever fill in."""
    return [word for word in _WORD.findall(text) if word not in NAMES]


class TooLong(WiiiiideError):
    """The command with everything filled in would be longer than allowed."""


def fill(command: Iterable[str], values: Mapping[str, str], most: int) -> list[str]:
    """The command with its placeholders filled in, once: a value's own braces stay. TooLong before
    more than `most` characters of it are made: eight of a command may become a thousand."""
    room = most

    def put(word: re.Match[str]) -> str:
        nonlocal room
        text = values.get(word[1], word[0])
        room -= len(text) - len(word[0])
        if room < 0:
            raise TooLong(f"it would have more than {most} characters")
        return text

    filled = []
    for part in command:
        room -= len(part)
        filled.append(_WORD.sub(put, part))
    if room < 0:
        raise TooLong(f"it would have more than {most} characters")
    return filled
