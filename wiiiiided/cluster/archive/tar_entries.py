"""The entries of a tar archive, read from a stream that is not trusted: all sizes are bounded.

    ┌───────────┬──────┬────── 512 bytes ─┬───────┬───────┐   ┌───────────┐
    │ name, 100 │ mode │ size │ mtime │ sum │ kind  │ target│ … │ data, 512s │ … two blocks of zeros
    └───────────┴──────┴──────┴───────┴─────┴───────┴───────┘   └───────────┘
    kind x   "27 path=a name too long\\n" …: what replaces fields of the next header (pax)
    kind L K the next header's name or target (GNU)

The standard library's tarfile is not used for archives of others: a header can make it keep as much
as it likes (long names, sparse maps, global headers), nested headers recurse, and garbage or the
end of the stream after the first entry count as the archive's end. Names stay bytes here: what a
file system holds need not be text.

Standard library only: the shim uses it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

BLOCK = 512
PIECE_BYTES = 256 << 10
# A name and a link's target have at most 4096 bytes each; a header with both, and a little more.
EXTENSION_BYTES = 16 << 10

FILE, LINK, DIRECTORY = "file", "link", "directory"
_KINDS = {b"0": FILE, b"\0": FILE, b"2": LINK, b"5": DIRECTORY}
_NAMES = {b"1": "a hard link", b"3": "a device", b"4": "a device", b"6": "a named pipe"}
_PAX, _LONG_NAME, _LONG_TARGET = b"x", b"L", b"K"
_SPARSE = {b"GNU.sparse.major", b"GNU.sparse.map", b"GNU.sparse.size"}
_USED = {b"path", b"linkpath", b"size", b"mtime", *_SPARSE}


class UnpackError(Exception):
    """One sentence about what is wrong with an archive, or why it could not be written."""


class Readable(Protocol):
    """The source an archive is read from. A short answer is not the end, an empty one is."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class TarEntry:
    kind: str  # FILE, LINK or DIRECTORY
    name: bytes
    target: bytes  # of a link
    size: int  # of a file
    executable: bool
    mtime: int


class Entries:
    """Iterate over it; after a FILE, take all of its `data()` before the next entry."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._left = 0  # bytes of the current file not read yet
        self._padding = 0

    def __iter__(self) -> Iterator[TarEntry]:
        replaced: dict[bytes, bytes] = {}
        while True:
            block = self._exactly(BLOCK)
            if not any(block):
                return
            _check_sum(block)
            kind = block[156:157]
            if kind in (_PAX, _LONG_NAME, _LONG_TARGET):
                replaced.update(self._extension(kind, block))
                continue
            entry = _entry(kind, block, replaced)
            replaced = {}
            self._left, self._padding = entry.size, -entry.size % BLOCK
            yield entry
            for _ in self.data():
                pass
            self._exactly(self._padding)

    def data(self) -> Iterator[bytes]:
        """The bytes of the current file, in pieces."""
        while self._left:
            piece = self._stream.read(min(self._left, PIECE_BYTES))
            if not piece:
                raise UnpackError("the archive is cut off in the middle of a file")
            self._left -= len(piece)
            yield piece

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._stream.read(size - len(data))
            if not piece:
                raise UnpackError("the archive is cut off: its end is missing")
            data += piece
        return data

    def _extension(self, kind: bytes, block: bytes) -> dict[bytes, bytes]:
        size = _number(block[124:136])
        if size > EXTENSION_BYTES:
            raise UnpackError(f"the archive has a header of {size} bytes")
        data = self._exactly(size + -size % BLOCK)[:size]
        if kind == _PAX:
            return {key: value for key, value in _records(data) if key in _USED}
        return {b"path" if kind == _LONG_NAME else b"linkpath": data.rstrip(b"\0")}


def _entry(kind: bytes, block: bytes, replaced: dict[bytes, bytes]) -> TarEntry:
    name = replaced.get(b"path") or _name(block)
    if kind not in _KINDS or not _SPARSE.isdisjoint(replaced):
        what = _NAMES.get(kind, "of a kind that is never shipped")
        raise UnpackError(f"the archive has an entry that is {what}: {shown(name)}")
    size = _decimal(replaced[b"size"]) if b"size" in replaced else _number(block[124:136])
    # An old tar's directory is a file whose name ends in a slash.
    is_directory = kind == b"5" or (kind == b"\0" and name.endswith(b"/"))
    if size and (is_directory or kind == b"2"):
        raise UnpackError(f"the archive has a link or directory with content: {shown(name)}")
    mtime = replaced.get(b"mtime")
    return TarEntry(
        kind=DIRECTORY if is_directory else _KINDS[kind],
        name=name,
        target=replaced.get(b"linkpath") or _text(block[157:257]),
        size=size,
        executable=bool(_number(block[100:108]) & 0o100),
        mtime=_number(block[136:148]) if mtime is None else _decimal(mtime.partition(b".")[0]),
    )


def shown(name: bytes) -> str:
    """A name in a sentence: quoted, whatever it holds."""
    return repr(name.decode("utf-8", "backslashreplace"))


def _name(block: bytes) -> bytes:
    name, prefix = _text(block[:100]), _text(block[345:500])
    posix = block[257:263] == b"ustar\0"  # GNU keeps other things where the prefix is
    return prefix + b"/" + name if prefix and posix else name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Octal digits, or, where they do not suffice, a marked binary number."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not digits:
        return 0
    if digits.strip(b"01234567"):
        raise UnpackError("not a tar archive, or a damaged one: a number is none")
    return int(digits, 8)


def _decimal(text: bytes) -> int:
    negative = text.startswith(b"-")  # a time before 1970 counts as 1970
    if (not text.isdigit() and not negative) or len(text) > 20:
        raise UnpackError("not a tar archive, or a damaged one: a number is none")
    return 0 if negative else int(text)


def _check_sum(block: bytes) -> None:
    # The sum counts its own eight bytes as spaces.
    if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * ord(" "):
        raise UnpackError("not a tar archive, or a damaged one: a header's checksum is wrong")


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The key and value of each "length key=value\\n"."""
    while data:
        length = data[:6].partition(b" ")[0]
        record = data[: int(length)] if length.isdigit() else b""
        key, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if not key or not equals or not record.endswith(b"\n") or len(record) != int(length):
            raise UnpackError("not a tar archive, or a damaged one: a header's record is broken")
        yield key, value
        data = data[len(record) :]
