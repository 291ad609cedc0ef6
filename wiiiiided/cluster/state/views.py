"""Jobs and nodes as clients see them, made from what the control plane holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from wiiiiided.cluster.control.job import Attempt, Ended, Hung, Job, Running, Stopping
from wiiiiided.cluster.control.node_texts import node_why
from wiiiiided.cluster.control.placement import NeverRuns, plan
from wiiiiided.cluster.control.state import State
from wiiiiided.cluster.control.transitions import error_of
from wiiiiided.cluster.control.why import why
from wiiiiided.cluster.peering.messages import AllocationView
from wiiiiided.cluster.rpc.messages import JobView, NodeView, RankView
from wiiiiided.domain.states import ENDED, ON_NODES
from wiiiiided.domain.sweep import sweep_id


def view(state: State, job: Job, now: float) -> JobView:
    """One job as ps, wait and top show it."""
    attempt = job.attempt
    number = attempt.number if attempt is not None else 0
    ahead = number == 0 or job.state in ("held", "queued", "backoff")  # one is still to begin
    ended = job.phase if isinstance(job.phase, Ended) else None
    return JobView(
        id=job.id,
        name=job.name,
        state=job.state,
        owner=_owner(state, job),
        priority=job.spec.policy.priority,
        submitted_at=job.submitted_at,
        started_at=attempt.placed_at if attempt is not None else None,
        ended_at=ended.since if ended is not None else None,
        attempt=number,
        attempts=number + int(ahead) + job.spec.policy.restart.max - job.restarts,
        nodes=attempt.nodes if attempt is not None else (),
        workers=_workers(state, job),
        code=ended.code if ended is not None else None,
        why=why(state, job, now),
        error=_error(job),
        sweep=sweep_id(job.sweep),
        setting=job.setting,
        apart=attempt.apart if attempt is not None else "",
    )


def _error(job: Job) -> str:
    """The error of the latest attempt, of a job that failed, or is about to start again."""
    if job.attempt is None or job.state not in ("failed", "backoff"):
        return ""
    return error_of(job.attempt)


def on_one_node(job: Job, state: str, why: str) -> JobView:
    """A job as a node sees it that was given an allocation, and knows no queue."""
    attempt = job.attempt
    assert attempt is not None
    return JobView(
        id=job.id,
        name=job.name,
        state=state,
        owner=f"{job.owner.user}@{job.owner.node}",
        priority=job.spec.policy.priority,
        submitted_at=job.submitted_at,
        started_at=attempt.placed_at,
        ended_at=None,
        attempt=attempt.number,
        attempts=attempt.number + job.spec.policy.restart.max - job.restarts,
        nodes=attempt.nodes,
        workers=attempt.layout.world_size,
        code=None,
        why=why,
        sweep=sweep_id(job.sweep),
        setting=job.setting,
    )


def unrecorded(seen: JobView, job: Job, ahead: Job | None, problem: str) -> JobView:
    """A job's news is not on the disk yet: it is not shown as what it was before, nor
    as over while a restart of the daemon might not know that."""
    if ahead is None:
        return seen
    if ahead.state in ENDED or (job.state in ON_NODES and ahead.state not in ON_NODES):
        said = f"ended ({getattr(ahead.phase, 'reason', '') or ahead.state})"
    elif isinstance(ahead.phase, Stopping):
        said = f"is being stopped: {ahead.phase.reason}"
    else:
        return seen
    return replace(seen, state="stopping", why=f"{said}, not yet recorded: {problem}")


def _owner(state: State, job: Job) -> str:
    """Name the owner, where there are several machines with the machine: a user of another may not
    change the job."""
    return f"{job.owner.user}@{job.owner.node}" if len(state.nodes) > 1 else job.owner.user


def _workers(state: State, job: Job) -> int:
    if job.attempt is not None:
        return job.attempt.layout.world_size
    try:
        return plan(job.spec, list(state.nodes.values())).world_size
    except NeverRuns:
        return 0


def node_view(state: State, name: str, now: float, coordinator: str) -> NodeView:
    """A machine as `nodes` shows it; how long its certificate is good the caller knows."""
    jobs = state.on(name)
    drain = state.drained.get(name)
    stands: tuple[Literal["ok", "idle", "drained", "lost"], float] = ("idle", 0.0)
    if name in state.absent:
        stands = ("lost", state.absent[name])
    elif drain is not None:
        stands = ("drained", drain.at)
    elif jobs:
        stands = ("ok", min(job.attempt.placed_at for job in jobs if job.attempt is not None))
    return NodeView(
        node=state.nodes[name],
        state=stands[0],
        why=node_why(state, name, now),
        coordinator=name == coordinator,
        jobs=tuple(job.id for job in jobs),
        since=stands[1],
    )


def list_order(job: Job) -> tuple[bool, int, int]:
    """Jobs on nodes first, then the queue in its order."""
    return (job.attempt is None or job.state in ("queued", "held", "backoff"), *job.queue_key)


def ranks(job: Job, told: Mapping[str, AllocationView]) -> tuple[RankView, ...]:
    """The ranks of the latest attempt, each as its own node tells it. Of a node that tells nothing,
    what the control plane knows."""
    if job.attempt is None:
        return ()
    return tuple(
        _rank(job.attempt, allocation.node, rank, told.get(allocation.node))
        for allocation in job.attempt.layout.allocations
        for rank in allocation.ranks
    )


def _rank(attempt: Attempt, node: str, rank: int, told: AllocationView | None) -> RankView:
    pid = told.pids.get(rank) if told is not None else None
    code = told.codes.get(rank) if told is not None else None
    # Its shim may not have spoken yet to a daemon that has just started: then there is no pid.
    runs = bool(pid) if told is not None and told.pids else node in attempt.up
    if code is not None or node in attempt.results:
        return RankView(rank, node, pid, "ended", code)
    return RankView(rank, node, pid, "running" if runs else "starting", code)


def spec_for_people(job: Job) -> dict[str, Any]:
    """The spec as JSON has it; secrets are never part of one."""
    found: dict[str, Any] = msgspec.to_builtins(job.spec)
    return found


def summary(state: State) -> str:
    """One line on what the daemon does, for systemctl status."""
    counts = count_states(state)
    if not counts:
        return "idle, no jobs"
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def count_states(state: State) -> dict[str, int]:
    """How many jobs are in each state, those that are over left out."""
    counts: dict[str, int] = {}
    for job in state.jobs.values():
        counts[job.state] = counts.get(job.state, 0) + 1
    return dict(sorted(counts.items()))


def goes_on(state: State) -> str:
    """The jobs that run on when the daemon stops; empty when none do."""
    live = [job for job in state.jobs.values() if isinstance(job.phase, Running | Hung | Stopping)]
    if not live:
        return ""
    names = ", ".join(f"job {job.id} ({job.name})" for job in live[:10])
    more = f" and {len(live) - 10} more" if len(live) > 10 else ""
    return f"{names}{more} {'goes' if len(live) == 1 else 'go'} on running without the daemon"
