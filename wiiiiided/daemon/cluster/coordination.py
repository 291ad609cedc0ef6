"""What a coordinator has besides the queue: its port, its members, its links.

gate ─ control port ─┬ greet, join   members: tokens, certificates
                     ├ link          links ─ keeper
                     ├ request       api: people on other machines
                     └ fetch         archives, checkpoints
dialer ── ask ──► members            (daemon/answers/asks)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from wiiiiided.control import events as e
from wiiiiided.daemon.cluster.control_port import FIRST_WORDS_S, ControlPort, Verdict, nothing_more
from wiiiiided.daemon.cluster.credentials import Credentials
from wiiiiided.daemon.cluster.dial import Dialer
from wiiiiided.daemon.cluster.links import Links
from wiiiiided.daemon.cluster.members import Members
from wiiiiided.daemon.cluster.perform import Assigner
from wiiiiided.daemon.conversation.api import Api
from wiiiiided.daemon.conversation.refusal import Refuse
from wiiiiided.daemon.conversation.talk import Caller, Talk
from wiiiiided.daemon.keeper import Keeper
from wiiiiided.daemon.port.doors import Doors
from wiiiiided.daemon.port.gate import Gate
from wiiiiided.daemon.shares.archives import Archives
from wiiiiided.daemon.shares.workers import HEARD_S, Workers
from wiiiiided.domain.codes import FAILED
from wiiiiided.errors import WiiiiideError
from wiiiiided.log import Complaints, logger
from wiiiiided.peering import messages as p
from wiiiiided.text import plain
from wiiiiided.trust.certificate import is_due
from wiiiiided.trust.identity import Identity
from wiiiiided.trust.tls import Peer
from wiiiiided.wire import messages as m

NAME_CHARS = 64


class Coordination:
    """Of one cluster."""

    def __init__(
        self,
        members: Members,
        keeper: Keeper,
        assigner: Assigner,
        workers: Workers,
        archives: Archives,
    ) -> None:
        self.members = members
        self.keeper = keeper
        self.credentials = Credentials(members.identity)
        self.links = Links(keeper, assigner, members)
        self.dialer = Dialer(self.credentials.client, members.verdict)
        self.api: Api | None = None
        self.checkpoints: Callable[[Talk, p.FetchCheckpoints], Awaitable[None]]
        self._workers = workers
        self._archives = archives
        handlers = {
            "greet": nothing_more,
            "join": self._join,
            "link": self._link,
            "request": self._request,
            "fetch": self._fetch,
        }
        elsewhere = f"{self.identity.node} is the coordinator: it asks, and is not asked"
        port = ControlPort(handlers, self.judge, elsewhere, lambda: self.identity.authority)
        self.links.hang_up = port.hang_up
        self._complaints = Complaints("port")
        self.gate = Gate(
            self.identity.address,
            self.identity.port,
            tls=self.credentials.server,
            on_control=port.serve,
            doors=Doors(workers.runs, lambda: workers.shims),
            jobs_uid=workers.here.user.uid,
        )
        self._beat: asyncio.TimerHandle | None = None

    @property
    def identity(self) -> Identity:
        return self.credentials.identity

    @property
    def trouble(self) -> str:
        return self.gate.problem

    async def open(self) -> None:
        await self.gate.open()
        self._tell_shims()
        for name in set(self.keeper.state.nodes) - {*self.members.names(), self.identity.node}:
            text = (
                "%s was being removed when the daemon ended: wiiiiide nodes remove %s does the rest"
            )
            logger.warning(text, name, name)

    def judge(self, peer: Peer | None) -> Verdict:
        """Whether a certificate counts, by this machine's tables and clock."""
        why = self.members.verdict(peer)
        removed = bool(why) and peer is not None and self.members.was_removed(peer)
        return Verdict(why, removed)

    # ---- what comes in

    async def _join(self, talk: Talk, opening: p.Opening) -> None:
        async with asyncio.timeout(FIRST_WORDS_S):
            request = p.decode_join(await talk.message())
        try:
            joined = self.members.admit(request)
        except Refuse as no:
            self._complaints.say(f"a machine may not join: {no}")
            await talk.say(p.TurnedAway(no.code, str(no), no.hint))
            return
        logger.info("%s has joined %s", request.node.name, joined.cluster)
        await talk.say(joined)

    async def _link(self, talk: Talk, opening: p.Opening) -> None:
        await self.links.serve(talk)

    async def _request(self, talk: Talk, opening: p.Opening) -> None:
        person = opening.person
        if person is None or talk.peer is None or self.api is None:
            await talk.say(m.Refused(2, "a request is a person's, and none was named"))
            return
        user = plain(person.user, NAME_CHARS)
        await self.api.serve(talk, Caller(person.uid, user, person.admin, talk.peer.name))

    async def _fetch(self, talk: Talk, opening: p.Opening) -> None:
        try:
            async with asyncio.timeout(FIRST_WORDS_S):
                wanted = p.decode_fetch(await talk.message())
            if isinstance(wanted, p.FetchCheckpoints):
                await self.checkpoints(talk, wanted)
                return
            with self._archives.pinned(wanted.digest):
                await self._archives.send(wanted.digest, talk)
        except (FileNotFoundError, WiiiiideError, msgspec.DecodeError) as problem:
            await talk.say(m.Refused(FAILED, f"that archive is not here: {problem}"))

    # ---- leaving, renewing

    async def part(self, by: str, force: bool) -> None:
        """The cluster ends with its coordinator; Refuse while it has members."""
        others = [name for name in self.members.names() if name != self.identity.node]
        if others and not force:
            named = ", ".join(others[:10]) + (" …" if len(others) > 10 else "")
            text = f"{named} {'is' if len(others) == 1 else 'are'} still in the cluster"
            hint = "let them leave first, or --force: then each must leave by force as well"
            raise Refuse(FAILED, f"{text}, which ends with its coordinator", hint)
        for name in {*others, *self.keeper.state.nodes} - {self.identity.node}:
            self.links.remove(name, by)
            self.keeper.report(e.NodeRemoved(self.keeper.clock(), name, by))
        for name in others:
            self.members.remove(name)

    async def renew(self) -> Identity:
        self.credentials.take(self.members.renew_own())
        return self.identity

    def _renew_if_due(self) -> None:
        if is_due(self.identity.certificate.until, self.keeper.clock()):
            try:
                self.credentials.take(self.members.renew_own())
                logger.info("this machine has a renewed certificate")
            except WiiiiideError as problem:
                logger.error("the certificate cannot be renewed: %s", problem)

    def _tell_shims(self) -> None:
        """A coordinator always hears itself."""
        self._workers.heard(time.clock_gettime(time.CLOCK_BOOTTIME))
        self._renew_if_due()
        self._beat = asyncio.get_running_loop().call_later(HEARD_S, self._tell_shims)

    async def close(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self.links.close()
        await self.gate.close()
