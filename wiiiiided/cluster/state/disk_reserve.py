"""Room on the disk that is kept for one purpose: jobs can be ended when there is no other.

    kept ──► the disk is full, a user cancels ──► released: the cancel and the ends are stored
      ▲                                                  │
      └──────────── there is room again ◄────────────────┘

A file of BYTES beside the state, with blocks of its own. Other events on a full disk wait for
room: a reserve that everything may use is used up when it is needed. The size is that of SQLite's
write-ahead log between two checkpoints, into which hundreds of ends go.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from wiiiiided.log import logger

BYTES: Final = 4 << 20
ROOM: Final = 4 * BYTES  # that must be free before it is kept: not the last that jobs have
LITTLE: Final = 256 << 10  # free for others: the disk counts as full


class Reserve:
    """The reserve on the disk that `directory` is on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "reserve"
        with contextlib.suppress(OSError):
            if 0 < self._path.stat().st_blocks * 512 < BYTES:
                self._path.unlink()  # it was not made to its end
        self.is_kept = self._path.exists()

    @property
    def trouble(self) -> str:
        """A sentence while the disk is full."""
        if self._free() >= LITTLE:
            return ""
        return f"the disk of {self._directory} is full: make room, or wiiiiide cancel what fills it"

    def keep(self) -> None:
        """Make the reserve again if there is room."""
        if self.is_kept or self._free() < ROOM:
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, BYTES)
            finally:
                os.close(fd)
        except OSError as problem:
            logger.warning("no room can be kept for the end of jobs: %s", problem)
            with contextlib.suppress(OSError):
                self._path.unlink()
            return
        self.is_kept = True

    def release(self) -> bool:
        """Give it back to the disk; False: there was none."""
        self.is_kept = False
        try:
            self._path.unlink()
        except OSError:
            return False
        logger.warning("the room that was kept for the end of jobs is in use now: make more")
        return True

    def _free(self) -> int:
        try:
            found = os.statvfs(self._directory)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize
