"""Asking a node about its allocation: this node by a call, another one by a connection.

    NodeRpc ┬── this node ── LocalAllocations
            └── another ──── Dialer.open(…, "ask") ── NodeLogs │ NodeStacks │ NodeRanks │ NodePull

No request waits for a silent node for ever: every wait has an end, and then raises a NoAnswer that
names the node. A node's refusal is a Refuse here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from wiiiiided.cluster.handlers.allocation import Lines, LocalAllocations
from wiiiiided.cluster.membership.dial import PeerRefusal, Unreachable
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.system.threads import in_thread
from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.domain.limits import MAX_WORKERS
from wiiiiided.domain.node import Node
from wiiiiided.errors import WiiiiideError

SILENT_S = 12.0  # four times what a node is quiet at most while it has nothing to say
STACKS_S = 20.0
PIECE_S = 30.0  # between two pieces of a tar: a disk may have to look for them
Kind = TypeVar("Kind")
Reply = m.LogLines | m.StackDumps | m.Refusal | m.EndOfAnswers | p.AllocationView
_decode = json_decoder(Reply)


class NoAnswer(WiiiiideError):
    """A node cannot be asked, or did not finish its answer; the message names it."""


class Opens(Protocol):
    """The work of a Dialer."""

    async def open(
        self, address: str, port: int, purpose: p.Purpose, person: p.Person | None = None
    ) -> RpcConnection: ...


class NodeRpc:
    """Asks any node. `nodes` are those of the cluster, with their addresses."""

    def __init__(
        self,
        allocations: LocalAllocations,
        nodes: Callable[[], Mapping[str, Node]],
        dialer: Opens | None = None,
    ) -> None:
        self.allocations = allocations
        self.nodes = nodes
        self.dialer = dialer

    @property
    def own(self) -> str:
        return self.allocations.node

    async def logs(self, node: str, request: p.NodeLogs) -> AsyncGenerator[Lines, None]:
        """Lines in batches; an empty one says that there is nothing new."""
        if node == self.own:
            async with aclosing(self.allocations.logs(request)) as own:
                async for lines in own:
                    yield lines
            return
        async with self._asked(node, request) as connection:
            while not isinstance(answer := await _reply(connection, SILENT_S), m.EndOfAnswers):
                lines = _expect(answer, m.LogLines).lines
                yield tuple(_of(node, line) for line in lines if 0 <= line.rank < MAX_WORKERS)

    async def stacks(self, node: str, request: p.NodeStacks) -> m.StackDumps:
        if node == self.own:
            return await self.allocations.stacks(request)
        async with self._asked(node, request) as connection:
            return _expect(await _reply(connection, STACKS_S), m.StackDumps)

    async def ranks(self, node: str, request: p.NodeRanks, within_s: float) -> p.AllocationView:
        if node == self.own:
            return self.allocations.ranks(request)
        async with self._within(node, within_s), self._asked(node, request) as connection:
            return _expect(await _reply(connection, within_s), p.AllocationView)

    async def pull(self, node: str, request: p.NodePull) -> AsyncGenerator[bytes, None]:
        """The pieces of a tar. Refuse: there are no files, or, after the last piece, not all."""
        if node == self.own:
            async with aclosing(self.allocations.pull(request)) as own:
                async for piece in own:
                    yield piece
            return
        async with self._asked(node, request) as connection:
            while True:
                async with asyncio.timeout(PIECE_S):
                    kind, payload = await connection.frame()
                if kind == framing.BLOB:
                    yield payload
                elif kind == framing.MESSAGE:
                    _expect(_read(payload), m.EndOfAnswers)
                    return

    async def pull_into(
        self, take: Callable[[bytes], None], node: str, request: p.NodePull
    ) -> None:
        """`pull`, each piece written in a thread."""
        async with aclosing(self.pull(node, request)) as pieces:
            async for piece in pieces:
                await in_thread(take, piece)

    @asynccontextmanager
    async def _within(self, node: str, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise NoAnswer(f"{node} has not answered within {seconds:g} s") from None

    @asynccontextmanager
    async def _asked(self, node: str, request: p.NodeRequest) -> AsyncIterator[RpcConnection]:
        """A connection on which the answer comes."""
        where = self.nodes().get(node)
        if where is None:
            raise NoAnswer(f"{node} is no member any more")
        if self.dialer is None or not where.address:
            raise NoAnswer(f"{node} is not this machine, which is alone")
        try:
            connection = await self.dialer.open(where.address, where.port, "ask")
            try:
                if connection.peer is not None and connection.peer.name != node:
                    raise NoAnswer(f"{where.endpoint} is {connection.peer.name}, not {node}")
                await connection.say(request)
                yield connection
            finally:
                connection.close()
        except (Unreachable, PeerRefusal) as problem:
            raise NoAnswer(f"{node} does not answer: {problem}") from problem
        except (EOFError, OSError, TimeoutError) as problem:
            raise NoAnswer(f"{node} does not answer") from problem
        except (framing.StreamError, msgspec.MsgspecError) as problem:
            raise NoAnswer(f"{node} answers something else: {problem}") from problem


async def _reply(connection: RpcConnection, within_s: float) -> Reply:
    async with asyncio.timeout(within_s):
        return _read(await connection.message())


def _read(payload: bytes) -> Reply:
    reply: Reply = _decode(payload)
    if isinstance(reply, m.Refusal):
        raise Refuse(reply.code, reply.message, reply.hint)
    return reply


def _expect(answer: Reply, kind: type[Kind]) -> Kind:
    if not isinstance(answer, kind):
        raise framing.StreamError(f"{answer.tag} was not expected")
    return answer


def _of(node: str, line: m.LogLine) -> m.LogLine:
    """Put the node's own name to what it says: no node speaks in another's name."""
    return line if line.node == node else replace(line, node=node)
