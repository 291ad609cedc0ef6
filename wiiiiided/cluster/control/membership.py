"""The fate of jobs when a node is not heard of, comes back, is drained, lost or removed.

    NodeLeft ─► absent ─┬─ NodeSeen             it goes on as if nothing had been
                        ├─ NodeDeclaredLost     its allocations count as ended
                        ├─ stop_alone is over   so do those of jobs that asked for it
                        └─ else                 they count as running, for ever

An allocation that counts as ended while it runs would let the same job run twice: so silence alone
ends nothing. The one exception is an allocation that was prepared and never told to start: it runs
nowhere yet. policy.stop_alone is a lease, which a job asks for: its shims have ended their ranks
before the job starts elsewhere.
"""

from __future__ import annotations

from msgspec.structs import replace

from wiiiiided.cluster.control.job import Job, Result, Stopping
from wiiiiided.cluster.control.transitions import Transition, blaming
from wiiiiided.domain.exit_codes import TERMINATED
from wiiiiided.domain.node import DrainRecord, Node
from wiiiiided.domain.states import ON_NODES

TOLD_AFTER_S = 10.0  # a silence that is worth a line in a job's story; a restart is not


def seen(transition: Transition, node: Node) -> None:
    state = transition.state
    since = state.absent.get(node.name)
    if since is None and state.nodes.get(node.name) == node:
        return
    state.hear(node)
    if since is None or (silent_s := transition.at - since) < TOLD_AFTER_S:
        return
    for job in state.on(node.name):
        state.put(job)
        transition.tell(job, f"{node.name} is heard again, after {silent_s:.0f} s")


def left(transition: Transition, name: str, silent_s: float) -> None:
    state = transition.state
    if name not in state.nodes or name in state.absent:
        return
    state.miss(name, transition.at - silent_s)
    for job in state.on(name):
        assert job.attempt is not None
        if not job.attempt.ordered:
            never_started(transition, job, name)
        elif isinstance(job.phase, Stopping) and job.phase.cause == "share-failed":
            # Peers notice a silent host a moment before the coordinator does.
            phase = replace(job.phase, silent=tuple(sorted({*job.phase.silent, name})))
            if transition.at - silent_s > phase.since:
                transition.move(job, phase)
            else:  # it was silent before the allocation failed: that is why
                phase = replace(phase, reason=blaming((name,), phase.reason))
                transition.move(job, phase, f"stopping: {phase.reason}")


def declared_lost(transition: Transition, name: str, by: str) -> None:
    state = transition.state
    if name in state.nodes and name not in state.absent:
        return  # it was heard again just now: what runs there runs
    jobs = state.on(name)
    if name in state.nodes:
        state.declare_lost(name)
    _end_allocations(transition, jobs, name, f"{name} was declared lost by {by}")


def removed(transition: Transition, name: str, by: str) -> None:
    state = transition.state
    _end_allocations(transition, state.on(name), name, f"{name} was removed by {by}")
    if name in state.nodes:
        state.remove(name)


def drained(transition: Transition, name: str, by: str, reason: str) -> None:
    """Jobs on it go on."""
    if name in transition.state.nodes:
        transition.state.drain(name, DrainRecord(by, reason, transition.at))


def resumed(transition: Transition, name: str) -> None:
    if name in transition.state.drained:
        transition.state.drain(name, None)


def silent_allocations_due(transition: Transition, job: Job) -> None:
    """Allocations of this job on nodes whose silence has lasted long enough to be an end."""
    state = transition.state
    for node in job.attempt.live if job.attempt is not None else ():
        when = state.counts_as_ended_at(job, node)
        if when is not None and when <= transition.at and job.attempt is not None:
            if job.attempt.ordered:
                silent_s = transition.at - state.absent[node]
                reason = f"{node} was not heard of for {silent_s:.0f} s (policy.stop_alone)"
                transition.allocation_ended(
                    job, job.attempt, node, Result(TERMINATED, reason, lost=True)
                )
            else:
                never_started(transition, job, node)
            now = state.jobs.get(job.id)
            if now is None or now.state not in ON_NODES:
                return
            job = now


def never_started(transition: Transition, job: Job, node: str) -> None:
    """An allocation that was not told to start ends with its node's silence; the job is queued
    again, and that is no restart."""
    reason = f"{node} was not heard of before all nodes were ready"
    if job.state != "stopping":
        kind, transition.kind = (
            transition.kind,
            "NodeLeft",
        )  # to the table, whatever event showed it
        transition.stop(job, "node-left", reason)
        transition.kind = kind
        job = transition.state.jobs[job.id]
    assert job.attempt is not None
    transition.allocation_ended(job, job.attempt, node, Result(TERMINATED, reason, lost=True))


def _end_allocations(transition: Transition, jobs: list[Job], node: str, reason: str) -> None:
    for job in jobs:
        assert job.attempt is not None
        if job.attempt.ordered:
            transition.allocation_ended(
                job, job.attempt, node, Result(TERMINATED, reason, lost=True)
            )
        else:
            never_started(transition, job, node)
