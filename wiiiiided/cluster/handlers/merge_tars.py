"""The tars of several nodes as one stream: at most one file is held, while it is compared.

    a   runs/model.pt  code/train.py                    ──┐   runs/model.pt
    b   runs/model.pt (another)  code/train.py (the same) ├─► code/train.py
    c   runs/log       code/train.py (the same)         ──┘   runs/model.pt.b   runs/log

The first node's files come first and keep their names. A later node's file that is there already
with the same content is left out; with another content it comes too, its node's name behind its
own. So nothing is lost, nothing comes twice, and what only one node has is called what it is called
there. The same goes for a file where another node has a folder.

To know whether two files are the same, the digest of every content that has passed is kept, 16
bytes each. A file of the same name and size is spooled until its end is seen: in memory up to
1 MiB, up to 256 MiB in a file without a name; a larger one is not compared. All input is
untrusted: only files and links pass, and all headers are made anew.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from wiiiiided.errors import WiiiiideError

BLOCK: Final = 512
PAX_BYTES: Final = 1 << 20  # of one extended header
MOST_FILES: Final = 250_000  # of all nodes: about 40 MB of digests
SPOOL_BYTES: Final = 1 << 20
HELD_BYTES: Final = 256 << 20  # of one file; a larger one passes at once, under its node's name
NAME_BYTES: Final = 4096  # the kernel's PATH_MAX
RENAMINGS: Final = 100  # of one name until nothing else has it
PIECE_BYTES: Final = 1 << 18
END: Final = bytes(2 * BLOCK)
FOLDER: Final = b"folder"
ENCODING: Final = ("utf-8", "surrogateescape")


class BadTar(WiiiiideError):
    """A node's answer is no tar of files and links, or has too many of them."""


@dataclass(frozen=True)
class TarMember:
    """A file or a link that begins; `size` bytes of content follow."""

    name: str
    size: int
    mode: int
    mtime: int
    link: str = ""  # its target, of a link


TarPiece = TarMember | bytes | None


class TarReader:
    """Bytes of one tar in; entries and pieces of their content out, then None for each end."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._content = 0  # bytes of the current file that are still to come
        self._padding = 0
        self._in_file = False
        self._pax: dict[str, str] = {}
        self.ended = False  # the end of the archive was seen

    def feed(self, data: bytes) -> Iterator[TarPiece]:
        """The output for these bytes. Padding follows the end of a tar: it is passed over."""
        if not self.ended:
            self._buffer += data
        while not self.ended:
            found = self._file() if self._in_file else self._header()
            if found is None:
                return  # there is not enough of it yet
            yield from found

    def _file(self) -> list[TarPiece] | None:
        """Take as much of a file's content as is here."""
        if self._content and not self._buffer:
            return None
        piece = bytes(self._buffer[: self._content])
        del self._buffer[: len(piece)]
        self._content -= len(piece)
        self._in_file = self._content > 0
        found: list[TarPiece] = [piece] if piece else []
        return found if self._in_file else [*found, None]

    def _header(self) -> list[TarPiece] | None:
        """The next header, after the padding of the file before."""
        if len(self._buffer) < self._padding + BLOCK:
            return None
        del self._buffer[: self._padding]
        self._padding = 0
        block = bytes(self._buffer[:BLOCK])
        if block == bytes(BLOCK):
            self.ended = True
            self._buffer.clear()
            return []
        try:
            info = tarfile.TarInfo.frombuf(block, *ENCODING)
        except tarfile.TarError as problem:
            raise BadTar(f"not a tar: {problem}") from problem
        return self._extended(info) if info.type == tarfile.XHDTYPE else [self._begin(info)]

    def _extended(self, info: tarfile.TarInfo) -> list[TarPiece] | None:
        """A header that says more about the one behind it."""
        if not 0 < info.size <= PAX_BYTES:
            raise BadTar("not a tar of files: a header is too large")
        end = BLOCK + info.size + -info.size % BLOCK
        if len(self._buffer) < end:
            return None
        self._pax = _records(bytes(self._buffer[BLOCK : BLOCK + info.size]))
        del self._buffer[:end]
        return []

    def _begin(self, info: tarfile.TarInfo) -> TarMember:
        entry = self._entry(info)
        del self._buffer[:BLOCK]
        self._content, self._padding = entry.size, -entry.size % BLOCK
        self._in_file, self._pax = True, {}
        return entry

    def _entry(self, info: tarfile.TarInfo) -> TarMember:
        pax = self._pax
        try:
            size, mtime = int(pax.get("size", info.size)), int(float(pax.get("mtime", info.mtime)))
        except (ValueError, OverflowError) as problem:
            raise BadTar("not a tar of files: a number is none") from problem
        name, mode = pax.get("path", info.name), info.mode & 0o777
        link = pax.get("linkpath", info.linkname)
        if max(len(name), len(link)) > NAME_BYTES:
            raise BadTar(f"not a tar of files: a name has more than {NAME_BYTES} bytes")
        if info.type == tarfile.SYMTYPE:
            return TarMember(name, 0, mode, mtime, link)
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or not 0 <= size < 1 << 50:
            raise BadTar(f"not a tar of files: {name[:200]!r} is something else")
        return TarMember(name, size, mode, mtime)


