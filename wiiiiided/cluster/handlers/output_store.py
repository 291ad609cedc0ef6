"""Outputs that were brought back: what other nodes have of a job's output.collect, kept here.

    <state>/outputs/<job>/collection     which attempt, on which nodes, what of them is here (JSON)
                          1.tar  2.tar   a node's files as it sent them, by its place in the layout
                          .<random>      on its way in

One tar a node, and not one of all: a node that was off and answers last is still the node of the
first ranks, whose files keep their names when `pull` merges them (merge_tars). This node's own
files of the job are not copied: they are on this disk already, and go with the job, like these.

All of it is the daemon's alone: directories 0700, files 0600, complete by rename.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from wiiiiided.cluster.allocation.archive_cache import check_room
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.handlers.merge_tars import BadTar, TarMember, TarReader
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.shim.protocol import write_durably
from wiiiiided.domain.exit_codes import FAILED, NO_SUCH
from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.errors import WiiiiideError
from wiiiiided.log import about, logger
from wiiiiided.text import format_size

PIECE_BYTES = 1 << 18
RECORD = "collection"
MOST_RECORD_BYTES = 1 << 22


class TooLarge(WiiiiideError):
    """A job left more than is kept of one job."""


class CollectedPart(msgspec.Struct, frozen=True):
    """The files here of one node."""

    files: int
    bytes: int  # of its tar; 0: the job has no files there, and there is no tar
    problem: str = ""  # a sentence, when not everything could be read there


class Collection(msgspec.Struct, frozen=True):
    """The files brought back of one attempt."""

    job: int
    attempt: int
    nodes: tuple[str, ...]  # of the attempt, in the order of ranks
    own: str  # the node that collects: nothing of its own is copied
    parts: dict[str, CollectedPart] = {}
    refused: str = ""  # why nothing is kept, and no node is asked any more
    said: str = ""  # the latest line about it in the job's story

    @property
    def missing(self) -> tuple[str, ...]:
        """Nodes that are still to be asked."""
        if self.refused:
            return ()
        return tuple(node for node in self.nodes if node != self.own and node not in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())

    def is_of(self, job: Job) -> bool:
        """Whether the job's files are still these: no later attempt was told to start."""
        attempt = job.attempt
        return attempt is not None and (attempt.number == self.attempt or not attempt.ordered)


_encode = msgspec.json.Encoder().encode
_decode = json_decoder(Collection)


class Outputs:
    """The directory. Nothing is made before something is to be kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def numbers(self) -> list[int]:
        """Jobs of which something is here."""
        try:
            return [int(name) for name in os.listdir(self.directory) if name.isdecimal()]
        except FileNotFoundError:
            return []

    def read(self, number: int) -> Collection | None:
        """Read the record; None: nothing was begun, or what is there cannot be read and is to be
        begun again."""
        path = self._job(number) / RECORD
        try:
            with path.open("rb") as file:
                return _decode(file.read(MOST_RECORD_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as problem:
            logger.warning("%s cannot be used: %s", path, problem, extra=about(number))
            return None

    def of(self, job: Job) -> Collection | None:
        """The files here, of those the job has now."""
        found = self.read(job.id)
        return found if found is not None and found.parts and found.is_of(job) else None

    def write(self, collection: Collection) -> Collection:
        """Write the record, durably."""
        path = self._job(collection.job)
        for folder in (self.directory, path):
            folder.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            write_durably(fd, RECORD, _encode(collection), 0o600)
        finally:
            os.close(fd)
        return collection

    def begin(self, collection: Collection) -> Collection:
        """Begin a collection in the place of that of an earlier attempt."""
        self.remove(collection.job)
        return self.write(collection)

    def refuse(self, collection: Collection, why: str) -> Collection:
        """Keep nothing of it, and remember why."""
        return self.begin(replace(collection, parts={}, refused=why))

    def receive(self, collection: Collection, node: str, limit: int) -> IncomingTar:
        """A node's tar on its way in; with it all that is here is at most `limit` bytes."""
        target = self._tar(collection, node)
        for left in target.parent.glob(".*"):  # by a daemon that was killed meanwhile
            left.unlink()
        return IncomingTar(target, limit - collection.bytes, limit)

    def has(self, collection: Collection, node: str) -> bool:
        part = collection.parts.get(node)
        return part is not None and (not part.bytes or self._tar(collection, node).exists())

    async def pieces(self, collection: Collection, node: str) -> AsyncGenerator[bytes, None]:
        """A node's tar as it came. Refuse as the node would: there are no files, or, after the last
        piece, not all."""
        part = collection.parts[node]
        if not part.bytes:
            raise Refuse(NO_SUCH, f"job {collection.job} has no files on {node}")
        try:
            with self._tar(collection, node).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except OSError as problem:
            text = f"the outputs of {node} cannot be read: {problem.strerror}"
            raise Refuse(FAILED, text) from problem
        if part.problem:
            raise Refuse(FAILED, part.problem)

    def remove(self, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._job(number))

    def _job(self, number: int) -> Path:
        return self.directory / str(number)

    def _tar(self, collection: Collection, node: str) -> Path:
        return self._job(collection.job) / f"{collection.nodes.index(node)}.tar"


class IncomingTar:
    """One tar. Use it as a context: what is not `finish`ed leaves no trace. It is looked at as it
    comes: what turned out to be no tar when its node is off could not be asked for again."""

    def __init__(self, target: Path, room: int, limit: int) -> None:
        self.target = target
        self.files = 0
        self.links = 0  # of these
        self.bytes = 0
        self._room = room
        self._limit = limit
        self._reader = TarReader()
        self._temporary = target.with_name(f".{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._temporary, flags, 0o600)

    def __enter__(self) -> IncomingTar:
        return self

    def __exit__(self, *problem: object) -> None:
        os.close(self._fd)
        self._temporary.unlink(missing_ok=True)

    def take(self, data: bytes) -> None:
        """BadTar, TooLarge, or OSError: it is not to be kept."""
        self.bytes += len(data)
        if self.bytes > self._room:
            text = f"they are more than {format_size(self._limit)} (limits.outputs)"
            raise TooLarge(text)
        check_room(self._fd, len(data))
        for found in self._reader.feed(data):
            if isinstance(found, TarMember):
                self.files += 1
                self.links += bool(found.link)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    @property
    def is_whole(self) -> bool:
        return self._reader.ended

    def finish(self, problem: str = "") -> CollectedPart:
        """Keep the tar, which is whole, durably."""
        if not self.is_whole:
            raise BadTar("it ended in the middle")
        os.fsync(self._fd)
        os.rename(self._temporary, self.target)
        directory = os.open(self.target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return CollectedPart(self.files, self.bytes, problem)
