"""step(state, event) → actions. The only place where a job changes.

Reads no clock, socket, file or environment: time is in the event. Every move is checked against
domain/states.MOVES. The order inside one step:

    event ──► the job it speaks of ──► jobs that depended on it ──► whoever can start now
                                   actions, in that order

An event that comes too late (of an earlier attempt, of a job that is over) changes nothing.
"""

from __future__ import annotations

from typing import Any, assert_never

from msgspec.structs import replace

from wiiiiided.control import events as e
from wiiiiided.control.actions import (
    AnyAction,
    DumpStacks,
    RunNotify,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
    Tell,
)
from wiiiiided.control.job import (
    Attempt,
    Backoff,
    Ended,
    Held,
    Hung,
    Job,
    Phase,
    Queued,
    Result,
    Running,
    Starting,
    StopCause,
    Stopping,
)
from wiiiiided.control.place import fitting, place, wanted_nodes
from wiiiiided.control.state import MAX_BACKOFF_S, State
from wiiiiided.domain.spec import Resources, RestartCause
from wiiiiided.domain.states import ENDED, MOVES
from wiiiiided.errors import WiiiiideError

TIMED_OUT = 124  # as timeout(1) has it


class IllegalMove(WiiiiideError):
    """A defect of this module: a move that the table does not have."""


def step(state: State, event: e.AnyEvent) -> list[AnyAction]:
    """Take an event into the state; what is to be done about it."""
    machine = _Step(state, event)
    machine.take(event)
    if state.crowded:
        machine.start_what_fits()
        state.crowded = False
    return machine.actions


