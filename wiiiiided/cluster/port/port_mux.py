"""The one port of this machine: everything that comes from others comes here, and is sorted.

    first bytes          caller                                       handed to
    16                   a daemon or a joining machine, TLS           on_control(reader, writer)
    "WIIKN"              a worker or shim of another machine,         the process it wants, by its
                         proves the attempt's key (wire.port_auth)        endpoint (fd_handoff)
    00 ce f7 85 3c       a rank of this machine, a TCPStore's         the shim that knows it
                         client: the kernel says which user's
    anything else        unknown                                      closed, a line in the log

    listening ─► silent ─► handshake ─┬─► inside: control, with a certificate, until it ends
                                      ├─► uncertified: control without one, to greet and to join
                                      └─► passed on, our copy closed

The first bytes are peeked at: the process that gets the connection reads them. A connection that is
handed over was read up to the end of its PROOF and not one byte further.

Unauthenticated peers are bounded: MAX_SILENT connections without a word,
MAX_HANDSHAKES under way and MAX_UNCERTIFIED without a certificate; of more, the oldest goes, unless
it came just now: when a job starts, all its ranks come at once, up to CROWD. SILENT_S and
HANDSHAKE_S for each, one line a second in the log. Accepting goes on meanwhile. Without descriptors
it rests a second. How long control may take is for on_control to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

from wiiiiided import log
from wiiiiided.backend.wire.challenge import AuthState
from wiiiiided.backend.wire.port_auth import MAGIC, PortServer, RejectReason
from wiiiiided.cluster.allocation.spawn import readable
from wiiiiided.cluster.port.fd_handoff import EndpointBusy, FdHandoff, NoEndpoint
from wiiiiided.cluster.rpc.connection import abort
from wiiiiided.cluster.shim.sockets import other_end
from wiiiiided.errors import HandshakeFailed, HostError, WiiiiideError
from wiiiiided.log import logger

MAX_SILENT: Final = 64
MAX_HANDSHAKES: Final = 256
MAX_UNCERTIFIED: Final = 64
CROWD: Final = 1024
YOUNG_S: Final = 1.0
SILENT_S: Final = 10.0
HANDSHAKE_S: Final = 10.0
GOODBYE_S: Final = 5.0  # for the other side's end of TLS
OFFER_AGAIN_S: Final = 0.2
LISTEN_AGAIN_S: Final = 2.0
REST_S: Final = 1.0
ACCEPTS: Final = 16  # in one turn: the loop has other things to do
BACKLOG: Final = 1024
READ_BYTES: Final = 1 << 18

FIRST_BYTES: Final = 5
_TLS: Final = b"\x16"
_PORT_AUTH: Final = MAGIC[:FIRST_BYTES]
_STORE: Final = b"\0" + (0x3C85F7CE).to_bytes(4, sys.byteorder)  # "validate", its magic number

OnControl = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Task = asyncio.Task[None]
Place = dict[Task, tuple[str, float]]


class PortMux:
    """Listens on one address and port, as soon as that is possible and until it is closed."""

    def __init__(
        self,
        address: str,
        port: int,
        tls: Callable[[], ssl.SSLContext],
        on_control: OnControl,
        handoff: FdHandoff,
        jobs_uid: int,
    ) -> None:
        self.address, self.port = address, port
        self.problem = ""  # why it does not listen, a sentence; empty when it does
        self._tls, self._on_control, self._handoff = tls, on_control, handoff
        self._uids = {jobs_uid, 0}
        self._listener: socket.socket | None = None
        self._opening: Task | None = None
        # Connections by stage, each with its address and since when; the oldest first.
        self._silent: Place = {}
        self._shaking: Place = {}
        self._uncertified: Place = {}
        self._inside: Place = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._complaints = log.Complaints("port")

    async def open(self) -> None:
        """Listen, now or when it becomes possible: `problem` says why not yet."""
        if not _is_single(self.address):
            raise HostError(f"{self.address!r} is no address of one interface to listen on")
        if not self._listen():
            logger.warning("%s", self.problem)
            self._opening = asyncio.create_task(self._keep_trying())

    async def close(self) -> None:
        """Accepts no more connections, and ends those that it has."""
        for timer in self._timers.values():
            timer.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        tasks = [*self._silent, *self._shaking, *self._uncertified, *self._inside]
        tasks += [self._opening] if self._opening is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._complaints.flush(at_once=True)

    # -- listening ----

    def _listen(self) -> bool:
        try:
            self._listener = _bound(self.address, self.port)
        except OSError as problem:
            where = f"{self.address}:{self.port}"
            self.problem = (
                f"cannot listen on {where} yet: {problem.strerror or problem}; tried again every "
                f"{LISTEN_AGAIN_S:g} s. It must be an address of this machine, and the port free"
            )
            return False
        self.port, self.problem = self._listener.getsockname()[1], ""
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return True

    async def _keep_trying(self) -> None:
        while True:
            await asyncio.sleep(LISTEN_AGAIN_S)
            if self._listen():
                logger.info("listening on %s:%d", self.address, self.port)
                return

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if self._listener is None:
                return
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as problem:
                self._rest(problem)
                return
            sock.setblocking(False)
            label = f"{address[0]}:{address[1]}"
            task = asyncio.create_task(self._receive(sock, label))
            self._silent[task] = label, time.monotonic()
            task.add_done_callback(self._gone)
            self._make_room(self._silent, MAX_SILENT, "came and said nothing")

    def _rest(self, problem: OSError) -> None:
        """Stop accepting for a while; most likely there is no descriptor left. The connections that
        wait keep the listener readable."""
        loop, listener = asyncio.get_running_loop(), self._listener
        assert listener is not None
        loop.remove_reader(listener)
        self._timers["rest"] = loop.call_later(REST_S, loop.add_reader, listener, self._accept)
        self._complain(f"a connection cannot be accepted now: {problem.strerror or problem}")
        self._make_room(self._silent, 0, "came and said nothing")

    def _make_room(self, place: Place, most: int, what: str) -> None:
        """Close the oldest connections of a stage until `most` are left."""
        while len(place) > most:
            oldest, (label, since) = next(iter(place.items()))
            if len(place) <= CROWD and time.monotonic() - since < YOUNG_S:
                return
            self._inside[oldest] = place.pop(oldest)  # until its task has ended
            self._complain(
                f"a connection from {label} was closed: too many connections {what}; "
                "this was the oldest"
            )
            oldest.cancel()

    def _gone(self, task: Task) -> None:
        for place in (self._silent, self._shaking, self._uncertified, self._inside):
            place.pop(task, None)

    def _move(self, source: Place, target: Place) -> None:
        """Move the connection of the task that runs to its next stage."""
        task = asyncio.current_task()
        if task in source:
            target[task] = source.pop(task)[0], time.monotonic()

    def _complain(self, text: str) -> None:
        self._complaints.say(text)
        if self._complaints.pending:
            loop = asyncio.get_running_loop()
            if "complaints" in self._timers:
                self._timers["complaints"].cancel()
            self._timers["complaints"] = loop.call_later(log.COMPLAINT_S, self._complaints.flush)

    # -- one connection ----

    async def _receive(self, sock: socket.socket, label: str) -> None:
        """Take one connection from its first byte to where it belongs."""
        try:
            async with asyncio.timeout(SILENT_S):
                first = await _peek(sock)
            self._move(self._silent, self._shaking)
            self._make_room(self._shaking, MAX_HANDSHAKES, "are in their handshake")
            if first.startswith(_TLS):
                await self._control(sock)
            elif first == _PORT_AUTH:
                await self._authenticate(sock)
            elif first == _STORE:
                await self._store(sock)
            elif len(first) == FIRST_BYTES:
                raise HandshakeFailed(f"the bytes {first!r} are of no protocol that is spoken here")
        except TimeoutError:
            self._complain(f"a connection from {label} was closed: it was too slow")
        except (OSError, WiiiiideError) as problem:
            why = _sentence(problem)
            self._complain(f"a connection from {label} was refused: {why}")
        except Exception:
            logger.exception("a connection from %s ended in a defect of wiiiiided", label)
        finally:
            sock.close()

    async def _control(self, sock: socket.socket) -> None:
        """TLS, then whatever daemons say to each other."""
        loop, context = asyncio.get_running_loop(), self._tls()
        reader = asyncio.StreamReader(limit=READ_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        own = sock.dup()  # the transport's; it closes it in its own time
        own.setblocking(False)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            own,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=GOODBYE_S,
        )
        sock.close()
        if transport.get_extra_info("peercert"):  # of our authority: else there would be none
            self._move(self._shaking, self._inside)
        else:
            self._move(self._shaking, self._uncertified)
            self._make_room(self._uncertified, MAX_UNCERTIFIED, "show no certificate")
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            with contextlib.suppress(ConnectionError, EOFError):
                # The other side went: its handler has said what there was to say.
                await self._on_control(reader, writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()  # until then it has a descriptor, and counts
        finally:
            abort(transport)

    async def _authenticate(self, sock: socket.socket) -> None:
        """A caller that proves the attempt's key is handed to the process it wants."""
        server = PortServer()
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                if not await _hear(server, sock) or server.request is None:
                    return  # it hung up
                server.challenge(self._handoff.key(server.request.job, server.request.attempt))
                if await _hear(server, sock):
                    await self._pass_on(server, sock)
        except (NoEndpoint, EndpointBusy) as problem:  # it has proved itself: it will try again
            absent = isinstance(problem, NoEndpoint)
            _last_word(server, sock, RejectReason.ABSENT if absent else RejectReason.BUSY)
            log.tell("port", f"{server.request}: {problem}")
        except asyncio.CancelledError:
            _last_word(server, sock, RejectReason.BUSY)
            raise
        except HostError:
            _last_word(server, sock)
            raise

    async def _pass_on(self, server: PortServer, sock: socket.socket) -> None:
        request = server.request
        assert request is not None

        def opened() -> bytes:
            server.welcome()
            return server.data_to_send()

        if request.role == "store":
            await self._handoff.store(request.job, request.attempt, sock, opened)
        else:
            await self._handoff.worker(request.job, request.attempt, request.uid, sock, opened)

    async def _store(self, sock: socket.socket) -> None:
        """Hand a rank of this machine over to its Store. torch does not ask twice, so the Store is
        looked for again and again until it is there."""
        uid = uid_at(sock)
        if uid not in self._uids:
            who = "is not on this machine" if uid is None else f"is user {uid}'s"
            raise HandshakeFailed(f"it wants a job's store and {who}")
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                while not await self._handoff.local_store(sock):
                    await asyncio.sleep(OFFER_AGAIN_S)
        except TimeoutError:
            raise HandshakeFailed(
                "it wants a job's store, and is of no job that runs here"
            ) from None


