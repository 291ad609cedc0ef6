"""A job as clients see it, made from what the control plane holds. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from wiiiiided.control.job import Ended, Hung, Job, Running, Stopping
from wiiiiided.control.place import NeverRuns, plan
from wiiiiided.control.state import State
from wiiiiided.control.why import why
from wiiiiided.wire.messages import JobView, RankView


def view(state: State, job: Job, now: float) -> JobView:
    """One job as ps, wait and top show it."""
    attempt = job.attempt
    number = attempt.number if attempt is not None else 0
    ahead = number == 0 or job.state in ("held", "queued", "backoff")  # one is still to begin
    ended = job.phase if isinstance(job.phase, Ended) else None
    return JobView(
        id=job.id,
        name=job.spec.name,
        state=job.state,
        owner=job.owner.user,
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
    )


def _workers(state: State, job: Job) -> int:
    if job.attempt is not None:
        return job.attempt.layout.world_size
    try:
        return plan(job.spec, list(state.nodes.values())).world_size
    except NeverRuns:
        return 0


def list_order(job: Job) -> tuple[bool, int, int]:
    """What is on nodes first, then the queue in its order."""
    return (job.attempt is None or job.state in ("queued", "held", "backoff"), *job.queue_key)


def ranks(job: Job, told: list[dict[str, Any]], codes: dict[str, int]) -> tuple[RankView, ...]:
    """The ranks of the latest attempt: as its shim tells them, or as its end has them."""
    if job.attempt is None:
        return ()
    pids = {rank.get("rank"): rank for rank in told}
    found = []
    for share in job.attempt.layout.shares:
        for rank in range(share.first_rank, share.first_rank + share.workers):
            said = pids.get(rank, {})
            code = said.get("code", codes.get(str(rank)))
            over = code is not None or share.node in job.attempt.results
            state = "ended" if over else "running" if said.get("pid") else "starting"
            found.append(_rank(rank, share.node, said.get("pid"), state, code))
    return tuple(found)


def _rank(rank: int, node: str, pid: Any, state: Any, code: Any) -> RankView:
    """What a shim said is checked like any other untrusted text."""
    return msgspec.convert(
        {"rank": rank, "node": node, "pid": pid, "state": state, "code": code}, RankView
    )


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
    """What runs on when the daemon stops; empty when nothing does."""
    live = [job for job in state.jobs.values() if isinstance(job.phase, Running | Hung | Stopping)]
    if not live:
        return ""
    names = ", ".join(f"job {job.id} ({job.spec.name})" for job in live[:10])
    more = f" and {len(live) - 10} more" if len(live) > 10 else ""
    return f"{names}{more} {'goes' if len(live) == 1 else 'go'} on running without the daemon"
