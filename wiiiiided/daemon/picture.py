"""Everything at one moment, for `top`, `metrics` and whoever asks: a Snapshot of state and samples.

Rows are bounded: what runs, the first of the queue, the latest that ended. How many more wait is
said as a number.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import Final

from msgspec.structs import replace

from wiiiiided.control.job import Job
from wiiiiided.daemon import views
from wiiiiided.daemon.keeper import Keeper
from wiiiiided.daemon.sampler import EVERY_S, Sampler
from wiiiiided.domain.figures import JobNow, NodeNow
from wiiiiided.domain.node import Node
from wiiiiided.figures.picture import node_now
from wiiiiided.wire.messages import JobRow, Snapshot

ROWS: Final = 500  # of jobs that are not over
ENDED_ROWS: Final = 20
ENDED_WITHIN_S: Final = 3600.0


class Picture:
    """Puts snapshots together."""

    def __init__(self, keeper: Keeper, sampler: Sampler, node: Node) -> None:
        self.keeper = keeper
        self.sampler = sampler
        self.node = node
        self._made: tuple[tuple[float, int], Snapshot] | None = None  # of which moment, and it

    def fresh(self) -> Snapshot:
        """Now, also when nobody has looked for a while."""
        self.sampler.refresh()
        return self.snapshot()

    def snapshot(self, every_s: float = EVERY_S) -> Snapshot:
        """As of the last sample; the same for all who watch."""
        moment = (self.sampler.sampled_at, self.sampler.changes)
        if self._made is None or self._made[0] != moment:
            self._made = moment, self._make()
        return replace(self._made[1], every_s=every_s)

    def _make(self) -> Snapshot:
        now = self.keeper.clock()
        jobs = self.keeper.state.jobs
        live = nsmallest(ROWS, jobs.values(), key=views.list_order)
        ended = [
            job
            for job in self.keeper.store.ended(ENDED_ROWS)
            if job.phase.since > now - ENDED_WITHIN_S
        ]
        doing = self._doing()
        return Snapshot(
            at=now,
            every_s=EVERY_S,
            cluster=self.node.name,
            nodes=(self._node(),),
            jobs=tuple(self._row(job, now, doing.get(job.id)) for job in (*live, *ended)),
            more=len(jobs) - len(live),
            problem=self.keeper.problem,
        )

    def _row(self, job: Job, now: float, doing: JobNow | None) -> JobRow:
        return JobRow(views.view(self.keeper.state, job, now), doing)

    def _doing(self) -> dict[int, JobNow]:
        """Of each job that runs here and of which anything is known."""
        followed = self.sampler.courses.live.values()
        return {f.course.id: f.course.now() for f in followed if f.course.ranks}

    def _node(self) -> NodeNow:
        sampler = self.sampler
        courses = [followed.course for followed in sampler.courses.live.values()]
        age_s = max(0.0, sampler.age_s)
        return node_now(self.node, sampler.machine.health, sampler.trend, courses, age_s)
