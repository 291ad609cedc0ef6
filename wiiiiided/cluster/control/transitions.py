"""One event's way through the control plane: the verbs that `step` and its helpers are written in.

    move      a job gets its next phase, if the table (domain/states.MOVES) has that move
    stop      its workers are to end; what becomes of it is decided when the last allocation is over
    allocation_ended ─► all_ended ─► end │ restart_or_fail │ queued again
    end       for good; jobs that come after it may go, or never can

Nothing else changes a job. Actions are collected in the order in which they are to be done.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.actions import AnyAction, RunNotify, StopWorkers, Tell
from wiiiiided.cluster.control.job import (
    Attempt,
    Backoff,
    Ended,
    Hung,
    Job,
    Outcome,
    Phase,
    Queued,
    Result,
    Running,
    StopCause,
    Stopping,
)
from wiiiiided.cluster.control.state import MAX_BACKOFF_S, State
from wiiiiided.domain.exit_codes import TIMED_OUT
from wiiiiided.domain.spec import RestartCause
from wiiiiided.domain.states import MOVES
from wiiiiided.errors import WiiiiideError
from wiiiiided.text import listed

SAME_END: Final = (
    "not started again: it ended the same way twice, within seconds and before its first operation"
)


class IllegalMove(WiiiiideError):
    """A defect of the control plane: a move that the table does not have."""


class Transition:
    """The state, the event's time and kind, and the actions it has caused."""

    def __init__(self, state: State, event: e.AnyEvent) -> None:
        self.state = state
        self.at = event.at
        self.ended_at = event.at  # of the workers whose end is told; it may be long ago
        self.kind = event.tag
        self.actions: list[AnyAction] = []

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
        """Have the job's notify command run: on the owner's node, if that is heard, else where the
        queue is."""
        notify = job.spec.notify
        if notify.command and state in notify.on:
            node = job.owner.node
            heard = node in self.state.nodes and node not in self.state.absent
            self.actions.append(RunNotify(job.id, state, code, reason, node if heard else ""))

    # ---- ending

    def stop(self, job: Job, cause: StopCause, reason: str, grace_s: float | None = None) -> None:
        """End its workers; what becomes of the job is decided when the last of them is gone."""
        assert job.attempt is not None
        silent: tuple[str, ...] = ()
        if cause == "share-failed":
            silent = tuple(node for node in job.attempt.live if node in self.state.absent)
            reason = blaming(silent, reason)
        phase = Stopping(self.at, cause, reason, silent, now=grace_s == 0.0)
        self.move(spend(job, self.at), phase, f"stopping: {reason}")
        grace_s = job.spec.policy.grace_s if grace_s is None else grace_s
        self.stop_allocations(job, grace_s, reason, ranks_end_first=cause == "share-failed")

    def stop_allocations(
        self, job: Job, grace_s: float, reason: str, ranks_end_first: bool = False
    ) -> None:
        assert job.attempt is not None
        for node in job.attempt.live:
            stop = StopWorkers(job.id, job.attempt.number, node, grace_s, reason, ranks_end_first)
            self.actions.append(stop)

    def allocation_ended(self, job: Job, attempt: Attempt, node: str, result: Result) -> None:
        """Take the end of one allocation: its node said that no process is left, or an operator
        vouches for it."""
        kind, self.kind = self.kind, "WorkersEnded"  # to the table an end is an end
        attempt = replace(attempt, results={**attempt.results, node: result})
        job = replace(job, attempt=attempt)
        bad = result.code or result.lost or not attempt.ordered
        if not attempt.live:
            self.all_ended(job, attempt)
        elif bad and job.state != "stopping":
            self.stop(job, "share-failed", about(node, result))
        else:
            self.state.put(job)
        self.kind = kind

    def all_ended(self, job: Job, attempt: Attempt) -> None:
        """The last allocation is over: done, failed, cancelled, or once more."""
        job = spend(job, self.ended_at)
        node, result = worst(attempt)
        code = result.code if result is not None else 0
        causes: tuple[RestartCause, ...] = ("failure",)
        if result is not None and result.lost:
            causes = ("node-lost",)
        match job.phase:
            case Stopping(cause="cancel", reason=reason):
                self.end(job, "cancelled", code or None, reason)
            case Stopping(cause="requeue", reason=reason):
                self.move(fresh_again(job), Queued(self.at), reason, was="stopping")
            case Stopping(cause="node-left", reason=reason):
                self.move(job, Queued(self.at), f"queued again: {reason}")
            case Stopping(cause="versions", reason=reason):
                self.end(job, "failed", code or 1, reason)
            case Stopping(cause="max-time", reason=reason):
                self.end(job, "failed", TIMED_OUT, reason)
            case Stopping(cause="hang", reason=reason):
                self.restart_or_fail(job, ("hang",), code or 1, reason)
            case Stopping(cause="share-failed", reason=reason, silent=silent):
                # A rank that lost a peer fails by itself: the silent node may be the only cause.
                causes = (*causes, "node-lost") if silent else causes
                said = about(node, result) if result is not None and result.lost else ""
                more = said or (unheard(silent) if silent else "")
                reason = reason if more else first_failure(attempt) or reason
                reason = f"{reason}; {more}" if more and more not in reason else reason
                self.restart_or_fail(job, causes, code or 1, reason)
            case _ if result is None:
                self.end(job, "done", 0, "done")
            case _:
                several = len(attempt.layout.allocations) > 1
                reason = about(node, result) if several else with_error(result)
                self.restart_or_fail(job, causes, code or 1, reason)

    def restart_or_fail(
        self, job: Job, causes: tuple[RestartCause, ...], code: int, reason: str
    ) -> None:
        """Start the job again after its exponential backoff, or let it fail, by its policy; a job
        that ended for two causes starts again for either. One that ends before it has done anything
        is tried once more, at once: the same end again is its own."""
        policy = job.spec.policy.restart
        may = bool(set(causes) & set(policy.on)) and job.restarts < policy.max
        how = how_stillborn(job.attempt) if causes == ("failure",) else ""
        if not may or (how and how == job.stillborn):
            spent = f" (after {job.restarts + 1} attempts)" if job.restarts else ""
            spent = f"; {SAME_END}" if may else spent
            self.end(job, "failed", code, reason + spent)
            return
        wait_s = 0.0 if how else min(policy.backoff_s * 2**job.restarts, MAX_BACKOFF_S)
        job = replace(job, restarts=job.restarts + 1, stillborn=how)
        when = f"in {wait_s:g} s" if wait_s else "at once"
        text = f"{reason}; restart {job.restarts} of {policy.max} {when}"
        self.move(job, Backoff(self.at, self.at + wait_s, reason), text)
        self.notify(job, "restarting", code, reason)

    def end(self, job: Job, outcome: Outcome, code: int | None, reason: str) -> None:
        text = reason if outcome in reason else f"{outcome}: {reason}"
        self.move(job, Ended(self.ended_at, outcome, code, reason), text)
        self.notify(job, outcome, code, reason)
        self.tell_dependents(job, outcome)

    def tell_dependents(self, ended: Job, outcome: str) -> None:
        """Jobs that come after it may go, or never can. A loop, as chains may be deep."""
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


