"""A secret on the command line, taken out of what `ps` and /proc/PID/cmdline show of this process.

    /proc/self/stat  …  arg_start (48)              arg_end (49)  …
                            │                           │
    the stack  ┄┄┄┄┄┄┄┄┄┄┄┄ ▼ wiiiiide join a wiiiiide1.… ▼ ┄┄┄┄   the only bytes that are touched

They are written through /proc/self/mem: where the kernel forbids that it is an error, not a crash.
Between the start of the process and here the secret could be read, by others of this machine; and a
shell may keep it in its history. Whoever minds gives "-" instead.
"""

from __future__ import annotations

import os

MOST_BYTES = 1 << 21  # the kernel's limit of all arguments together
ARG_START, ARG_END = 48, 49  # as proc(5) numbers the fields of stat


def wipe(secret: str) -> bool:
    """Overwrite a word in this process's arguments; whether it is not to be seen there any more."""
    wanted = os.fsencode(secret)
    if not wanted:
        return True
    try:
        start, end = _arguments()
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    except (OSError, ValueError, IndexError):
        return False
    try:
        return _overwrite(memory, start, end, wanted)
    except OSError:
        return False
    finally:
        os.close(memory)


def _arguments() -> tuple[int, int]:
    """Where the arguments lie in this process's memory."""
    with open("/proc/self/stat", "rb") as file:
        # The second field, the name, may have blanks and brackets of its own.
        behind = file.read().rpartition(b")")[2].split()
    return int(behind[ARG_START - 3]), int(behind[ARG_END - 3])


def _overwrite(memory: int, start: int, end: int, wanted: bytes) -> bool:
    if not 0 < end - start <= MOST_BYTES:
        return False
    text = os.pread(memory, end - start, start)
    at = text.find(wanted)
    while at >= 0:
        os.pwrite(memory, b"x" * len(wanted), start + at)
        at = text.find(wanted, at + len(wanted))
    return wanted not in os.pread(memory, end - start, start)
