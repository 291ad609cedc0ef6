"""An archive that is not trusted, unpacked so that nothing outside of one directory is touched.

    stream ──► Entries ──► checks ──► openat(parent, name, O_NOFOLLOW | O_EXCL)

Every step of a path is opened relative to the one before it and never through a link, so it does
not matter what the archive made earlier, or which other process writes into the directory. Regular
files, directories and links that stay inside are made; all else is refused, and nothing is ever
overwritten. Limits are checked before something is made.

Standard library only: the shim uses it too.
"""

from __future__ import annotations

import os
from pathlib import Path

from wiiiiided.cluster.archive.safe_paths import link_stays, parts_of
from wiiiiided.cluster.archive.tar_entries import (
    DIRECTORY,
    FILE,
    Entries,
    Readable,
    TarEntry,
    UnpackError,
    shown,
)

__all__ = ["UnpackError", "unpack"]

LATEST_MTIME = 1 << 33  # the year 2242: beyond that file systems begin to differ


def unpack(
    stream: Readable,
    directory: str | Path,
    *,
    limit_bytes: int,
    limit_files: int,
    left_out: list[str] | None = None,
) -> None:
    """Make what the archive in `stream` holds below `directory`, which is made when it is missing.

    A link that leads outside is refused; given a list, it is named there and left out instead.
    After an UnpackError the directory holds what came before the fault: throw it away.
    """
    try:
        os.makedirs(directory, exist_ok=True)
        root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as problem:
        raise UnpackError(f"cannot unpack into {directory}: {problem.strerror}") from problem
    unpacking = _Unpacking(root, limit_bytes, limit_files, left_out)
    try:
        unpacking.run(Entries(stream))
    finally:
        unpacking.leave()
        os.close(root)


class _Unpacking:
    """One archive on its way into one directory."""

    def __init__(
        self, root: int, limit_bytes: int, limit_files: int, left_out: list[str] | None
    ) -> None:
        self._root = root
        self._left_out = left_out
        self._limit_bytes = limit_bytes
        self._limit_files = limit_files
        self._bytes = 0
        self._files = 0
        self._parent: tuple[tuple[bytes, ...], int] = ((), root)  # the directory opened last

    def run(self, entries: Entries) -> None:
        for entry in entries:
            try:
                self._make(entry, entries)
            except FileExistsError as problem:
                raise UnpackError(f"{shown(entry.name)} is there twice") from problem
            except OSError as problem:
                raise UnpackError(f"cannot write {shown(entry.name)}: {problem.strerror}") from None

    def _make(self, entry: TarEntry, entries: Entries) -> None:
        parts = parts_of(entry.name)
        if parts is None or (not parts and entry.kind != DIRECTORY):
            raise UnpackError(
                f"the archive has an entry outside of its directory: {shown(entry.name)}"
            )
        if entry.kind == DIRECTORY:
            self._open(parts, entry)
        elif entry.kind == FILE:
            self._file(entry, parts, entries)
        else:
            self._link(entry, parts)

    def _count(self) -> None:
        self._files += 1
        if self._files > self._limit_files:
            raise UnpackError(f"the archive has more than {self._limit_files} entries")

    def _file(self, entry: TarEntry, parts: tuple[bytes, ...], entries: Entries) -> None:
        self._count()
        self._bytes += entry.size
        if self._bytes > self._limit_bytes:
            raise UnpackError(f"the archive's files have more than {self._limit_bytes} bytes")
        parent = self._open(parts[:-1], entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        mode = 0o755 if entry.executable else 0o644
        fd = os.open(parts[-1], flags, mode, dir_fd=parent)
        try:
            for piece in entries.data():
                _write(fd, piece)
            mtime = min(entry.mtime, LATEST_MTIME)
            os.utime(fd, (mtime, mtime))
        finally:
            os.close(fd)

    def _link(self, entry: TarEntry, parts: tuple[bytes, ...]) -> None:
        self._count()
        if not link_stays(parts, entry.target):
            link = f"{shown(entry.name)} -> {shown(entry.target)}"
            if self._left_out is None:
                raise UnpackError(f"the archive has a link that leads outside: {link}")
            self._left_out.append(link)
            return
        os.symlink(entry.target, parts[-1], dir_fd=self._open(parts[:-1], entry))

    def _open(self, parts: tuple[bytes, ...], entry: TarEntry) -> int:
        """A descriptor of this directory below the root, made when it is missing."""
        if self._parent[0] == parts:
            return self._parent[1]
        self.leave()
        current = self._root
        for depth, part in enumerate(parts, 1):
            below = self._step(current, part, entry)
            self.leave()
            self._parent = (parts[:depth], below)
            current = below
        return current

    def _step(self, current: int, part: bytes, entry: TarEntry) -> int:
        try:
            os.mkdir(part, 0o755, dir_fd=current)
            self._count()  # one long name makes many
        except FileExistsError:
            pass
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(part, flags, dir_fd=current)
        except NotADirectoryError as problem:  # a file, or a link whatever it leads to
            raise UnpackError(
                f"the archive wants {shown(entry.name)} below something that is no directory"
            ) from problem

    def leave(self) -> None:
        """Close the directory opened last."""
        parts, fd = self._parent
        self._parent = ((), self._root)
        if parts:
            os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
