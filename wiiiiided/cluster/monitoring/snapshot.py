"""Everything at one moment, for `top` and `metrics`: a Snapshot of state and samples.

Rows are bounded: what runs, the first of the queue, the latest that ended. How many more wait is
said as a number. Nodes are all there are, this one first, the others as they joined: one that is
not heard of any more stays, and is `lost`: nothing of it is in any sum (`_is_lost` says when).
"""

from __future__ import annotations

from heapq import nsmallest
from typing import Final

from msgspec.structs import replace

from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.monitoring.sampler import EVERY_S, Sampler
from wiiiiided.cluster.rpc.messages import JobRow, Snapshot
from wiiiiided.cluster.state import views
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.domain.metrics import JobNow, NodeNow
from wiiiiided.domain.node import Node
from wiiiiided.metrics.attempt_metrics import STALE_S
from wiiiiided.metrics.snapshot import Health, NodeStatus, Trend, node_now

ROWS: Final = 500  # of jobs that are not over
ENDED_ROWS: Final = 20
ENDED_WITHIN_S: Final = 3600.0
LOST_S: Final = 3.0  # without a link: one that breaks and comes back at once is no news


class SnapshotMaker:
    """Puts snapshots together."""

    def __init__(
        self, controller: Controller, sampler: Sampler, node: Node, cluster: str = ""
    ) -> None:
        self.controller = controller
        self.sampler = sampler
        self.node = node  # this one: alone, or the coordinator
        self.cluster = cluster or node.name
        self._made: tuple[tuple[float, int], Snapshot] | None = None  # of which moment, and it

    def fresh(self) -> Snapshot:
        """A snapshot of now, sampled again if the last sample is old."""
        self.sampler.refresh()
        return self.snapshot()

    def snapshot(self, every_s: float = EVERY_S) -> Snapshot:
        """A snapshot of the last sample; the same for every client that watches."""
        moment = (self.sampler.sampled_at, self.sampler.changes)
        if self._made is None or self._made[0] != moment:
            self._made = moment, self._make()
        return replace(self._made[1], every_s=every_s)

    def _make(self) -> Snapshot:
        now = self.controller.clock()
        jobs = self.controller.state.jobs
        live = nsmallest(ROWS, jobs.values(), key=views.list_order)
        ended = [
            job
            for job in self.controller.store.ended(ENDED_ROWS)
            if job.phase.since > now - ENDED_WITHIN_S
        ]
        doing = self._doing()
        return Snapshot(
            at=now,
            every_s=EVERY_S,
            cluster=self.cluster,
            nodes=self._nodes(now),
            jobs=tuple(self._row(job, now, doing.get(job.id)) for job in (*live, *ended)),
            more=len(jobs) - len(live),
            problem=self.controller.trouble,
        )

    def _row(self, job: Job, now: float, doing: JobNow | None) -> JobRow:
        controller = self.controller
        seen = views.view(controller.state, job, now)
        ahead = controller.unrecorded.get(job.id)
        return JobRow(views.unrecorded(seen, job, ahead, controller.problem), doing)

    def _doing(self) -> dict[int, JobNow]:
        """The metrics of each job that runs and of which anything is known."""
        followed = self.sampler.tracker.live.values()
        return {
            f.attempt_metrics.id: f.attempt_metrics.now()
            for f in followed
            if f.attempt_metrics.ranks
        }

    def _nodes(self, now: float) -> tuple[NodeNow, ...]:
        nodes = {self.node.name: self.node} | self.controller.state.nodes
        return tuple(self._node(node, now) for node in nodes.values())

    def _node(self, node: Node, now: float) -> NodeNow:
        state, sampler, name = self.controller.state, self.sampler, node.name
        live = sampler.tracker.live.values()
        attempts = [
            f.attempt_metrics for f in live if f.attempt_metrics.id in state.claims.get(name, {})
        ]
        health, age_s = self._heard(name, now)
        drain = state.drained.get(name)
        about = NodeStatus(
            age_s,
            coordinator=name == self.node.name,
            lost=self._is_lost(name, bool(attempts), age_s, now),
            drained=drain.reason if drain is not None else None,
        )
        return node_now(node, health, sampler.trends.get(name, Trend()), attempts, about)

    def _is_lost(self, name: str, works: bool, age_s: float, now: float) -> bool:
        """Whether it is not heard of: an operator said so, its link is gone, nothing came since
        this daemon began, or a node with ranks, which speaks every second, says nothing."""
        state = self.controller.state
        if name == self.node.name:
            return False
        if name in state.absent:
            gone_s = max(age_s, now - state.absent[name])
            unknown = name not in self.sampler.heard
            return name in state.lost or unknown or gone_s >= LOST_S
        return name in state.lost or (works and age_s >= STALE_S)

    def _heard(self, name: str, now: float) -> tuple[Health, float]:
        """A node's last word about itself, and how long ago that was."""
        sampler = self.sampler
        if name == self.node.name:
            return sampler.machine.health, max(0.0, sampler.age_s)
        silent_s = now - self.controller.state.absent.get(name, now)
        if (heard := sampler.heard.get(name)) is None:
            return Health(), max(0.0, silent_s)
        return heard.health, max(0.0, sampler.now - heard.at)
