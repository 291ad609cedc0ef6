"""The endpoint of a process: it listens, it connects, and admits no peer without a handshake.

    any peer ───► listening sockets ─┐                         ┌─► welcome(stream, claim)
    the daemon ─► socket behind it ──┼─► pending, in handshake ┤
    connect(…) ──────────────────────┘                         └─► closed, one line in the log

It listens on addresses of its own, or, under a cluster's daemon, behind the machine's one port
(net.handoff_listener): then no TCP socket here listens.

A peer that reaches `welcome` has proved to have the key of a group that is expected here; whether
that rank may be that process is for the caller to judge. Everything is non-blocking and driven by a
poller; `tick` is the only clock. Bytes behind the handshake are untouched: over TLS some may
have been decrypted already, so the new owner reads at once and does not wait for an event.

An unauthenticated peer is bounded here:

    silent (no whole greeting)    64 at once, the oldest goes; 10 s each; 80 bytes each,
                                  over TLS a record
    with a greeting               it must name this process's uid, which only the Store tells;
                                  512 at once, the oldest goes; 30 s each from the first moment
    log lines                     one a second, with a count of those that were left out
    descriptors run out           listening rests until the next tick; it does not spin
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

from wiiiiided import log
from wiiiiided.backend.net import tls as secure
from wiiiiided.backend.net.handoff_listener import (
    HandoffListener,
    HandoffReceiver,
    again_s,
    explained,
)
from wiiiiided.backend.net.pending_connection import (
    HungUp,
    IncomingConnection,
    OutgoingConnection,
    PendingConnection,
    Stage,
    overdue,
    sentence,
)
from wiiiiided.backend.net.stream import FdPoller, Stream
from wiiiiided.backend.net.tuning import BACKLOG, tune_data, tune_listener, tune_watch
from wiiiiided.backend.wire.handshake import ConnectionClaim, RefusalReason
from wiiiiided.errors import HandshakeFailed, HostError, UsageError, WiiiiideError

MAX_SILENT: Final = 64
# Members come two connections each, and many at once when this rank reads the Store late.
MAX_CLAIMANTS: Final = 512
SILENT_S: Final = 10.0  # to say HELLO: TCP's third retransmission still makes it
HANDSHAKE_S: Final = 30.0  # in all; a rank may read the Store that much later than its peer
CONNECT_S: Final = 5.0
ACCEPTS: Final = 16  # in one turn: the loop has other things to do than to open

Welcome = Callable[[Stream, ConnectionClaim], None]


class ConnectAttempt:
    """A connection that we make: look at `state` now and then."""

    def __init__(self, address: str, port: int, claim: ConnectionClaim, timeout_s: float) -> None:
        self.address, self.port, self.claim, self.timeout_s = address, port, claim, timeout_s
        self.deadline = 0.0  # by the endpoint's clock
        self.state: Literal["trying", "done", "failed"] = "trying"
        self.problem = ""  # why it failed: a sentence
        self.again_s = 0.0  # for how long it is worth to try again: the daemon there may restart

    def fail(self, why: str) -> None:
        """Note a failure; the endpoint calls it."""
        self.state, self.problem = "failed", why


class Endpoint:
    """Listening sockets and connections in handshake. Only the driver of the loop touches it."""

    def __init__(
        self,
        poller: FdPoller,
        uid: str,
        welcome: Welcome,
        tls: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._poller, self._uid, self._welcome, self._clock = poller, uid, welcome, clock
        self._tls = tls
        if tls:
            secure.server_context()  # what it lacks is said now, not at the first connection
        self._listeners: dict[socket.socket, bool] = {}  # whether it is watched
        self._groups: dict[int, tuple[int, bytes]] = {}  # generation and key
        self._behind: HandoffListener | None = None
        self._passings: HandoffReceiver | None = None
        self._incoming: dict[int, IncomingConnection] = {}  # by descriptor, the oldest first
        self._outgoing: dict[int, tuple[OutgoingConnection, ConnectAttempt]] = {}
        self._complaints = log.Complaints(f"pid {os.getpid()}", clock)

    def listen(self, address: str) -> tuple[str, int]:
        """Listen on one address of this machine; where: the address, and a port of the kernel's."""
        family = _family(address)
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            tune_listener(listener)
            listener.bind((address, 0))
            listener.listen(BACKLOG)
        except OSError as problem:
            listener.close()
            raise HostError(
                f"cannot listen on {address}: {problem.strerror}. "
                "It must be an address of this machine"
            ) from problem
        self._listeners[listener] = False
        self._open(listener)
        return address, listener.getsockname()[1]

    def sealed(self, key: bytes) -> bytes:
        """A group's key as it is used here."""
        return key if self._behind is None else self._behind.sealed(key)

    def listen_behind(self, behind: HandoffListener) -> None:
        """Take what the daemon passes on. The endpoint closes it with itself."""
        self._behind = behind
        self._passings = HandoffReceiver(
            behind.uids, self._poller, self._enter, self._complaints.say, self._clock
        )
        self._listeners[behind.listener] = False
        self._open(behind.listener)

    def expect(self, group: int, generation: int, key: bytes) -> None:
        """Members of this group are admitted; connections that came too early go on."""
        self._groups[group] = generation, key
        for pending in list(self._incoming.values()):
            claim = pending.claim
            if pending.stage is Stage.JUDGED and claim is not None and claim.group == group:
                self._advance(pending)

    def forget(self, group: int) -> None:
        """Admit no connection of this group any more, and make none."""
        self._groups.pop(group, None)
        for pending in self._all_pending():
            if pending.claim is not None and pending.claim.group == group:
                self._drop(pending, HungUp("its group was closed here"), RefusalReason.UNKNOWN)

    def connect(
        self,
        address: str,
        port: int,
        key: bytes,
        claim: ConnectionClaim,
        timeout_s: float = CONNECT_S,
    ) -> ConnectAttempt:
        """Begin to connect. It ends as `welcome`, or as `failed` with a sentence; never raises.

        Behind a daemon's port ourselves, we take it that the peer is too, and authenticate there.
        """
        attempt = ConnectAttempt(address, port, claim, timeout_s)
        attempt.deadline = self._clock() + timeout_s
        sock = port_client = None
        try:
            if self._behind is not None:
                who = (claim.connector, claim.acceptor, claim.acceptor_uid)
                port_client = self._behind.port_client(claim.role, *who)
            sock = socket.socket(_family(address), socket.SOCK_STREAM)
            sock.setblocking(False)
            (tune_data if claim.role == "data" else tune_watch)(sock)
            sock.connect((address, port))
        except BlockingIOError:
            pass
        except (OSError, OverflowError, WiiiiideError) as problem:
            if sock is not None:
                sock.close()
            self._fail(attempt, None, problem)
            return attempt
        assert sock is not None
        pending = OutgoingConnection(
            sock, _label(address, port), self._tls, key, claim, port_client
        )
        self._outgoing[pending.fd] = pending, attempt
        self._watch_it(pending)
        return attempt

    def tick(self) -> None:
        """Look at the time: about five times a second while links are made, later once a second."""
        now = self._clock()
        for listener, watched in self._listeners.items():
            if not watched:
                self._open(listener)
        if self._passings is not None:
            self._passings.tick()
        for incoming in list(self._incoming.values()):
            self._check_time(incoming, now - incoming.since)
        for outgoing, attempt in list(self._outgoing.values()):
            if now >= attempt.deadline:
                self._drop(outgoing, overdue(outgoing, attempt.timeout_s))
        self._complaints.flush()

    def close(self) -> None:
        """Take no more connections; those in handshake end."""
        for listener, watched in self._listeners.items():
            if watched:
                self._poller.remove(listener.fileno())
            listener.close()
        self._listeners.clear()
        if self._behind is not None and self._passings is not None:
            self._behind.close()
            self._passings.close()
        for pending in self._all_pending():
            self._drop(pending, HungUp("this process closes its endpoint"))
        self._complaints.flush(at_once=True)

    def abandon(self) -> None:
        """Close descriptors in a forked child. The poller is the parent's, and nothing is said."""
        for listener in self._listeners:
            listener.close()
        if self._passings is not None:
            self._passings.abandon()
        for pending in self._all_pending():
            pending.stream.close()
        self._listeners.clear()
        self._incoming.clear()
        self._outgoing.clear()

    # -- listening ----

    def _open(self, listener: socket.socket) -> None:
        self._listeners[listener] = True
        self._poller.add(listener.fileno(), lambda _: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as problem:
                if listener in self._listeners:  # the last `welcome` may have closed it
                    self._rest(listener, problem)
                return
            if self._passings is not None and sock.family == socket.AF_UNIX:
                self._passings.add(sock)
            else:
                self._enter(sock, address)

    def _enter(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        pending = IncomingConnection(sock, _label(*address[:2]), self._tls, self._clock())
        self._incoming[pending.fd] = pending
        self._advance(pending)  # often its greeting is there already, and it is silent no more
        self._make_room()

    def _rest(self, listener: socket.socket, problem: OSError) -> None:
        """Stop accepting until the tick, most likely for want of descriptors.

        Waiting connections keep the listener readable, and the loop would spin on it.
        """
        self._poller.remove(listener.fileno())
        self._listeners[listener] = False
        self._complaints.say(f"a connection cannot be accepted now: {sentence(problem)}")
        self._make_room(at_once=True)

    def _make_room(self, at_once: bool = False) -> None:
        """Drop the oldest silent connection of too many, and the oldest that wants to be let in."""
        silent = [pending for pending in self._incoming.values() if pending.claim is None]
        claimants = [pending for pending in self._incoming.values() if pending.claim is not None]
        if len(silent) > MAX_SILENT or (at_once and silent):
            why = "too many silent connections; this was the oldest"
            self._drop(silent[0], HandshakeFailed(why))
        if len(claimants) > MAX_CLAIMANTS:
            self._drop(
                claimants[0], HandshakeFailed("too many wait to be let in"), RefusalReason.BUSY
            )

    # -- pending connections ----

    def _all_pending(self) -> Iterator[PendingConnection]:
        """All of them, in a list of its own: they may go meanwhile."""
        yield from [*self._incoming.values(), *(pending for pending, _ in self._outgoing.values())]

    def _has(self, pending: PendingConnection) -> bool:
        """Whether it is still pending: a welcome may have closed it or forgotten its group."""
        outgoing = self._outgoing.get(pending.fd)
        return self._incoming.get(pending.fd) is pending or (
            outgoing is not None and outgoing[0] is pending
        )

    def _watch_it(self, pending: PendingConnection) -> None:
        if not pending.watched:
            pending.watched = True
            self._poller.add(pending.fd, lambda _: self._advance(pending))
        connecting = pending.stage is Stage.CONNECTING
        self._poller.writes(pending.fd, connecting or pending.stream.wants_write())

    def _unwatch(self, pending: PendingConnection) -> None:
        if pending.watched:
            pending.watched = False
            self._poller.remove(pending.fd)

    def _advance(self, pending: PendingConnection) -> None:
        if not self._has(pending):
            return
        try:
            stage = pending.advance()
            if stage is Stage.JUDGED:
                assert isinstance(pending, IncomingConnection)
                stage = self._judge(pending)
        except (OSError, HostError) as problem:
            self._drop(pending, problem)
            return
        if stage is Stage.DONE:
            self._hand_over(pending)
        elif stage is Stage.JUDGED:
            self._unwatch(pending)  # whatever it says now would wake us for nothing
        else:
            self._watch_it(pending)

    def _judge(self, pending: IncomingConnection) -> Stage:
        """Its claim against what we know: prove it, wait, or HandshakeFailed."""
        claim = pending.claim
        assert claim is not None
        if claim.acceptor_uid != self._uid:
            pending.refuse(RefusalReason.UNKNOWN)
            raise HandshakeFailed(f"it looks for process {claim.acceptor_uid}, this is {self._uid}")
        generation, key = self._groups.get(claim.group, (-1, b""))
        if claim.generation < generation:
            pending.refuse(RefusalReason.UNKNOWN)
            raise HandshakeFailed(f"{claim}: that is over, here it is generation {generation}")
        if claim.generation > generation:
            return Stage.JUDGED
        (tune_data if claim.role == "data" else tune_watch)(pending.stream.sock)
        pending.admit(key)
        return pending.advance()

    def _check_time(self, pending: IncomingConnection, age_s: float) -> None:
        if pending.claim is None and age_s >= SILENT_S:
            self._drop(pending, HandshakeFailed(f"it sent no greeting within {SILENT_S:g} s"))
        elif age_s >= HANDSHAKE_S:
            self._drop(pending, overdue(pending, HANDSHAKE_S), RefusalReason.UNKNOWN)
        elif not pending.watched and pending.hung_up():
            self._drop(pending, HungUp("it hung up before its group was known here"))

    def _hand_over(self, pending: PendingConnection) -> None:
        self._unwatch(pending)
        self._incoming.pop(pending.fd, None)
        if pending.fd in self._outgoing:
            self._outgoing.pop(pending.fd)[1].state = "done"
        assert pending.claim is not None
        self._welcome(pending.stream, pending.claim)

    def _drop(
        self,
        pending: PendingConnection,
        why: OSError | HostError,
        reason: RefusalReason | None = None,
    ) -> None:
        """Close it, and say why: to the other side, and in the log or the attempt."""
        if isinstance(pending, IncomingConnection) and reason is not None:
            pending.refuse(reason)
        pending.last_word()
        self._unwatch(pending)
        pending.stream.close()
        self._incoming.pop(pending.fd, None)
        if pending.fd in self._outgoing:
            outgoing, attempt = self._outgoing.pop(pending.fd)
            self._fail(attempt, outgoing, why)
        elif isinstance(why, HungUp):
            log.tell(f"pid {os.getpid()}", f"a connection from {pending.label}: {why}")
        else:
            self._complaints.say(f"a connection from {pending.label} was refused: {sentence(why)}")

    def _fail(
        self, attempt: ConnectAttempt, pending: OutgoingConnection | None, why: Exception
    ) -> None:
        where = _label(attempt.address, attempt.port)
        if not isinstance(why, OSError | HostError):
            attempt.fail(f"no connection to {where}: {why}")
        elif self._behind is None:
            attempt.fail(f"no connection to {where}: {sentence(why)}")
        else:
            attempt.fail(f"no connection by the daemon at {where}: {explained(why)}")
            attempt.again_s = again_s(pending, why)


def _family(address: str) -> socket.AddressFamily:
    """The family of a numeric address: to look up a name can block for seconds."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise UsageError(f"{address!r} is no IPv4 or IPv6 address in numbers") from None
    plain = getattr(parsed, "ipv4_mapped", None) or parsed
    if plain.is_unspecified or plain.is_multicast:
        raise UsageError(f"{address} stands for no single interface: name one address of one")
    return socket.AF_INET if parsed.version == 4 else socket.AF_INET6


def _label(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
