"""A member gets archives and checkpoints from the coordinator: on a connection of its own, so that
none can make a node look lost.

    FetchArchive(digest) ──►   ◄── B B B … E      kept when it is whole and what it was said to be
                               ◄── Refused        it is not there any more
    FetchCheckpoints     ──►   ◄── B B B … E J    a file without a name; J has its SHA-256
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Callable

import msgspec

from wiiiiided.daemon.cluster.dial import Dialer
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.shares.archives import PIECE_WITHIN_S, Archives, Upload
from wiiiiided.errors import HostError
from wiiiiided.peering import messages as p
from wiiiiided.trust.identity import Place
from wiiiiided.wire import messages as m
from wiiiiided.wire import stream


class Fetcher:
    """Brings archives to this machine."""

    def __init__(
        self,
        dialer: Dialer,
        coordinator: Callable[[], Place],
        archives: Archives,
        settings: Callable[[], Settings],
    ) -> None:
        self._dialer = dialer
        self._coordinator = coordinator
        self._archives = archives
        self._settings = settings

    async def fetch(self, digest: str) -> None:
        """It is here when this returns. WiiiiideError, OSError, EOFError, TimeoutError: not."""
        place = self._coordinator()
        talk = await self._dialer.open(place.address, place.port, "fetch")
        try:
            await talk.say(p.FetchArchive(digest))
            limit = self._settings().archive_limit
            with self._archives.receive(digest, limit) as upload:
                while True:
                    async with asyncio.timeout(PIECE_WITHIN_S):
                        kind, payload = await talk.frame()
                    if kind == stream.BLOB_END:
                        break
                    if kind != stream.BLOB:
                        raise HostError(_refused(payload))
                    upload.take(payload)
                await _finish(upload)
        finally:
            talk.close()

    async def checkpoints(self, job: int, attempt: int) -> int:
        """A descriptor of the tar that all nodes of the attempt get, whole; who asks closes it.
        The same errors."""
        place = self._coordinator()
        talk = await self._dialer.open(place.address, place.port, "fetch")
        limit, digest, size = self._settings().outputs_bytes, hashlib.sha256(), 0
        try:
            await talk.say(p.FetchCheckpoints(job, attempt))
            with tempfile.TemporaryFile(dir=self._archives.directory) as file:
                while True:
                    async with asyncio.timeout(PIECE_WITHIN_S):
                        kind, payload = await talk.frame()
                    if kind == stream.BLOB_END:
                        break
                    if kind != stream.BLOB:
                        raise HostError(_refused(payload))
                    digest.update(payload)
                    size += len(payload)
                    if size > limit:
                        raise HostError(f"they are more than {limit} bytes (limits.outputs)")
                    file.write(payload)
                async with asyncio.timeout(PIECE_WITHIN_S):
                    sent = p.decode_sent(await talk.message())
                if sent.sha256 != digest.hexdigest():
                    raise HostError("what arrived is not what the coordinator sent")
                file.flush()
                file.seek(0)
                return os.dup(file.fileno())
        finally:
            talk.close()


async def _finish(upload: Upload) -> None:
    """On the disk, in a thread. Who is cancelled meanwhile waits for it: it must not go on with a
    descriptor that is closed already, and what it keeps is whole."""
    finishing = asyncio.ensure_future(asyncio.to_thread(upload.finish))
    try:
        await asyncio.shield(finishing)
    finally:
        await asyncio.gather(finishing, return_exceptions=True)


def _refused(payload: bytes) -> str:
    try:
        answer = m.decode_answer(payload)
    except msgspec.DecodeError:
        return "the coordinator sent something else"
    return answer.message if isinstance(answer, m.Refused) else "the coordinator sent no archive"
