"""Sentences about nodes: the state of one, and why something cannot be done to it. Pure.

A refusal is a sentence, or empty: then the event may be made. A refusal comes before an
event; the control plane takes an event that came too late as what it is, and changes nothing.
"""

from __future__ import annotations

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.control.state import State
from wiiiiided.text import count, format_duration_words

SHOWN = 3  # jobs, or nodes, that a sentence names


def silence(state: State, name: str, now: float) -> str:
    """`b has not been heard of for 40 s`."""
    return f"{name} has not been heard of for {format_duration_words(now - state.absent[name])}"


def jobs_on(state: State, *names: str) -> str:
    """`job 3`, `jobs 3, 4, 5 …`."""
    ids = sorted({number for name in names for number in state.claims.get(name, ())})
    shown = ", ".join(map(str, ids[:SHOWN])) + (" …" if len(ids) > SHOWN else "")
    return f"job {shown}" if len(ids) == 1 else f"jobs {shown}"


def node_why(state: State, name: str, now: float) -> str:
    """One sentence on the state of a node, without its subject."""
    busy = jobs_on(state, name) if state.on(name) else ""
    drained = drained_by(state, name) if name in state.drained else ""
    if name in state.absent:
        said = f"not heard of for {format_duration_words(now - state.absent[name])}"
        if name in state.lost:
            said += ", declared lost"
        elif busy:
            said += (
                f"; {busy} may go on there (wiiiiide nodes lost {name}, if that machine is off "
                "for good)"
            )
        return f"{said}; {drained}" if drained else said
    if drained:
        return f"{drained}; {busy} still there" if busy else drained
    return f"runs {busy}" if busy else "nothing runs on it"


def drained_by(state: State, name: str) -> str:
    """`drained by root: fan broken`."""
    drain = state.drained[name]
    return f"drained by {drain.by}" + (f": {drain.reason}" if drain.reason else "")


def told(event: e.AnyEvent) -> str:
    """A node's event, for the log; empty for an event that is not about one."""
    match event:
        case e.NodeSeen(node=node):
            return f"{node.name} is heard" + (f" ({node.endpoint})" if node.endpoint else "")
        case e.NodeLeft(node=name):
            return f"{name} is not heard of any more; its jobs go on"
        case e.NodeDrained(node=name, by=by, reason=reason):
            return f"{name} is drained by {by}" + (f": {reason}" if reason else "")
        case e.NodeResumed(node=name, by=by):
            return f"{name} is resumed by {by}"
        case e.NodeDeclaredLost(node=name, by=by):
            return f"{name} is declared lost by {by}"
        case e.NodeRemoved(node=name, by=by):
            return f"{name} is removed by {by}"
        case _:
            return ""


# ---- refusals


def unknown(state: State, name: str) -> str:
    return "" if name in state.nodes else f"there is no node {name}"


def refusal_to_lose(state: State, name: str) -> str:
    """A node that is heard is asked to stop its jobs, not declared lost."""
    if name not in state.nodes and state.on(name):
        return ""  # it was removed, but jobs still count on it
    if not unknown(state, name) and name not in state.absent:
        return (
            f"{name} is heard: its jobs are known. wiiiiide cancel ends a job, wiiiiide "
            f"drain {name} keeps new ones away"
        )
    return unknown(state, name)


def refusal_to_remove(state: State, name: str, coordinator: str, force: bool = False) -> str:
    """The coordinator is never removed, and a node with jobs by force only."""
    if name == coordinator:
        return f"{name} is the coordinator, it keeps the queue of all: it cannot be removed"
    if (jobs := state.on(name)) and not force:
        verb, them = ("is", "it") if len(jobs) == 1 else ("are", "them")
        does = "counts its jobs as ended" if name in state.absent else f"ends {them} there"
        return (
            f"{jobs_on(state, name)} {verb} on {name}: wait or cancel first, or use --force, "
            f"which {does}"
        )
    return unknown(state, name)


def refusal_to_drain(state: State, name: str) -> str:
    return unknown(state, name)


def refusal_to_resume(state: State, name: str) -> str:
    """A node that is not drained is a refusal too, since nothing would change."""
    if name in state.nodes and name not in state.drained:
        return f"{name} is not drained: nothing changed"
    return unknown(state, name)


# ---- of a job


def missing(state: State, job: Job, now: float) -> str:
    """A warning when nodes on which the job may be running are not heard of."""
    live = job.attempt.live if job.attempt is not None else ()
    silent = [node for node in live if node in state.absent]
    if not silent:
        return ""
    first = silent[0]
    others = len(silent) - 1
    who = silence(state, first, now)
    if others:
        who += f" (nor {count(others, 'other')} of its nodes)"
    if job.attempt is not None and not job.attempt.ordered:
        return who
    ends_at = state.counts_as_ended_at(job, first)
    until = "until it is"
    if ends_at is not None:
        until += f", or for another {format_duration_words(ends_at - now)} (policy.stop_alone)"
    advice = f"wiiiiide nodes lost {first}, if that machine is off for good"
    return f"{who}, and its part counts as running {until} ({advice})"
