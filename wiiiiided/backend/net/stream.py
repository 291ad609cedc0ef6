"""Bytes in order between two processes: one small interface for TCP, TLS and the pretended network.

Everything above (handshake, frames, links) is written against `Stream` and never sees a socket, so
the same code runs over TCP, over TLS (net/tls) and in virtual time (net/virtual_network).
Nothing here blocks:

    send      > 0  so many bytes were taken, of the first buffers first
                0  full: wait until it is writable
    receive   > 0  so many bytes were put into the first buffers first
               -1  nothing now: wait until it is readable
                0  the other side has ended the stream
    both      OSError: broken, and it stays broken

Three rules make TLS fit the same interface; plain TCP obeys them by itself:

- read until -1. Epoll knows what the kernel has, not what OpenSSL has decrypted already. A reader
  that stops earlier asks `pending()` and comes back by itself: no event will tell.
- while `wants_write()`, also watch for writability, and on it call `send` (with no buffers if there
  is nothing to say) and `receive`: bytes once taken may still have to be written, and a read may
  have to write first.
- buffers given to `receive` have room for at least one byte: else 0 would mean nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview  # memoryviews: contiguous

# One call's list of buffers. The kernel takes 1,024; a list that long would be mostly not taken,
# and be built again for the next call.
MAX_BUFFERS: Final = 64

Handler = Callable[[int], None]


class Stream(Protocol):
    """A connection as links and handshakes know it."""

    def fileno(self) -> int:
        """The descriptor to watch; negative where there is none (net/virtual_network)."""

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Take bytes to be sent; how many, 0 when it is full. OSError: broken."""

    def receive(self, buffers: Sequence[Buffer]) -> int:
        """Put what has come; how many, -1 when nothing has, 0 at the end. OSError: broken."""

    def wants_write(self) -> bool:
        """Whether to watch for writability even with nothing to send."""

    def pending(self) -> bool:
        """Whether there are bytes to receive that a watch on the descriptor cannot see."""

    def close(self) -> None:
        """Give the descriptor back; more than once does no harm."""


class FdPoller(Protocol):
    """A watcher of descriptors: engine.poller.EpollPoller, or virtual_network.FakePoller."""

    def add(self, fd: int, handler: Handler) -> None:
        """Call `handler(events)` when it is readable, ended or broken."""

    def writes(self, fd: int, wanted: bool) -> None:
        """Call it when the stream is writable too, or no longer."""

    def remove(self, fd: int) -> None:
        """Forget it, before it is closed."""


class TcpStream:
    """A connected TCP socket (or a unix one, in tests), made non-blocking."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock

    @property
    def sock(self) -> socket.socket:
        """The socket, for its options and names; its bytes are this stream's."""
        return self._sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, buffers: Sequence[Buffer]) -> int:
        try:
            # NOSIGNAL: a program may have set SIGPIPE back to what ends it.
            return self._sock.sendmsg(buffers[:MAX_BUFFERS], (), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0

    def receive(self, buffers: Sequence[Buffer]) -> int:
        try:
            count = self._sock.recvmsg_into(buffers[:MAX_BUFFERS])[0]
        except BlockingIOError:
            return -1
        if count == 0:
            check_room(buffers)
        return count

    def wants_write(self) -> bool:
        return False

    def pending(self) -> bool:
        return False

    def close(self) -> None:
        self._sock.close()


def check_room(buffers: Sequence[Buffer]) -> None:
    """Raise if there is no room to receive into: that must not look like the end of the stream."""
    if not any(memoryview(buffer).nbytes for buffer in buffers[:MAX_BUFFERS]):
        raise ValueError("a stream was asked to receive into no room at all")
