"""step(state, event) → actions. The only place where a job changes.

Reads no clock, socket, file or environment: time is in the event. Every move is checked against
domain/states.MOVES. The order inside one step:

    event ──► the job it speaks of ──► jobs that depended on it ──► whoever can start now
          └─► the jobs of the node      actions, in that order
              it speaks of

Here is what people ask for, what shares report and what time brings; control/starting has the way
from the queue onto nodes, control/standing what nodes do, control/machine the verbs of all three.
An event that comes too late (of an earlier attempt, of a job that is over) changes nothing.
"""

from __future__ import annotations

from typing import Any, assert_never

from msgspec.structs import replace

from wiiiiided.control import events as e
from wiiiiided.control import standing
from wiiiiided.control.actions import AnyAction, DumpStacks, SignalWorkers
from wiiiiided.control.job import (
    Attempt,
    Backoff,
    Held,
    Hung,
    Job,
    Queued,
    Result,
    Running,
    Starting,
    Stopping,
)
from wiiiiided.control.machine import IllegalMove, Machine, fresh_again, spend
from wiiiiided.control.starting import (
    ask_again,
    start_what_fits,
    workers_prepared,
    workers_started,
)
from wiiiiided.control.state import SOON_S, State, deadline
from wiiiiided.domain.states import ENDED, MOVES, ON_NODES

__all__ = ["IllegalMove", "step"]


def step(state: State, event: e.AnyEvent) -> list[AnyAction]:
    """Take an event into the state; what is to be done about it."""
    machine = _Step(state, event)
    machine.take(event)
    if state.crowded:
        start_what_fits(machine)
        state.crowded = False
    return machine.actions


