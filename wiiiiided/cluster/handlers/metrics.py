"""Answers in metrics: snapshots for `top`, records of runs, forecasts of a job's needs."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.control.start_estimate import Estimate, RemainingTime, remaining
from wiiiiided.cluster.monitoring.sampler import LEAST_S
from wiiiiided.cluster.monitoring.snapshot import SnapshotMaker
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.domain.exit_codes import USAGE
from wiiiiided.domain.limits import MAX_NAME
from wiiiiided.domain.metrics import RunForecast, RunRecord
from wiiiiided.metrics.forecast import forecast, speeds

READS: Final = 16  # names whose earlier runs are read for one answer
MOST_S: Final = 60.0  # between two snapshots: a client that waits longer asks again


class MetricsRequests:
    """Requests whose answers are metrics."""

    def __init__(self, snapshots: SnapshotMaker) -> None:
        self.snapshots = snapshots
        self.tracker = snapshots.sampler.tracker

    async def watch(self, connection: RpcConnection, request: m.WatchSnapshots) -> None:
        """Snapshots until the client goes; a slow one misses some, and delays no other."""
        if not LEAST_S <= request.every_s <= MOST_S:
            text = f"every {request.every_s:g} s is too often or too seldom"
            raise Refuse(USAGE, f"{text}: from {LEAST_S:g} to {MOST_S:g} s are possible")
        if request.once:
            await self._look_twice()
            await connection.say(self.snapshots.snapshot(request.every_s))
            return
        with self.snapshots.sampler.watching(request.every_s) as bell:
            while True:
                await bell.wait()
                bell.clear()
                await connection.say(self.snapshots.snapshot(request.every_s))

    async def _look_twice(self) -> None:
        """Wait for a fresh sample: rates and the use of the processor need two."""
        sampler = self.snapshots.sampler
        with sampler.watching(LEAST_S) as bell:
            for _ in range(2):
                await bell.wait()
                bell.clear()
                if sampler.machine.health.cpu is not None:
                    return

    def with_use(self, found: m.JobList) -> m.JobList:
        """Add to each job what its ranks use where they run."""
        live = {f.attempt_metrics.id: f.attempt_metrics.uses() for f in self.tracker.live.values()}
        jobs = (
            replace(job, cpu=live[job.id][0], memory=live[job.id][1]) if job.id in live else job
            for job in found.jobs
        )
        return replace(found, jobs=tuple(jobs))

    def starts(self, looks: int) -> Estimate:
        """Estimate when each queued job starts, once for all of an answer. Records of a few names
        are read for it; the next answer knows more."""
        controller, eta = self.snapshots.controller, self.tracker.left_s()
        now, reads = controller.clock(), READS

        def lasts(job: Job) -> RemainingTime:
            nonlocal reads
            name = job.spec.name
            if not self.tracker.knows(name):
                if not reads:
                    return RemainingTime(
                        None, why=f'earlier runs named "{name}" have not been read yet'
                    )
                reads -= 1
            return remaining(job, now, self.tracker.longest(name), eta.get(job.id))

        return Estimate(controller.state, now, lasts, looks)

    def runs(self, job: int) -> tuple[RunRecord, ...]:
        return tuple(self.tracker.of(job))

    def run(self, job: int) -> RunRecord | None:
        """The latest, without its points."""
        found = self.tracker.latest(job)
        return None if found is None else replace(found, points=())

    def forecast(self, name: str) -> RunForecast:
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise Refuse(USAGE, f"a job's name has 1 to {MAX_NAME} printable characters")
        return forecast(name, self.tracker.done(name))

    def speeds(self, name: str) -> dict[int, float]:
        """Samples/s of earlier runs, by their number of machines."""
        return speeds(name, self.tracker.done(name))
