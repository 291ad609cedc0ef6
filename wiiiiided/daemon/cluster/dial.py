"""Opening a connection to another daemon: connect, TLS, who is it, what for.

    TCP ─► TLS 1.3, both with certificates ─► is that whom we mean? ─► Opening ─► Opened
     └ Unreachable                             └ Unreachable            └ Turned: it said no

What comes back is a Talk on which the purpose begins. A member dials nobody but the coordinator,
the coordinator dials members: `verdict` says whether the certificate at the other end will do.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable

import msgspec

from wiiiiided import __version__
from wiiiiided.daemon.conversation.talk import Talk
from wiiiiided.errors import WiiiiideError
from wiiiiided.peering import messages as p
from wiiiiided.trust.tls import Peer, peer_of
from wiiiiided.wire import stream

CONNECT_S = 5.0
OPEN_S = 10.0
ASKED_BYTES = 16 << 20  # of a member's answer: the stacks of all its ranks are the largest
Verdict = Callable[[Peer], str]


class Unreachable(WiiiiideError):
    """Nobody answered, or not who should; the message says how. Who dialled says where."""


class Turned(WiiiiideError):
    """It answered, and does not want this connection. Nothing was changed."""

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
    ) -> Talk:
        """A connection on which `purpose` may begin; close it when it is over."""
        limit = ASKED_BYTES if purpose == "ask" else stream.LIMITS[stream.MESSAGE]
        talk = await self._connect(address, port, limit)
        try:
            async with asyncio.timeout(OPEN_S):
                await talk.say(p.Opening(purpose, p.PROTOCOLS, __version__, person))
                answer = p.decode_opened(await talk.message())
        except (TimeoutError, EOFError, OSError, stream.BadFrame, msgspec.DecodeError) as problem:
            talk.close()
            raise Unreachable(f"it does not speak as wiiiiided: {_short(problem)}") from problem
        except BaseException:
            talk.close()
            raise
        if isinstance(answer, p.TurnedAway):
            talk.close()
            raise Turned(answer.code, answer.message, answer.hint, answer.removed)
        return talk

    async def _connect(self, address: str, port: int, limit: int) -> Talk:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    address, port, ssl=self._tls(), server_hostname="", limit=stream.LIMITS[b"B"]
                )
        except (TimeoutError, OSError) as problem:
            raise Unreachable(_short(problem)) from problem
        talk = Talk(reader, writer, limit)
        talk.peer = peer_of(writer.get_extra_info("ssl_object"))
        no = self._verdict(talk.peer) if talk.peer is not None else "it shows no certificate"
        if no:
            talk.close()
            raise Unreachable(f"it is somebody else: {no}")
        return talk


def _short(problem: BaseException) -> str:
    if isinstance(problem, TimeoutError):
        return "nothing came back in time"
    if isinstance(problem, ssl.SSLError):
        return f"TLS: {problem.reason or problem}"
    if isinstance(problem, OSError):  # asyncio's own text repeats the address
        return os.strerror(problem.errno) if problem.errno else str(problem)
    return str(problem)
