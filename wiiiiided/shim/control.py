"""The shim's unix socket: status out, commands in. `files` has the lines.

Whoever connects is asked of the kernel (SO_PEERCRED) before a byte counts. Several may listen at
once, a daemon that was killed and its successor for one. Nobody can hold the shim up: what a
listener does not take is kept up to a limit, then the listener is dropped; a line that is no
command ends its connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct

from wiiiiided.shim import files
from wiiiiided.shim.door import Door
from wiiiiided.shim.loop import READ, WRITE, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LISTENERS = 16
BACKLOG = 128  # a connect that does not wait is refused when there is no room
UNSENT_BYTES = 4 * files.LINE_BYTES  # of one listener that does not read
READ_BYTES = 16 << 10


def bind(directory: int, name: str, mode: int) -> socket.socket:
    """A listening socket in the directory, by a path that is always short enough."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)  # of a dead process with the same pid
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = f"/proc/self/fd/{directory}/{name}"
    try:
        listener.bind(path)
        # Connecting needs write permission; who may give commands is decided by who it is.
        os.chmod(path, mode | (mode & 0o444) >> 1)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class Control:
    """All listeners. `obey(command, answer)` is called with each command."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        uids: set[int],
        status: Callable[[], bytes],
        obey: Callable[[dict[str, Any], Callable[[bytes], None]], None],
    ) -> None:
        self.loop, self.obey = loop, obey
        self._uids, self._status = uids, status
        self._links: set[_Link] = set()
        self._door = Door(loop, listener, self._welcome)

    def tell(self, line: bytes) -> None:
        """A line for everybody."""
        for link in list(self._links):
            link.send(line)

    def close(self) -> None:
        for link in list(self._links):
            link.close()
        self._door.close()

    def drop(self, link: _Link) -> None:
        self._links.discard(link)

    def _welcome(self, connection: socket.socket, _: Any) -> None:
        if len(self._links) >= LISTENERS or peer_uid(connection) not in self._uids:
            connection.close()
            return
        link = _Link(self, connection)
        self._links.add(link)
        link.send(self._status())


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end, as the kernel knows it."""
    size = struct.calcsize("3i")
    answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    uid: int = struct.unpack("3i", answer)[1]
    return uid


class _Link:
    """One listener."""

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
        if len(self._in) > files.LINE_BYTES:
            self.close()

    def _take(self, line: bytes) -> None:
        try:
            command = json.loads(line)
        except (ValueError, RecursionError):
            command = None
        if isinstance(command, dict):
            self._control.obey(command, self.send)
        else:
            self.close()

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
