"""The one sentence about a job: why it waits, what it does, how it ended.

`why`, `ps`, `show`, `top` and the log all print this and nothing else.
"""

from __future__ import annotations

from typing import assert_never

from wiiiiided.cluster.control.job import (
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
from wiiiiided.cluster.control.node_texts import SHOWN, drained_by, jobs_on, missing
from wiiiiided.cluster.control.placement import cores_on, fitting, refusals, wanted_nodes
from wiiiiided.cluster.control.state import State
from wiiiiided.domain.node import Node
from wiiiiided.text import count, format_duration_words, listed


def why(state: State, job: Job, now: float) -> str:
    """The sentence, without its subject: `waits for …`, `runs on …`."""
    match job.phase:
        case Held(by=by):
            return f"is held by {by}; wiiiiide release {job.id} lets it run"
        case Queued():
            return _waits(state, job, now)
        case Starting():
            return _with(missing(state, job, now), f"{_starts(job)}{_try(job)}")
        case Running():
            said = _with(missing(state, job, now), f"runs on {_places(job)}{_try(job)}")
            return _with(job.attempt.apart if job.attempt is not None else "", said)
        case Hung(reason=reason):
            said = f"hangs: {reason}; the stacks of its ranks are being written"
            return _with(missing(state, job, now), said)
        case Stopping(reason=reason):
            return _with(missing(state, job, now), f"is being stopped: {reason}")
        case Backoff(until=until, reason=reason):
            return f"starts again in {max(0.0, until - now):.0f} s{_try(job, 1)}, since {reason}"
        case Ended(reason=reason):
            return reason
        case _:
            assert_never(job.phase)


def _with(more: str, said: str) -> str:
    return f"{said}; {more}" if more else said


def _starts(job: Job) -> str:
    attempt = job.attempt
    if attempt is None:
        return f"is being started on {_places(job)}"
    # None is unheard where the last ones have ended or are lost, until the job is stopped for it.
    waiting = listed(attempt.unheard) if attempt.unheard else ""
    verb = "is" if len(attempt.unheard) == 1 else "are"
    if not attempt.ordered:
        late = f": {waiting} {verb} not ready yet" if waiting else ""
        return f"is being prepared on {_places(job)}{late}"
    asked = isinstance(job.phase, Starting) and job.phase.asked_at
    late = f": {waiting} {verb} not up yet, asked again" if asked and waiting else ""
    return f"is being started on {_places(job)}{late}"


def _waits(state: State, job: Job, now: float) -> str:
    if job.waits_for:
        shown = [
            f"job {other} ({state.jobs[other].state})" if other in state.jobs else f"job {other}"
            for other in job.waits_for[:SHOWN]
        ]
        more = len(job.waits_for) - SHOWN
        return "waits for " + " and ".join([*shown, *([f"{more} more"] if more > 0 else [])])
    members = list(state.nodes.values())
    fit = fitting(job.spec, members)
    least, most = job.spec.resources.nodes
    if most is None:
        least, _ = wanted_nodes(job.spec, fitting(job.spec, state.counted()))
    if len(fit) < least:
        refused = refusals(job.spec, members)
        return f"waits for {count(least, 'node')} that fit: {refused or 'there are too few'}"
    return _shortage(state, job, fit, least, now)


def _shortage(state: State, job: Job, fit: list[Node], least: int, now: float) -> str:
    """Enough nodes would do; which of them it cannot have now, and why."""
    here = [node for node in fit if state.takes(node.name)]
    busy = [node.name for node in here if state.free(node.name) < cores_on(job.spec, node)]
    ahead = state.ahead(job)
    behind = f"; {count(ahead, 'job')} ahead of it" if ahead else ""
    free = len(here) - len(busy)
    if free >= least:
        return f"waits for its turn{behind}"
    if len(state.nodes) == 1 and busy:
        return f"waits for {busy[0]}, which runs {jobs_on(state, *busy)}{behind}"
    away = [node.name for node in fit if not state.takes(node.name)]
    obstacles = [f"{name} {_obstacle(state, name, now)}" for name in away[:SHOWN]]
    if len(away) > SHOWN:
        obstacles.append(f"{len(away) - SHOWN} more are away")
    if busy:
        names = ", ".join(busy[:SHOWN]) + (" …" if len(busy) > SHOWN else "")
        obstacles.append(f"{names} {'runs' if len(busy) == 1 else 'run'} {jobs_on(state, *busy)}")
    return (
        f"waits for {count(least, 'node')}; {free} of {len(fit)} {'is' if free == 1 else 'are'} "
        f"free ({'; '.join(obstacles)}){behind}"
    )


def _obstacle(state: State, name: str, now: float) -> str:
    """Why a node that fits gets no new allocation."""
    if name in state.lost:
        return "was declared lost"
    if name in state.absent:
        return f"has not been heard of for {format_duration_words(now - state.absent[name])}"
    return f"is {drained_by(state, name)}"


def _places(job: Job) -> str:
    return ", ".join(job.attempt.nodes) if job.attempt is not None else "no node"


def _try(job: Job, more: int = 0) -> str:
    number = (job.attempt.number if job.attempt is not None else 0) + more
    return f" (attempt {number})" if number > 1 else ""
