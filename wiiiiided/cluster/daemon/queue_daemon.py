"""A daemon that has a queue: of this machine alone, or of the cluster that it coordinates.

    store ─ controller ─┬─ workers        this machine's allocations
                        └─ links ─ members  theirs                      (membership/coordinator)
              │
              ├─ sampler ─ snapshot       what all of them measure
              └─ requests ─ api           people here; on a coordinator also those of its port

Each part is built from the ones above it. Where two need each other, one of them gets a method of
this class, which are all in one place below.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from wiiiiided.cluster.allocation import job_dir_owner
from wiiiiided.cluster.allocation.prepare import Preparer
from wiiiiided.cluster.allocation.workers import Workers
from wiiiiided.cluster.control.actions import AnyAction
from wiiiiided.cluster.control.events import ClockJumped, NodeSeen
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.daemon.process import STATUS_EVERY_S, DaemonProcess, Launch
from wiiiiided.cluster.daemon.pruning import Pruner
from wiiiiided.cluster.handlers.allocation import LocalAllocations
from wiiiiided.cluster.handlers.checkpoints import Checkpoints
from wiiiiided.cluster.handlers.cluster_role import ClusterRole
from wiiiiided.cluster.handlers.collect_outputs import Collector
from wiiiiided.cluster.handlers.dispatch import Requests
from wiiiiided.cluster.handlers.metrics import MetricsRequests
from wiiiiided.cluster.handlers.node_rpc import NodeRpc
from wiiiiided.cluster.handlers.nodes import Cluster
from wiiiiided.cluster.handlers.resumption import waited_for
from wiiiiided.cluster.membership.dispatch import ActionDispatcher, Assigner
from wiiiiided.cluster.membership.roles import Roles
from wiiiiided.cluster.monitoring.attempt_tracker import AttemptTracker
from wiiiiided.cluster.monitoring.host_stats import HostStats
from wiiiiided.cluster.monitoring.http_endpoint import MetricsEndpoint
from wiiiiided.cluster.monitoring.prometheus import exposition
from wiiiiided.cluster.monitoring.rank_stats import RankStatsReader
from wiiiiided.cluster.monitoring.sampler import Sampler
from wiiiiided.cluster.monitoring.snapshot import SnapshotMaker
from wiiiiided.cluster.monitoring.stats_pages import StatsPageReader
from wiiiiided.cluster.rpc.server import RpcServer
from wiiiiided.cluster.state import views
from wiiiiided.cluster.state.controller import JUMP_S, Controller
from wiiiiided.cluster.state.store import StateStore, StoreError
from wiiiiided.cluster.trust.identity import Identity
from wiiiiided.domain.states import ON_NODES

if TYPE_CHECKING:
    from wiiiiided.cluster.membership.coordinator import CoordinatorServices
    from wiiiiided.cluster.membership.coordinator_port import CoordinatorPort


class QueueDaemon(DaemonProcess):
    """One daemon with a queue, from its start to its end."""

    def __init__(self, launch: Launch, store: StateStore, identity: Identity | None) -> None:
        super().__init__(launch, store, identity)
        job_dir_owner.assign_job_dirs(self.paths.jobs, "")
        if identity is None:
            store.forget_nodes()  # rows of an earlier cluster's, before the controller reads them
        self.cluster_role = self._cluster_role(identity)
        self.controller = Controller(store, [self.node], self._perform, self._changed)
        self.assigner = Assigner(self.controller, identity)
        self.workers = Workers(
            self.job_dirs,
            self.archives,
            self.here,
            lambda: self.settings,
            Preparer(self.archives, self.here),
            report=self.controller.report,
            clock=self.controller.clock,
            bring=self._bring,
        )
        self.sampler = self._sampler()
        self.cluster = None if identity is None else self._coordinator_services(identity)
        links = None if self.cluster is None else self.cluster.links
        self.dispatcher = ActionDispatcher(self.node.name, self.workers, self.assigner, links)
        self._answer()
        self.roles = Roles(self.paths.state, self.own, identity, self)
        handle = self.roles.before(self.requests.handle)
        self.api = RpcServer(self.paths.socket, self.paths.mode == "system", handle, self.node.name)
        self.port = None if self.cluster is None else self._port(self.cluster)
        self.pruner = Pruner(store, self.workers, self.collector, links, self._wanted)
        self._status: asyncio.TimerHandle | None = None

    def _cluster_role(self, identity: Identity | None) -> ClusterRole:
        if identity is None:
            return ClusterRole("alone", "", "", lambda: True, self._trouble)
        return ClusterRole(
            "coordinator", identity.cluster, self.node.name, lambda: True, self._trouble
        )

    def _sampler(self) -> Sampler:
        times = (time.monotonic, time.time)
        pages = StatsPageReader(self.job_dirs, *times)
        report = self.controller.report
        reader = RankStatsReader(self.node.name, pages, self.workers.shims, report, *times)
        tracker = AttemptTracker(reader, self.store.records, self.controller.job, report, *times)
        return Sampler(self.controller, tracker, HostStats(time.monotonic), self.loop)

    def _coordinator_services(self, identity: Identity) -> CoordinatorServices:
        from wiiiiided.cluster.membership.coordinator import CoordinatorServices
        from wiiiiided.cluster.membership.members import Members
        from wiiiiided.cluster.trust.authority import Authority

        authority = Authority.load(identity.directory)
        members = Members(self.store.db, identity, authority, time.time)
        take = self.sampler.take
        return CoordinatorServices(members, self.controller, self.assigner, self.workers, take)

    def _answer(self) -> None:
        """Handlers of requests, and of a job before its attempts and after its end."""
        snapshots = SnapshotMaker(
            self.controller, self.sampler, self.node, self.cluster_role.cluster
        )
        allocations = LocalAllocations(self.node.name, self.workers, self.job_dirs)
        dialer = None if self.cluster is None else self.cluster.dialer
        node_rpc = NodeRpc(allocations, lambda: self.controller.state.nodes, dialer)
        cluster = None
        if self.cluster is not None:
            links, members = self.cluster.links, self.cluster.members
            cluster = Cluster(self.cluster_role.cluster, members, links.remove)
        requests = self.requests = Requests(
            self.controller,
            self.archives,
            lambda: self.settings,
            self.facts,
            self.cluster_role,
            MetricsRequests(snapshots),
            node_rpc,
            cluster,
            self._forget,
        )
        self.metrics = MetricsEndpoint(lambda: exposition(snapshots.fresh(), requests.status()))
        limit = self._outputs_limit
        self.collector = Collector(requests.ranks.outputs, node_rpc, self.controller, limit)
        directory = self.paths.state / "checkpoints"
        self.checkpoints = Checkpoints(directory, node_rpc, self.controller, limit)

    def _wanted(self) -> set[int]:
        return waited_for(self.controller.state.jobs.values())

    def _outputs_limit(self) -> int:
        return self.settings.outputs_bytes

    def _port(self, cluster: CoordinatorServices) -> CoordinatorPort:
        from wiiiiided.cluster.membership.coordinator_port import CoordinatorPort

        send = self.checkpoints.send
        return CoordinatorPort(cluster, self.api, send, self.archives, self.workers)

    # ---- from start to end

    async def open(self) -> str:
        self.checkpoints.start()  # first: what is adopted may be waiting for some
        adopted = self.adopt()
        if self.cluster is not None and self.port is not None:
            await self.port.mux.open()
            self.cluster.open()
        await self.api.listen()
        await self.metrics.apply(self.settings)
        self.collector.start()
        self._changed()
        return adopted

    def adopt(self) -> str:
        """Find every job that was on this node; then let the queue move."""
        jobs = self.controller.state.jobs.values()
        found = [job for job in jobs if job.state in ON_NODES]
        with contextlib.suppress(StoreError):  # no room; what a job finds there is set aside then
            self.store.never_issued(self.job_dirs.numbers())
        given = [self.assigner.given(job) for job in found]
        self.workers.reconcile(given, latest=self.store.latest_attempts())
        self.sampler.adopt()
        now = self.controller.clock()
        latest = self.controller.latest(jobs)
        if latest > now + JUMP_S:  # the clock was set back while no daemon ran
            self.controller.report(ClockJumped(now, now - latest))
        self.controller.report(NodeSeen(now, self.node))
        self.controller.tick()
        return f"; looking after {len(found)} that it had started" if found else ""

    def summary(self) -> str:
        jobs = views.summary(self.controller.state)
        words = self.cluster_role.words()
        return f"{words}; {jobs}" if words else jobs

    def goes_on(self) -> str:
        return views.goes_on(self.controller.state)

    async def apply(self) -> None:
        await self.metrics.apply(self.settings)

    async def close(self) -> None:
        if self._status is not None:
            self._status.cancel()
        self.pruner.close()
        self.controller.close()
        await self.metrics.close()
        await self.api.close()
        await self.collector.close()
        await self.checkpoints.close()
        if self.cluster is not None and self.port is not None:
            self.cluster.close()
            await self.port.mux.close()
        await self.workers.close()
        self.sampler.close()
        self.store.close()

    # ---- leaving, renewing (of a coordinator; see roles)

    def unfinished(self) -> str:
        number = len(self.controller.state.jobs)
        if not number:
            return ""
        return f"{number} job{'s' if number > 1 else ''} of this machine's own queue are not over"

    async def part(self, by: str, force: bool) -> None:
        assert self.cluster is not None
        await self.cluster.part(by, force)

    async def renew(self) -> Identity:
        assert self.cluster is not None
        return await self.cluster.renew()

    # ---- what the parts need of each other in both directions

    def _perform(self, action: AnyAction, job: Job) -> None:
        """The controller decides, the workers and members act, and report to the controller."""
        self.dispatcher(action, job)

    async def _bring(self, job: int, attempt: int) -> int:
        """An attempt's checkpoints for the workers; all nodes are asked for them, this one too."""
        return await self.checkpoints.bring(job, attempt)

    async def _forget(self, number: int) -> None:
        """Remove an ended trial at a client's request; the pruner removes its files."""
        await self.pruner.forget(number)

    def _trouble(self) -> str:
        return self.trouble or (self.port.mux.problem if self.port is not None else "")

    def _changed(self) -> None:
        if self._status is None:
            self._status = self.loop.call_later(STATUS_EVERY_S, self._after_changes)
        self.sampler.changed()
        self.collector.changed()
        self.checkpoints.changed()

    def _after_changes(self) -> None:
        self._status = None
        problem = self.controller.trouble or self.cluster_role.trouble
        self.notifier.status(problem or self.summary())
        if not self.pruner.start():
            self._changed()  # what ended meanwhile has its turn after it
