"""The daemon's unix socket: who connects, what they ask, and the frames both ways.

The kernel says who is at the other end (SO_PEERCRED). Who may connect at all is the socket's mode:
0660 and group wiiiiide for the service, 0600 for a person's own daemon. Strangers' bytes are
bounded: so many connections, so many bytes a message, so long for the first words.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pwd
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from wiiiiided import __version__
from wiiiiided.errors import HostError, WiiiiideError
from wiiiiided.log import about, logger
from wiiiiided.wire import messages as m
from wiiiiided.wire import stream

CONNECTIONS = 512
PER_USER = 128
RESERVED = 64  # for root and the daemon's own user
FIRST_WORDS_S = 10.0
BACKLOG = 1024  # a full one refuses clients that do not block


class Refuse(WiiiiideError):
    """The answer is no; becomes a Refused."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


@dataclass(frozen=True)
class Caller:
    """Who asks, as the kernel knows it."""

    uid: int
    user: str
    admin: bool  # root, or the daemon's own user

    @classmethod
    def at(cls, connection: socket.socket) -> Caller:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", raw)
        return cls(uid, _user(uid), uid in (0, os.getuid()))


@functools.lru_cache(maxsize=1024)  # a directory server may be slow, and everybody would wait
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Conversation:
    """One connection: frames in, frames out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.caller = Caller.at(writer.get_extra_info("socket"))
        self._reader = reader
        self._writer = writer
        self._frames: list[tuple[bytes, bytes]] = []
        self._parser = stream.Parser(stream.REQUEST_BYTES)

    async def frame(self) -> tuple[bytes, bytes]:
        """The next frame; EOFError when the other side has gone."""
        while not self._frames:
            data = await self._reader.read(1 << 18)
            if not data:
                raise EOFError
            self._frames.extend(self._parser.feed(data))
        return self._frames.pop(0)

    async def blob(self, piece_within_s: float) -> AsyncIterator[bytes]:
        """The pieces of a blob that the client sends now; TimeoutError when one does not come."""
        while True:
            async with asyncio.timeout(piece_within_s):
                kind, payload = await self.frame()
            if kind == stream.BLOB_END:
                return
            if kind != stream.BLOB:
                raise stream.BadFrame("a piece of the archive was expected")
            yield payload

    async def message(self) -> bytes:
        kind, payload = await self.frame()
        if kind != stream.MESSAGE:
            raise stream.BadFrame("a message was expected")
        return payload

    async def say(self, answer: m.Answer | m.Hello) -> None:
        self._writer.write(stream.frame(stream.MESSAGE, m.encode(answer)))
        await self._writer.drain()

    async def send_blob(self, piece: bytes) -> None:
        self._writer.write(stream.frame(stream.BLOB, piece))
        await self._writer.drain()

    async def end_blob(self) -> None:
        self._writer.write(stream.frame(stream.BLOB_END))
        await self._writer.drain()

    async def gone(self) -> None:
        """Until the client closes its side: it has nothing more to say."""
        while await self._reader.read(1 << 16):
            pass


Handler = Callable[[Conversation, m.Request], Awaitable[None]]


class Api:
    """The listening socket."""

    def __init__(self, path: Path, shared: bool, handle: Handler) -> None:
        self.path = path
        self.shared = shared
        self.handle = handle
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._callers: Counter[int] = Counter()
        self._closing = False

    async def listen(self) -> None:
        """Take the place of whatever is there: the state's lock says that nobody else is alive."""
        listener = _bind(self.path, self.shared)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, backlog=BACKLOG)

    async def close(self) -> None:
        self._closing = True  # a connection may be accepted and not yet begun
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            talk = Conversation(reader, writer)
            if self._closing:
                return
            if self._is_crowded(talk.caller):
                await talk.say(m.Hello(m.PROTOCOL, __version__))
                text = f"{talk.caller.user} has {PER_USER} requests under way: try again later"
                await talk.say(m.Refused(1, text))
                return
            self._callers[talk.caller.uid] += 1
            try:
                await self._converse(talk)
            finally:
                self._callers[talk.caller.uid] -= 1
        except (EOFError, OSError, stream.BadFrame, asyncio.CancelledError):
            pass  # it went away, or does not speak this protocol: its own affair
        except Exception:
            logger.exception("a defect while answering a client")
        finally:
            self._open.discard(task)
            writer.close()

    def _is_crowded(self, caller: Caller) -> bool:
        """Nobody can take all places: each user has so many, and some are left for root."""
        if caller.admin:
            return len(self._open) > CONNECTIONS
        most = CONNECTIONS - RESERVED
        return self._callers[caller.uid] >= PER_USER or len(self._open) > most

    async def _converse(self, talk: Conversation) -> None:
        try:
            async with asyncio.timeout(FIRST_WORDS_S):
                hello = m.decode_hello(await talk.message())
                await talk.say(m.Hello(m.PROTOCOL, __version__))
                if hello.protocol != m.PROTOCOL:
                    return  # it has heard our number, and says the rest to its user
                request = m.decode_request(await talk.message())
        except (TimeoutError, msgspec.DecodeError) as problem:
            if isinstance(problem, msgspec.DecodeError):
                text = f"this daemon ({__version__}) does not understand the request: {problem}"
                await talk.say(m.Refused(2, text, "are both of the same version?"))
            return
        # A request ends when its client goes away: nobody is left to answer.
        work = asyncio.ensure_future(self._answer(talk, request))
        if isinstance(request, m.Submit):
            await work  # it reads the archive itself
            return
        gone = asyncio.ensure_future(talk.gone())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            results = await asyncio.gather(work, gone, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _answer(self, talk: Conversation, request: m.Request) -> None:
        try:
            await self.handle(talk, request)
        except Refuse as no:
            await talk.say(m.Refused(no.code, str(no), no.hint))
        except (EOFError, OSError, stream.BadFrame):
            raise
        except WiiiiideError as problem:
            await talk.say(m.Refused(1, str(problem)))
        except Exception as problem:
            extra = about(getattr(request, "id", None))
            logger.exception("a defect while answering %s", type(request).__name__, extra=extra)
            await talk.say(m.Refused(1, f"a defect of the daemon: {problem!r}; its log has more"))


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
