"""Opening a connection to another daemon: connect, TLS, identity, purpose.

    TCP ─► TLS 1.3, both with certificates ─► the right one? ─► Opening ─► Opened
     └ Unreachable                             └ Unreachable            └ PeerRefusal: it said no

The result is a connection on which the purpose begins. A member dials only the coordinator, the
coordinator dials members: `verdict` says whether the certificate at the other end will do.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable

import msgspec

from wiiiiided import __version__
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.trust.tls import VerifiedPeer, peer_of
from wiiiiided.errors import WiiiiideError

CONNECT_S = 5.0
OPEN_S = 10.0
ASKED_BYTES = 16 << 20  # of a member's answer: the stacks of all its ranks are the largest
Verdict = Callable[[VerifiedPeer], str]


class Unreachable(WiiiiideError):
    """No daemon answered, or not the right one; the message says why, the caller says where."""


class PeerRefusal(WiiiiideError):
    """The daemon answered, and refuses this connection. Nothing was changed."""

    def __init__(self, code: int, message: str, hint: str = "", removed: bool = False) -> None:
        super().__init__(message)
        self.code, self.hint, self.removed = code, hint, removed


class Dialer:
    """Opens connections in this machine's name."""

    def __init__(self, tls: Callable[[], ssl.SSLContext], verdict: Verdict) -> None:
        self._tls = tls
        self._verdict = verdict

    async def open(
        self, address: str, port: int, purpose: p.Purpose, person: p.Person | None = None
    ) -> RpcConnection:
        """A connection on which `purpose` may begin; close it when it is over."""
        limit = ASKED_BYTES if purpose == "ask" else framing.LIMITS[framing.MESSAGE]
        connection = await self._connect(address, port, limit)
        try:
            async with asyncio.timeout(OPEN_S):
                await connection.say(p.Opening(purpose, p.PROTOCOLS, __version__, person))
                answer = p.decode_opened(await connection.message())
        except (
            TimeoutError,
            EOFError,
            OSError,
            framing.StreamError,
            msgspec.DecodeError,
        ) as problem:
            connection.close()
            raise Unreachable(f"it does not speak as wiiiiided: {_short(problem)}") from problem
        except BaseException:
            connection.close()
            raise
        if isinstance(answer, p.TurnedAway):
            connection.close()
            raise PeerRefusal(answer.code, answer.message, answer.hint, answer.removed)
        return connection

    async def _connect(self, address: str, port: int, limit: int) -> RpcConnection:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    address, port, ssl=self._tls(), server_hostname="", limit=framing.LIMITS[b"B"]
                )
        except (TimeoutError, OSError) as problem:
            raise Unreachable(_short(problem)) from problem
        connection = RpcConnection(reader, writer, limit)
        connection.peer = peer_of(writer.get_extra_info("ssl_object"))
        no = (
            self._verdict(connection.peer)
            if connection.peer is not None
            else "it shows no certificate"
        )
        if no:
            connection.close()
            raise Unreachable(f"it is another daemon: {no}")
        return connection


def _short(problem: BaseException) -> str:
    if isinstance(problem, TimeoutError):
        return "nothing came back in time"
    if isinstance(problem, ssl.SSLError):
        return f"TLS: {problem.reason or problem}"
    if isinstance(problem, OSError):  # asyncio's own text repeats the address
        return os.strerror(problem.errno) if problem.errno else str(problem)
    return str(problem)
