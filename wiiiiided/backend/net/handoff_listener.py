"""An endpoint behind the daemon's one port: the daemon passes connections on by a unix socket.

    other machine ──TCP──► daemon: wire.port_auth ──SCM_RIGHTS──► <attempt>/door-<uid> ──► Endpoint

    <attempt>/key          32 bytes: with them this process authenticates at other machines' ports
    <attempt>/door-<uid>   one connection of the daemon's for each that it passes on:
                           the byte W with one descriptor, then it hangs up

The kernel names the sender: only root, this user and the daemon's user may pass one on. The
connection is like any other; its handshake is still to be done. Nothing listens on TCP.

Port authentication may have to be repeated. A daemon that restarts refuses connections for a
moment, and one that has just come back has to find its jobs first: `again_s` says for how long that
is worth it.
"""

from __future__ import annotations

import array
import contextlib
import errno
import hmac
import math
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from wiiiiided.backend.net.pending_connection import (
    HungUp,
    OutgoingConnection,
    Overdue,
    Stage,
    sentence,
)
from wiiiiided.backend.net.stream import FdPoller
from wiiiiided.backend.wire.challenge import KEY_BYTES
from wiiiiided.backend.wire.port_auth import PortClient, PortRequest, Rejected, RejectReason
from wiiiiided.errors import HandshakeFailed, HostError

PASSED: Final = b"W"
BACKLOG: Final = 1024  # all ranks of all other machines come at once; the kernel has its own bound
MODE: Final = 0o660  # to connect is to write; the directory and SO_PEERCRED say which users may
MAX_OPEN: Final = 64
MAX_FDS: Final = 4  # that are taken along with one byte; one is right, the kernel closes the rest
SILENT_S: Final = 10.0
READY_S: Final = 15.0  # what a process may need to open its socket, and a daemon to find its jobs

_LABEL: Final = b"wiiiiide group\0"
_SOON: Final = frozenset(
    {RejectReason.ABSENT, RejectReason.UNKNOWN, RejectReason.PROOF}
)  # it may be otherwise


