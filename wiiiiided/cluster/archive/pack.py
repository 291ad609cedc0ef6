"""A working directory as one tar file, the same bytes for the same content.

    survey ──► sorted entries ──► tar, written once ──► temporary file, and the sha256 of it

Equal content gives an equal hash, so the daemon is sent only what it does not have yet: owners are
left out, modes are 0755 or 0644, times are whole seconds, directories have none (theirs change with
files that are not shipped). A file is never held in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tarfile
import tempfile
from dataclasses import dataclass
from typing import IO, Any

from wiiiiided.cluster.archive.scan import Found, Limits, PackError, Survey, survey

__all__ = ["PackError", "Packed", "pack"]

LATEST_MTIME = 0o77777777777  # what a header's field holds


@dataclass(frozen=True)
class Packed:
    """A packed directory. The file is the caller's to remove."""

    path: str
    sha256: str
    bytes: int  # of the archive
    files: int
    notes: tuple[str, ...]

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def pack(directory: str, limits: Limits | None = None) -> Packed:
    """Pack what of `directory` is shipped into a temporary file. Raises PackError."""
    limits = limits or Limits()
    found = survey(directory, limits)
    fd, path = tempfile.mkstemp(prefix="wiiiiide-", suffix=".tar")
    try:
        with open(fd, "wb") as file:
            digest, size, notes = _write(found, file)
        if size > limits.bytes:  # files grew, or have very long names
            raise PackError(f"the working directory {directory} grew over the limit meanwhile")
    except BaseException as problem:
        os.unlink(path)
        if isinstance(problem, OSError):
            where = os.path.dirname(path)
            raise PackError(
                f"cannot pack the working directory into {where}: {problem.strerror}. "
                "TMPDIR names another place"
            ) from problem
        raise
    return Packed(path, digest, size, found.files, (*found.notes, *notes))


class _Hashed:
    """A file for tarfile to write to, that knows the hash of everything written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.bytes += len(data)
        return self._file.write(data)


def _write(found: Survey, file: IO[bytes]) -> tuple[str, int, list[str]]:
    notes: list[str] = []
    hashed = _Hashed(file)
    sink: Any = hashed
    with tarfile.open(
        fileobj=sink,
        mode="w|",
        format=tarfile.PAX_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
    ) as archive:
        for item in found.found:
            _add(archive, item, notes)
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
    return hashed.sha256.hexdigest(), hashed.bytes, notes


def _add(archive: tarfile.TarFile, item: Found, notes: list[str]) -> None:
    if item.target is not None:
        archive.addfile(_header(item, tarfile.SYMTYPE, item.info))
    elif stat.S_ISDIR(item.info.st_mode):
        archive.addfile(_header(item, tarfile.DIRTYPE, item.info))
    else:
        _add_file(archive, item, notes)


def _add_file(archive: tarfile.TarFile, item: Found, notes: list[str]) -> None:
    # Not through a link, and not waiting for a pipe's writer, whatever is there by now.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(item.path, flags)
    except FileNotFoundError:
        notes.append(f"{item.name!r} went away meanwhile: left out")
        return
    except OSError as problem:
        raise PackError(
            f"cannot read {item.path!r}: {problem.strerror}. Make it readable, or add it to "
            ".wiiiiideignore to leave it out"
        ) from problem
    with open(fd, "rb") as source:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise PackError(f"{item.path!r} was replaced while it was read: try again")
        whole: Any = _WholeFile(source, item.path)
        # Exactly as many bytes as the header says: what grew meanwhile is cut there.
        archive.addfile(_header(item, tarfile.REGTYPE, before), whole)
        after = os.fstat(fd)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        notes.append(f"{item.name!r} changed while it was read: shipped as it was found")


class _WholeFile:
    """A file for tarfile to read from: a short answer is an error, and every error has its name."""

    def __init__(self, source: IO[bytes], path: str) -> None:
        self._source = source
        self._path = path

    def read(self, size: int) -> bytes:
        try:
            data = self._source.read(size)
        except OSError as problem:
            raise PackError(f"cannot read {self._path!r}: {problem.strerror}") from problem
        if len(data) < size:
            raise PackError(f"{self._path!r} shrank while it was read: try again")
        return data


def _header(item: Found, kind: bytes, info: os.stat_result) -> tarfile.TarInfo:
    header = tarfile.TarInfo(item.name)
    header.type = kind
    header.mode = 0o755 if kind == tarfile.DIRTYPE or info.st_mode & 0o100 else 0o644
    if kind == tarfile.SYMTYPE:
        header.linkname, header.mode = item.target or "", 0o777
    elif kind == tarfile.REGTYPE:
        header.size = info.st_size
        header.mtime = min(max(int(info.st_mtime), 0), LATEST_MTIME)
    return header
