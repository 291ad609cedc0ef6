"""The shim's endpoint, where the daemon hands over connections of the machine's one port.

    daemon                                shim
    connect to <attempt>/door ──────────► which user is it? (SO_PEERCRED)
    one byte and a socket ──────────────► "L"  a Store client of some process of this machine:
                                               taken when that process belongs to the job
                                          "R"  a Store connection of another node's shim, which
                                               the daemon has admitted by the attempt's key
                              "+" or "-" ◄─────  taken, or not; then the shim's copy is closed

Connections of daemons are few and short; a silent one is closed. Nothing is read from a socket
before it is taken: one that is not taken stays as it was.
"""

from __future__ import annotations

import array
import os
import socket

from wiiiiided.cluster.shim.control import peer_uid
from wiiiiided.cluster.shim.listener import LoopListener
from wiiiiided.cluster.shim.loop import READ, ShimLoop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LOCAL, REMOTE = b"L", b"R"
TAKEN, NOT_TAKEN = b"+", b"-"
MAX_CONNECTIONS = 64
HAND_OVER_WITHIN_S = 10.0


class FdReceiver:
    """`take(kind, link)` says whether it has taken the link; if so, it owns it."""

    def __init__(
        self,
        loop: ShimLoop,
        listener: socket.socket,
        uids: set[int],
        take: Callable[[bytes, socket.socket], bool],
    ) -> None:
        self._loop, self._uids, self._take = loop, uids, take
        self._connections: set[socket.socket] = set()
        self._listener = LoopListener(loop, listener, self._welcome)

    def close(self) -> None:
        self._listener.close()
        for connection in list(self._connections):
            self._dismiss(connection)

    def _welcome(self, connection: socket.socket, _: Any) -> None:
        if len(self._connections) >= MAX_CONNECTIONS or peer_uid(connection) not in self._uids:
            connection.close()
            return
        self._connections.add(connection)
        connection.setblocking(False)
        timer = self._loop.after(HAND_OVER_WITHIN_S, lambda: self._dismiss(connection))

        def ready() -> None:
            try:
                self._receive(connection)
            except BlockingIOError:
                return
            except OSError:
                pass  # the daemon has closed it
            timer.cancel()
            self._dismiss(connection)

        self._loop.watch(connection.fileno(), READ, ready)

    def _receive(self, connection: socket.socket) -> None:
        # Not socket.recv_fds: on Python 3.11 it ignores its flags, and ranks would inherit these.
        room = socket.CMSG_LEN(array.array("i").itemsize)
        kind, messages, _, _ = connection.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for level, about, data in messages:
            if (level, about) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        for fd in fds:
            connection.send(TAKEN if self._offer(kind, fd) else NOT_TAKEN)

    def _offer(self, kind: bytes, fd: int) -> bool:
        """Whether the socket is taken; if not, it is closed."""
        try:
            link = socket.socket(fileno=fd)
        except OSError:  # no socket
            os.close(fd)
            return False
        try:
            if is_tcp(link) and self._take(kind, link):
                return True
        except OSError:
            pass  # the connection broke meanwhile
        link.close()
        return False

    def _dismiss(self, connection: socket.socket) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._loop.forget(connection.fileno())
            connection.close()


def is_tcp(link: socket.socket) -> bool:
    internet = link.family in (socket.AF_INET, socket.AF_INET6)
    return internet and link.type == socket.SOCK_STREAM
