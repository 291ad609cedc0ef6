"""A proxy to the Store for ranks of every node but the first: byte for byte, through two daemons.

    rank ─► own machine's one port ─► this shim ═════► first node's one port ─► its shim: the Store
            the daemon hands it over   proxied          its daemon checks the attempt's key

Between the machines it is TLS where the job asks for that (`store_tls`). Each of a rank's
connections has one of its own to the first node. While that node cannot be reached (its daemon is
restarting, its allocation has not begun) the dial is repeated; bytes from the rank wait meanwhile.
At most 1 MiB is kept each way, then no more is read, so the sender waits. When one end is closed
the other one is, after everything that was on its way.

    waiting ── 0.2 s ──► dialling ─ admitted ─► open ── both have ended, or one broke ──► closed
       ▲────── not now ─────┘ │                                                             ▲
                              └── never, too long, or the rank has gone ────────────────────┘
"""

from __future__ import annotations

import socket
import time

from wiiiiided.backend.wire.port_auth import PASSING, PortClient, PortRequest, RejectReason
from wiiiiided.cluster.shim.loop import READ, WRITE, ShimLoop, Timer
from wiiiiided.cluster.shim.protocol import LaunchOrder, host_and_port
from wiiiiided.cluster.shim.sockets import SILENCE, SILENT_S, inode, tune
from wiiiiided.cluster.shim.store_dial import NETWORK, StoreDial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from wiiiiided.cluster.shim.store_tls import TlsLink

DIAL_FOR_S = 300.0  # as long as torch's own client waits by default
ENDED_S = 30.0  # … when the attempt was there once: its daemon is restarting, or it is over
AGAIN_S = 0.2
QUIET_S = 10.0  # before the rank's log says what a connection waits for
NOTES = 20
CONNECTIONS = 4096
BUFFER_BYTES = 1 << 20
READ_BYTES = 64 << 10


class StoreProxy:
    """Pipes the connections of this node's ranks to the Store. `note` writes into a rank's log."""

    def __init__(
        self, loop: ShimLoop, order: LaunchOrder, key: bytes, note: Callable[[str], None]
    ) -> None:
        self.loop, self.order, self.key = loop, order, key
        self.head = host_and_port(order.head)
        self.was_admitted = False
        self.encrypted: Callable[[socket.socket], TlsLink] | None = None
        if order.encrypt:
            from wiiiiided.cluster.shim.store_tls import (
                connector,  # ssl is megabytes that no other shim needs
            )

            self.encrypted = lambda link: connector(link, key)
        self._note = note
        self._noted: set[str] = set()
        self._all: dict[int, _ProxiedConnection] = {}  # by the inode of the rank's socket

    def take(self, link: socket.socket) -> bool:
        """Whether there is room for a rank's connection. The same one may come twice: a daemon that
        waited too long for an answer offers it again."""
        number = inode(link)
        if number in self._all:
            link.close()
            return True
        if len(self._all) >= CONNECTIONS:
            return False
        tune(link)
        self._all[number] = _ProxiedConnection(self, link, number)
        return True

    def close(self) -> None:
        for connection in list(self._all.values()):
            connection.close()

    def drop(self, connection: _ProxiedConnection) -> None:
        self._all.pop(connection.number, None)

    def complain(self, sentence: str) -> None:
        """Note a failure, once however many connections have it."""
        text = f"the job's Store on the first node ({self.order.head}) is out of reach: {sentence}"
        if text not in self._noted and len(self._noted) < NOTES:
            self._noted.add(text)
            self._note(text)