def _records(data: bytes) -> dict[str, str]:
    """`<length> <key>=<value>\\n` of an extended header."""
    found: dict[str, str] = {}
    while data:
        digits, _, _ = data.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        key, equals, value = data[len(digits) + 1 : length - 1].partition(b"=")
        if not equals or not 0 < length <= len(data):
            raise BadTar("not a tar of files: a header cannot be read")
        found[key.decode(*ENCODING)] = value.decode(*ENCODING)
        data = data[length:]
    return found


async def chosen(
    pieces: AsyncGenerator[bytes, None], is_wanted: Callable[[str], bool]
) -> AsyncGenerator[bytes, None]:
    """The tar of those files alone whose paths are wanted."""
    reader, passing, padding = TarReader(), False, 0
    async with aclosing(pieces):
        async for piece in pieces:
            for found in reader.feed(piece):
                if isinstance(found, TarMember):
                    passing, padding = is_wanted(found.name), -found.size % BLOCK
                data = header(found) if isinstance(found, TarMember) else found
                if passing:
                    yield bytes(padding) if data is None else data
    if not reader.ended:
        raise BadTar("it ended in the middle")
    yield END


class Merge:
    """One tar of several: `begin` a node, `feed` what it sends, `finish` it; `END` after all.

    `spool` is a directory for files that are held back."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._known: dict[bytes, tuple[int, bytes]] = {}  # of a path: size, digest of its content
        self._node = ""
        self._reader = TarReader()
        self._passing: _Passing | None = None
        self.files = 0  # that came through, or were there already

    def begin(self, node: str) -> None:
        self._node, self._reader = node, TarReader()
        if self._passing is not None:
            self._passing.drop()
            self._passing = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Pieces of the one tar."""
        for found in self._reader.feed(data):
            if isinstance(found, TarMember):
                self._passing = self._begun(found)
                yield from self._passing.begun()
            elif self._passing is not None and found is not None:
                yield from self._passing.content(found)
            elif self._passing is not None:
                yield from self._over(self._passing)
                self._passing = None

    def finish(self) -> None:
        """The node has sent all it has. BadTar: it ended in the middle."""
        if not self._reader.ended:
            raise BadTar("it ended in the middle")

    def add(self, name: str, text: str) -> Iterator[bytes]:
        """A small file of our own, last of all."""
        data = text.encode()
        yield header(TarMember(self._free(name), len(data), 0o644, 0))
        yield data + bytes(-len(data) % BLOCK)

    @property
    def is_between(self) -> bool:
        """Whether no file is half through."""
        return self._passing is None or self._passing.is_held

    def _begun(self, entry: TarMember) -> _Passing:
        """The fate of a file: passed on, or spooled until it is known whether it is new."""
        if len(self._known) >= MOST_FILES:
            raise BadTar(f"there are more than {MOST_FILES} files; name fewer")
        wanted = self._beside_files(entry.name)
        before = self._known.get(_key(wanted))
        if before is None:
            return _Passing(entry, wanted)
        passing = _Passing(entry, self._free(wanted))
        if before[1] != FOLDER and before[0] == entry.size <= HELD_BYTES:
            passing.hold(before[1], self._spool)
        return passing

    def _over(self, passing: _Passing) -> Iterator[bytes]:
        digest = passing.digest()
        self.files += 1
        if passing.twin == digest:
            passing.drop()
            return
        yield from passing.rest()
        self._known[_key(passing.name)] = (passing.entry.size, digest)
        parts = passing.name.split("/")
        for depth in range(1, len(parts)):
            self._known.setdefault(_key("/".join(parts[:depth])), (0, FOLDER))

    def _beside_files(self, name: str) -> str:
        """The name, its folders renamed where another node has a file called so."""
        parts: list[str] = []
        for part in name.split("/")[:-1]:
            parts.append(part)
            for _ in self._tries(name):
                if self._known.get(_key("/".join(parts)), (0, FOLDER))[1] == FOLDER:
                    break
                parts[-1] += f".{self._node}"
        return "/".join([*parts, name.split("/")[-1]])

    def _free(self, name: str) -> str:
        """A name that nothing has: the node's behind it, again if need be."""
        free = name
        for _ in self._tries(name):
            if _key(free) not in self._known:
                break
            free += f".{self._node}"
        return free

    def _tries(self, name: str) -> Iterator[int]:
        """An honest node needs one or two; each costs as much as the name is long."""
        yield from range(RENAMINGS)
        raise BadTar(f"{name[:200]!r} comes too often")


