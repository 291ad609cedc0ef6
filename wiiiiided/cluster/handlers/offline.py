"""The answers of a member while its coordinator is away: about its own allocations.

    List     the jobs that run here
    Show     a job that has files here: its ranks on this node
    Why      the same in a sentence
    Logs     what the ranks here wrote so far
    Cancel   of the caller's job: the allocation here ends; the coordinator is told once heard

Every such answer is marked as one machine's view. All else has to wait for the coordinator.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.handlers.allocation import LocalAllocations
from wiiiiided.cluster.handlers.jobs import check_owner
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.state import views
from wiiiiided.domain.exit_codes import FAILED

LOOK_S = 0.05


class OfflineAnswers:
    """One member's own answers. `coordinator` is the name of the one that is away."""

    def __init__(self, allocations: LocalAllocations, coordinator: str) -> None:
        self.allocations, self.workers, self.node = (
            allocations,
            allocations.workers,
            allocations.node,
        )
        self.coordinator = coordinator

    def can(self, request: m.Request) -> bool:
        """Whether there is such an answer; rights are checked later."""
        match request:
            case m.ListJobs(sweep=sweep):
                return not sweep  # a part of one would be taken for all of it
            case m.Logs(follow=False) | m.Show() | m.Why() | m.Cancel():
                return self._job(request.id) is not None
            case _:
                return False

    async def handle(self, connection: RpcConnection, request: m.Request, why: str) -> None:
        """Answer a request that `can` allows; `why` says what keeps the coordinator from it."""
        partial = f"{why}; {self.node} tells of its own jobs only"
        if isinstance(request, m.ListJobs):
            await connection.notice(partial)
            await connection.say(m.JobList(tuple(map(self._view, self._jobs())), partial))
            return
        job = self._job(request.id)  # type: ignore[union-attr]
        assert job is not None
        if isinstance(request, m.Cancel):
            await self._cancel(connection, job, request.now)
            return
        await connection.notice(partial)
        match request:
            case m.Show():
                await connection.say(self._detail(job, partial))
            case m.Why():
                view = self._view(job)
                await connection.say(m.JobReason(job.id, view.state, view.why))
            case m.Logs():
                await self._logs(connection, job, request)

    # ---- looking

    def _job(self, number: int) -> Job | None:
        """Find the job as it was given to this node for the latest attempt here; None: it never
        was."""
        followed = [key for key in self.workers.following if key[0] == number]
        job = self.workers.following[max(followed)] if followed else self.workers.kept(number)
        return job if job is not None and job.attempt is not None else None

    def _jobs(self) -> list[Job]:
        numbers = {number for number, _ in self.workers.following}
        numbers |= self.workers.cancellations.untold.keys()
        return [job for number in sorted(numbers) if (job := self._job(number)) is not None]

    def _view(self, job: Job) -> m.JobView:
        state, why = self._state(job)
        return views.on_one_node(job, state, why)

    def _state(self, job: Job) -> tuple[str, str]:
        """The state of the job as far as this node knows it, and a sentence about it."""
        assert job.attempt is not None
        key, here = (job.id, job.attempt.number), f"its part on {self.node}"
        runs = self.workers.is_here(key)
        if self.workers.was_cancelled(key):
            by = self.workers.cancellations.untold[job.id].by
            said = f"{here} is being ended" if runs else f"{here} has ended"
            told = f"{self.coordinator} is told when it is heard, and ends the rest"
            return "stopping", f"cancelled by {by}: {said}; {told}"
        if not runs:
            return "stopping", f"{here} has ended; the rest is not known here"
        if job.state == "stopping":
            return "stopping", f"{here} is being ended"
        if job.state == "starting":
            return "starting", f"{here} is being started"
        return job.state, f"{here} runs"

    def _detail(self, job: Job, partial: str) -> m.JobDetail:
        assert job.attempt is not None
        told = self.allocations.ranks(p.NodeRanks(job.id, job.attempt.number))
        return m.JobDetail(
            job=self._view(job),
            spec=views.spec_for_people(job),
            ranks=views.ranks(job, {self.node: told}),
            story=(),
            directory=told.directory,
            error=told.error,
            partial=partial,
        )

    async def _logs(self, connection: RpcConnection, job: Job, request: m.Logs) -> None:
        assert job.attempt is not None
        if not request.nodes or self.node in request.nodes:
            number = request.attempt or job.attempt.number
            asked = p.NodeLogs(job.id, number, request.ranks, tail=request.tail)
            async with aclosing(self.allocations.logs(asked)) as found:
                async for lines in found:
                    await connection.say(m.LogLines(lines))
        await connection.say(m.EndOfAnswers())

    # ---- cancelling

    async def _cancel(self, connection: RpcConnection, job: Job, now: bool) -> None:
        """Answered when nothing of it runs here any more; of the rest this node cannot know."""
        check_owner(connection.caller, job, self.node)
        assert job.attempt is not None
        key = (job.id, job.attempt.number)
        kept = ""
        try:
            self.workers.cancel(job, connection.caller.user, now)
        except OSError as problem:
            kept = problem.strerror or str(problem)
        while self.workers.is_here(key):
            await asyncio.sleep(LOOK_S)
        if kept:
            text = f"its part on {self.node} has ended, but the rest may not: that job {job.id}"
            text = f"{text} was cancelled cannot be written down ({kept})"
            raise Refuse(FAILED, text, f"cancel it again when {self.coordinator} is heard")
        await connection.say(self._view(job))
