"""Daemons that connect to the one port: which machine, for which purpose, with which right?

    Opening ──► protocol?  ──► purpose?            ──► certificate?               ──► Opened, the
                  │ none in      │ not of this           │ none, not a member's,      handler
                  ▼ common       ▼ machine's role        ▼ removed, expired           takes over
                              TurnedAway: a sentence, the end

greet and join are for machines that are not members yet; all else needs a certificate that counts.
Connections are bounded: so many at once, so many of one machine, so long for the first words. A
machine whose certificate does not count has the bounds of one that joins; the connections of a
removed one are closed, whatever it has under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from wiiiiided import __version__
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.peering.versions import common_protocol, disagreement
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc.connection import RpcConnection, abort
from wiiiiided.cluster.trust.tls import VerifiedPeer, peer_of
from wiiiiided.domain.exit_codes import NOT_ALLOWED, USAGE
from wiiiiided.errors import WiiiiideError
from wiiiiided.log import Complaints, logger
from wiiiiided.text import plain

CONNECTIONS: Final = 512
PER_MACHINE: Final = 160  # above what one user of it may have, so that others still get in
MAX_JOINING: Final = 32  # that greet or join; of more, the oldest goes
JOINING_BYTES: Final = 64 << 10  # of their messages: a signing request is the largest
GOODBYE_S: Final = 1.0  # for the last words to a removed machine
FIRST_WORDS_S: Final = 10.0
BUSY = 1
NAMELESS: Final = "a machine without a certificate"
BEFORE_JOINING: Final = ("greet", "join")

Handler = Callable[[RpcConnection, p.Opening], Awaitable[None]]


class CertificateVerdict(msgspec.Struct, frozen=True):
    """Why a certificate does not count; an empty `why`: it does."""

    why: str = ""
    removed: bool = False  # it did once


class OpenConnections:
    """The tasks that serve the port's connections, by machine; one that joins has no name yet."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[asyncio.Task[None], None]] = {}  # the oldest first

    def add(self, name: str, task: asyncio.Task[None]) -> bool:
        """False: there are so many of that machine that not even a sentence is spared."""
        here = self._tasks.setdefault(name, {})
        if not name and len(here) >= MAX_JOINING:  # a machine that joins needs a moment only
            oldest = next(iter(here))
            del here[oldest]
            oldest.cancel()
        if len(here) >= 2 * PER_MACHINE:
            return False
        here[task] = None
        return True

    def discard(self, name: str, task: asyncio.Task[None]) -> None:
        here = self._tasks.get(name, {})
        here.pop(task, None)
        if not here:
            self._tasks.pop(name, None)

    def are_too_many(self, name: str) -> bool:
        here = len(self._tasks.get(name, ()))
        return here > PER_MACHINE or sum(map(len, self._tasks.values())) > CONNECTIONS

    def hang_up(self, name: str) -> None:
        """End what a removed member has under way, after the last words to it."""
        loop = asyncio.get_running_loop()
        for task in self._tasks.pop(name, ()):
            loop.call_later(GOODBYE_S, task.cancel)


class ControlPort:
    """`handlers` are the purposes of this machine's role; `elsewhere` says where others are served;
    `judge` says whether a certificate counts for a purpose; only a coordinator has an
    `authority`."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        judge: Callable[[VerifiedPeer | None], CertificateVerdict],
        elsewhere: str,
        connections: OpenConnections,
        authority: str = "",
    ) -> None:
        self._handlers = handlers
        self._judge = judge
        self._elsewhere = elsewhere
        self._authority = authority
        self._connections = connections
        self._complaints: dict[str, str] = {}  # by machine, the latest that was logged
        self._log = Complaints("port")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, to its end."""
        peer = peer_of(writer.get_extra_info("ssl_object"))
        name = "" if peer is None or self._judge(peer).why else peer.name
        task = asyncio.current_task()
        assert task is not None
        if not self._connections.add(name, task):
            abort(writer.transport)
            return
        connection = RpcConnection(reader, writer, framing.REQUEST_BYTES if name else JOINING_BYTES)
        connection.peer = peer
        try:
            await self._converse(connection, name)
        except (EOFError, OSError, TimeoutError, framing.StreamError) as problem:
            logger.debug("a connection of %s ended: %s", name or NAMELESS, problem)
        except (WiiiiideError, msgspec.DecodeError) as problem:
            self._complain(name, str(problem))
        except Exception as problem:
            if name:
                logger.exception("a defect while serving %s", name)
            else:  # a stranger that finds one must not fill the log with it
                self._log.say(f"a defect while serving {NAMELESS}: {plain(repr(problem))}")
        finally:
            self._connections.discard(name, task)
            connection.close()

    def _complain(self, name: str, why: str) -> None:
        """Log a refusal once, and again when it is about something else: a member dials for
        ever."""
        why = plain(why)
        if self._complaints.get(name) != why:
            self._log.say(f"{name or NAMELESS} is not served: {why}")
        if len(self._complaints) < CONNECTIONS:
            self._complaints[name] = why

    async def _converse(self, connection: RpcConnection, name: str) -> None:
        async with asyncio.timeout(FIRST_WORDS_S):
            opening = p.decode_opening(await connection.message())
        no = self._refusal(connection.peer, opening) or self._crowded(name)
        if no is not None:
            await connection.say(no)
            return
        protocol = common_protocol(opening.protocols)
        assert protocol is not None
        authority = self._authority if opening.purpose == "greet" else ""
        await connection.say(p.Opened(protocol, __version__, authority))
        await self._handlers[opening.purpose](connection, opening)

    def _refusal(self, peer: VerifiedPeer | None, opening: p.Opening) -> p.TurnedAway | None:
        if common_protocol(opening.protocols) is None:
            version = opening.version[:64]
            return p.TurnedAway(USAGE, disagreement(opening.protocols, version, __version__))
        if opening.purpose not in self._handlers:
            return p.TurnedAway(USAGE, self._elsewhere)
        if opening.purpose not in BEFORE_JOINING:
            verdict = self._judge(peer)
            if verdict.why:
                return p.TurnedAway(NOT_ALLOWED, verdict.why, removed=verdict.removed)
        return None

    def _crowded(self, name: str) -> p.TurnedAway | None:
        if self._connections.are_too_many(name):
            return p.TurnedAway(BUSY, "too many connections are open: try again later")
        return None


async def nothing_more(connection: RpcConnection, opening: p.Opening) -> None:
    """greet: the authority's certificate was in the answer."""
