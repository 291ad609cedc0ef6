"""A daemon that is a member: no queue of its own, but the allocations that it was given.

    uplink ─── the coordinator      orders in, reports and metrics out
    mux ────── data for its ranks, and the coordinator's questions (ask)
    api ────── relay: people here ask the coordinator through it

Everything it must not forget is in its jobs' files; the store is opened for the lock and the name.
While the coordinator is away it follows what its files say, and its ranks notice nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

from wiiiiided.cluster.allocation import job_dir_owner
from wiiiiided.cluster.allocation.prepare import Preparer
from wiiiiided.cluster.allocation.workers import Workers
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.daemon.process import DaemonProcess, Launch
from wiiiiided.cluster.handlers.allocation import LocalAllocations
from wiiiiided.cluster.handlers.cluster_role import ClusterRole
from wiiiiided.cluster.handlers.offline import OfflineAnswers
from wiiiiided.cluster.handlers.relay import Relay
from wiiiiided.cluster.handlers.status import status_of
from wiiiiided.cluster.membership.control_port import (
    FIRST_WORDS_S,
    CertificateVerdict,
    ControlPort,
    OpenConnections,
)
from wiiiiided.cluster.membership.credentials import Credentials
from wiiiiided.cluster.membership.dial import Dialer, PeerRefusal, Unreachable
from wiiiiided.cluster.membership.fetch import Fetcher
from wiiiiided.cluster.membership.roles import Roles
from wiiiiided.cluster.membership.uplink import Uplink
from wiiiiided.cluster.monitoring.host_stats import HostStats
from wiiiiided.cluster.monitoring.metrics_pusher import MetricsPusher
from wiiiiided.cluster.monitoring.rank_stats import RankStatsReader
from wiiiiided.cluster.monitoring.stats_pages import StatsPageReader
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.port.fd_handoff import FdHandoff
from wiiiiided.cluster.port.port_mux import PortMux
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.rpc.server import RpcServer
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.cluster.trust.identity import Identity
from wiiiiided.cluster.trust.tls import VerifiedPeer, why_not_coordinator
from wiiiiided.domain.exit_codes import FAILED, NO_DAEMON
from wiiiiided.log import about, logger

ANSWER_S = 15.0
YOUNG_S = 600.0  # an archive that came by here with a submit, and whose job is still to start
FORGET_S = 600.0  # for allocations to end whose files are to go
LOOK_S = 0.05
END_S = 40.0  # beyond a job's grace: shims that do not obey are killed and cleaned up by then
NOT_HEARD = (
    Unreachable,
    PeerRefusal,
    Refuse,
    EOFError,
    OSError,
    TimeoutError,
)  # or answered with no


class Member(DaemonProcess):
    """One member, from its start to its end."""

    def __init__(self, launch: Launch, store: StateStore, identity: Identity) -> None:
        super().__init__(launch, store, identity)
        job_dir_owner.assign_job_dirs(self.paths.jobs, identity.cluster)
        self.coordinator = identity.coordinator
        self.credentials = Credentials(identity)
        self.dialer = Dialer(
            self.credentials.client, lambda peer: why_not_coordinator(identity, peer)
        )
        fetcher = Fetcher(self.dialer, self.coordinator, self.archives, lambda: self.settings)
        self.workers = Workers(
            self.job_dirs,
            self.archives,
            self.here,
            lambda: self.settings,
            Preparer(self.archives, self.here, fetcher.fetch),
            report=self._report,
            clock=time.time,
            bring=fetcher.checkpoints,
        )
        self.uplink = Uplink(self.credentials, self.dialer, self.node, self.workers, self)
        self.cluster_role = ClusterRole(
            role="member",
            cluster=identity.cluster,
            coordinator=self.coordinator.name,
            is_linked=lambda: self.uplink.linked,
            troubles=self._trouble,
        )
        self.pusher = self._pusher()
        self.allocations = LocalAllocations(self.node.name, self.workers, self.job_dirs)
        self.mux = self._mux(identity)
        self.roles = Roles(self.paths.state, self.own, identity, self)
        self.api = self._api()
        self._linking: asyncio.Task[None] | None = None

    def _pusher(self) -> MetricsPusher:
        workers, times = self.workers, (time.monotonic, time.time)
        pages = StatsPageReader(self.job_dirs, *times)
        reader = RankStatsReader(self.node.name, pages, workers.shims, self.uplink.report, *times)
        machine, send = HostStats(time.monotonic), self.uplink.push
        return MetricsPusher(reader, lambda: workers.following, machine, self.loop, send)

    def _mux(self, identity: Identity) -> PortMux:
        place = self.coordinator
        elsewhere = (
            f"{self.node.name} is a member of {identity.cluster}; its coordinator is {place.name} "
            f"({place.endpoint})"
        )
        port = ControlPort({"ask": self._ask}, self._judge, elsewhere, OpenConnections())
        return PortMux(
            identity.address,
            identity.port,
            tls=self.credentials.server,
            on_control=port.serve,
            handoff=FdHandoff(self.job_dirs, lambda: self.workers.shims),
            jobs_uid=self.job_dirs.user.uid,
        )

    def _api(self) -> RpcServer:
        relay = Relay(
            self.dialer,
            self.coordinator,
            archives=self.archives,
            settings=lambda: self.settings,
            status=lambda: status_of(self.facts, self.cluster_role, {}),
            alone=OfflineAnswers(self.allocations, self.coordinator.name),
        )
        handle = self.roles.before(relay.handle)
        return RpcServer(self.paths.socket, self.paths.mode == "system", handle, self.node.name)

    # ---- from start to end

    async def open(self) -> str:
        found = self.workers.find()
        await self.mux.open()
        await self.api.listen()
        await self.apply()
        self.pusher.start()
        self._linking = self.loop.create_task(self.uplink.run())
        self.archives.prune(self.workers.archives_kept(), YOUNG_S)
        return f"; looking after {found} that it had started" if found else ""

    async def apply(self) -> None:
        if self.settings.metrics_listen is not None:
            name = self.coordinator.name
            logger.warning("metrics are served by the coordinator alone: ask %s", name)

    def summary(self) -> str:
        number = len(self.workers.shims)
        jobs = f"{number} allocations" if number != 1 else "1 allocation"
        return f"{self.cluster_role.words()}; {jobs if number else 'idle'}"

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
        await self.mux.close()
        await self.workers.close()
        self.store.close()

    def _trouble(self) -> str:
        return self.trouble or self.mux.problem or self.uplink.trouble

    # ---- jobs

    def _report(self, event: e.AnyEvent) -> None:
        if isinstance(event, e.WorkersEnded):
            self.pusher.last(event.id, event.attempt)
            text = "job %d: the allocation here has ended: %s"
            logger.info(text, event.id, event.reason, extra=about(event.id))
        elif isinstance(event, e.WorkersStarted):
            logger.info("job %d: the allocation here runs", event.id, extra=about(event.id))
        self.uplink.report(event)
        self.pusher.changed()
        self._say_status()

    # ---- what the link needs of this daemon

    def linked(self) -> None:
        self.pusher.start()  # this coordinator has heard nothing yet
        self._say_status()

    def unlinked(self) -> None:
        self._say_status()

    def _say_status(self) -> None:
        """Tell the service manager what is wrong, or what the daemon does."""
        self.notifier.status(self._trouble() or self.summary())

    async def forget(self, jobs: tuple[int, ...]) -> None:
        """Removes the files of these jobs; those of an allocation that runs, when it is over."""
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

    def _judge(self, peer: VerifiedPeer | None) -> CertificateVerdict:
        return CertificateVerdict(why_not_coordinator(self.credentials.identity, peer))

    async def _ask(self, connection: RpcConnection, opening: p.Opening) -> None:
        async with asyncio.timeout(FIRST_WORDS_S):
            request = p.decode_ask(await connection.message())
        await self.allocations.handle(connection, request)

    # ---- leaving, renewing

    def unfinished(self) -> str:
        return "this machine is a member already"

    async def part(self, by: str, force: bool) -> None:
        """Tell the coordinator; by force it goes whether that hears it or not."""
        if force:  # first: the coordinator may start elsewhere at once what it was told is gone
            hint = ""
            with suppress(*NOT_HEARD):  # else each allocation that ends makes room for another
                await self._tell(by, m.Drain(self.node.name, "it leaves the cluster"))
                hint = f"it stays a member, drained: wiiiiide resume {self.node.name} undoes that"
            await self._end_all(f"this machine leaves the cluster ({by})", hint)
        try:
            await self._tell(by, m.RemoveNode(self.node.name, force))
        except NOT_HEARD as problem:
            gone = isinstance(problem, PeerRefusal) and problem.removed
            if not force and not gone:
                text = f"the coordinator does not let this machine go: {problem or 'no answer'}"
                code = NO_DAEMON if isinstance(problem, Unreachable) else FAILED
                raise Refuse(code, text, "wiiiiide leave --force goes all the same") from None
        await self._end_all(f"this machine has left the cluster ({by})")

    async def _tell(self, by: str, request: m.Drain | m.RemoveNode) -> None:
        place = self.coordinator
        person = p.Person(os.getuid(), by, admin=True)
        connection = await self.dialer.open(place.address, place.port, "request", person)
        try:
            await connection.say(request)
            async with asyncio.timeout(ANSWER_S):
                answer = m.decode_answer(await connection.message())
        finally:
            connection.close()
        if isinstance(answer, m.Refusal):
            raise Refuse(answer.code, answer.message, answer.hint)

    async def _end_all(self, reason: str, hint: str = "") -> None:
        """End every allocation, and those on their way here: none may go on or begin without a
        daemon that looks after it. Refuse: one does not end."""
        workers, began, grace_s = self.workers, self.loop.time(), 0.0
        workers.reconcile((), reason=reason, grace=True)
        while workers.shims:
            if any(not shim.was_stopped for shim in workers.shims.values()):
                workers.reconcile((), reason=reason, grace=True)
            graces = (job.spec.policy.grace_s for job in workers.following.values())
            grace_s = max((grace_s, *graces))
            if self.loop.time() > began + grace_s + END_S:
                text = "its part of a job does not end; the log of this daemon says more"
                raise Refuse(FAILED, text, hint)
            await asyncio.sleep(LOOK_S)

    async def renew(self) -> Identity:
        if not self.uplink.linked:
            raise Refuse(NO_DAEMON, self.uplink.trouble or "there is no link to the coordinator")
        await self.uplink.renew()
        return self.credentials.identity