def about(node: str, result: Result) -> str:
    """How an allocation ended, with its node."""
    said = with_error(result)
    named = result.lost and said.startswith(f"{node} ")
    return said if named else f"on {node} {said}"


def with_error(result: Result) -> str:
    """How an allocation ended, and what the failing rank raised."""
    return f"{result.reason}: {result.error}" if result.error else result.reason


def unheard(silent: tuple[str, ...]) -> str:
    return f"{listed(silent)} {'was' if len(silent) == 1 else 'were'} not heard of"


def blaming(silent: tuple[str, ...], reason: str) -> str:
    """Why an allocation failed while nodes were silent: those are the cause, not the node whose
    ranks noticed it and ended."""
    return f"{unheard(silent)}, and {reason}" if silent else reason


def worst(attempt: Attempt) -> tuple[str, Result | None]:
    """The allocation to name: one that was lost, else the first that failed by itself, never one
    that was stopped because of another."""

    def key(found: tuple[str, Result]) -> tuple[bool, bool, float, bool]:
        result = found[1]
        at = result.failed_at
        return not result.lost, at is None, at or 0.0, result.code >= 128

    bad = [(node, r) for node, r in attempt.results.items() if r.code or r.lost]
    return min(bad, key=key, default=("", None))


def first_failure(attempt: Attempt) -> str:
    """The allocation whose rank failed first; other ranks end because of it, and their reports may
    come before its own. Empty where none failed by itself, or the moment is not known."""
    failed = [(r.failed_at, n) for n, r in attempt.results.items() if r.failed_at is not None]
    node = min(failed)[1] if failed else ""
    return about(node, attempt.results[node]) if node else ""


def error_of(attempt: Attempt) -> str:
    """The exception that the attempt ended with, one line; empty where none is known."""
    _, result = worst(attempt)
    return result.error if result is not None else ""


def how_stillborn(attempt: Attempt | None) -> str:
    """How an attempt ended that had done nothing yet, to be compared with the next; else empty.
    Which rank reports first is chance; a signal comes from elsewhere."""
    _, result = worst(attempt) if attempt is not None else ("", None)
    if result is None or not result.early or result.code >= 128:
        return ""
    return f"{result.code} {result.error or _without_rank(result.reason)}"


def _without_rank(reason: str) -> str:
    """`rank 3 ended …` is the same as `rank 0 ended …`."""
    words = reason.split(" ", 2)
    return words[2] if len(words) == 3 and words[0] == "rank" else reason


def fresh_again(job: Job) -> Job:
    """Forget earlier attempts, as if the job had never been tried: a person wants it to run once
    more."""
    return replace(job, restarts=0, spent_s=0.0, stillborn="")


def spend(job: Job, at: float) -> Job:
    """Count the running time of the attempt that ends."""
    if not isinstance(job.phase, Running | Hung):
        return job
    return replace(job, spent_s=job.spent_s + max(0.0, at - job.phase.since))
