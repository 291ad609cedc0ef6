"""Where output goes: data to stdout, words to stderr, colours only to terminals that want them.

Rich is not loaded here: its import takes as long as all else of `wiiiiide ps` together.
`rich_drawing` has it, for what is drawn on a terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any, TextIO

from wiiiiided.config import colour_wanted
from wiiiiided.text import clean

SCHEMA = 1
BOLD, DIM, RED = "1", "2", "31"


def prepare() -> None:
    """Once per process: escape what the terminal's encoding lacks, where it would be an error."""
    if sys.stdout is None:  # `>&-`: Python has no stream then
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def colourful(stream: TextIO) -> bool:
    return stream.isatty() and colour_wanted()


def paint(text: str, colour: str | None, stream: TextIO) -> str:
    """The text in a colour, where this stream shows any."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and colourful(stream) else text


def width() -> int | None:
    """Columns of the screen; None where there is no end to a line: a file, a pipe."""
    return shutil.get_terminal_size((0, 0)).columns or None


def can_print(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def say(text: str) -> None:
    """Print a sentence for a person, on stderr. Untrusted parts are made harmless here."""
    sys.stdout.flush()  # so that both streams keep their order on one terminal
    for line in text.split("\n"):
        print(clean(line), file=sys.stderr)


def can_ask() -> bool:
    """Whether a person is there to answer."""
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr.isatty())


def agreed(question: str) -> bool:
    """Ask, and say so where the answer is not yes."""
    print(question, end=" ", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() in ("y", "Y"):
        return True
    say("nothing was changed")
    return False


def put(text: str) -> None:
    """Print a line of data, already clean, on stdout."""
    sys.stdout.write(text + "\n")


def put_json(value: dict[str, Any]) -> None:
    """Print one object on one line, in ASCII: harmless to any terminal and any encoding."""
    sys.stdout.write(json.dumps({"schema": SCHEMA, **value}) + "\n")


def silence() -> None:
    """Send the rest of stdout nowhere: its reader is gone, and nothing is to fail at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
