"""Daemons that come in over the one port: who is it, what for, may it?

    Opening ──► protocol?  ──► purpose?            ──► certificate?               ──► Opened, and
                  │ none in      │ not of this           │ none, not a member's,      who answers
                  ▼ common       ▼ machine's role        ▼ removed, expired           takes over
                              TurnedAway: a sentence, the end

greet and join are for machines that are not members yet; all else needs a certificate that counts.
What comes is bounded: so many at once, so many of one machine, so long for the first words. Whose
certificate does not count is a stranger, and has a stranger's bounds; who is removed is hung up on,
whatever it has under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from wiiiiided import __version__
from wiiiiided.daemon.conversation.talk import Talk, abort
from wiiiiided.domain.codes import NOT_ALLOWED, USAGE
from wiiiiided.errors import WiiiiideError
from wiiiiided.log import Complaints, logger
from wiiiiided.peering import messages as p
from wiiiiided.peering.agree import common_protocol, disagreement
from wiiiiided.text import plain
from wiiiiided.trust.tls import Peer, peer_of
from wiiiiided.wire import stream

CONNECTIONS: Final = 512
PER_MACHINE: Final = 160  # above what one user of it may have, so that others still get in
STRANGERS: Final = 32  # who greet or join; of more, the oldest goes
STRANGERS_BYTES: Final = 64 << 10  # of their messages: a signing request is the largest
GOODBYE_S: Final = 1.0  # for the last words to who was removed
FIRST_WORDS_S: Final = 10.0
BUSY = 1
FOR_STRANGERS: Final = ("greet", "join")

Handler = Callable[[Talk, p.Opening], Awaitable[None]]


class Verdict(msgspec.Struct, frozen=True):
    """Why a certificate does not count; an empty `why`: it does."""

    why: str = ""
    removed: bool = False  # it did once


class ControlPort:
    """`handlers` are the purposes of this machine's role; `elsewhere` says where others are served;
    `judge` says whether a certificate counts for a purpose."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        judge: Callable[[Peer | None], Verdict],
        elsewhere: str,
        authority: Callable[[], str] = lambda: "",
    ) -> None:
        self._handlers = handlers
        self._judge = judge
        self._elsewhere = elsewhere
        self._authority = authority
        # By machine, the oldest first; strangers have no name.
        self._open: dict[str, dict[asyncio.Task[None], None]] = {}
        self._complaints: dict[str, str] = {}  # by machine, the latest that was logged
        self._aloud = Complaints("port")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        peer = peer_of(writer.get_extra_info("ssl_object"))
        who = "" if peer is None or self._judge(peer).why else peer.name
        task, here = asyncio.current_task(), self._open.setdefault(who, {})
        assert task is not None
        if not who and len(here) >= STRANGERS:
            _end_oldest(here)  # who comes to join needs a moment; who stays does not join
        if len(here) >= 2 * PER_MACHINE:  # so many that not even a sentence is spared
            abort(writer.transport)
            return
        talk = Talk(reader, writer, stream.REQUEST_BYTES if who else STRANGERS_BYTES)
        talk.peer = peer
        here[task] = None
        try:
            await self._converse(talk, who)
        except (EOFError, OSError, TimeoutError, stream.BadFrame) as problem:
            logger.debug("a connection of %s ended: %s", who or "a stranger", problem)
        except (WiiiiideError, msgspec.DecodeError, RecursionError) as problem:
            self._complain(who, str(problem))
        except Exception:
            logger.exception("a defect while serving %s", who or "a stranger")
        finally:
            here.pop(task, None)
            if not here and self._open.get(who) is here:
                del self._open[who]
            talk.close()

    def hang_up(self, who: str) -> None:
        """It is no member any more: what it has under way ends, after the last words to it."""
        loop = asyncio.get_running_loop()
        for task in self._open.pop(who, ()):
            loop.call_later(GOODBYE_S, task.cancel)

    def _complain(self, who: str, why: str) -> None:
        """Once, and again when it is about something else: a member dials for ever."""
        why = plain(why)
        if self._complaints.get(who) != why:
            self._aloud.say(f"{who or 'a stranger'} is not served: {why}")
        if len(self._complaints) < CONNECTIONS:
            self._complaints[who] = why

    async def _converse(self, talk: Talk, who: str) -> None:
        async with asyncio.timeout(FIRST_WORDS_S):
            opening = p.decode_opening(await talk.message())
        no = self._refusal(talk.peer, opening) or self._crowded(who)
        if no is not None:
            await talk.say(no)
            return
        protocol = common_protocol(opening.protocols)
        assert protocol is not None
        authority = self._authority() if opening.purpose == "greet" else ""
        await talk.say(p.Opened(protocol, __version__, authority))
        await self._handlers[opening.purpose](talk, opening)

    def _refusal(self, peer: Peer | None, opening: p.Opening) -> p.TurnedAway | None:
        if common_protocol(opening.protocols) is None:
            version = opening.version[:64]
            return p.TurnedAway(USAGE, disagreement(opening.protocols, version, __version__))
        if opening.purpose not in self._handlers:
            return p.TurnedAway(USAGE, self._elsewhere)
        if opening.purpose not in FOR_STRANGERS:
            verdict = self._judge(peer)
            if verdict.why:
                return p.TurnedAway(NOT_ALLOWED, verdict.why, removed=verdict.removed)
        return None

    def _crowded(self, who: str) -> p.TurnedAway | None:
        here = len(self._open.get(who, ()))
        if here > PER_MACHINE or sum(map(len, self._open.values())) > CONNECTIONS:
            return p.TurnedAway(BUSY, "too many connections are open: try again later")
        return None


def _end_oldest(here: dict[asyncio.Task[None], None]) -> None:
    oldest = next(iter(here))
    del here[oldest]
    oldest.cancel()


async def nothing_more(talk: Talk, opening: p.Opening) -> None:
    """greet: the authority's certificate was in the answer."""
