"""A network that is only pretended: in memory, in virtual time, and the same again from its seed.

It ships with the package, so that code written against `Stream` can test what no real network
does on demand: a cable out in the middle of a frame, a host that falls silent, bytes that trickle.

    network = FakeNetwork(seed=7)
    a, b = network.pair("host a", "host b")      # two ends of one connection; pair again for more
    a.send([b"hello"])                           # in flight
    network.deliver(until=1.0)                   # virtual seconds: this takes no time at all
    network.cut("host a", "host b")              # nothing moves, nothing is lost: TCP sends again

        send ──► in flight (rate, delay, jitter) ──► inbox ──► receive
                 └─────── window: both together ───────┘

Within a connection bytes keep their order, always. Between connections they do not: each has its
own delay and rate, drawn from the seed, and what is due at one moment comes in a drawn order. Sends
and receives are cut short at random. A test that fails prints its seed and can be run again.

Its omissions: a reset reaches both ends at once, and closing with bytes unread is no reset.
"""

from __future__ import annotations

import errno
import math
import os
import random
import select
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wiiiiided.backend.net.stream import Buffer, Handler, check_room

FIN: Final = b""  # in flight it stands for the end: no segment of bytes is empty


@dataclass(frozen=True)
class LineQuality:
    """Properties of a connection, each way."""

    delay_s: float = 0.001
    jitter_s: float = 0.0  # up to so much more, drawn for each send
    bytes_per_s: float = 125e6
    window_bytes: int = 64 * 1024  # sent and not received: then `send` takes nothing
    keepalive_s: float = math.inf  # so long without a way through, and both kernels give it up

    @classmethod
    def drawn(cls, chance: random.Random) -> LineQuality:
        """A line drawn by chance, between that of a machine room and a bad wireless link."""
        return cls(
            delay_s=10 ** chance.uniform(-4, -1),
            jitter_s=10 ** chance.uniform(-5, -1),
            bytes_per_s=10 ** chance.uniform(5, 9),
            window_bytes=int(10 ** chance.uniform(2, 5)),
        )