class _Passing:
    """A file on its way through, under a name; held back while it may be the same as its twin."""

    def __init__(self, entry: TarMember, name: str) -> None:
        self.entry, self.name = entry, name
        self.twin: bytes | None = None
        self._hash = hashlib.blake2b(entry.link.encode(*ENCODING), digest_size=16)
        self._hash.update(b"link" if entry.link else b"file")
        self._spool: IO[bytes] | None = None

    def hold(self, twin: bytes, directory: Path) -> None:
        """Keep the file back: no byte of it passes before its digest is known."""
        self.twin = twin
        self._spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES, dir=str(directory))  # noqa: SIM115

    @property
    def is_held(self) -> bool:
        return self._spool is not None

    def begun(self) -> Iterator[bytes]:
        if self._spool is None:
            yield self._header()

    def content(self, piece: bytes) -> Iterator[bytes]:
        self._hash.update(piece)
        if self._spool is None:
            yield piece
        else:
            self._spool.write(piece)

    def digest(self) -> bytes:
        return self._hash.digest()

    def drop(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def rest(self) -> Iterator[bytes]:
        """The part that was held back, and the padding."""
        if self._spool is not None:
            with self._spool as spool:
                yield self._header()
                spool.seek(0)
                while piece := spool.read(PIECE_BYTES):
                    yield piece
        if padding := -self.entry.size % BLOCK:
            yield bytes(padding)

    def _header(self) -> bytes:
        entry = self.entry
        return header(TarMember(self.name, entry.size, entry.mode, entry.mtime, entry.link))


def header(entry: TarMember) -> bytes:
    """The bytes that stand before an entry's content."""
    info = tarfile.TarInfo(entry.name)
    info.size, info.mode, info.mtime = entry.size, entry.mode, entry.mtime
    if entry.link:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    return info.tobuf(tarfile.PAX_FORMAT, *ENCODING)


def _key(path: str) -> bytes:
    return hashlib.blake2b(path.encode(*ENCODING), digest_size=16).digest()