class _Step(Machine):
    """What each event means."""

    def take(self, event: e.AnyEvent) -> None:
        match event:
            case e.JobSubmitted():
                self.submitted(event)
            case e.SweepSubmitted(jobs=jobs):
                self.kind = "JobSubmitted"  # to the table, each is a job like others
                for one in jobs:
                    self.submitted(one)
            case e.SweepCancelRequested(jobs=numbers):
                self.kind = "CancelRequested"
                for number in numbers:
                    found = self.state.jobs.get(number)
                    if found is not None and self.kind in MOVES[found.state]:
                        self.cancel_requested(found, event)
            case e.RequeueRequested():
                self.requeue_requested(event)
            case e.Ticked(at=at, id=number):
                for due in self.state.due(at):
                    if number in (None, due.id):
                        self.came_due(due)
            case e.ClockJumped(by=by):
                self.state.shift_silence(by)
                for job in list(self.state.jobs.values()):
                    self.shift(job, by)
            case e.NodeSeen(node=seen):
                standing.seen(self, seen)
            case e.NodeLeft(node=node, silent_s=silent_s):
                standing.left(self, node, silent_s)
            case e.NodeDrained(node=node, by=person, reason=reason):
                standing.drained(self, node, person, reason)
            case e.NodeResumed(node=node):
                standing.resumed(self, node)
            case e.NodeDeclaredLost(node=node, by=person):
                standing.declared_lost(self, node, person)
            case e.NodeRemoved(node=node, by=person):
                standing.removed(self, node, person)
            case _:
                found = self.state.jobs.get(event.id)
                if found is not None and self.kind in MOVES[found.state]:
                    self.happened(found, event)

    def happened(self, job: Job, event: Any) -> None:
        """An event of a job that is there and for which its state has a line in the table."""
        match event:
            case e.HoldRequested(by=by):
                self.move(job, Held(self.at, by), f"held by {by}")
            case e.ReleaseRequested(by=by):
                self.move(job, Queued(self.at), f"released by {by}")
            case e.CancelRequested():
                self.cancel_requested(job, event)
            case _ if job.attempt is None or job.attempt.number != event.attempt:
                return  # of an earlier attempt
            case e.WorkersPrepared():
                workers_prepared(self, job, job.attempt, event)
            case e.WorkersStarted(node=node):
                workers_started(self, job, job.attempt, node)
            case e.WorkersEnded():
                self.workers_ended(job, job.attempt, event)
            case e.ProgressSampled(rank=rank, silent_s=silent_s):
                self.progress_sampled(job, rank, silent_s)
            case e.StepsCompared(apart=apart):
                self.steps_compared(job, job.attempt, apart)
            case e.StacksDumped(node=node):
                self.stacks_dumped(job, job.attempt, node)
            case _:
                assert_never(event)

    # ---- what people ask for

    def submitted(self, event: e.JobSubmitted) -> None:
        by = event.owner.user
        job = Job(
            id=event.id,
            spec=event.spec,
            owner=event.owner,
            archive=event.archive,
            submitted_at=self.at,
            phase=Held(self.at, by) if event.hold else Queued(self.at),
            waits_for=event.waits_for,
            sweep=event.sweep,
            setting=event.setting,
        )
        self.check("new", job.phase)
        self.state.put(job)
        self.tell(job, f"submitted by {by}" + (", held" if event.hold else ""))

    def cancel_requested(self, job: Job, event: e.CancelRequested | e.SweepCancelRequested) -> None:
        reason = f"cancelled by {event.by}"
        if job.attempt is None or job.state in ("held", "queued", "backoff"):
            self.end(job, "cancelled", None, reason)
            return
        if job.state != "stopping":
            self.stop(job, "cancel", reason, grace_s=0.0 if event.now else None)
            return
        # It is being stopped already: now for good, and at once when asked to.
        now = event.now or (isinstance(job.phase, Stopping) and job.phase.now)
        self.move(job, Stopping(job.phase.since, "cancel", reason, now=now), reason)
        if event.now:
            self.stop_shares(job, 0.0, reason)

    def requeue_requested(self, event: e.RequeueRequested) -> None:
        job = self.state.jobs.get(event.id, event.ended)
        if job is None or self.kind not in MOVES[job.state]:
            return
        reason = f"requeued by {event.by}"
        job = replace(job, requeued_at=self.at)
        if job.state == "backoff" or job.state in ENDED:
            fresh = replace(fresh_again(job), waits_for=event.waits_for)
            self.move(fresh, Queued(self.at), reason, was=job.state)
        else:
            self.stop(job, "requeue", reason)

    # ---- what nodes report

    def workers_ended(self, job: Job, attempt: Attempt, event: e.WorkersEnded) -> None:
        if event.node not in attempt.live:
            return
        if event.ended_at is not None:
            self.ended_at = min(self.at, max(attempt.placed_at, event.ended_at))
        ran_s = self.ended_at - job.phase.since if isinstance(job.phase, Running) else 0.0
        early = event.idle and ran_s < SOON_S and job.state in ("starting", "running")
        result = Result(
            *(event.code, event.reason, event.lost),
            *(event.failed_at, event.error, early),
        )
        self.share_ended(job, attempt, event.node, result)

    def progress_sampled(self, job: Job, rank: int, silent_s: float) -> None:
        limit_s = job.spec.policy.hang_timeout_s
        if limit_s is None or silent_s < limit_s or job.attempt is None:
            return
        reason = f"rank {rank} made no progress for {silent_s:.0f} s (hang_timeout {limit_s:g} s)"
        self.move(spend(job, self.at), Hung(self.at, reason), f"hangs: {reason}")
        for node in job.attempt.live:
            self.actions.append(DumpStacks(job.id, job.attempt.number, node))

    def steps_compared(self, job: Job, attempt: Attempt, apart: str) -> None:
        text = apart or "all ranks are at the same step again"
        if attempt.apart != apart:
            self.move(replace(job, attempt=replace(attempt, apart=apart)), job.phase, text)

    def stacks_dumped(self, job: Job, attempt: Attempt, node: str) -> None:
        assert isinstance(job.phase, Hung)
        phase = replace(job.phase, dumped=tuple({*job.phase.dumped, node}))
        if set(attempt.live) - set(phase.dumped):
            self.move(job, phase)
        else:
            self.stop(job, "hang", phase.reason)

    # ---- what time brings

    def came_due(self, job: Job) -> None:
        if job.state in ON_NODES:
            standing.silent_shares_due(self, job)
            found = self.state.jobs.get(job.id)
            if found is None:
                return
            job = found
        if (when := deadline(job)) is not None and when <= self.at:
            self.phase_due(job)

    def phase_due(self, job: Job) -> None:
        match job.phase:
            case Starting():
                ask_again(self, job, job.phase)
            case Running(warned=False) if job.spec.policy.warn_before_s > 0:
                self.warn(job, job.phase)
            case Running():
                limit_s = job.spec.policy.max_time_s
                self.stop(job, "max-time", f"it ran longer than max_time ({limit_s:g} s)")
            case Hung(reason=reason):
                self.stop(job, "hang", reason)
            case Backoff():
                self.move(job, Queued(self.at), "queued again")
            case _:
                raise IllegalMove(f"job {job.id} is {job.state} and has no deadline")

    def shift(self, job: Job, by: float) -> None:
        """Move the times that deadlines are counted from."""
        match job.phase:
            case Starting(since=since, asked_at=asked_at):
                asked_at = max(0.0, asked_at + by) if asked_at else 0.0
                phase = replace(job.phase, since=since + by, asked_at=asked_at)
                self.state.put(replace(job, phase=phase))
            case Running() | Hung():
                self.state.put(replace(job, phase=replace(job.phase, since=job.phase.since + by)))
            case Backoff(since=since, until=until):
                self.state.put(
                    replace(job, phase=replace(job.phase, since=since + by, until=until + by))
                )
            case _:
                pass

    def warn(self, job: Job, phase: Running) -> None:
        policy = job.spec.policy
        assert policy.max_time_s is not None
        left_s = max(0.0, phase.since + policy.max_time_s - job.spent_s - self.at)
        self.move(
            job,
            replace(phase, warned=True),
            f"max_time ends it in {left_s:.0f} s; ranks that catch {policy.warn_signal} get it now",
        )
        assert job.attempt is not None
        for node in job.attempt.live:
            signal = SignalWorkers(job.id, job.attempt.number, node, policy.warn_signal)
            self.actions.append(signal)
