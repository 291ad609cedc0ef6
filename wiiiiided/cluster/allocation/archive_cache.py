"""Shipped working directories, by the SHA-256 of their bytes: the same directory is sent once.

    <state>/archives/<sha256>        complete; made by rename
    <state>/archives/.<random>       being received

Only the daemon can open these paths: a shim gets an open descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.domain.disk_room import room_on
from wiiiiided.errors import HostError, UsageError
from wiiiiided.text import format_size

SEND_BYTES = 1 << 18
PIECE_WITHIN_S = 30.0  # a sender that was stopped must not keep the others from sending


class Archives:
    """The archives of this daemon."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._pins: Counter[str] = Counter()
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            for path in directory.glob(".*"):  # of uploads that a crash interrupted
                path.unlink()
        except OSError as problem:
            raise HostError(f"cannot use {directory} for archives: {problem.strerror}") from problem

    def path(self, digest: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise UsageError(f"{digest[:80]!r} is not the SHA-256 of an archive")
        return self.directory / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).exists()

    def open(self, digest: str) -> int:
        """A descriptor for reading an archive."""
        return os.open(self.path(digest), os.O_RDONLY | os.O_CLOEXEC)

    async def send(self, digest: str, connection: RpcConnection) -> None:
        """Send an archive as blob frames; FileNotFoundError, before the first, without one."""
        fd = self.open(digest)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the kernel reads ahead
            while piece := os.read(fd, SEND_BYTES):
                await connection.send_blob(piece)
        finally:
            os.close(fd)
        await connection.end_blob()

    def sizes(self) -> dict[str, int]:
        """The sizes of all whole archives. Asks the disk about each: call it in a thread."""
        found = {}
        with os.scandir(self.directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_size
        return {name: size for name, size in found.items() if name[0] != "."}

    def remove(self, digest: str) -> bool:
        """Whether the archive is gone. One that a job is about to name, or that is read, stays."""
        if digest in self._pins or not digest:
            return False
        self.path(digest).unlink(missing_ok=True)
        return True

    def receive(self, digest: str, limit: int) -> Upload:
        return Upload(self.path(digest), digest, limit)

    @contextlib.contextmanager
    def pinned(self, digest: str) -> Iterator[None]:
        """Keep an archive from pruning: a job that names it is about to be stored, or reads it."""
        self._pins[digest] += 1
        try:
            yield
        finally:
            self._pins[digest] -= 1
            if not self._pins[digest]:
                del self._pins[digest]

    def prune(self, wanted: Iterable[str], young_s: float = 0.0) -> int:
        """Delete the archives that no job names any more and that came longer than `young_s` ago;
        how many. A job may soon name a young one: a member keeps what was submitted through it."""
        keep = {*wanted, *self._pins}
        there = [p for p in self.directory.iterdir() if p.name not in keep and p.name[0] != "."]
        before = time.time() - young_s
        gone = [path for path in there if not young_s or path.stat().st_mtime < before]
        for path in gone:
            path.unlink()
        return len(gone)


class Upload:
    """One archive on its way in. A context manager: without `finish` no file is left."""

    def __init__(self, path: Path, digest: str, limit: int) -> None:
        self.target = path
        self.digest = digest
        self.limit = limit
        self.temporary = path.with_name(f".{secrets.token_hex(8)}")
        self.bytes = 0
        self._hash = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self.temporary, flags, 0o600)

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *problem: object) -> None:
        os.close(self._fd)
        self.temporary.unlink(missing_ok=True)

    def take(self, data: bytes) -> None:
        self.bytes += len(data)
        if self.bytes > self.limit:
            raise UsageError(f"the archive is larger than the limit of {self.limit} bytes")
        check_room(self._fd, len(data))
        self._hash.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def finish(self) -> None:
        """Check the digest and keep the archive, durably."""
        if self._hash.hexdigest() != self.digest:
            raise UsageError("the archive that arrived is not the one that was announced")
        os.fsync(self._fd)
        os.rename(self.temporary, self.target)
        directory = os.open(self.target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def check_room(fd: int, size: int) -> None:
    """OSError where `size` more bytes in that file would leave too little room on its disk."""
    disk = os.fstatvfs(fd)
    room = room_on(disk)
    if disk.f_bavail * disk.f_frsize < room + size:
        raise OSError(errno.ENOSPC, f"less than {format_size(room)} would be left on the disk")