class _Step:
    """One event's way through the machine."""

    def __init__(self, state: State, event: e.AnyEvent) -> None:
        self.state = state
        self.at = event.at
        self.ended_at = event.at  # of the workers whose end is told; it may be long ago
        self.kind = type(event).__name__
        self.actions: list[AnyAction] = []

    def take(self, event: e.AnyEvent) -> None:
        match event:
            case e.JobSubmitted():
                self.submitted(event)
            case e.NodeSeen(node=node):
                if self.state.nodes.get(node.name) != node:
                    self.state.put_node(node)
            case e.Ticked(at=at):
                for due in self.state.due(at):
                    self.came_due(due)
            case e.ClockJumped(by=by):
                for job in list(self.state.jobs.values()):
                    self.shift(job, by)
            case e.RequeueRequested():
                self.requeue_requested(event)
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
            case e.WorkersStarted(node=node):
                self.workers_started(job, job.attempt, node)
            case e.WorkersEnded():
                self.workers_ended(job, job.attempt, event)
            case e.ProgressSampled(rank=rank, silent_s=silent_s):
                self.progress_sampled(job, rank, silent_s)
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
        )
        self.check("new", job.phase)
        self.state.put(job)
        self.tell(job, f"submitted by {by}" + (", held" if event.hold else ""))

    def cancel_requested(self, job: Job, event: e.CancelRequested) -> None:
        reason = f"cancelled by {event.by}"
        if job.attempt is None or job.state in ("held", "queued", "backoff"):
            self.end(job, "cancelled", None, reason)
            return
        if job.state != "stopping":
            self.stop(job, "cancel", reason, grace_s=0.0 if event.now else None)
            return
        # It is being stopped already: now for good, and at once when asked to.
        self.move(job, Stopping(job.phase.since, "cancel", reason), reason)
        if event.now:
            self.stop_shares(job, 0.0, reason)

    def requeue_requested(self, event: e.RequeueRequested) -> None:
        job = self.state.jobs.get(event.id, event.ended)
        if job is None or self.kind not in MOVES[job.state]:
            return
        reason = f"requeued by {event.by}"
        if job.state == "backoff" or job.state in ENDED:
            fresh = replace(job, restarts=0, spent_s=0.0, waits_for=event.waits_for)
            self.move(fresh, Queued(self.at), reason, was=job.state)
        else:
            self.stop(job, "requeue", reason)

    # ---- what nodes report

    def workers_started(self, job: Job, attempt: Attempt, node: str) -> None:
        if node in attempt.up or node not in attempt.live:
            return
        attempt = replace(attempt, up=(*attempt.up, node))
        job = replace(job, attempt=attempt)
        if job.state == "stopping" or set(attempt.nodes) - set(attempt.up):
            self.state.put(job)
            return
        self.move(job, Running(self.at), f"runs on {', '.join(attempt.nodes)}")
        self.notify(job, "running", None, "")

    def workers_ended(self, job: Job, attempt: Attempt, event: e.WorkersEnded) -> None:
        if event.node not in attempt.live:
            return
        if event.ended_at is not None:
            self.ended_at = min(self.at, max(attempt.placed_at, event.ended_at))
        result = Result(event.code, event.reason, event.lost)
        attempt = replace(attempt, results={**attempt.results, event.node: result})
        job = replace(job, attempt=attempt)
        if not attempt.live:
            self.all_ended(job, attempt)
        elif (event.code or event.lost) and job.state != "stopping":
            self.stop(job, "share-failed", f"on {event.node} {event.reason}")
        else:
            self.state.put(job)

    def progress_sampled(self, job: Job, rank: int, silent_s: float) -> None:
        limit_s = job.spec.policy.hang_timeout_s
        if limit_s is None or silent_s < limit_s or job.attempt is None:
            return
        reason = f"rank {rank} made no progress for {silent_s:.0f} s (hang_timeout {limit_s:g} s)"
        self.move(spend(job, self.at), Hung(self.at, reason), f"hangs: {reason}")
        for node in job.attempt.live:
            self.actions.append(DumpStacks(job.id, job.attempt.number, node))

    def stacks_dumped(self, job: Job, attempt: Attempt, node: str) -> None:
        assert isinstance(job.phase, Hung)
        phase = replace(job.phase, dumped=tuple({*job.phase.dumped, node}))
        if set(attempt.live) - set(phase.dumped):
            self.move(job, phase)
        else:
            self.stop(job, "hang", phase.reason)

    # ---- what time brings

    def came_due(self, job: Job) -> None:
        match job.phase:
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

    # ---- consequences

    def stop(self, job: Job, cause: StopCause, reason: str, grace_s: float | None = None) -> None:
        """End its workers; what becomes of the job is decided when the last of them is gone."""
        self.move(spend(job, self.at), Stopping(self.at, cause, reason), f"stopping: {reason}")
        self.stop_shares(job, job.spec.policy.grace_s if grace_s is None else grace_s, reason)

    def stop_shares(self, job: Job, grace_s: float, reason: str) -> None:
        assert job.attempt is not None
        for node in job.attempt.live:
            stop = StopWorkers(job.id, job.attempt.number, node, grace_s, reason)
            self.actions.append(stop)

    def all_ended(self, job: Job, attempt: Attempt) -> None:
        """The last share is over: done, failed, cancelled, or once more."""
        job = spend(job, self.ended_at)
        bad = [r for r in attempt.results.values() if r.code or r.lost]
        # A share that was stopped because of another is not the one to name.
        result = min(bad, key=lambda r: (not r.lost, r.code >= 128), default=None)
        cause: RestartCause = "node-lost" if result is not None and result.lost else "failure"
        code = result.code if result is not None else 0
        match job.phase:
            case Stopping(cause="cancel", reason=reason):
                self.end(job, "cancelled", code or None, reason)
            case Stopping(cause="requeue", reason=reason):
                fresh = replace(job, restarts=0, spent_s=0.0)
                self.move(fresh, Queued(self.at), reason, was="stopping")
            case Stopping(cause="max-time", reason=reason):
                self.end(job, "failed", TIMED_OUT, reason)
            case Stopping(cause="hang", reason=reason):
                self.restart_or_fail(job, "hang", code or 1, reason)
            case Stopping(cause="share-failed", reason=reason):
                self.restart_or_fail(job, cause, code or 1, reason)
            case _ if result is None:
                self.end(job, "done", 0, "done")
            case _:
                self.restart_or_fail(job, cause, code or 1, result.reason)

    def restart_or_fail(self, job: Job, cause: RestartCause, code: int, reason: str) -> None:
        policy = job.spec.policy.restart
        if cause not in policy.on or job.restarts >= policy.max:
            spent = f" (after {job.restarts + 1} attempts)" if job.restarts else ""
            self.end(job, "failed", code, reason + spent)
            return
        wait_s = min(policy.backoff_s * 2**job.restarts, MAX_BACKOFF_S)
        job = replace(job, restarts=job.restarts + 1)
        text = f"{reason}; restart {job.restarts} of {policy.max} in {wait_s:g} s"
        self.move(job, Backoff(self.at, self.at + wait_s, reason), text)
        self.notify(job, "restarting", code, reason)

    def end(self, job: Job, outcome: Any, code: int | None, reason: str) -> None:
        text = reason if outcome in reason else f"{outcome}: {reason}"
        self.move(job, Ended(self.ended_at, outcome, code, reason), text)
        self.notify(job, outcome, code, reason)
        self.tell_dependents(job, outcome)

    def tell_dependents(self, ended: Job, outcome: str) -> None:
        """Those that come after it may go, or never can. Deep chains end in a loop, not in a
        recursion."""
        waiting = [(ended.id, outcome)]
        while waiting:
            number, outcome = waiting.pop()
            for other in sorted(self.state.dependents.get(number, ())):
                job = self.state.jobs[other]
                job = replace(job, waits_for=tuple(n for n in job.waits_for if n != number))
                if outcome == "done":
                    self.check(job.state, job.phase, "DependencyEnded")
                    self.state.put(job)
                    continue
                reason = f"job {number}, which it was to run after, is {outcome}"
                job = replace(job, waits_for=())
                phase = Ended(self.at, "cancelled", None, reason)
                self.move(job, phase, f"cancelled: {reason}", kind="DependencyEnded")
                self.notify(job, "cancelled", None, reason)
                waiting.append((other, "cancelled"))

    def start_what_fits(self) -> None:
        """In queue order. A job that must wait keeps every node it could use from those behind
        it, so nobody overtakes it for good; nodes it could never use stay open to them."""
        state = self.state
        open_nodes = {name for name in state.nodes if state.free(name) > 0}
        waiting: set[Resources] = set()  # what cannot be had now, whoever asks
        while open_nodes:
            heads = [(keys[0], wanted) for wanted, keys in state.ready.items()]
            heads = [head for head in heads if head[1] not in waiting]
            if not heads:
                return
            (_, number), wanted = min(heads, key=lambda head: head[0])
            job = state.jobs[number]
            fit = fitting(job.spec, state.nodes.values())
            free = {n.name: state.free(n.name) if n.name in open_nodes else -1 for n in fit}
            layout = place(job.spec, fit, free)
            if layout is not None:
                self.start(job, Attempt(_next(job), layout, self.at))  # and it has left the queue
                open_nodes = {name for name in open_nodes if state.free(name) > 0}
                continue
            waiting.add(wanted)
            if len(fit) >= wanted_nodes(job.spec, fit)[0]:  # else freeing them would not help
                open_nodes.difference_update(node.name for node in fit)

    def start(self, job: Job, attempt: Attempt) -> None:
        job = replace(job, attempt=attempt)
        where = ", ".join(attempt.nodes)
        text = f"starting on {where}, attempt {attempt.number}"
        self.move(job, Starting(self.at), text, was="queued", kind="Placed")
        for node in attempt.nodes:
            self.actions.append(StartWorkers(job.id, attempt.number, node, attempt.layout))

    # ---- the table

    def move(
        self, job: Job, phase: Phase, text: str = "", *, was: str = "", kind: str = ""
    ) -> None:
        """Give a job its next phase, if the table has that move."""
        self.check(was or job.state, phase, kind)
        job = replace(job, phase=phase)
        self.state.put(job)
        if text:
            self.tell(job, text)

    def check(self, was: str, phase: Phase, kind: str = "") -> None:
        kind = kind or self.kind
        legal = MOVES[was].get(kind, ())  # type: ignore[index]
        if phase.state not in legal:
            raise IllegalMove(f"{was} --{kind}--> {phase.state} is not in the table: {legal}")

    def tell(self, job: Job, text: str) -> None:
        self.actions.append(Tell(job.id, self.at, text))

    def notify(self, job: Job, state: str, code: int | None, reason: str) -> None:
        notify = job.spec.notify
        if notify.command and state in notify.on:
            self.actions.append(RunNotify(job.id, state, code, reason))


def spend(job: Job, at: float) -> Job:
    """Count the running time of the attempt that ends."""
    if not isinstance(job.phase, Running | Hung):
        return job
    return replace(job, spent_s=job.spent_s + max(0.0, at - job.phase.since))


def _next(job: Job) -> int:
    return job.attempt.number + 1 if job.attempt is not None else 1