def _is_single(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    plain = getattr(parsed, "ipv4_mapped", None) or parsed
    return not (plain.is_unspecified or plain.is_multicast)


def _bound(address: str, port: int) -> socket.socket:
    """The listening socket. REUSEADDR: connections of before, passed on and alive, have this port
    too, and must not keep a restarted daemon from it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


async def _peek(sock: socket.socket) -> bytes:
    """The first bytes, left where they are; fewer when the other side has ended before."""
    level, option = socket.SOL_SOCKET, socket.SO_RCVLOWAT
    sock.setsockopt(level, option, FIRST_BYTES)  # readable means: all of them, or the end
    await readable(sock.fileno())
    first = sock.recv(FIRST_BYTES, socket.MSG_PEEK)
    sock.setsockopt(level, option, 1)
    return first


async def _hear(server: PortServer, sock: socket.socket) -> bool:
    """Send the server's answers and read the bytes it wants, not one more; False: the other side
    has closed the connection."""
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(sock, server.data_to_send())
        while server.wanted:
            data = await loop.sock_recv(sock, server.wanted)
            if not data:
                return False
            server.receive_data(data)
    except ConnectionError:  # … and had not read what was said to it
        return False
    return True


def _last_word(server: PortServer, sock: socket.socket, reason: RejectReason | None = None) -> None:
    """Tell it why, if it has said HELLO and the kernel takes it."""
    if reason is not None and server.state in (
        AuthState.VERDICT,
        AuthState.PROOF,
        AuthState.PROVED,
    ):
        server.refuse(reason)
    with contextlib.suppress(OSError):
        sock.send(server.data_to_send(), socket.MSG_NOSIGNAL)


def _sentence(problem: OSError | WiiiiideError) -> str:
    if isinstance(problem, ssl.SSLError):
        return f"TLS failed ({(problem.reason or 'no reason given').lower().replace('_', ' ')})"
    if isinstance(problem, OSError):
        return problem.strerror or str(problem) or type(problem).__name__
    return str(problem)


def uid_at(connection: socket.socket) -> int | None:
    """The user of the process at the other end; None: it is not on this machine, or gone."""
    try:
        end = other_end(connection.getsockname(), connection.getpeername())
    except OSError:
        return None
    return None if end is None else end.uid
