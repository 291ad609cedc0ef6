"""The text of a job file, or one clear problem: it is not there, not readable, or no text."""

from __future__ import annotations

import os
import stat

from wiiiiided.ui.jobfile.describe import printable
from wiiiiided.ui.jobfile.problem import Invalid, Problem

FILE_BYTES = 1 << 20  # a job file has some hundred; what is longer is another kind of file


def text_of(path: str) -> str:
    """The file's content; Invalid with one problem when there is no telling."""
    try:
        data = _bytes_of(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, *_reason(path, error)) from None
    if len(data) > FILE_BYTES:
        raise _unreadable(path, "larger than 1 MiB", "a job file is a short text; is it this one?")
    try:
        return data.decode("utf-8-sig")  # some editors begin with a mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = "not UTF-8 text", "save it as UTF-8"
        raise Invalid([Problem(printable(path, 400), line, "", *problem)]) from None


def _bytes_of(path: str) -> bytes:
    """The file's bytes, at most one more than allowed. A pipe is refused, not waited for."""

    def without_waiting(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)

    with open(path, "rb", opener=without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        return file.read(FILE_BYTES + 1)


def _reason(path: str, error: OSError | ValueError) -> tuple[str, str]:
    inside = os.path.join(path, "job.toml")
    match error:
        case FileNotFoundError():
            return "no such file", "give the path of a job file"
        case IsADirectoryError() if os.path.isfile(inside):
            return "a folder, not a file", f"did you mean {printable(inside, 400)}?"
        case IsADirectoryError():
            return "a folder, not a file", "give the path of a job file"
        case PermissionError():
            return "may not be read by this user", "chmod or chown it"
        case OSError():
            return f"cannot be read: {error.strerror}", ""
        case _:
            return "not a regular file", "give the path of a job file"


def _unreadable(path: str, message: str, suggestion: str) -> Invalid:
    return Invalid([Problem(printable(path, 400), None, "", message, suggestion)])