class _Flow:
    """Bytes on their way from one socket to the other."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False  # the source will send no more
        self.passed_on = False  # … and the sink has been told

    @property
    def wants(self) -> bool:
        return not self.ended and len(self.data) < BUFFER_BYTES

    def fill(self, source: socket.socket | TlsLink) -> None:
        try:
            if self.wants:
                data = source.recv(min(READ_BYTES, BUFFER_BYTES - len(self.data)))
                self.data += data
                self.ended = not data
        except BlockingIOError:
            pass

    def drain(self, sink: socket.socket | TlsLink) -> None:
        try:
            while self.data:
                del self.data[: sink.send(self.data)]
        except BlockingIOError:
            return
        if self.ended and not self.passed_on:
            self.passed_on = True
            sink.shutdown(socket.SHUT_WR)


class _ProxiedConnection:
    """One connection of a rank, and the one to the first node for it."""

    def __init__(self, proxy: StoreProxy, near: socket.socket, number: int) -> None:
        self._proxy, self._loop = proxy, proxy.loop
        self.number = number
        self._near = near
        self._far: socket.socket | TlsLink | None = None
        self._there, self._back = _Flow(), _Flow()
        self._began = time.monotonic()
        self._dial: StoreDial | None = None
        self._again: Timer | None = None
        self._watch()
        self._try()

    def close(self) -> None:
        if self._near.fileno() < 0:
            return
        if self._dial is not None:
            self._dial.cancel()
        if self._again is not None:
            self._again.cancel()
        for link in (self._near, self._far):
            if link is not None:
                self._loop.forget(link.fileno())
                link.close()
        self._proxy.drop(self)

    # ---- until it is open

    def _try(self) -> None:
        proxy, order = self._proxy, self._proxy.order
        request = PortRequest(order.job, order.attempt, "store", order.first_rank, 0)
        auth = PortClient(proxy.key, request)
        try:
            self._dial = StoreDial(
                *(self._loop, proxy.head, auth, self._open, self._failed), proxy.encrypted
            )
        except OSError:  # no descriptor left
            self._again = self._loop.after(AGAIN_S, self._try)

    def _failed(self, reason: int, sentence: str) -> None:
        self._dial, proxy = None, self._proxy
        known = reason == RejectReason.PROOF and proxy.was_admitted
        within_s = min(ENDED_S, DIAL_FOR_S) if known else DIAL_FOR_S
        waited_s = time.monotonic() - self._began
        if reason in (NETWORK, *PASSING) and waited_s + AGAIN_S < within_s:
            if waited_s > QUIET_S:
                proxy.complain(f"{sentence}; it is tried again, for {within_s:g} s in all")
            self._again = self._loop.after(AGAIN_S, self._try)
        else:
            proxy.complain(sentence)
            self.close()

    def _open(self, far: socket.socket | TlsLink) -> None:
        self._dial, self._far = None, far
        self._proxy.was_admitted = True
        self._turn()

    # ---- while it is

    def _turn(self) -> None:
        """Move the bytes that can be moved, and watch for the next event."""
        try:
            self._there.fill(self._near)
            if self._far is not None:
                self._there.drain(self._far)
                self._bring_back(self._far)
        except OSError as problem:
            if problem.errno in SILENCE:
                self._proxy.complain(f"it has not answered for {SILENT_S} s")
            self.close()
            return
        gone = self._there.ended and self._far is None
        if gone or (self._there.passed_on and self._back.passed_on):
            self.close()
        else:
            self._watch()

    def _bring_back(self, far: socket.socket | TlsLink) -> None:
        """Move bytes to the rank, again while TLS holds some for which no event will come."""
        while True:
            self._back.fill(far)
            self._back.drain(self._near)
            if isinstance(far, socket.socket) or not (far.pending and self._back.wants):
                return

    def _watch(self) -> None:
        self._await(self._near, self._there.wants, bool(self._back.data))
        if self._far is not None:
            self._await(self._far, self._back.wants, bool(self._there.data))

    def _await(self, link: socket.socket | TlsLink, read: bool, write: bool) -> None:
        if events := READ * read | WRITE * write:
            self._loop.watch(link.fileno(), events, self._turn)
        else:
            self._loop.forget(link.fileno())
