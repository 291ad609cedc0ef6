"""One end of a link between two daemons: messages go out in order, a heartbeat shows silence.

    say ─► queue ─► writer ─► TLS          beat   0   1   2   3   4   5      every 2 s
    heard ◄─────── reader ◄─ TLS           said   ·   x   ping x   ping ·    a quiet one pings
                                           heard  x   ·   ·   ·   ·   end    LOST_BEATS of silence

Silence is counted in heartbeats of our own: a daemon that was stopped for a minute and goes on has
missed its own beats, and does not take the others for lost because of it. There is no backpressure,
no sender waits for a slow peer: a link with too much in its queue is closed, and the messages it
lost come back by reconciliation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.messages import Message
from wiiiiided.errors import WiiiiideError

BEAT_S = 2.0  # of the heartbeat
LOST_BEATS = 5  # without a word: ten seconds
QUEUE_BYTES = 64 << 20  # that wait to be sent; an assignment has at most ASSIGNMENT_BYTES
FIRST_WITHIN_S = 30.0  # that one of the first messages may take to be sent


class LinkEnded(WiiiiideError):
    """Why a link has ended, in a sentence."""


class DaemonLink:
    """One end of a link. `run` it until it ends. Its messages `first` may be more than a queue
    holds, and take their time: the other end answers nothing before it has all of it."""

    def __init__(self, connection: RpcConnection, first: Iterable[Message] = ()) -> None:
        self._connection = connection
        self._first = deque(first)
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self._ended = asyncio.Event()
        self._why = ""
        self._said = self._heard = False  # since the last beat
        self._silent = 0  # beats without a word

    def say(self, message: Message) -> None:
        """Queue a message, which is sent in order. Never blocks; there is no backpressure: a link
        whose peer takes too little is closed."""
        data = p.encode(message)
        self._queue.append(data)
        self._bytes += len(data)
        self._more.set()
        if self._bytes > QUEUE_BYTES:
            self.end(f"{self._bytes >> 20} MB wait to be sent")

    @property
    def silent_s(self) -> float:
        """How long the other end has been silent, to a beat."""
        return self._silent * BEAT_S

    def end(self, why: str) -> None:
        """Close it; `run` returns."""
        self._why = self._why or why
        self._ended.set()

    async def run(self, heard: Callable[[bytes], None]) -> str:
        """Run the link until it ends; why it did. `heard` is called with every message."""
        work = [
            asyncio.ensure_future(do)
            for do in (self._read(heard), self._write(), self._beat(), self._ended.wait())
        ]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in work:
                task.cancel()
            found = await asyncio.gather(*work, return_exceptions=True)
            self._connection.close()
        if not self._why:
            problems = [one for one in found if isinstance(one, Exception)]
            self._why = _words(problems[0]) if problems else "it was closed"
        return self._why

    async def _read(self, heard: Callable[[bytes], None]) -> None:
        while True:
            message = await self._connection.message()
            self._heard = True
            heard(message)

    async def _write(self) -> None:
        while self._first:
            async with asyncio.timeout(FIRST_WITHIN_S):
                await self._connection.say(self._first[0])
            self._first.popleft()
        while True:
            while self._queue:
                data = self._queue.popleft()
                self._bytes -= len(data)
                self._said = True
                await self._connection.send(framing.MESSAGE, data)
            self._more.clear()
            await self._more.wait()

    async def _beat(self) -> None:
        while self._silent < LOST_BEATS:
            await asyncio.sleep(BEAT_S)
            self._silent = 0 if self._heard or self._first else self._silent + 1
            if not self._said and not self._queue and not self._first:
                self.say(p.Ping())
            self._said = self._heard = False
        raise LinkEnded(f"nothing was heard for {self.silent_s:g} s")


def _words(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return f"it took nothing for {FIRST_WITHIN_S:g} s"
    if isinstance(problem, EOFError):
        return "the other side closed it"
    if isinstance(problem, OSError):
        return problem.strerror or str(problem)
    return str(problem)
