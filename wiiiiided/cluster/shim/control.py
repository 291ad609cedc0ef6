"""The shim's unix socket: status out, commands in. `control_lines` has the lines.

The kernel names the user of a connection (SO_PEERCRED) before a byte of it counts. Several daemons
may listen at once, such as one that was killed and its successor. None can hold the shim up: unread
lines are kept up to a limit, then the listener is dropped; a line that is no command ends its
connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.shim.control_lines import read_command
from wiiiiided.cluster.shim.listener import LoopListener
from wiiiiided.cluster.shim.loop import READ, WRITE, ShimLoop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from wiiiiided.cluster.shim.control_lines import ShimCommand

LISTENERS = 16
BACKLOG = 128  # a connect that does not wait is refused when there is no room
UNSENT_BYTES = 4 * protocol.LINE_BYTES  # kept for a listener that does not read
READ_BYTES = 16 << 10


def bind(directory: int, name: str, mode: int) -> socket.socket:
    """A listening socket in the directory, by a path that is always short enough."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)  # of a dead process with the same pid
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = f"/proc/self/fd/{directory}/{name}"
    try:
        listener.bind(path)
        # Connecting needs write permission; whether commands count is decided by the user's id.
        os.chmod(path, mode | (mode & 0o444) >> 1)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class Control:
    """All connections to the shim's control socket. Calls `obey(command, answer)` with each
    command."""

    def __init__(
        self,
        loop: ShimLoop,
        listener: socket.socket,
        uids: set[int],
        status: Callable[[], bytes],
        obey: Callable[[ShimCommand, Callable[[bytes], None]], None],
    ) -> None:
        self.loop, self.obey = loop, obey
        self._uids, self._status = uids, status
        self._subscribers: set[_Subscriber] = set()
        self._listener = LoopListener(loop, listener, self._welcome)

    def tell(self, line: bytes) -> None:
        """Send a line to every listener."""
        for subscriber in list(self._subscribers):
            subscriber.send(line)

    def close(self) -> None:
        for subscriber in list(self._subscribers):
            subscriber.close()
        self._listener.close()

    def drop(self, subscriber: _Subscriber) -> None:
        self._subscribers.discard(subscriber)

    def _welcome(self, connection: socket.socket, _: Any) -> None:
        if len(self._subscribers) >= LISTENERS or peer_uid(connection) not in self._uids:
            connection.close()
            return
        subscriber = _Subscriber(self, connection)
        self._subscribers.add(subscriber)
        subscriber.send(self._status())


def peer_uid(connection: socket.socket) -> int:
    """The id of the user at the other end, from the kernel."""
    size = struct.calcsize("3i")
    answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    uid: int = struct.unpack("3i", answer)[1]
    return uid


class _Subscriber:
    """The connection of one listener."""

    def __init__(self, control: Control, connection: socket.socket) -> None:
        self._control, self._connection = control, connection
        self._in, self._out = bytearray(), bytearray()
        connection.setblocking(False)
        control.loop.watch(connection.fileno(), READ, self._ready)

    def send(self, line: bytes) -> None:
        if self._connection.fileno() < 0:
            return
        self._out += line
        if len(self._out) > UNSENT_BYTES:
            self.close()
        else:
            self._push()

    def close(self) -> None:
        if self._connection.fileno() >= 0:
            self._control.loop.forget(self._connection.fileno())
            self._connection.close()
            self._control.drop(self)

    def _ready(self) -> None:
        self._push()
        try:
            data = self._connection.recv(READ_BYTES) if self._connection.fileno() >= 0 else b""
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._in += data
        while b"\n" in self._in:
            line, _, self._in = self._in.partition(b"\n")
            self._take(bytes(line))
        if len(self._in) > protocol.LINE_BYTES:
            self.close()

    def _take(self, line: bytes) -> None:
        try:
            command = read_command(line)
        except ValueError:
            self.close()
            return
        if command is not None:  # else a later version's
            self._control.obey(command, self.send)

    def _push(self) -> None:
        try:
            while self._out:
                del self._out[: self._connection.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        events = READ | WRITE if self._out else READ
        self._control.loop.watch(self._connection.fileno(), events, self._ready)
