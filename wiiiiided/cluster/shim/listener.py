"""A listening socket in the loop, which accepts connections.

Without a descriptor left no connection can be accepted, and the socket stays readable: it is not
watched for a moment, or the loop would spin.
"""

from __future__ import annotations

from wiiiiided.cluster.shim.loop import READ, ShimLoop

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

RETRY_S = 1.0  # before the next accept, when there was no descriptor left


class LoopListener:
    """Calls `welcome(connection, address)`, which then owns the connection."""

    def __init__(
        self, loop: ShimLoop, listener: socket.socket, welcome: Callable[[socket.socket, Any], None]
    ) -> None:
        self._loop, self._listener, self._welcome = loop, listener, welcome
        self._open()

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.forget(self._listener.fileno())
            self._listener.close()

    def _open(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.watch(self._listener.fileno(), READ, self._accept)

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor left
            self._loop.forget(self._listener.fileno())
            self._loop.after(RETRY_S, self._open)
            return
        self._welcome(connection, address)
