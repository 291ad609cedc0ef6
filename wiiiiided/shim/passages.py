"""The way to the Store for ranks of every node but the first: byte for byte, through two daemons.

    rank ─► own machine's one port ─► this shim ═════► first node's one port ─► its shim: the Store
            the daemon hands it over   a passage        its daemon lets us in by the attempt's key

Between the machines it is TLS where the job asks for that (`tls`). Each of a rank's connections has
one of its own to the first node. While that cannot be had (its
daemon is restarting, its share has not begun) it is tried again; what the rank has sent meanwhile
waits. A passage keeps at most 1 MiB each way and then reads no more, so whoever sends waits. When
one end is closed the other one is, after everything that was on its way.

    waiting ── 0.2 s ──► calling ── let in ──► open ── both have ended, or one broke ──► closed
       ▲────── not now ─────┘ │                                                             ▲
                              └── never, too long, or the rank has gone ────────────────────┘
"""

from __future__ import annotations

import socket
import time

from wiiiiided.shim.calls import NETWORK, Call
from wiiiiided.shim.files import Order, host_and_port
from wiiiiided.shim.knocking import BY_PROOF, PASSING, Knock
from wiiiiided.shim.loop import READ, WRITE, Loop, Timer
from wiiiiided.shim.sockets import SILENCE, SILENT_S, inode, tune

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from wiiiiided.shim.tls import TlsLink

PATIENCE_S = 300.0  # as long as torch's own client is ready to wait, unless it is told otherwise
ENDED_S = 30.0  # … when the attempt was there once: its daemon is restarting, or it is over
AGAIN_S = 0.2
QUIET_S = 10.0  # before the rank's log says what a passage waits for
NOTES = 20
PASSAGES = 4096
BUFFER_BYTES = 1 << 20
READ_BYTES = 64 << 10


class Passages:
    """All of them. `note` is for the person who reads the rank's log."""

    def __init__(self, loop: Loop, order: Order, key: bytes, note: Callable[[str], None]) -> None:
        self.loop, self.order, self.key = loop, order, key
        self.head = host_and_port(order.head)
        self.was_let_in = False
        self.encrypted: Callable[[socket.socket], TlsLink] | None = None
        if order.encrypt:
            from wiiiiided.shim.tls import connector  # ssl is megabytes that no other shim needs

            self.encrypted = lambda link: connector(link, key)
        self._note = note
        self._noted: set[str] = set()
        self._all: dict[int, _Passage] = {}  # by the inode of the rank's socket

    def take(self, link: socket.socket) -> bool:
        """False when there is no room. The same connection may come twice: a daemon that waited
        too long for an answer offers it again."""
        number = inode(link)
        if number in self._all:
            link.close()
            return True
        if len(self._all) >= PASSAGES:
            return False
        tune(link)
        self._all[number] = _Passage(self, link, number)
        return True

    def close(self) -> None:
        for passage in list(self._all.values()):
            passage.close()

    def drop(self, passage: _Passage) -> None:
        self._all.pop(passage.number, None)

    def complain(self, sentence: str) -> None:
        """Once, however many connections meet the same."""
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


class _Passage:
    """One connection of a rank, and its continuation."""

    def __init__(self, passages: Passages, near: socket.socket, number: int) -> None:
        self._passages, self._loop = passages, passages.loop
        self.number = number
        self._near = near
        self._far: socket.socket | TlsLink | None = None
        self._there, self._back = _Flow(), _Flow()
        self._began = time.monotonic()
        self._call: Call | None = None
        self._again: Timer | None = None
        self._watch()
        self._try()

    def close(self) -> None:
        if self._near.fileno() < 0:
            return
        if self._call is not None:
            self._call.cancel()
        if self._again is not None:
            self._again.cancel()
        for link in (self._near, self._far):
            if link is not None:
                self._loop.forget(link.fileno())
                link.close()
        self._passages.drop(self)

    # ---- until it is open

    def _try(self) -> None:
        order, passages = self._passages.order, self._passages
        knock = Knock(passages.key, order.job, order.attempt, order.first_rank)
        try:
            self._call = Call(
                *(self._loop, passages.head, knock, self._open, self._failed), passages.encrypted
            )
        except OSError:  # no descriptor left
            self._again = self._loop.after(AGAIN_S, self._try)

    def _failed(self, reason: int, sentence: str) -> None:
        self._call = None
        passages = self._passages
        known = reason == BY_PROOF and passages.was_let_in
        patience_s = min(ENDED_S, PATIENCE_S) if known else PATIENCE_S
        waited_s = time.monotonic() - self._began
        if reason in (NETWORK, *PASSING) and waited_s + AGAIN_S < patience_s:
            if waited_s > QUIET_S:
                passages.complain(f"{sentence}; it is tried again, for {patience_s:g} s in all")
            self._again = self._loop.after(AGAIN_S, self._try)
        else:
            passages.complain(sentence)
            self.close()

    def _open(self, far: socket.socket | TlsLink) -> None:
        self._call = None
        self._passages.was_let_in = True
        self._far = far
        self._turn()

    # ---- while it is

    def _turn(self) -> None:
        """Move what can be moved, and see what to wait for."""
        try:
            self._there.fill(self._near)
            if self._far is not None:
                self._there.drain(self._far)
                self._bring_back(self._far)
        except OSError as problem:
            if problem.errno in SILENCE:
                self._passages.complain(f"it has not answered for {SILENT_S} s")
            self.close()
            return
        gone = self._there.ended and self._far is None
        if gone or (self._there.passed_on and self._back.passed_on):
            self.close()
        else:
            self._watch()

    def _bring_back(self, far: socket.socket | TlsLink) -> None:
        """Once, and again while TLS holds something of which no event will tell."""
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
