"""One connection of a daemon: frames in, frames out, and the caller at the other end.

    a command on this machine ── unix socket ──┐
                                               ├── RpcConnection ── message · blob ── handler
    a daemon of another one ── TLS, one port ──┘

A handler need not know which way a request came. `caller` is the person who asks, as the kernel
knows it, or as the daemon of that person's machine says; `peer` is the daemon at the other end of
TLS. A client's message has at most `limit` bytes; a reader of the answers of its own cluster's
daemons passes framing.LIMITS[MESSAGE].
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.user_names import user_of

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

    from wiiiiided.cluster.trust.tls import VerifiedPeer

READ_BYTES = 1 << 18
SILENT_S = 25  # of a machine that is off: its connections end then


@dataclass(frozen=True)
class Caller:
    """The person who asks. Users of two machines are different people, whatever their uids."""

    uid: int
    user: str
    admin: bool  # root, or the daemon's own user, on the machine they are on
    node: str = ""  # that machine; empty: this one

    @classmethod
    async def at(cls, connection: socket.socket, node: str = "") -> Caller:
        """The user at the other end of a unix socket, as the kernel says."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", raw)
        return cls(uid, await user_of(uid), uid in (0, os.getuid()), node)


NOBODY = Caller(-1, "nobody", admin=False)


class RpcConnection:
    """One connection. Several tasks may `say`; one reads."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: int = framing.REQUEST_BYTES,
    ) -> None:
        self.peer: VerifiedPeer | None = None
        self.caller = NOBODY  # until the server sets it
        self.hears_notices = False  # its client understands them
        self._reader = reader
        self._writer = writer
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._parser = framing.Parser(limit)
        _notice_silence(writer.get_extra_info("socket"))

    # ---- in

    async def frame(self) -> tuple[bytes, bytes]:
        """The next frame; EOFError when the other side has gone."""
        while not self._frames:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise EOFError("the other side has closed the connection")
            self._frames.extend(self._parser.feed(data))
        return self._frames.popleft()

    async def waiting(self) -> None:
        """Wait until a frame has come; it stays, for `frame`."""
        self._frames.appendleft(await self.frame())

    async def message(self) -> bytes:
        """The next frame, which must be a message."""
        kind, payload = await self.frame()
        if kind != framing.MESSAGE:
            raise framing.StreamError("a message was expected")
        return payload

    async def blob(
        self, within_s: float, least_bytes: int = 1, whole_within_s: float | None = None
    ) -> AsyncIterator[bytes]:
        """The pieces of a blob that comes now. TimeoutError when fewer than `least_bytes` come
        `within_s`, or not all of it; only what we wait for the other side counts."""
        loop = asyncio.get_running_loop()
        left_s, came = within_s, 0
        whole_s = float("inf") if whole_within_s is None else whole_within_s
        while True:
            began = loop.time()
            async with asyncio.timeout(min(left_s, whole_s)):
                kind, payload = await self.frame()
            if kind == framing.BLOB_END:
                return
            if kind != framing.BLOB or not payload:
                raise framing.StreamError("a piece of a blob was expected")
            waited_s = loop.time() - began
            left_s, whole_s, came = left_s - waited_s, whole_s - waited_s, came + len(payload)
            if came >= least_bytes:
                left_s, came = within_s, 0
            yield payload

    async def gone(self) -> None:
        """Wait until the other side closes: it has nothing more to say."""
        while await self._reader.read(1 << 16):
            pass

    async def while_there(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work until it is done or the other side closes."""
        doing = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self.gone())
        try:
            await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (doing, gone):
                task.cancel()
            results = await asyncio.gather(doing, gone, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    # ---- out

    async def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send one frame; returns when the connection can take more (backpressure)."""
        self._writer.write(framing.frame(kind, payload))
        await self._writer.drain()

    async def say(self, message: msgspec.Struct) -> None:
        await self.send(framing.MESSAGE, m.encode(message))

    async def notice(self, text: str) -> None:
        """A sentence for the person who waits, if the client can show it."""
        if self.hears_notices:
            await self.say(m.Notice(text))

    async def send_blob(self, piece: bytes) -> None:
        await self.send(framing.BLOB, piece)

    async def end_blob(self) -> None:
        await self.send(framing.BLOB_END)

    def close(self) -> None:
        """Messages sent still arrive; nothing more is read."""
        self._writer.close()


def abort(transport: asyncio.WriteTransport) -> None:
    """End a connection at once; nothing, where it has ended already. TLS that was closed a second
    time has let go of its connection, and abort of Python 3.11.2, Debian's, raises then."""
    with contextlib.suppress(AttributeError):
        transport.abort()


def _notice_silence(connection: TransportSocket | None) -> None:
    """Have the kernel ask a quiet machine whether it is still there. Not TCP_USER_TIMEOUT: it would
    also end the connection of a slow reader, as with a log in a pager."""
    if connection is None or connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, SILENT_S - 15),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 3),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
