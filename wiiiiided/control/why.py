"""The one sentence about a job: why it waits, what it does, how it ended.

`why`, `ps`, `show`, `top` and the log all print this and nothing else.
"""

from __future__ import annotations

from typing import assert_never

from wiiiiided.control.job import (
    Backoff,
    Ended,
    Held,
    Hung,
    Job,
    Queued,
    Running,
    Starting,
    Stopping,
)
from wiiiiided.control.place import cores_on, count, fitting, unfit, wanted_nodes
from wiiiiided.control.state import State


def why(state: State, job: Job, now: float) -> str:
    """The sentence, without its subject: `waits for …`, `runs on …`."""
    match job.phase:
        case Held(by=by):
            return f"is held by {by}; wiiiiide release {job.id} lets it run"
        case Queued():
            return _waits(state, job)
        case Starting():
            return f"is being started on {_places(job)}{_try(job)}"
        case Running():
            return f"runs on {_places(job)}{_try(job)}"
        case Hung(reason=reason):
            return f"hangs: {reason}; the stacks of its ranks are being written"
        case Stopping(reason=reason):
            return f"is being stopped: {reason}"
        case Backoff(until=until, reason=reason):
            return f"starts again in {max(0.0, until - now):.0f} s{_try(job, 1)}, since {reason}"
        case Ended(reason=reason):
            return reason
        case _:
            assert_never(job.phase)


def _waits(state: State, job: Job) -> str:
    if job.waits_for:
        return "waits for " + " and ".join(
            f"job {other} ({state.jobs[other].state})" if other in state.jobs else f"job {other}"
            for other in job.waits_for
        )
    fit = fitting(job.spec, state.nodes.values())
    least, _ = wanted_nodes(job.spec, fit)
    if len(fit) < least:
        refusals = "; ".join(filter(None, (unfit(job.spec, n) for n in state.nodes.values())))
        return f"waits for {count(least, 'node')} that fit: {refusals or 'there are too few'}"
    busy = [node.name for node in fit if state.free(node.name) < cores_on(job.spec, node)]
    ahead = state.ahead(job)
    behind = f"; {count(ahead, 'job')} ahead of it" if ahead else ""
    if len(fit) - len(busy) >= least:
        return f"waits for its turn{behind}"
    if len(state.nodes) == 1:
        return f"waits for {busy[0]}, which {_runs(state, busy[:1])}{behind}"
    free = len(fit) - len(busy)
    return (
        f"waits for {count(least, 'node')}; {free} of {len(fit)} {'is' if free == 1 else 'are'} "
        f"free ({', '.join(busy)} {'runs' if len(busy) == 1 else 'run'} "
        f"{_jobs(state, busy)}){behind}"
    )


def _runs(state: State, nodes: list[str]) -> str:
    return f"runs {_jobs(state, nodes)}"


def _jobs(state: State, nodes: list[str]) -> str:
    ids = sorted({number for node in nodes for number in state.claims[node]})
    shown = ", ".join(map(str, ids[:3])) + (" …" if len(ids) > 3 else "")
    return f"job {shown}" if len(ids) == 1 else f"jobs {shown}"


def _places(job: Job) -> str:
    return ", ".join(job.attempt.nodes) if job.attempt is not None else "no node"


def _try(job: Job, more: int = 0) -> str:
    number = (job.attempt.number if job.attempt is not None else 0) + more
    return f" (attempt {number})" if number > 1 else ""
