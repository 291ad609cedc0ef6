"""How a command ends, as a number: the same in a daemon's refusal and for the shell.

docs/cli.md has them for people. A job's own code comes through `wait` and `submit -f`.
"""

from __future__ import annotations

import signal
from typing import Final

FAILED: Final = 1
USAGE: Final = 2
INVALID: Final = 3  # the job file
NO_DAEMON: Final = 4  # or no coordinator behind it
NOT_ALLOWED: Final = 5
NO_SUCH: Final = 6  # job or node
NEVER: Final = 7  # it can never run here
BUSY: Final = 8  # too many at once: the same may be done a moment later
TIMED_OUT: Final = 124  # as timeout(1) has it
INTERRUPTED: Final = 130
TERMINATED: Final = 143  # also of an allocation whose end no process saw
PIPE_CLOSED: Final = 141


def code_words(code: int | None) -> str:
    """An exit code with what it stands for: "0", "1", "137 (SIGKILL)"."""
    if code is None:
        return "-"
    try:
        return f"{code} ({signal.Signals(code - 128).name})" if code > 128 else str(code)
    except ValueError:
        return str(code)
