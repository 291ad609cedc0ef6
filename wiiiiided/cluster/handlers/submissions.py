"""Submitting: specs that are checked again, an archive that is asked for if it is not here yet.

A job is a sweep of one, but for what is told: checked, counted and stored the same way, all its
jobs in one transaction.

A command that lost its connection does not know whether its job was queued. It has put a nonce, a
random word, into its request, asks whether that one was stored (FindSubmission), and if not says
the same again: in the store the nonce is there with its job, or neither is, and never twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Owner, Saved
from wiiiiided.cluster.control.placement import NeverRuns, expected_nodes, plan
from wiiiiided.cluster.control.start_estimate import LOOKS
from wiiiiided.cluster.handlers.jobs import JobRequests
from wiiiiided.cluster.handlers.resumption import Resumption
from wiiiiided.cluster.handlers.uploads import Uploads
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.exit_codes import INVALID, NEVER, NO_SUCH
from wiiiiided.domain.limits import problems_of
from wiiiiided.domain.plan import PROBE, START
from wiiiiided.domain.spec import JobSpec
from wiiiiided.domain.sweep import problems_of_sweep
from wiiiiided.metrics.kept_plan import start_length

SUBMIT_LOOKS = LOOKS // 5  # for an estimate: a thousand submits in a row must not wait for it
SECRET_BYTES = 1 << 18
NONCE_CHARS = 64


class Submissions:
    """New jobs."""

    def __init__(
        self,
        jobs: JobRequests,
        archives: Archives,
        settings: Callable[[], Settings],
        resumption: Resumption,
    ) -> None:
        self.jobs = jobs
        self.resumption = resumption
        self.archives = archives
        self.uploads = Uploads(archives, settings, jobs.controller.store.unneeded_archives)

    async def submit(self, connection: RpcConnection, request: m.Submission) -> None:
        caller = connection.caller
        if found := self.known(caller, request.nonce):
            await connection.say(found)
            return
        self.check(caller, request)
        await self._check_fit(request)
        resumes = await self.resumption.of(caller, request)
        with self.archives.pinned(request.archive):
            if not self.archives.has(request.archive):
                owner = self.owner(caller)
                needs = self.jobs.quota.archives_of(owner)
                await self.uploads.receive(connection, request, owner, needs)
            # An upload takes its time: the others may have moved, and this one may be here twice.
            if not (found := self.known(caller, request.nonce)):
                self.check(caller, request)
                found = self._store(caller, request, resumes)
        await connection.say(found)

    def known(self, caller: Caller, nonce: str) -> m.Submitted | m.Swept | None:
        """The answer to a request that was stored already; None: it was not."""
        owner = self.owner(caller)
        found = (
            self.jobs.controller.store.submitted(owner.node, owner.uid, nonce) if nonce else None
        )
        return None if found is None else self._answer(*found)

    def find(self, caller: Caller, request: m.FindSubmission) -> m.Submitted | m.Swept:
        """Whether it was queued, and as which job."""
        found = self.known(caller, request.nonce)
        if found is None:
            raise Refuse(NO_SUCH, "no job was queued by that request")
        return found

    def owner(self, caller: Caller) -> Owner:
        return Owner(caller.node or self.jobs.own, caller.uid, caller.user)

    def _answer(self, first: int, swept: int) -> m.Submitted | m.Swept:
        """About a job, or about a sweep of so many."""
        jobs = [self.jobs.controller.job(number) for number in (first, first + max(swept, 1) - 1)]
        found = self.jobs.views([job for job in jobs if job is not None], SUBMIT_LOOKS)
        why = found[0].why if jobs[0] is not None else "it is over, and no longer kept"
        starts = found[-1].starts if found else ""
        if swept:
            return m.Swept(first, tuple(range(first, first + swept)), why, starts)
        return m.Submitted(first, why, starts)

    def _store(
        self, caller: Caller, request: m.Submission, resumes: Saved | None
    ) -> m.Submitted | m.Swept:
        controller = self.jobs.controller
        self.jobs.catch_up()
        first, at = controller.store.next_id(), controller.clock()
        owner = self.owner(caller)
        sweep = first if isinstance(request, m.SubmitSweep) else 0
        waits_for = {
            after: self.jobs.dependencies(after)
            for after in {job.spec.policy.after for job in jobs_of(request)}
        }
        jobs = tuple(
            e.JobSubmitted(
                *(at, number, self._with_start(job.spec), owner, request.archive),
                waits_for=waits_for[job.spec.policy.after],
                hold=request.hold,
                sweep=sweep,
                setting=job.setting,
                nonce=request.nonce if number == first else "",
                resumes=resumes,
            )
            for number, job in enumerate(jobs_of(request), first)
        )
        self.jobs.ask(e.SweepSubmitted(at, sweep, jobs) if sweep else jobs[0], request.secrets)
        return self._answer(first, len(jobs) if sweep else 0)

    def _with_start(self, spec: JobSpec) -> JobSpec:
        """Add to the spec what plans found for `every="auto"` to begin with, unless the job says it
        itself."""
        machines = expected_nodes(spec, self.jobs.controller.state.counted())
        if machines == 1 or START in spec.run.env or PROBE in spec.run.env:
            return spec
        plans = self.jobs.controller.store.plans.of(spec.name)
        found = [(start_length(one, machines, spec.network.gradients), one) for one in plans]
        told = ",".join(f"{length}@{one.shape}" for length, one in found if length)
        if not told:
            return spec
        return replace(spec, run=replace(spec.run, env={**spec.run.env, START: told}))

    def check(self, caller: Caller, request: m.Submission) -> None:
        """A client has checked the file; what a hostile one sends is checked again here."""
        jobs = jobs_of(request)
        problems = dict.fromkeys(text for job in jobs for text in problems_of(job.spec))
        swept: list[Mapping[str, str]] = []
        if isinstance(request, m.SubmitSweep):
            swept = [job.setting for job in request.jobs]
            problems |= dict.fromkeys(problems_of_sweep(swept))
        extra = set(request.secrets) - {name for job in jobs for name in job.spec.run.pass_env}
        if extra:
            problems[f"secrets that run.pass_env does not name: {sorted(extra)}"] = None
        if sum(map(len, request.secrets.values())) > SECRET_BYTES:
            problems[f"secrets of more than {SECRET_BYTES} bytes"] = None
        if len(request.nonce) > NONCE_CHARS:
            problems[f"a nonce of more than {NONCE_CHARS} characters"] = None
        if problems:
            raise Refuse(INVALID, "; ".join(problems))
        self.jobs.quota.check(self.owner(caller), caller.admin, [job.spec for job in jobs], swept)
        self.archives.path(request.archive)
        for after in {job.spec.policy.after for job in jobs}:
            self.jobs.dependencies(after)

    async def _check_fit(self, request: m.Submission) -> None:
        """Check each need once, whatever the number of jobs that have it; between two checks other
        requests are let in."""
        for wanted in {job.spec.resources: job.spec for job in jobs_of(request)}.values():
            try:
                plan(wanted, list(self.jobs.controller.state.nodes.values()))
            except NeverRuns as never:
                raise Refuse(NEVER, str(never)) from never
            await asyncio.sleep(0)


def jobs_of(request: m.Submission) -> tuple[m.SweepJob, ...]:
    match request:
        case m.SubmitSweep(jobs=jobs):
            return jobs
        case m.Submit(spec=spec):
            return (m.SweepJob(spec, {}),)
