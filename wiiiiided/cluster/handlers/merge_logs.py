"""The lines of several nodes as one stream.

    not following    a ▒▒▒▒ ┐
                     b ▒▒▒▒ ├─ merged by time, one batch of each held ─► LogLines
                     c ▒▒▒▒ ┘
    following        each node's as they come; one that goes away is asked again until it is back,
                     and goes on where it was: no line twice, none left out

A node that does not answer costs a line that says so, never a wait without end.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from wiiiiided.cluster.handlers.allocation import Lines
from wiiiiided.cluster.handlers.log_tail import BATCH_CHARS, LINE_OVERHEAD
from wiiiiided.cluster.handlers.node_rpc import NoAnswer, NodeRpc
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc.messages import LogLine

MISSING_S = 5.0  # without an answer, before a line says so
LAST_S = 3.0  # the same once the allocation is over: a client of the last lines goes soon
AGAIN_S = (0.1, 1.0)  # before a node is asked again: at first, at most


@dataclass(frozen=True)
class LogSource:
    """A node's part of the lines of an attempt."""

    node: str
    request: p.NodeLogs
    first_rank: int
    since: float  # the attempt's begin, for what has no time of its own

    def note(self, text: str, at: float | None) -> LogLine:
        """Make a note with the time of the node's last line: a client that resumes by time must not
        take later lines for old ones."""
        at = self.since if at is None else at
        return LogLine(at, self.first_rank, "note", text, self.request.attempt, self.node)


async def lines_of(node_rpc: NodeRpc, parts: Sequence[LogSource]) -> AsyncGenerator[Lines, None]:
    """The lines there are now, of all parts, oldest first."""
    async with AsyncExitStack() as stack:
        sources = [
            await stack.enter_async_context(aclosing(_or_note(node_rpc, part))) for part in parts
        ]
        async with aclosing(merged(sources)) as found:
            async for lines in found:
                yield lines


async def _or_note(node_rpc: NodeRpc, part: LogSource) -> AsyncGenerator[Lines, None]:
    last = None
    try:
        async with aclosing(node_rpc.logs(part.node, part.request)) as found:
            async for lines in found:
                if lines:
                    last = lines[-1].at
                    yield lines
    except NoAnswer as no:
        yield (part.note(f"{no}: its lines are missing", last),)


async def merged(sources: Sequence[AsyncGenerator[Lines, None]]) -> AsyncGenerator[Lines, None]:
    """Sources that are each in the order of time, as one; it holds one batch of each."""
    heads: list[tuple[float, int]] = []  # of the next line of every source that has one
    waiting: list[deque[LogLine]] = [deque() for _ in sources]

    async def refill(index: int) -> None:
        async for lines in sources[index]:
            if lines:
                waiting[index].extend(lines)
                heapq.heappush(heads, (lines[0].at, index))
                return

    await asyncio.gather(*(refill(index) for index in range(len(sources))))
    batch: list[LogLine] = []
    size = 0
    while heads:
        _, index = heads[0]
        batch.append(waiting[index].popleft())
        size += len(batch[-1].text) + LINE_OVERHEAD
        if size > BATCH_CHARS:
            yield tuple(batch)
            batch, size = [], 0
        if waiting[index]:
            heapq.heapreplace(heads, (waiting[index][0].at, index))
        else:
            heapq.heappop(heads)
            await refill(index)
    if batch:
        yield tuple(batch)


class Bookmark:
    """How far one node's lines were read, told by their times: within a rank's log they only grow.

    After `again`, a rank's lines are passed over up to the time of the last one read, and of those
    with that very time as many as were read.
    """

    def __init__(self) -> None:
        self.last: float | None = None  # of any rank
        self._read: dict[int, tuple[float, int]] = {}
        self._skip: dict[int, tuple[float, int]] = {}

    def again(self) -> None:
        """Lines from the beginning on will come again."""
        self._skip = dict(self._read)

    def new(self, lines: Lines) -> Lines:
        return tuple(line for line in lines if self._is_new(line.rank, line.at))

    def _is_new(self, rank: int, at: float) -> bool:
        if rank in self._skip:
            last, count = self._skip[rank]
            if at < last:
                return False
            if at == last and count:
                self._skip[rank] = (last, count - 1)
                return False
            del self._skip[rank]
        last, count = self._read.get(rank, (at, 0))
        self._read[rank] = (at, count + 1 if at == last else 1)
        self.last = at
        return True


class Follower:
    """One node's lines of one attempt as they come, through whatever happens in between."""

    def __init__(
        self, node_rpc: NodeRpc, part: LogSource, say: Callable[[Lines], Awaitable[None]]
    ) -> None:
        self.node_rpc, self.part, self.say = node_rpc, part, say
        self._mark = Bookmark()
        self._missing: float | None = None  # since when it has not answered
        self._noted = False

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Follow until the allocation is over on its node, and its last line was read."""
        wait_s = AGAIN_S[0]
        while True:
            over = is_over()  # before the lines are read: none comes after it
            try:
                await self._read(over)
                # A node that was followed and ends knows of its allocation's end before we do.
                if over or self._mark.last is not None:
                    return
                self._missing, self._noted = None, False
            except NoAnswer as no:
                if await self._is_given_up(no, over):
                    return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, AGAIN_S[1])

    async def _read(self, over: bool) -> None:
        self._mark.again()
        asked = self.part.request
        tail = asked.tail if self._mark.last is None else None
        request = p.NodeLogs(asked.id, asked.attempt, asked.ranks, not over, tail)
        async with aclosing(self.node_rpc.logs(self.part.node, request)) as found:
            async for lines in found:
                self._missing, self._noted = None, False
                if new := self._mark.new(lines):
                    await self.say(new)

    async def _is_given_up(self, no: NoAnswer, over: bool) -> bool:
        """Whether to stop asking; a note says once that the node has been missing for a while."""
        now = asyncio.get_running_loop().time()
        self._missing = now if self._missing is None else self._missing
        if now - self._missing < (LAST_S if over else MISSING_S):
            return False
        if not self._noted:
            self._noted = True
            end = "its lines are missing" if over else "its lines come when it does again"
            await self.say((self.part.note(f"{no}: {end}", self._mark.last),))
        return over
