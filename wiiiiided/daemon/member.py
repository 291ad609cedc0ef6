"""A daemon that is a member: no queue of its own, but the shares of jobs that it was given.

    uplink ─── the coordinator      orders in, reports and figures out
    gate ───── data for its ranks, and the coordinator's questions (ask)
    api ────── relay: people here ask the coordinator through it

Everything it must not forget is in its jobs' files; the store is opened for the lock and the name.
While the coordinator is away it follows what its files say, and its ranks notice nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

from msgspec.structs import replace

from wiiiiided import __version__
from wiiiiided.config import Paths
from wiiiiided.control import events as e
from wiiiiided.daemon.answers.alone import Alone
from wiiiiided.daemon.answers.relay import Relay
from wiiiiided.daemon.answers.share import Share
from wiiiiided.daemon.answers.standing import Standing
from wiiiiided.daemon.answers.status import DaemonFacts, status_of
from wiiiiided.daemon.cluster.control_port import FIRST_WORDS_S, ControlPort, Verdict
from wiiiiided.daemon.cluster.credentials import Credentials
from wiiiiided.daemon.cluster.dial import Dialer, Turned, Unreachable
from wiiiiided.daemon.cluster.fetch import Fetcher
from wiiiiided.daemon.cluster.roles import Roles
from wiiiiided.daemon.cluster.uplink import Uplink
from wiiiiided.daemon.conversation.api import Api
from wiiiiided.daemon.conversation.refusal import Refuse
from wiiiiided.daemon.conversation.talk import Talk
from wiiiiided.daemon.host import Host
from wiiiiided.daemon.notify import Notifier
from wiiiiided.daemon.port.doors import Doors
from wiiiiided.daemon.port.gate import Gate
from wiiiiided.daemon.probe import this_node
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.shares import whose
from wiiiiided.daemon.shares.archives import Archives
from wiiiiided.daemon.shares.order import Surroundings
from wiiiiided.daemon.shares.prepare import Preparer
from wiiiiided.daemon.shares.runs import Runs
from wiiiiided.daemon.shares.workers import Workers
from wiiiiided.daemon.store import Store
from wiiiiided.daemon.watching.machine import Machine
from wiiiiided.daemon.watching.pages import Pages
from wiiiiided.daemon.watching.pusher import Pusher
from wiiiiided.daemon.watching.reader import Reader
from wiiiiided.domain.codes import FAILED, NO_DAEMON
from wiiiiided.domain.node import Node
from wiiiiided.log import about, logger
from wiiiiided.peering import messages as p
from wiiiiided.trust.identity import Identity
from wiiiiided.trust.tls import Peer, why_not_coordinator
from wiiiiided.wire import messages as m

ANSWER_S = 15.0
YOUNG_S = 600.0  # an archive that came by here with a submit, and whose job is still to start
FORGET_S = 600.0  # for shares to end whose files are to go
LOOK_S = 0.05
END_S = 40.0  # beyond a job's grace: shims that do not obey are killed and swept by then
NOT_HEARD = (Unreachable, Turned, Refuse, EOFError, OSError, TimeoutError)  # or answered with no


class Member(Host):
    """One member, from its start to its end."""

    def __init__(
        self,
        paths: Paths,
        settings: Settings,
        notifier: Notifier,
        tier: str,
        store: Store,
        identity: Identity,
    ) -> None:
        super().__init__(paths, settings, notifier, tier)
        self.store = store
        own = this_node()
        own = replace(own, name=store.fact("node", own.name), version=__version__)
        place = (identity.node, identity.address, identity.port)
        self.node = replace(own, name=place[0], address=place[1], port=place[2])
        here = Surroundings.of(self.node, paths.mode == "system")
        self.runs = Runs(paths.jobs, here.user)
        whose.settle(paths.jobs, identity.cluster)
        self.archives = Archives(paths.state / "archives")
        self.credentials = Credentials(identity)
        self.dialer = Dialer(
            self.credentials.client, lambda peer: why_not_coordinator(identity, peer)
        )
        fetcher = Fetcher(
            self.dialer, lambda: identity.coordinator, self.archives, lambda: self.settings
        )
        preparer = Preparer(self.archives, here, fetcher.fetch)
        self.workers = Workers(self.runs, self.archives, here, lambda: self.settings, preparer)
        self.workers.placer.bring = fetcher.checkpoints
        self.uplink = Uplink(
            self.credentials,
            self.dialer,
            node=lambda: self.node,
            workers=self.workers,
            forget=self._forget,
        )
        self.standing = Standing(
            role="member",
            cluster=identity.cluster,
            coordinator=identity.coordinator.name,
            is_linked=lambda: self.uplink.linked,
            troubles=self._trouble,
        )
        self._look_at_ranks()
        self._listen_to(own, identity)
        self._linking: asyncio.Task[None] | None = None

    def _look_at_ranks(self) -> None:
        workers = self.workers
        pages = Pages(self.runs, time.monotonic, time.time)
        reader = Reader(
            self.node.name,
            pages,
            following=lambda: workers.following,
            shims=workers.shims,
            monotonic=time.monotonic,
        )
        reader.report, reader.clock = self.uplink.report, time.time
        self.pusher = Pusher(reader, Machine(time.monotonic), self.loop, self.uplink.push)
        self.uplink.on_linked = self._linked
        self.uplink.on_away = self._say
        workers.report, workers.clock = self._report, time.time

    def _listen_to(self, own: Node, identity: Identity) -> None:
        self.share = Share(self.node.name, self.workers, self.runs)
        place = identity.coordinator
        elsewhere = (
            f"{self.node.name} is a member of {identity.cluster}; its coordinator is {place.name} "
            f"({place.door})"
        )
        port = ControlPort({"ask": self._ask}, self._judge, elsewhere)
        doors = Doors(self.runs, lambda: self.workers.shims)
        self.gate = Gate(
            identity.address,
            identity.port,
            tls=self.credentials.server,
            on_control=port.serve,
            doors=doors,
            jobs_uid=self.runs.user.uid,
        )
        self.roles = Roles(self.paths.state, own, identity, self)
        self.roles.again = lambda: self.end("again")
        relay = Relay(
            self.dialer,
            coordinator=lambda: identity.coordinator,
            archives=self.archives,
            settings=lambda: self.settings,
            status=self._say_status,
            alone=Alone(self.share, place.name),
        )
        self._about = DaemonFacts(self.paths.mode, self.node, time.time(), str(self.paths.state))
        system = self.paths.mode == "system"
        handle = self.roles.before(relay.handle)
        self.api = Api(self.paths.socket, system, handle, self.node.name)

    # ---- from start to end

    async def open(self) -> str:
        found = self.workers.find()
        await self.gate.open()
        await self.api.listen()
        await self.apply()
        self.pusher.start()
        self._linking = self.loop.create_task(self.uplink.run())
        self.archives.prune(self.workers.archives_kept(), YOUNG_S)
        return f"; looking after {found} that it had started" if found else ""

    async def apply(self) -> None:
        if self.settings.metrics_listen is not None:
            place = self.credentials.identity.coordinator
            logger.warning("metrics are served by the coordinator alone: ask %s", place.name)

    def summary(self) -> str:
        number = len(self.workers.shims)
        jobs = f"{number} shares of jobs" if number != 1 else "a share of a job"
        return f"{self.standing.words()}; {jobs if number else 'idle'}"

    def goes_on(self) -> str:
        live = sorted({job for job, _ in self.workers.shims})
        named = ", ".join(f"job {job}" for job in live[:10])
        return f"{named} {'goes' if len(live) == 1 else 'go'} on without the daemon" if live else ""

    async def close(self) -> None:
        if self._linking is not None:
            self._linking.cancel()
            await asyncio.gather(self._linking, return_exceptions=True)
        self.uplink.close()
        self.pusher.close()
        await self.api.close()
        await self.gate.close()
        await self.workers.close()
        self.store.close()

    def _trouble(self) -> str:
        return self.trouble or self.gate.problem or self.uplink.trouble

    # ---- jobs

    def _report(self, event: e.AnyEvent) -> None:
        if isinstance(event, e.WorkersEnded):
            self.pusher.last(event.id, event.attempt)
            text = "job %d: the share here has ended: %s"
            logger.info(text, event.id, event.reason, extra=about(event.id))
        elif isinstance(event, e.WorkersStarted):
            logger.info("job %d: the share here runs", event.id, extra=about(event.id))
        self.uplink.report(event)
        self.pusher.changed()
        self._say()

    def _linked(self) -> None:
        self.pusher.start()  # whoever is there now has heard nothing yet
        self._say()

    def _say(self) -> None:
        """To the service manager: what is wrong, or what it does."""
        self.notifier.status(self._trouble() or self.summary())

    async def _forget(self, jobs: tuple[int, ...]) -> None:
        """Files that nobody wants any more; those of a share that runs, when it is over."""
        deadline = self.loop.time() + FORGET_S
        for number in jobs:
            while (busy := self._is_busy(number)) and self.loop.time() < deadline:
                await asyncio.sleep(1.0)  # it was told to end a moment ago
            if not busy:
                try:
                    await self.workers.remove(number)
                except OSError as problem:
                    text = "the files of job %d cannot be removed: %s"
                    logger.warning(text, number, problem, extra=about(number))
        self.archives.prune(self.workers.archives_kept(), YOUNG_S)

    def _is_busy(self, number: int) -> bool:
        return any(job == number for job, _ in self.workers.shims)

    # ---- what comes in

    def _say_status(self) -> m.DaemonStatus:
        return status_of(self._about, self.runs, self.standing, {}, "")

    def _judge(self, peer: Peer | None) -> Verdict:
        return Verdict(why_not_coordinator(self.credentials.identity, peer))

    async def _ask(self, talk: Talk, opening: p.Opening) -> None:
        async with asyncio.timeout(FIRST_WORDS_S):
            request = p.decode_ask(await talk.message())
        await self.share.handle(talk, request)

    # ---- leaving, renewing

    def unfinished(self) -> str:
        return "this machine is a member already"

    async def part(self, by: str, force: bool) -> None:
        """Tell the coordinator; by force it goes whether that hears it or not."""
        if force:  # first: the coordinator may start elsewhere at once what it was told is gone
            hint = ""
            with suppress(*NOT_HEARD):  # else each share that ends makes room for the next job
                await self._tell(by, m.Drain(self.node.name, "it leaves the cluster"))
                hint = f"it stays a member, drained: wiiiiide resume {self.node.name} undoes that"
            await self._end_all(f"this machine leaves the cluster ({by})", hint)
        try:
            await self._tell(by, m.RemoveNode(self.node.name, force))
        except NOT_HEARD as problem:
            gone = isinstance(problem, Turned) and problem.removed
            if not force and not gone:
                text = f"the coordinator does not let this machine go: {problem or 'no answer'}"
                code = NO_DAEMON if isinstance(problem, Unreachable) else FAILED
                raise Refuse(code, text, "wiiiiide leave --force goes all the same") from None
        await self._end_all(f"this machine has left the cluster ({by})")

    async def _tell(self, by: str, request: m.Drain | m.RemoveNode) -> None:
        place = self.credentials.identity.coordinator
        person = p.Person(os.getuid(), by, admin=True)
        talk = await self.dialer.open(place.address, place.port, "request", person)
        try:
            await talk.say(request)
            async with asyncio.timeout(ANSWER_S):
                answer = m.decode_answer(await talk.message())
        finally:
            talk.close()
        if isinstance(answer, m.Refused):
            raise Refuse(answer.code, answer.message, answer.hint)

    async def _end_all(self, reason: str, hint: str = "") -> None:
        """No share may go on without anybody who looks after it, nor one begin that was on its way
        here. Refuse: one does not end."""
        workers, began, grace_s = self.workers, self.loop.time(), 0.0
        workers.reconcile((), reason=reason, grace=True)
        while workers.shims:
            if any(not shim.was_stopped for shim in workers.shims.values()):
                workers.reconcile((), reason=reason, grace=True)
            graces = (job.spec.policy.grace_s for job in workers.following.values())
            grace_s = max((grace_s, *graces))
            if self.loop.time() > began + grace_s + END_S:
                text = "its share of a job does not end; the log of this daemon says more"
                raise Refuse(FAILED, text, hint)
            await asyncio.sleep(LOOK_S)

    async def renew(self) -> Identity:
        if not self.uplink.linked:
            raise Refuse(NO_DAEMON, self.uplink.trouble or "there is no link to the coordinator")
        await self.uplink.renew()
        return self.credentials.identity
