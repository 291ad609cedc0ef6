"""A file replaced as a whole: its readers see the old one or the new one, never half of either.

.report.html.812 ──written, on the disk──rename──► report.html
"""

from __future__ import annotations

import contextlib
import os


def write_whole(path: str, data: bytes, mode: int | None = None) -> None:
    """Replace a file; an OSError leaves the old one. Without a mode the umask sets it."""
    folder, name = os.path.split(path)
    made = os.path.join(folder, f".{name[:200]}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(made)  # of a process that was killed, and had our number
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(fd, "wb") as file:
            if mode is not None:
                os.fchmod(fd, mode)
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise
