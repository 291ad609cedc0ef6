"""One try to reach the Store on the first node: connect, and authenticate with the attempt's key.

    connect ── writable ──► HELLO, PROOF out; CHALLENGE, WELCOME in ──► [TLS] ──► answered(link)
       └── refused, silent for 10 s, not admitted ─────────────────────────────► failed(reason,
                                                                                      sentence)

Not one byte is read beyond WELCOME: the rest belongs to the link's new owner.
"""

from __future__ import annotations

import os
import socket

from wiiiiided.backend.wire.port_auth import PortClient, Rejected, RejectReason
from wiiiiided.cluster.shim.loop import READ, WRITE, ShimLoop
from wiiiiided.cluster.shim.sockets import tune
from wiiiiided.errors import HandshakeFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from wiiiiided.cluster.shim.store_tls import TlsLink

WITHIN_S = 10.0
NETWORK = 0  # the reason of a dial that no daemon answered


class StoreDial:
    """Calls `answered` or `failed`, once and not from the constructor; neither after `cancel`.
    OSError when there is no descriptor left. `encrypted` puts a link into TLS."""

    def __init__(
        self,
        loop: ShimLoop,
        address: tuple[str, int],
        auth: PortClient,
        answered: Callable[[socket.socket | TlsLink], None],
        failed: Callable[[int, str], None],
        encrypted: Callable[[socket.socket], TlsLink] | None = None,
    ) -> None:
        self._loop, self._auth = loop, auth
        self._answered, self._failed, self._encrypted = answered, failed, encrypted
        self._tls: TlsLink | None = None
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._link = socket.socket(family, socket.SOCK_STREAM)
        tune(self._link, far=True)
        self._link.connect_ex(address)  # the result is asked for when the socket is ready
        loop.watch(self._link.fileno(), WRITE, self._connected)
        self._timer = loop.after(WITHIN_S, lambda: self._fail(NETWORK, "it does not answer"))

    def cancel(self) -> None:
        self._let_go()
        self._link.close()

    def _let_go(self) -> None:
        self._timer.cancel()
        if self._link.fileno() >= 0:
            self._loop.forget(self._link.fileno())

    def _fail(self, reason: int, sentence: str) -> None:
        self.cancel()
        self._failed(reason, sentence)

    def _connected(self) -> None:
        if number := self._link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._fail(NETWORK, os.strerror(number))
        else:
            self._loop.watch(self._link.fileno(), READ, self._ready)
            self._attempt(self._say)

    def _ready(self) -> None:
        self._attempt(self._hear if self._tls is None else self._prove)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BlockingIOError:
            return
        except OSError as problem:
            self._fail(NETWORK, problem.strerror or "the connection broke")
        except HandshakeFailed as refused:
            said = refused.reason if isinstance(refused, Rejected) else RejectReason.MALFORMED
            self._fail(said, str(refused))

    def _say(self) -> None:
        # A new connection has room for a hundred bytes; one that has not is broken.
        out = self._auth.data_to_send()
        if self._link.send(out) != len(out):
            raise OSError(0, "the connection is stuck")

    def _hear(self) -> None:
        data = self._link.recv(self._auth.wanted)
        if not data:
            raise ConnectionError(0, "it closed the connection")
        self._auth.receive_data(data)
        if not self._auth.done:
            self._say()
        elif self._encrypted is None:
            self._let_go()
            self._answered(self._link)
        else:
            self._tls = self._encrypted(self._link)
            self._prove()

    def _prove(self) -> None:
        assert self._tls is not None
        self._tls.prove()
        self._let_go()
        self._answered(self._tls)
