"""The door of a process: it listens, it connects, and lets nobody past without a handshake.

    strangers ──► listening sockets ─┐                       ┌─► welcome(stream, claim)
    the daemon ─► socket behind it ──┼─► guests in handshake ┤
    connect(…) ──────────────────────┘                       └─► closed, one line in the log

It listens on addresses of its own, or, under a cluster's daemon, behind the machine's one port
(net.behind): then no TCP socket here listens.

Whoever comes out of `welcome` has proved to have the key of a group that is expected here; whether
that rank may be that process is for the caller to judge. Everything is non-blocking and driven by a
watch; `tick` is the only sense of time. Bytes behind the handshake are untouched: over TLS some may
have been decrypted already, so the new owner reads at once and does not wait for an event.

What a stranger can do here is bounded:

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
from wiiiiided.errors import HostError, Refused, UsageError, WiiiiideError
from wiiiiided.net import tls as secure
from wiiiiided.net.behind import Behind, Passings, again_s, explained
from wiiiiided.net.guest import Ended, Guest, Incoming, Outgoing, Stage, overdue, sentence
from wiiiiided.net.stream import Stream, Watch
from wiiiiided.net.tuning import BACKLOG, tune_data, tune_listener, tune_watch
from wiiiiided.wire.handshake import Claim, Reason

MAX_SILENT: Final = 64
# Members come two connections each, and many at once when this rank reads the Store late.
MAX_CLAIMANTS: Final = 512
SILENT_S: Final = 10.0  # to say HELLO: TCP's third retransmission still makes it
HANDSHAKE_S: Final = 30.0  # in all; a rank may read the Store that much later than its peer
CONNECT_S: Final = 5.0
ACCEPTS: Final = 16  # in one turn: the loop has other things to do than to open

Welcome = Callable[[Stream, Claim], None]


class Attempt:
    """A connection that we make: look at `state` now and then."""

    def __init__(self, address: str, port: int, claim: Claim, timeout_s: float) -> None:
        self.address, self.port, self.claim, self.timeout_s = address, port, claim, timeout_s
        self.deadline = 0.0  # by the door's clock
        self.state: Literal["trying", "done", "failed"] = "trying"
        self.problem = ""  # why it failed: a sentence
        self.again_s = 0.0  # for how long it is worth to try again: the daemon there may restart

    def fail(self, why: str) -> None:
        """For the door."""
        self.state, self.problem = "failed", why


class Door:
    """Listening sockets and connections in handshake. Only the driver of the loop touches it."""

    def __init__(
        self,
        watch: Watch,
        uid: str,
        welcome: Welcome,
        tls: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch, self._uid, self._welcome, self._clock = watch, uid, welcome, clock
        self._tls = tls
        if tls:
            secure.server_context()  # what it lacks is said now, not at the first connection
        self._listeners: dict[socket.socket, bool] = {}  # whether it is watched
        self._groups: dict[int, tuple[int, bytes]] = {}  # generation and key
        self._behind: Behind | None = None
        self._passings: Passings | None = None
        self._incoming: dict[int, Incoming] = {}  # by descriptor, the oldest first
        self._outgoing: dict[int, tuple[Outgoing, Attempt]] = {}
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

    def listen_behind(self, behind: Behind) -> None:
        """Take what the daemon passes on. The door closes it with itself."""
        self._behind = behind
        self._passings = Passings(
            behind.uids, self._watch, self._enter, self._complaints.say, self._clock
        )
        self._listeners[behind.listener] = False
        self._open(behind.listener)

    def expect(self, group: int, generation: int, key: bytes) -> None:
        """Members of this group may come in; those who came too early go on."""
        self._groups[group] = generation, key
        for guest in list(self._incoming.values()):
            claim = guest.claim
            if guest.stage is Stage.JUDGED and claim is not None and claim.group == group:
                self._advance(guest)

    def forget(self, group: int) -> None:
        """Nobody of this group may come in any more, nor go out."""
        self._groups.pop(group, None)
        for guest in self._guests():
            if guest.claim is not None and guest.claim.group == group:
                self._drop(guest, Ended("its group was closed here"), Reason.UNKNOWN)

    def connect(
        self, address: str, port: int, key: bytes, claim: Claim, timeout_s: float = CONNECT_S
    ) -> Attempt:
        """Begin to connect. It ends as `welcome`, or as `failed` with a sentence; never raises.

        Behind a daemon's port ourselves, we take it that the other is too, and knock.
        """
        attempt = Attempt(address, port, claim, timeout_s)
        attempt.deadline = self._clock() + timeout_s
        sock = knocker = None
        try:
            if self._behind is not None:
                who = (claim.connector, claim.acceptor, claim.acceptor_uid)
                knocker = self._behind.knocker(claim.role, *who)
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
        guest = Outgoing(sock, _label(address, port), self._tls, key, claim, knocker)
        self._outgoing[guest.fd] = guest, attempt
        self._watch_it(guest)
        return attempt

    def give_up(self, attempt: Attempt) -> None:
        """Nobody waits for it any more."""
        for guest, other in list(self._outgoing.values()):
            if other is attempt:
                self._drop(guest, Refused("it was given up"))

    def tick(self) -> None:
        """Time passes: about five times a second while links are made, later once a second."""
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
        """No more connections; those in handshake end."""
        for listener, watched in self._listeners.items():
            if watched:
                self._watch.remove(listener.fileno())
            listener.close()
        self._listeners.clear()
        if self._behind is not None and self._passings is not None:
            self._behind.close()
            self._passings.close()
        for guest in self._guests():
            self._drop(guest, Ended("this process closes its door"))
        self._complaints.flush(at_once=True)

    def abandon(self) -> None:
        """In a forked child: close descriptors. The watch is the parent's, nothing is said."""
        for listener in self._listeners:
            listener.close()
        if self._passings is not None:
            self._passings.abandon()
        for guest in self._guests():
            guest.stream.close()
        self._listeners.clear()
        self._incoming.clear()
        self._outgoing.clear()

    # -- listening ----

    def _open(self, listener: socket.socket) -> None:
        self._listeners[listener] = True
        self._watch.add(listener.fileno(), lambda _: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as problem:
                if listener in self._listeners:  # who was welcomed last may have closed the door
                    self._rest(listener, problem)
                return
            if self._passings is not None and sock.family == socket.AF_UNIX:
                self._passings.add(sock)
            else:
                self._enter(sock, address)

    def _enter(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        guest = Incoming(sock, _label(*address[:2]), self._tls, self._clock())
        self._incoming[guest.fd] = guest
        self._advance(guest)  # often its greeting is there already, and it is silent no more
        self._make_room()

    def _rest(self, listener: socket.socket, problem: OSError) -> None:
        """No descriptors, most likely. The waiting stay readable: do not look until the tick."""
        self._watch.remove(listener.fileno())
        self._listeners[listener] = False
        self._complaints.say(f"a connection cannot be accepted now: {sentence(problem)}")
        self._make_room(at_once=True)

    def _make_room(self, at_once: bool = False) -> None:
        """Whoever stood longest in the door without a word goes, then whoever stood longest."""
        silent = [guest for guest in self._incoming.values() if guest.claim is None]
        claimants = [guest for guest in self._incoming.values() if guest.claim is not None]
        if len(silent) > MAX_SILENT or (at_once and silent):
            self._drop(silent[0], Refused("too many came and said nothing; it came first"))
        if len(claimants) > MAX_CLAIMANTS:
            self._drop(claimants[0], Refused("too many wait to be let in"), Reason.BUSY)

    # -- guests ----

    def _guests(self) -> Iterator[Guest]:
        """All of them, in a list of its own: they may go meanwhile."""
        yield from [*self._incoming.values(), *(guest for guest, _ in self._outgoing.values())]

    def _has(self, guest: Guest) -> bool:
        """Whether it is still in the door: a welcome may have closed it or forgotten its group."""
        outgoing = self._outgoing.get(guest.fd)
        return self._incoming.get(guest.fd) is guest or (
            outgoing is not None and outgoing[0] is guest
        )

    def _watch_it(self, guest: Guest) -> None:
        if not guest.watched:
            guest.watched = True
            self._watch.add(guest.fd, lambda _: self._advance(guest))
        connecting = guest.stage is Stage.CONNECTING
        self._watch.writes(guest.fd, connecting or guest.stream.wants_write())

    def _unwatch(self, guest: Guest) -> None:
        if guest.watched:
            guest.watched = False
            self._watch.remove(guest.fd)

    def _advance(self, guest: Guest) -> None:
        if not self._has(guest):
            return
        try:
            stage = guest.advance()
            if stage is Stage.JUDGED:
                assert isinstance(guest, Incoming)
                stage = self._judge(guest)
        except (OSError, HostError) as problem:
            self._drop(guest, problem)
            return
        if stage is Stage.DONE:
            self._hand_over(guest)
        elif stage is Stage.JUDGED:
            self._unwatch(guest)  # whatever it says now would wake us for nothing
        else:
            self._watch_it(guest)

    def _judge(self, guest: Incoming) -> Stage:
        """Its claim against what we know: let it prove it, let it wait, or raise Refused."""
        claim = guest.claim
        assert claim is not None
        if claim.acceptor_uid != self._uid:
            guest.refuse(Reason.UNKNOWN)
            raise Refused(f"it looks for process {claim.acceptor_uid}, this is {self._uid}")
        generation, key = self._groups.get(claim.group, (-1, b""))
        if claim.generation < generation:
            guest.refuse(Reason.UNKNOWN)
            raise Refused(f"{claim}: that is over, here it is generation {generation}")
        if claim.generation > generation:
            return Stage.JUDGED
        (tune_data if claim.role == "data" else tune_watch)(guest.stream.sock)
        guest.admit(key)
        return guest.advance()

    def _check_time(self, guest: Incoming, age_s: float) -> None:
        if guest.claim is None and age_s >= SILENT_S:
            self._drop(guest, Refused(f"it has not said who it is within {SILENT_S:g} s"))
        elif age_s >= HANDSHAKE_S:
            self._drop(guest, overdue(guest, HANDSHAKE_S), Reason.UNKNOWN)
        elif not guest.watched and guest.hung_up():
            self._drop(guest, Ended("it hung up before its group was known here"))

    def _hand_over(self, guest: Guest) -> None:
        self._unwatch(guest)
        self._incoming.pop(guest.fd, None)
        if guest.fd in self._outgoing:
            self._outgoing.pop(guest.fd)[1].state = "done"
        assert guest.claim is not None
        self._welcome(guest.stream, guest.claim)

    def _drop(self, guest: Guest, why: OSError | HostError, reason: Reason | None = None) -> None:
        """Close it, and say why: to the other side, and in the log or the attempt."""
        if isinstance(guest, Incoming) and reason is not None:
            guest.refuse(reason)
        guest.last_word()
        self._unwatch(guest)
        guest.stream.close()
        self._incoming.pop(guest.fd, None)
        if guest.fd in self._outgoing:
            outgoing, attempt = self._outgoing.pop(guest.fd)
            self._fail(attempt, outgoing, why)
        elif isinstance(why, Ended):
            log.tell(f"pid {os.getpid()}", f"a connection from {guest.label}: {why}")
        else:
            self._complaints.say(f"a connection from {guest.label} was refused: {sentence(why)}")

    def _fail(self, attempt: Attempt, guest: Outgoing | None, why: Exception) -> None:
        where = _label(attempt.address, attempt.port)
        if not isinstance(why, OSError | HostError):
            attempt.fail(f"no connection to {where}: {why}")
        elif self._behind is None:
            attempt.fail(f"no connection to {where}: {sentence(why)}")
        else:
            attempt.fail(f"no connection by the daemon at {where}: {explained(why)}")
            attempt.again_s = again_s(guest, why)


def _family(address: str) -> socket.AddressFamily:
    """Of a numeric address: a name would have to be looked up, and that can block for seconds."""
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