class FakeStream:
    """One end of a connection; a `Stream`. Its number is negative: only a FakePoller knows it."""

    def __init__(self, number: int, name: str, chance: random.Random) -> None:
        self.name = name
        self.closed = False
        self.problem = 0  # an errno, once it is broken
        self.inbox = bytearray()
        self.ended = False  # the other side's FIN is here
        self._number = number
        self._chance = chance
        self.out: _Direction  # both are set by the network
        self.into: _Direction

    def fileno(self) -> int:
        return self._number

    def send(self, buffers: Sequence[Buffer]) -> int:
        self._check(errno.EBADF if self.closed else self.problem)
        views = _views(buffers)
        taken = left = self._some(max(min(self.out.room(), sum(map(len, views))), 0))
        for view in views:
            if part := bytes(view[:left]):
                self.out.put(part)
            left -= len(part)
        return taken

    def receive(self, buffers: Sequence[Buffer]) -> int:
        self._check(errno.EBADF if self.closed else 0)
        check_room(buffers)
        if not self.inbox:  # what came before the end is given out before the end
            self._check(self.problem)
            return 0 if self.ended else -1
        views = _views(buffers)
        count = left = self._some(min(len(self.inbox), sum(map(len, views))))
        for view in views:
            part = self.inbox[: min(len(view), left)]
            view[: len(part)] = part
            del self.inbox[: len(part)]
            left -= len(part)
        return count

    def wants_write(self) -> bool:
        return False

    def pending(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.inbox.clear()
            self.out.put(FIN)

    def reset(self) -> None:
        """Break this connection: both ends get ECONNRESET, what is in flight is lost."""
        self.out.link.fail(errno.ECONNRESET)

    def corrupt(self, at_byte: int) -> None:
        """Change byte number `at_byte` of what this end sends, counted from the beginning."""
        if at_byte < self.out.arrived_bytes:
            raise ValueError(f"byte {at_byte} has arrived: {self.out.arrived_bytes} have")
        self.out.flips.add(at_byte)

    def events(self) -> int:
        """The events of this end, as epoll would have them."""
        broken = bool(self.problem)
        readable = bool(self.inbox) or self.ended or broken
        writable = broken or self.out.room() > 0
        return (
            (select.EPOLLIN if readable else 0)
            | (select.EPOLLOUT if writable else 0)
            | (select.EPOLLERR | select.EPOLLHUP if broken else 0)
        )

    def _check(self, number: int) -> None:
        if number:
            raise OSError(number, os.strerror(number))

    def _some(self, most: int) -> int:
        """All of it, or, as often, less."""
        return self._chance.randint(1, most) if most and self._chance.random() < 0.5 else most


def _views(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Flat, and without the empty ones, which cannot be made flat."""
    return [view.cast("B") for buffer in buffers if (view := memoryview(buffer)).nbytes]


class _Direction:
    """One direction of a connection."""

    def __init__(self, link: _FakeConnection, source: FakeStream, target: FakeStream) -> None:
        self.link, self.source, self.target = link, source, target
        self.flight: deque[tuple[float, bytes]] = deque()  # when it arrives, and what
        self.flips: set[int] = set()
        self.arrived_bytes = 0
        self._flying_bytes = 0
        self._free_at = 0.0  # when the line is idle

    def room(self) -> int:
        return self.link.line.window_bytes - self._flying_bytes - len(self.target.inbox)

    def put(self, data: bytes) -> None:
        line, network = self.link.line, self.link.network
        self._free_at = max(self._free_at, network.now) + len(data) / line.bytes_per_s
        jitter_s = line.jitter_s * network.chance.random()
        self._flying_bytes += len(data)
        self.flight.append((self._free_at + line.delay_s + jitter_s, data))

    def arrive(self, now: float) -> None:
        # First sent, first here: data that jitter would bring earlier waits for data before it.
        while self.flight and self.flight[0][0] <= now:
            data = self.flight.popleft()[1]
            self._flying_bytes -= len(data)
            if data == FIN:
                self.target.ended = True
            elif self.target.closed:
                self.link.fail(errno.ECONNRESET)
            else:
                self.target.inbox += self._flipped(data)
                self.arrived_bytes += len(data)

    def send_again(self, now: float) -> None:
        """Send what was lost once more: the way is free again."""
        soonest = now + self.link.line.delay_s
        self.flight = deque((max(due, soonest), data) for due, data in self.flight)

    def drop(self) -> None:
        self.flight.clear()
        self._flying_bytes = 0

    def _flipped(self, data: bytes) -> bytes:
        here = range(self.arrived_bytes, self.arrived_bytes + len(data))
        changed = bytearray(data)
        for at in self.flips.intersection(here):
            changed[at - self.arrived_bytes] ^= 0x40
        return bytes(changed)


class _FakeConnection:
    """A connection: two ends, two ways."""

    def __init__(
        self, network: FakeNetwork, line: LineQuality, a: FakeStream, b: FakeStream
    ) -> None:
        self.network, self.line, self.ends = network, line, (a, b)
        self.names = frozenset((a.name, b.name))
        self.ways = (_Direction(self, a, b), _Direction(self, b, a))
        a.out, b.out = self.ways
        b.into, a.into = self.ways
        self.blocked_since: float | None = None

    def block(self, blocked: bool) -> None:
        now = self.network.now
        if blocked and self.blocked_since is None:
            self.blocked_since = now
        elif not blocked and self.blocked_since is not None:
            self.blocked_since = None
            for way in self.ways:
                way.send_again(now)

    def fail(self, number: int) -> None:
        for end in self.ends:
            end.problem = end.problem or number
        for way in self.ways:
            way.drop()

    def due(self) -> float:
        """When something happens here next, of itself."""
        if self.blocked_since is not None:
            broken = any(end.problem for end in self.ends)
            return math.inf if broken else self.blocked_since + self.line.keepalive_s
        return min((way.flight[0][0] for way in self.ways if way.flight), default=math.inf)

    def happen(self, now: float) -> None:
        if self.blocked_since is None:
            for way in self.ways:
                way.arrive(now)
        elif self.due() <= now:
            self.fail(errno.ETIMEDOUT)


class FakeNetwork:
    """All connections, one clock. Everything that chance decides comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self._links: list[_FakeConnection] = []
        self._cuts: set[frozenset[str]] = set()
        self._silent: set[str] = set()

    def pair(
        self, a: str, b: str, line: LineQuality | None = None
    ) -> tuple[FakeStream, FakeStream]:
        """A new connection between two hosts: the end of `a`, and that of `b`."""
        number = -1 - 2 * len(self._links)
        ends = FakeStream(number, a, self.chance), FakeStream(number - 1, b, self.chance)
        self._links.append(_FakeConnection(self, line or LineQuality.drawn(self.chance), *ends))
        self._block()  # they may be cut off from each other already
        return ends

    # -- time ----

    def step(self, until: float = math.inf) -> bool:
        """Go on to the next moment when something arrives; False: nothing does, until then."""
        due = max(min((link.due() for link in self._links), default=math.inf), self.now)
        if due > until or due == math.inf:
            return False
        self.now = due
        for link in self.chance.sample(self._links, len(self._links)):
            link.happen(due)
        return True

    def deliver(self, until: float) -> None:
        """Deliver all that arrives until a moment, and go on to that moment."""
        while self.step(until):
            pass
        self.now = max(self.now, until)

    # -- faults ----

    def cut(self, a: str, b: str) -> None:
        """Cut the way between two hosts. Nothing is lost: it waits for `heal`, or for keepalive."""
        self._cuts.add(frozenset((a, b)))
        self._block()

    def heal(self, a: str, b: str) -> None:
        """Free the way between two hosts again."""
        self._cuts.discard(frozenset((a, b)))
        self._block()

    def silence(self, host: str) -> None:
        """Cut all ways of a host, which has lost its power or its cable."""
        self._silent.add(host)
        self._block()

    def wake(self, host: str) -> None:
        """Put a silenced host's cable in again."""
        self._silent.discard(host)
        self._block()

    def end(self, host: str) -> None:
        """End a host's process: the others read the end behind what it sent before."""
        for stream in self._ends_at(host):
            stream.close()

    def reset(self, host: str) -> None:
        """Break all connections of a host."""
        for stream in self._ends_at(host):
            stream.reset()

    def corrupt(self, a: str, b: str, at_byte: int) -> None:
        """Change byte number `at_byte` of what a sends to b, on each connection."""
        for stream in self._ends_at(a):
            if stream.out.target.name == b:
                stream.corrupt(at_byte)

    def _ends_at(self, host: str) -> list[FakeStream]:
        return [end for end in self.ends() if end.name == host]

    def ends(self) -> Iterator[FakeStream]:
        """The two ends of every connection."""
        for link in self._links:
            yield from link.ends

    def _block(self) -> None:
        for link in self._links:
            link.block(link.names in self._cuts or bool(link.names & self._silent))


class FakePoller:
    """The counterpart of engine.poller.EpollPoller: handlers by number, level-triggered.

    One may serve all hosts of a test, or each has its own: then poll them in turn with 0, and
    `network.step()` when none has anything to do.
    """

    def __init__(self, network: FakeNetwork) -> None:
        self._network = network
        self._handlers: dict[int, Handler] = {}
        self._reads: set[int] = set()
        self._writes: set[int] = set()

    def add(self, fd: int, handler: Handler) -> None:
        """Call `handler(events)` when that stream is readable."""
        self._handlers[fd] = handler
        self._reads.add(fd)

    def writes(self, fd: int, wanted: bool) -> None:
        """Call it when the stream is writable too, or no longer."""
        self.interest(fd, reads=True, writes=wanted)

    def interest(self, fd: int, *, reads: bool, writes: bool) -> None:
        """Say anew what it is to be called for."""
        (self._reads.add if reads else self._reads.discard)(fd)
        (self._writes.add if writes else self._writes.discard)(fd)

    def remove(self, fd: int) -> None:
        """Forget a stream, before it is closed."""
        self._handlers.pop(fd, None)
        self.interest(fd, reads=False, writes=False)

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Handle what is ready; else let virtual time pass until something is, or it is up.

        Whether anything was handled.
        """
        deadline = self._network.now + timeout_s
        while not (ready := self._ready()):
            if not self._network.step(deadline):
                if deadline < math.inf:
                    self._network.now = deadline
                return False
        for fd, events in self._network.chance.sample(ready, len(ready)):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        return True

    def _ready(self) -> list[tuple[int, int]]:
        ready = []
        for stream in self._network.ends():
            fd = stream.fileno()
            if fd in self._handlers and not stream.closed:
                unwanted = (0 if fd in self._reads else select.EPOLLIN) | (
                    0 if fd in self._writes else select.EPOLLOUT
                )
                if events := stream.events() & ~unwanted:
                    ready.append((fd, events))
        return ready
