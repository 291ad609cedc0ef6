"""Submitting: specs that are checked again, an archive that is asked for if it is not here yet.

A job is a sweep of one, but for what is told: checked, counted and stored the same way, all its
jobs in one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wiiiiided.control import events as e
from wiiiiided.control.job import Owner
from wiiiiided.control.place import NeverRuns, plan
from wiiiiided.daemon.answers.jobs import Jobs
from wiiiiided.daemon.conversation.refusal import Refuse
from wiiiiided.daemon.conversation.talk import Talk
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.shares.archives import PIECE_WITHIN_S, Archives
from wiiiiided.domain.codes import FAILED, INVALID, NEVER
from wiiiiided.domain.limits import problems_of
from wiiiiided.domain.sweep import problems_of_sweep
from wiiiiided.errors import UsageError
from wiiiiided.wire import messages as m

SECRET_BYTES = 1 << 18
UPLOADS = 4  # at once: each may be half a gigabyte


class Submissions:
    """New jobs."""

    def __init__(self, jobs: Jobs, archives: Archives, settings: Callable[[], Settings]) -> None:
        self.jobs = jobs
        self.archives = archives
        self.settings = settings
        self._uploads = asyncio.Semaphore(UPLOADS)

    async def submit(self, talk: Talk, request: m.Submission) -> None:
        self.check(request)
        await self._check_fit(request)
        with self.archives.pinned(request.archive):
            if not self.archives.has(request.archive):
                await self.receive(talk, request)
            self.check(request)  # an upload takes its time: the others may have moved
            numbers = self._store(talk, request)
        why = self.jobs.view(self.jobs.find(numbers[0])).why
        if isinstance(request, m.SubmitSweep):
            await talk.say(m.Swept(numbers[0], numbers, why))
        else:
            await talk.say(m.Submitted(numbers[0], why))

    def _store(self, talk: Talk, request: m.Submission) -> tuple[int, ...]:
        caller, keeper = talk.caller, self.jobs.keeper
        self.jobs.catch_up()
        first, at = keeper.store.next_id(), keeper.clock()
        owner = Owner(caller.node or self.jobs.own, caller.uid, caller.user)
        sweep = first if isinstance(request, m.SubmitSweep) else 0
        waits_for = {
            after: self.jobs.dependencies(after)
            for after in {job.spec.policy.after for job in jobs_of(request)}
        }
        jobs = tuple(
            e.JobSubmitted(
                *(at, number, job.spec, owner, request.archive, waits_for[job.spec.policy.after]),
                hold=request.hold,
                sweep=sweep,
                setting=job.setting,
            )
            for number, job in enumerate(jobs_of(request), first)
        )
        self.jobs.ask(e.SweepSubmitted(at, sweep, jobs) if sweep else jobs[0], request.secrets)
        return tuple(job.id for job in jobs)

    def check(self, request: m.Submission) -> None:
        """A client has checked the file; what a hostile one sends is checked again here."""
        jobs = jobs_of(request)
        problems = dict.fromkeys(text for job in jobs for text in problems_of(job.spec))
        if isinstance(request, m.SubmitSweep):
            problems |= dict.fromkeys(problems_of_sweep([job.setting for job in jobs]))
        extra = set(request.secrets) - {name for job in jobs for name in job.spec.run.pass_env}
        if extra:
            problems[f"secrets that run.pass_env does not name: {sorted(extra)}"] = None
        if sum(map(len, request.secrets.values())) > SECRET_BYTES:
            problems[f"secrets of more than {SECRET_BYTES} bytes"] = None
        if problems:
            raise Refuse(INVALID, "; ".join(problems))
        most, there = self.settings().queue, len(self.jobs.keeper.state.jobs)
        if there >= most:
            raise Refuse(FAILED, f"the queue is full: {most} jobs are not over")
        if there + len(jobs) > most:
            text = f"the queue has room for {most - there} of the sweep's {len(jobs)} jobs"
            raise Refuse(FAILED, f"{text} ({most} in all): none was queued")
        self.archives.path(request.archive)
        for after in {job.spec.policy.after for job in jobs}:
            self.jobs.dependencies(after)

    async def _check_fit(self, request: m.Submission) -> None:
        """Once for all jobs that ask for the same; a thousand that do not let others in between."""
        for wanted in {job.spec.resources: job.spec for job in jobs_of(request)}.values():
            try:
                plan(wanted, list(self.jobs.keeper.state.nodes.values()))
            except NeverRuns as never:
                raise Refuse(NEVER, str(never)) from never
            await asyncio.sleep(0)

    async def receive(self, talk: Talk, request: m.Submission) -> None:
        limit = self.settings().archive_limit
        if request.archive_bytes > limit:
            raise Refuse(INVALID, f"the working directory is larger than {limit} bytes")
        async with self._uploads:
            try:
                with self.archives.receive(request.archive, limit) as upload:
                    await talk.say(m.SendArchive())
                    async for piece in talk.blob(PIECE_WITHIN_S):
                        upload.take(piece)
                    # Half a gigabyte takes a slow disk longer than the watchdog waits.
                    await asyncio.to_thread(upload.finish)
            except TimeoutError as problem:
                text = f"the working directory stopped arriving for {PIECE_WITHIN_S:g} s"
                raise Refuse(FAILED, f"{text}; nothing was queued") from problem
            except UsageError as problem:
                raise Refuse(INVALID, str(problem)) from problem
            except OSError as problem:
                if problem.filename is None and problem.errno is None:
                    raise
                text = f"the working directory cannot be stored: {problem.strerror}"
                raise Refuse(FAILED, f"{text}; nothing was queued") from problem


def jobs_of(request: m.Submission) -> tuple[m.SweepJob, ...]:
    match request:
        case m.SubmitSweep(jobs=jobs):
            return jobs
        case m.Submit(spec=spec):
            return (m.SweepJob(spec, {}),)
