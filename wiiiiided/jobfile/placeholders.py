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

NAMES = ("id", "name", "state", "code", "reason")

_WORD = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")


def unknown(text: str) -> list[str]:
    """The words in braces that nothing will ever fill in."""
    return [word for word in _WORD.findall(text) if word not in NAMES]


def fill(command: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """The command with its placeholders filled in, once: a value's own braces stay."""
    return [_WORD.sub(lambda word: values.get(word[1], word[0]), part) for part in command]