class HandoffListener:
    """This process's socket, and what it needs to authenticate at other machines' ports."""

    def __init__(self, directory: str, uid: str, uids: set[int], job: int, attempt: int) -> None:
        self._directory, self._name = directory, f"door-{uid}"
        self.uids = {0, os.geteuid(), *uids}
        self._job, self._attempt = job, attempt
        self._key = _read_key(directory)
        self.listener = self._bind()

    def port_client(self, role: str, connector: int, acceptor: int, uid: str) -> PortClient:
        """The client at another machine's port, to get to one of its processes."""
        request = PortRequest(self._job, self._attempt, role, connector, acceptor, uid)
        return PortClient(self._key, request)

    def sealed(self, key: bytes) -> bytes:
        """A group's key, made of the one in the Store and the attempt's. The Store's can
        be read on the wire; the attempt's key came inside TLS."""
        return hmac.digest(self._key, _LABEL + key, "sha256")

    def close(self) -> None:
        """Have no more connections passed on to us; the Endpoint closes the socket itself."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._directory, self._name))

    def _bind(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # By way of the descriptor: the path itself may be longer than a socket's may be.
                path = f"/proc/self/fd/{directory}/{self._name}"
                listener.bind(path)
                os.chmod(path, MODE)
            finally:
                os.close(directory)
            listener.setblocking(False)
            listener.listen(BACKLOG)
        except OSError as problem:
            listener.close()
            raise HostError(
                f"cannot open a socket in {self._directory}, the attempt's directory: "
                f"{problem.strerror}"
            ) from problem
        return listener


class HandoffReceiver:
    """The daemon's connections, each until it has passed one on. Driven as the Endpoint is."""

    def __init__(
        self,
        uids: set[int],
        poller: FdPoller,
        enter: Callable[[socket.socket, tuple[Any, ...]], None],
        complain: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._uids, self._poller, self._clock = uids, poller, clock
        self._enter, self._complain = enter, complain
        self._open: dict[socket.socket, float] = {}  # since when, the oldest first

    def add(self, sock: socket.socket) -> None:
        """Take the socket of a daemon that passes a connection on; mostly it has come already."""
        sock.setblocking(False)
        self._open[sock] = self._clock()
        self._poller.add(sock.fileno(), lambda _: self._receive(sock))
        if (uid := _uid(sock)) not in self._uids:
            self._end(sock, f"user {uid} may pass nothing on here")
        elif len(self._open) > MAX_OPEN:
            oldest = next(iter(self._open))
            self._end(oldest, "too many have passed nothing on; this was the oldest")
        else:
            self._receive(sock)

    def tick(self) -> None:
        """End connections that have passed nothing on for too long."""
        for sock, since in list(self._open.items()):
            if self._clock() - since >= SILENT_S:
                self._end(sock, f"nothing was passed on within {SILENT_S:g} s")

    def close(self) -> None:
        for sock in list(self._open):
            self._end(sock)

    def abandon(self) -> None:
        """Close the descriptors in a forked child: the poller is the parent's."""
        for sock in self._open:
            sock.close()
        self._open.clear()

    def _receive(self, sock: socket.socket) -> None:
        if sock not in self._open:
            return
        try:
            passed, address = _passed(sock)
        except BlockingIOError:
            return
        except (OSError, HandshakeFailed) as problem:  # it broke, or what it passed is gone already
            self._end(sock, "" if isinstance(problem, HungUp) else sentence(problem))
            return
        self._end(sock)
        self._enter(passed, address)

    def _end(self, sock: socket.socket, why: str = "") -> None:
        self._poller.remove(sock.fileno())
        sock.close()
        del self._open[sock]
        if why:
            self._complain(f"a connection passed on by the daemon was refused: {why}")


def again_s(pending: OutgoingConnection | None, why: OSError | HostError) -> float:
    """How long it is worth to authenticate again after this, in seconds; 0: not at all."""
    if isinstance(why, Rejected):
        if why.reason == RejectReason.BUSY:
            return math.inf
        return READY_S if why.reason in _SOON else 0.0
    if getattr(why, "errno", 0) == errno.ECONNREFUSED:
        return math.inf  # the daemon restarts
    broken = isinstance(why, HungUp) or getattr(why, "errno", 0) in (errno.ECONNRESET, errno.EPIPE)
    if pending is not None and pending.stage is Stage.PORT_AUTH:
        return math.inf if broken or isinstance(why, Overdue) else 0.0
    return READY_S if broken else 0.0


def explained(why: OSError | HostError) -> str:
    """The cause of its end, in words that fit a daemon."""
    if isinstance(why, OSError) and why.errno == errno.ECONNREFUSED:
        return f"{why.strerror}: no daemon listens there. Does it run on that machine?"
    return sentence(why)


def _passed(sock: socket.socket) -> tuple[socket.socket, tuple[Any, ...]]:
    """The connection that was passed on, and the address of its other end.

    BlockingIOError: not yet. Ended: it has gone already. HandshakeFailed: it is no connection.
    """
    # Not socket.recv_fds: it forgets its flags, and a child of the training would have a copy.
    fds = array.array("i")
    room = socket.CMSG_LEN(MAX_FDS * fds.itemsize)
    said, ancillary, _, _ = sock.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) // fds.itemsize * fds.itemsize])
    if not said:
        raise HungUp("it hung up without a word")
    if said == PASSED and len(fds) == 1:
        return _connection(fds[0])
    for fd in fds:
        os.close(fd)
    raise HandshakeFailed(f"{said!r} with {len(fds)} descriptors is no connection passed on")


def _connection(fd: int) -> tuple[socket.socket, tuple[Any, ...]]:
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
    try:
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            raise HandshakeFailed("it is no TCP connection")
        return sock, sock.getpeername()
    except OSError as problem:
        sock.close()
        raise HungUp("it has gone already") from problem
    except HandshakeFailed:
        sock.close()
        raise


def _uid(sock: socket.socket) -> int:
    """The process at the other end, as the kernel knows it."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


def _read_key(directory: str) -> bytes:
    path = os.path.join(directory, "key")
    try:
        with open(path, "rb") as file:
            key = file.read(KEY_BYTES + 1)
    except OSError as problem:
        raise HostError(
            f"cannot read {path}, which the daemon wrote for this attempt: {problem.strerror}"
        ) from problem
    if len(key) != KEY_BYTES:
        raise HostError(f"{path} does not hold this attempt's key: submit it again")
    return key
