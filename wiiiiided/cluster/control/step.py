"""step(state, event) → actions. The only place where a job changes.

Reads no clock, socket, file or environment: time is in the event. Every move is checked against
domain/states.MOVES. The order inside one step:

    event ──► the job it speaks of ──► jobs that depended on it ──► jobs that can start now
          └─► the jobs of the node      actions, in that order
              it speaks of

This file has what people ask for, what nodes report of their allocations and what time brings.
control/scheduler has the way from the queue onto nodes, control/membership nodes that come and go,
control/transitions the verbs of all three.
An event that comes too late (of an earlier attempt, of a job that is over) changes nothing.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control import membership
from wiiiiided.cluster.control.actions import AnyAction, DumpStacks, SignalWorkers
from wiiiiided.cluster.control.job import (
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
from wiiiiided.cluster.control.scheduler import (
    ask_again,
    start_what_fits,
    workers_prepared,
    workers_started,
)
from wiiiiided.cluster.control.state import SOON_S, State, deadline
from wiiiiided.cluster.control.transitions import IllegalMove, Transition, fresh_again, spend
from wiiiiided.domain.states import ENDED, MOVES, ON_NODES

__all__ = ["IllegalMove", "step"]


def step(state: State, event: e.AnyEvent) -> list[AnyAction]:
    """Take an event into the state; the actions that follow from it."""
    transition = Transition(state, event)
    _take(transition, event)
    if state.crowded:
        start_what_fits(transition)
        state.crowded = False
    return transition.actions


def _take(transition: Transition, event: e.AnyEvent) -> None:
    """The meaning of each event."""
    match event:
        case e.JobSubmitted():
            _submitted(transition, event)
        case e.SweepSubmitted(jobs=jobs):
            transition.kind = "JobSubmitted"  # to the table, each is a job like others
            for one in jobs:
                _submitted(transition, one)
        case e.SweepCancelRequested(jobs=numbers):
            transition.kind = "CancelRequested"
            for number in numbers:
                found = transition.state.jobs.get(number)
                if found is not None and transition.kind in MOVES[found.state]:
                    _cancel_requested(transition, found, event)
        case e.RequeueRequested():
            _requeue_requested(transition, event)
        case e.Ticked(at=at, id=number):
            for due in transition.state.due(at):
                if number in (None, due.id):
                    _came_due(transition, due)
        case e.ClockJumped(by=by):
            transition.state.shift_silence(by)
            for job in list(transition.state.jobs.values()):
                _shift(transition, job, by)
        case e.NodeSeen(node=seen):
            membership.seen(transition, seen)
        case e.NodeLeft(node=node, silent_s=silent_s):
            membership.left(transition, node, silent_s)
        case e.NodeDrained(node=node, by=person, reason=reason):
            membership.drained(transition, node, person, reason)
        case e.NodeResumed(node=node):
            membership.resumed(transition, node)
        case e.NodeDeclaredLost(node=node, by=person):
            membership.declared_lost(transition, node, person)
        case e.NodeRemoved(node=node, by=person):
            membership.removed(transition, node, person)
        case _:
            found = transition.state.jobs.get(event.id)
            if found is not None and transition.kind in MOVES[found.state]:
                _happened(transition, found, event)


def _happened(transition: Transition, job: Job, event: e.JobEvent) -> None:
    """An event of a job that is known and whose state has a line for it in the table."""
    match event:
        case e.HoldRequested(by=by):
            transition.move(job, Held(transition.at, by), f"held by {by}")
        case e.ReleaseRequested(by=by):
            transition.move(job, Queued(transition.at), f"released by {by}")
        case e.CancelRequested():
            _cancel_requested(transition, job, event)
        case _ if job.attempt is None or job.attempt.number != event.attempt:
            return  # of an earlier attempt
        case e.WorkersPrepared():
            workers_prepared(transition, job, job.attempt, event)
        case e.WorkersStarted(node=node):
            workers_started(transition, job, job.attempt, node)
        case e.WorkersEnded():
            _workers_ended(transition, job, job.attempt, event)
        case e.ProgressSampled(rank=rank, silent_s=silent_s):
            _progress_sampled(transition, job, rank, silent_s)
        case e.StepsCompared(apart=apart):
            _steps_compared(transition, job, job.attempt, apart)
        case e.StacksDumped(node=node):
            _stacks_dumped(transition, job, job.attempt, node)
        case _:
            assert_never(event)


# ---- what people ask for


def _submitted(transition: Transition, event: e.JobSubmitted) -> None:
    by = event.owner.user
    job = Job(
        id=event.id,
        spec=event.spec,
        owner=event.owner,
        archive=event.archive,
        submitted_at=transition.at,
        phase=Held(transition.at, by) if event.hold else Queued(transition.at),
        waits_for=event.waits_for,
        sweep=event.sweep,
        setting=event.setting,
        resumes=event.resumes,
    )
    transition.check("new", job.phase)
    transition.state.put(job)
    goes_on = f", goes on from job {event.resumes.job}" if event.resumes is not None else ""
    transition.tell(job, f"submitted by {by}{goes_on}" + (", held" if event.hold else ""))


def _cancel_requested(
    transition: Transition, job: Job, event: e.CancelRequested | e.SweepCancelRequested
) -> None:
    reason = f"cancelled by {event.by}"
    if job.attempt is None or job.state in ("held", "queued", "backoff"):
        transition.end(job, "cancelled", None, reason)
        return
    if job.state != "stopping":
        transition.stop(job, "cancel", reason, grace_s=0.0 if event.now else None)
        return
    # It is being stopped already: now for good, and at once when asked to.
    now = event.now or (isinstance(job.phase, Stopping) and job.phase.now)
    transition.move(job, Stopping(job.phase.since, "cancel", reason, now=now), reason)
    if event.now:
        transition.stop_allocations(job, 0.0, reason)


def _requeue_requested(transition: Transition, event: e.RequeueRequested) -> None:
    job = transition.state.jobs.get(event.id, event.ended)
    if job is None or transition.kind not in MOVES[job.state]:
        return
    reason = f"requeued by {event.by}"
    job = replace(job, requeued_at=transition.at)
    if job.state == "backoff" or job.state in ENDED:
        fresh = replace(fresh_again(job), waits_for=event.waits_for)
        transition.move(fresh, Queued(transition.at), reason, was=job.state)
    else:
        transition.stop(job, "requeue", reason)


# ---- what nodes report


def _workers_ended(
    transition: Transition, job: Job, attempt: Attempt, event: e.WorkersEnded
) -> None:
    if event.node not in attempt.live:
        return
    if event.ended_at is not None:
        transition.ended_at = min(transition.at, max(attempt.placed_at, event.ended_at))
    ran_s = transition.ended_at - job.phase.since if isinstance(job.phase, Running) else 0.0
    early = event.idle and ran_s < SOON_S and job.state in ("starting", "running")
    result = Result(
        *(event.code, event.reason, event.lost),
        *(event.failed_at, event.error, early),
    )
    transition.allocation_ended(job, attempt, event.node, result)


def _progress_sampled(transition: Transition, job: Job, rank: int, silent_s: float) -> None:
    limit_s = job.spec.policy.hang_timeout_s
    if limit_s is None or silent_s < limit_s or job.attempt is None:
        return
    reason = f"rank {rank} made no progress for {silent_s:.0f} s (hang_timeout {limit_s:g} s)"
    transition.move(spend(job, transition.at), Hung(transition.at, reason), f"hangs: {reason}")
    for node in job.attempt.live:
        transition.actions.append(DumpStacks(job.id, job.attempt.number, node))


def _steps_compared(transition: Transition, job: Job, attempt: Attempt, apart: str) -> None:
    text = apart or "all ranks are at the same step again"
    if attempt.apart != apart:
        transition.move(replace(job, attempt=replace(attempt, apart=apart)), job.phase, text)


def _stacks_dumped(transition: Transition, job: Job, attempt: Attempt, node: str) -> None:
    assert isinstance(job.phase, Hung)
    phase = replace(job.phase, dumped=tuple({*job.phase.dumped, node}))
    if set(attempt.live) - set(phase.dumped):
        transition.move(job, phase)
    else:
        transition.stop(job, "hang", phase.reason)


# ---- what time brings


def _came_due(transition: Transition, job: Job) -> None:
    if job.state in ON_NODES:
        membership.silent_allocations_due(transition, job)
        found = transition.state.jobs.get(job.id)
        if found is None:
            return
        job = found
    if (when := deadline(job)) is not None and when <= transition.at:
        _phase_due(transition, job)


def _phase_due(transition: Transition, job: Job) -> None:
    match job.phase:
        case Starting():
            ask_again(transition, job, job.phase)
        case Running(warned=False) if job.spec.policy.warn_before_s > 0:
            _warn(transition, job, job.phase)
        case Running():
            limit_s = job.spec.policy.max_time_s
            transition.stop(job, "max-time", f"it ran longer than max_time ({limit_s:g} s)")
        case Hung(reason=reason):
            transition.stop(job, "hang", reason)
        case Backoff():
            transition.move(job, Queued(transition.at), "queued again")
        case _:
            raise IllegalMove(f"job {job.id} is {job.state} and has no deadline")


def _shift(transition: Transition, job: Job, by: float) -> None:
    """Move the times that deadlines are counted from."""
    match job.phase:
        case Starting(since=since, asked_at=asked_at):
            asked_at = max(0.0, asked_at + by) if asked_at else 0.0
            phase = replace(job.phase, since=since + by, asked_at=asked_at)
            transition.state.put(replace(job, phase=phase))
        case Running() | Hung():
            transition.state.put(replace(job, phase=replace(job.phase, since=job.phase.since + by)))
        case Backoff(since=since, until=until):
            transition.state.put(
                replace(job, phase=replace(job.phase, since=since + by, until=until + by))
            )
        case _:
            pass


def _warn(transition: Transition, job: Job, phase: Running) -> None:
    policy = job.spec.policy
    assert policy.max_time_s is not None
    left_s = max(0.0, phase.since + policy.max_time_s - job.spent_s - transition.at)
    transition.move(
        job,
        replace(phase, warned=True),
        f"max_time ends it in {left_s:.0f} s; ranks that catch {policy.warn_signal} get it now",
    )
    assert job.attempt is not None
    for node in job.attempt.live:
        signal = SignalWorkers(job.id, job.attempt.number, node, policy.warn_signal)
        transition.actions.append(signal)
