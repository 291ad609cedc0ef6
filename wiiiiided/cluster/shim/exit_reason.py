"""Why an attempt ended, in words, for exit.json: exit code, signal, OOM killer, traceback."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass

from wiiiiided.cluster.shim import protocol

ERROR_BYTES = 16 << 10
ERROR_FILE_BYTES = 256 << 10
EXCEPTION_CHARS = 300

_HINTS = {
    signal.SIGKILL: " (the kernel's out-of-memory killer does that too)",
    signal.SIGSEGV: " (a crash in native code)",
    signal.SIGBUS: " (a full disk or /dev/shm under mapped memory does that)",
}


@dataclass(frozen=True)
class Exit:
    """How a process ended: its exit code, or 128 + signal number when it was killed."""

    code: int
    killed: bool = False

    @classmethod
    def of(cls, status: int) -> Exit:
        code = os.waitstatus_to_exitcode(status)
        return cls(128 - code, killed=True) if code < 0 else cls(code)


def reason(rank: int, end: Exit) -> str:
    """A sentence about a rank that failed."""
    code = end.code
    if end.killed:
        try:
            number = signal.Signals(code - 128)
        except ValueError:
            return f"rank {rank} was killed by signal {code - 128}"
        return f"rank {rank} was killed by {number.name}{_HINTS.get(number, '')}"
    return f"rank {rank} ended with exit code {code}"


def error(directory: int, rank: int, last_errors: list[bytes]) -> str:
    """The error of a failed rank: its error file, else the end of its stderr."""
    text = _error_file(directory, f"error-{rank}.json")
    if not text:
        text = b"\n".join(last_errors).decode("utf-8", "replace")
    data = text.encode("utf-8", "replace")
    if len(data) > ERROR_BYTES:  # the end of a traceback says more than its beginning
        data = b"... " + data[4 - ERROR_BYTES :]
    return data.decode("utf-8", "ignore")


def exception(error: str) -> str:
    """Find the line of a traceback that says what was raised, `ValueError: shapes do not match`;
    empty where there is none. The last one counts: those before it are its causes."""
    found, in_frames = "", False
    for line in error.splitlines():
        text = _without_rank(line)
        if text.startswith('  File "'):
            in_frames = True
        elif in_frames and not text.startswith(" "):
            in_frames = False
            found = text if _names_a_class(text.partition(":")[0]) else found
    return found[:EXCEPTION_CHARS]


def _without_rank(line: str) -> str:
    """torch puts `[rank0]: ` before every line once there is a process group."""
    head, mark, rest = line.partition("]: ")
    return rest if mark and head.startswith("[rank") and head[5:].isdecimal() else line


def _names_a_class(name: str) -> bool:
    return all(part.isidentifier() or part == "<locals>" for part in name.split("."))


def _error_file(directory: int, name: str) -> str:
    """The message that torch.distributed.elastic's @record left, and its traceback."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        with open(fd, "rb") as file:
            message = json.loads(file.read(ERROR_FILE_BYTES))["message"]
        if isinstance(message, dict):
            traceback = message.get("extraInfo", {}).get("py_callstack", "")
            message = f"{message.get('message', '')}\n{traceback}"
        return message.strip() if isinstance(message, str) else ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


def failed_before_start(code: int, sentence: str, rank: int | None = None) -> protocol.AttemptEnd:
    return protocol.AttemptEnd(time.time(), {}, code, failed_rank=rank, reason=sentence)
