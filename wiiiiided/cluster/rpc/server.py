"""The daemon's unix socket, and how one request is answered whichever way it came.

    unix socket ── Hello, Request ──┐                      ┌─ Requests   (coordinator, or alone)
                                    ├─ bounds ─ handle ────┤
    one port ── purpose `request` ──┘                      └─ Relay      (member)

The kernel names a person on this machine (SO_PEERCRED), and the other daemon one on another
machine. The socket's mode says which users may connect: 0660 and group wiiiiide for the service,
0600 for a person's own daemon. A client's requests are bounded: so many connections, so many
bytes a message, so long for the first words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from wiiiiided import __version__
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.rpc.shutdown import stop_listening
from wiiiiided.errors import HostError, WiiiiideError
from wiiiiided.log import about, logger

CONNECTIONS = 512
PER_USER = 128
RESERVED = 64  # for root and the daemon's own user
FIRST_WORDS_S = 10.0
HERE_ONLY = (m.Init, m.Join, m.Leave, m.Renew)  # never for a person on another machine
BACKLOG = 1024  # a full one refuses clients that do not block

Handler = Callable[[RpcConnection, m.Request], Awaitable[None]]


class RpcServer:
    """The listening socket, and the bounds of all callers; `node` is the machine they are on."""

    def __init__(self, path: Path, shared: bool, handle: Handler, node: str = "") -> None:
        self.path = path
        self.shared = shared
        self.handle = handle
        self.node = node
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._callers: Counter[tuple[str, int]] = Counter()
        self._closing = False

    async def listen(self) -> None:
        """Replace a socket file that is there: the state's lock says that no other daemon lives."""
        listener = _bind(self.path, self.shared)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, backlog=BACKLOG)

    async def close(self) -> None:
        self._closing = True  # a connection may be accepted and not yet begun
        if self._server is not None:
            await stop_listening(self._server)
            self.path.unlink(missing_ok=True)
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = RpcConnection(reader, writer)
        with contextlib.suppress(asyncio.CancelledError):  # the daemon stops
            caller = await Caller.at(writer.get_extra_info("socket"), self.node)
            await self._serve(connection, caller, greets=True)

    async def serve(self, connection: RpcConnection, caller: Caller) -> None:
        """A person on another machine, whose request comes next; returns when it is answered."""
        await self._serve(connection, caller, greets=False)

    async def _serve(self, connection: RpcConnection, caller: Caller, greets: bool) -> None:
        """Serve one connection from its first words to its end, within the bounds."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        connection.caller = caller
        who = (caller.node, caller.uid)
        try:
            if self._closing:
                return
            if self._is_crowded(caller):
                await _turn_away(connection, greets)
                return
            self._callers[who] += 1
            try:
                request = await _first_words(connection, greets)
                if isinstance(request, HERE_ONLY) and not greets:
                    text = f"{request.tag.lower()} is for the machine itself to ask"
                    await connection.say(m.Refusal(2, text))
                elif request is not None:
                    await self._converse(connection, request)
            finally:
                self._callers[who] -= 1
                self._callers += Counter()  # forgets callers that have none
        except (EOFError, OSError, framing.StreamError):
            pass  # it went away, or does not speak this protocol: its own affair
        except Exception:
            logger.exception("a defect while answering a client")
        finally:
            self._open.discard(task)
            connection.close()

    def _is_crowded(self, caller: Caller) -> bool:
        """Whether there is no place for this user: each user has so many, and some are left for
        root."""
        if caller.admin:
            return len(self._open) > CONNECTIONS
        most = CONNECTIONS - RESERVED
        busy = self._callers[caller.node, caller.uid]
        return busy >= PER_USER or len(self._open) > most

    async def _converse(self, connection: RpcConnection, request: m.Request) -> None:
        """Answer one request, to its end or until the client goes."""
        answering = self._answer(connection, request)
        if isinstance(request, m.Submission):
            await answering  # it reads the archive itself
        else:
            await connection.while_there(answering)

    async def _answer(self, connection: RpcConnection, request: m.Request) -> None:
        try:
            await self.handle(connection, request)
        except Refuse as no:
            await connection.say(m.Refusal(no.code, str(no), no.hint))
        except framing.FrameTooLarge as problem:
            text = f"the answer is too large: {problem}"
            await connection.say(m.Refusal(1, text, "ask for less: one job, or fewer lines"))
        except (EOFError, OSError, framing.StreamError):
            raise
        except WiiiiideError as problem:
            await connection.say(m.Refusal(1, str(problem)))
        except Exception as problem:
            extra = about(getattr(request, "id", None))
            logger.exception("a defect while answering %s", request.tag, extra=extra)
            await connection.say(
                m.Refusal(1, f"a defect of the daemon: {problem!r}; its log has more")
            )


async def _turn_away(connection: RpcConnection, greets: bool) -> None:
    if greets:
        await connection.say(m.Hello(m.PROTOCOL, __version__))
    text = f"{connection.caller.user} has {PER_USER} requests under way: try again later"
    await connection.say(m.Refusal(1, text))


async def _first_words(connection: RpcConnection, greets: bool) -> m.Request | None:
    """The request; None when there is none that could be answered."""
    try:
        async with asyncio.timeout(FIRST_WORDS_S):
            if greets and not await _greet(connection):
                return None  # it has heard our number, and says the rest to its user
            request: m.Request = m.decode_request(await connection.message())
            return request
    except TimeoutError:
        return None
    except msgspec.DecodeError as problem:
        text = f"this daemon ({__version__}) does not understand the request: {problem}"
        await connection.say(m.Refusal(2, text, "are both of the same version?"))
        return None


async def _greet(connection: RpcConnection) -> bool:
    """Whether the client speaks our protocol."""
    hello = m.decode_hello(await connection.message())
    connection.hears_notices = hello.notices
    await connection.say(m.Hello(m.PROTOCOL, __version__))
    return hello.protocol == m.PROTOCOL


def _bind(path: Path, shared: bool) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        path.parent.mkdir(mode=0o755 if shared else 0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        old_umask = os.umask(0o117 if shared else 0o177)  # the socket is made with its final mode
        try:
            listener.bind(str(path))
        finally:
            os.umask(old_umask)
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        raise HostError(f"cannot listen on {path}: {problem.strerror or problem}") from problem
    return listener
