"""Requests about jobs as the control plane has them: look, wait, hold, release, requeue, cancel.

Rights: every user who reaches a daemon may look and submit; a job's owner may change it. An owner
is a user of a node: uid 1000 of another machine is another user. Root and the daemon's own user, on
any machine of the cluster, may change everything.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.control.start_estimate import LOOKS, Estimate
from wiiiiided.cluster.handlers.quota import Quota
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.state import views
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.state.store import StoreError
from wiiiiided.domain.exit_codes import FAILED, NEVER, NO_SUCH, NOT_ALLOWED
from wiiiiided.domain.states import ENDED, MOVES
from wiiiiided.domain.sweep import sweep_id

MOST_LISTED = 100_000


class JobRequests:
    """Looks at jobs, and changes them through the Controller. `own` is the name of this node;
    `estimate` says when queued jobs start, at the price of so many looks."""

    def __init__(
        self,
        controller: Controller,
        own: str,
        has_archive: Callable[[str], bool],
        estimate: Callable[[int], Estimate],
        quota: Quota,
    ) -> None:
        self.controller = controller
        self.own = own
        self.has_archive = has_archive
        self.estimate = estimate
        self.quota = quota

    # ---- looking

    def view(self, job: Job) -> m.JobView:
        controller = self.controller
        seen = views.view(controller.state, job, controller.clock())
        return views.unrecorded(seen, job, controller.unrecorded.get(job.id), controller.problem)

    def views(self, jobs: Iterable[Job], looks: int = LOOKS) -> tuple[m.JobView, ...]:
        """View each job, with when it starts: estimated once for all of them, where any waits."""
        jobs = tuple(jobs)
        waits = any(job.state == "queued" for job in jobs)
        estimate = self.estimate(looks) if waits else None
        return tuple(_with_start(self.view(job), job, estimate) for job in jobs)

    def find(self, number: int) -> Job:
        job = self.controller.job(number) if 0 < number < 1 << 62 else None
        if job is None and number in self.controller.store.unreadable:
            text = f"job {number} is over, and this version cannot read what is stored of it"
            raise Refuse(FAILED, text, "install the version that wrote it to see it again")
        if job is None:
            raise Refuse(NO_SUCH, f"there is no job {number}", "wiiiiide ps -a lists them")
        return job

    def sweep(self, number: int) -> builtins.list[Job]:
        """The jobs of a sweep, over or not, by number."""
        found = self.controller.store.sweep(number) if 0 < number < 1 << 62 else []
        if not found:
            text = f"there is no sweep {sweep_id(number) or number}"
            raise Refuse(NO_SUCH, text, "wiiiiide ps -a shows which job belongs to which")
        return [self.controller.state.jobs.get(job.id, job) for job in found]

    def list(self, ended: int) -> m.JobList:
        over = reversed(self.controller.store.ended(min(ended, MOST_LISTED)))
        live = sorted(self.controller.state.jobs.values(), key=views.list_order)
        return m.JobList(self.views((*over, *live)), problem=self.controller.trouble)

    def history(self, limit: int) -> m.JobList:
        over = self.controller.store.ended(min(limit, MOST_LISTED))
        return m.JobList(tuple(self.view(job) for job in over))

    def why(self, number: int) -> m.JobReason:
        job = self.find(number)
        (view,) = self.views([job])
        trouble = self.controller.trouble
        return m.JobReason(job.id, view.state, view.why, view.error, view.starts, trouble)

    def story(self, job: Job) -> tuple[m.StoryLine, ...]:
        lines = self.controller.store.story(job.id)
        return tuple(m.StoryLine(at, text) for at, text in lines)

    # ---- changing

    def change(self, caller: Caller, request: m.Hold | m.Release | m.Requeue) -> m.JobView:
        """hold, release, requeue: refused in a sentence where the table has no such move."""
        self.catch_up()
        job = self.owned(caller, request.id)
        now, by = self.controller.clock(), caller.user
        event: e.AnyEvent
        match request:
            case m.Hold():
                event = e.HoldRequested(now, job.id, by)
            case m.Release():
                event = e.ReleaseRequested(now, job.id, by)
            case m.Requeue():
                over = job.state in ENDED
                if over and job.archive and not self.has_archive(job.archive):
                    text = f"the working directory of job {job.id} is kept no longer"
                    hint = "there was no room for it (limits.archives): submit the job again"
                    raise Refuse(FAILED, text, hint)
                if over:
                    self.quota.check(job.owner, caller.admin, [job.spec], [job.setting])
                ran = job.attempt is not None
                waits_for = self.dependencies(job.spec.policy.after, ran) if over else ()
                event = e.RequeueRequested(now, job.id, by, job if over else None, waits_for)
        if event.tag not in MOVES[job.state]:
            verb = request.tag.lower()
            raise Refuse(FAILED, f"job {job.id} is {job.state}: {verb} changes nothing there")
        self.ask(event)
        return self.view(self.find(job.id))

    def owned(self, caller: Caller, number: int) -> Job:
        """A job that the caller may change."""
        job = self.find(number)
        check_owner(caller, job, self.own)
        return job

    def ask(self, event: e.AnyEvent, secrets: dict[str, str] | None = None) -> None:
        with _stored():
            self.controller.ask(event, secrets)

    def catch_up(self) -> None:
        """Store earlier reports before the state is read for an event: what it waits for may just
        have ended."""
        with _stored():
            self.controller.catch_up()

    def dependencies(self, after: tuple[int, ...], ran: bool = False) -> tuple[int, ...]:
        """The jobs it must wait for. One that is over and was not done is a refusal, and so is one
        that is not kept, unless the job `ran`: that was done by then."""
        waits_for = []
        for number in dict.fromkeys(after):
            if ran and self.controller.job(number) is None:
                continue
            other = self.find(number)
            if other.state not in ENDED:
                waits_for.append(number)
            elif other.state != "done":
                text = f"job {number} is {other.state}: a job after it would never run"
                raise Refuse(NEVER, text, f"wiiiiide requeue {number} runs it again")
        return tuple(waits_for)

    async def cancel(self, connection: RpcConnection, request: m.Cancel) -> None:
        """Answered when the job is really over; on a disk so full that not even that can be stored,
        with the view of a job that has ended and is not yet recorded."""
        job = self.owned(connection.caller, request.id)
        if job.state in ENDED:
            raise Refuse(FAILED, f"job {job.id} is over already: {self.view(job).why}")
        now = self.controller.clock()
        watcher = self.controller.watch(job.id)
        try:
            self.controller.end(e.CancelRequested(now, job.id, connection.caller.user, request.now))
            while not self.controller.is_over(job := self.find(request.id)):
                await watcher.wait()
                watcher.clear()
        finally:
            self.controller.unwatch(request.id, watcher)
        await connection.say(self.view(job))

    async def cancel_sweep(self, connection: RpcConnection, request: m.CancelSweep) -> None:
        """Cancel all jobs in one step and one transaction; the client hears of each when it is
        really over."""
        live = [job.id for job in self.sweep(request.id) if job.state not in ENDED]
        for number in live[:1]:  # all are of one owner
            self.owned(connection.caller, number)
        watchers = {number: self.controller.watch(number) for number in live}
        try:
            now, by = self.controller.clock(), connection.caller.user
            self.controller.end(e.SweepCancelRequested(now, tuple(live), by, request.now))
            for number, watcher in watchers.items():
                while not self.controller.is_over(job := self.find(number)):
                    await watcher.wait()
                    watcher.clear()
                await connection.say(self.view(job))
        finally:
            for number, watcher in watchers.items():
                self.controller.unwatch(number, watcher)
        await connection.say(m.EndOfAnswers())

    async def wait(self, connection: RpcConnection, request: m.Wait) -> None:
        watcher = self.controller.watch(request.id)
        try:
            while True:
                job = self.find(request.id)
                await connection.say(self.view(job))
                if job.state in ENDED:
                    break
                await watcher.wait()
                watcher.clear()
        finally:
            self.controller.unwatch(request.id, watcher)
        await connection.say(m.EndOfAnswers())


def check_owner(caller: Caller, job: Job, own: str, what: str = "change it") -> None:
    """Refuse a caller who may not change a job; `own` is the name of this node."""
    here = caller.node or own
    if caller.admin or (here, caller.uid) == (job.owner.node, job.owner.uid):
        return
    whose, who = f"{job.owner.user}'s", caller.user
    if here != job.owner.node:
        whose, who = f"{whose} on {job.owner.node}", f"{who} on {here}"
    raise Refuse(NOT_ALLOWED, f"job {job.id} is {whose}; {who} may not {what}", "root may")


def _with_start(view: m.JobView, job: Job, estimate: Estimate | None) -> m.JobView:
    if estimate is None or job.state != "queued":
        return view
    start = estimate.of(job)
    return replace(view, starts_at=start.at, starts=start.text)


@contextmanager
def _stored() -> Iterator[None]:
    try:
        yield
    except StoreError as problem:
        raise Refuse(FAILED, f"{problem}; nothing was changed") from problem
