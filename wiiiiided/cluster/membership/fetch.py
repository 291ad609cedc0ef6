"""A member gets archives and checkpoints from the coordinator: on a connection of its own, so that
none can make a node look lost.

    FetchArchive(digest) ──►   ◄── B B B … E      kept when it is whole and has that digest
                               ◄── Refusal        it is not there any more
    FetchCheckpoints     ──►   ◄── B B B … E J    a file without a name; J has its SHA-256
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from wiiiiided.cluster.allocation.archive_cache import PIECE_WITHIN_S, Archives, check_room
from wiiiiided.cluster.membership.dial import Dialer
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.cluster.system.threads import in_thread
from wiiiiided.cluster.trust.identity import NodeEndpoint
from wiiiiided.errors import HostError


class Fetcher:
    """Brings archives and checkpoints to this machine."""

    def __init__(
        self,
        dialer: Dialer,
        coordinator: NodeEndpoint,
        archives: Archives,
        settings: Callable[[], Settings],
    ) -> None:
        self._dialer = dialer
        self._coordinator = coordinator
        self._archives = archives
        self._settings = settings

    async def fetch(self, digest: str) -> None:
        """The archive is here when this returns. WiiiiideError, OSError, EOFError, TimeoutError:
        it is not."""
        limit = self._settings().archive_limit
        async with self._asked(p.FetchArchive(digest)) as connection:
            with self._archives.receive(digest, limit) as upload:
                async for piece in _pieces(connection):
                    upload.take(piece)
                await in_thread(upload.finish)

    async def checkpoints(self, job: int, attempt: int) -> int:
        """A descriptor of the whole tar that all nodes of the attempt get; the caller closes it.
        The same errors."""
        limit, digest, size = self._settings().outputs_bytes, hashlib.sha256(), 0
        async with self._asked(p.FetchCheckpoints(job, attempt)) as connection:
            with tempfile.TemporaryFile(dir=self._archives.directory) as file:
                async for piece in _pieces(connection):
                    digest.update(piece)
                    size += len(piece)
                    if size > limit:
                        raise HostError(f"they are more than {limit} bytes (limits.outputs)")
                    check_room(file.fileno(), len(piece))
                    file.write(piece)
                async with asyncio.timeout(PIECE_WITHIN_S):
                    sent = p.decode_sent(await connection.message())
                if sent.sha256 != digest.hexdigest():
                    raise HostError("the bytes that arrived are not those the coordinator sent")
                file.flush()
                file.seek(0)
                return os.dup(file.fileno())

    @asynccontextmanager
    async def _asked(
        self, request: p.FetchArchive | p.FetchCheckpoints
    ) -> AsyncIterator[RpcConnection]:
        """A connection on which the answer comes."""
        place = self._coordinator
        connection = await self._dialer.open(place.address, place.port, "fetch")
        try:
            await connection.say(request)
            yield connection
        finally:
            connection.close()


async def _pieces(connection: RpcConnection) -> AsyncIterator[bytes]:
    """Yield the pieces of the blob that the coordinator sends; HostError: it refuses."""
    while True:
        async with asyncio.timeout(PIECE_WITHIN_S):
            kind, payload = await connection.frame()
        if kind == framing.BLOB_END:
            return
        if kind != framing.BLOB:
            raise HostError(_refused(payload))
        yield payload


def _refused(payload: bytes) -> str:
    try:
        answer = m.decode_answer(payload)
    except msgspec.DecodeError:
        return "the coordinator sent something else"
    return answer.message if isinstance(answer, m.Refusal) else "the coordinator sent no archive"
