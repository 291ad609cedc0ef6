"""From the queue onto nodes: gang scheduling, a job starts on all of its nodes or on none.

    placed ─┬─ one node ──────────────────────────────────────────────► StartWorkers
            └─ several, or one that needs another's checkpoints:
               PrepareWorkers to each ─► WorkersPrepared of each, and they agree ─► to all
                          └─ one cannot, or is not heard of ─► StopWorkers to all, nothing ran

Which jobs start now, and which must wait, is decided in control/start_order.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.actions import PrepareWorkers, StartWorkers
from wiiiiided.cluster.control.job import Attempt, Job, Running, Starting, Versions
from wiiiiided.cluster.control.placement import fitting
from wiiiiided.cluster.control.start_order import starts
from wiiiiided.cluster.control.state import QueueKey, State
from wiiiiided.cluster.control.transitions import Transition
from wiiiiided.cluster.control.version_check import disagreement
from wiiiiided.domain.node import Node
from wiiiiided.domain.rank_layout import Layout
from wiiiiided.domain.spec import Resources


class _CurrentQueue:
    """The queue and the nodes as they are (start_order.QueueView)."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._counted = state.counted()

    def heads(self) -> list[tuple[QueueKey, Resources]]:
        return [(keys[0], wanted) for wanted, keys in self._state.ready.items()]

    def head(self, wanted: Resources) -> QueueKey | None:
        keys = self._state.ready.get(wanted)
        return keys[0] if keys else None

    def fitting(self, job: Job) -> list[Node]:
        return fitting(job.spec, self._counted)

    def free(self, node: str) -> int:
        return self._state.free(node)

    def open(self, nodes: AbstractSet[str]) -> set[str]:
        return {name for name in nodes if self._state.free(name) > 0}


def start_what_fits(transition: Transition) -> None:
    """Start every queued job for which there is room, in queue order."""
    state = transition.state
    queue = _CurrentQueue(state)
    open_nodes = queue.open({name for name in state.nodes if state.takes(name)})
    for job, layout in starts(state, queue, open_nodes):
        start(transition, job, _attempt(transition, job, layout))


def _attempt(transition: Transition, job: Job, layout: Layout) -> Attempt:
    nodes = tuple(allocation.node for allocation in layout.allocations)
    saved, sources = job.saved, checkpoints_from(job, nodes, transition.state.nodes)
    return Attempt(
        *(_next(job), layout, transition.at),
        ordered=len(nodes) == 1 and not sources,
        checkpoints_from=sources,
        saved=saved,
    )


def checkpoints_from(job: Job, nodes: tuple[str, ...], members: Collection[str]) -> tuple[str, ...]:
    """The nodes that may have checkpoints for these: rank 0's node of the last attempt first, those
    of earlier attempts last. Empty: these have all there are.

    Files that a job file names are given to all. Files of wide.parallel are each host's own, and
    `run.resume` brings them from host to host: a node that is not here any more is asked, since
    one that is here again need not have saved anything.
    """
    saved = job.saved
    if saved is None:
        return ()
    holders = (*saved.nodes, *(node for node in saved.earlier if node in members))
    if saved.job != job.id:
        return holders
    if not job.spec.output.checkpoints:
        return () if set(holders) <= set(nodes) else holders
    return () if nodes == holders and len(nodes) == 1 else holders


def start(transition: Transition, job: Job, attempt: Attempt) -> None:
    """A job that needs preparing is prepared on all its nodes first; else it is told to start."""
    job = replace(job, attempt=attempt)
    text = f"starting on {', '.join(attempt.nodes)}, attempt {attempt.number}"
    transition.move(job, Starting(transition.at), text, was="queued", kind="Placed")
    action = StartWorkers if attempt.ordered else PrepareWorkers
    transition.actions += [action(job.id, attempt.number, n, attempt.layout) for n in attempt.nodes]


def workers_prepared(
    transition: Transition, job: Job, attempt: Attempt, event: e.WorkersPrepared
) -> None:
    """Count one more node that is ready; with the last of them all start, or the job fails at
    once."""
    if attempt.ordered or event.node not in attempt.live:
        return
    has = Versions(event.python, event.torch, event.wiiiiided)
    # One that was ready before this coordinator restarted says so again when it is heard.
    ready = {n: v for n, v in attempt.prepared.items() if n not in transition.state.absent}
    attempt = replace(attempt, prepared={**ready, event.node: has})
    job = replace(job, attempt=attempt)
    if event.note:
        transition.tell(job, f"on {event.node} {event.note}")
    if set(attempt.nodes) - set(attempt.prepared):
        transition.move(job, job.phase)
        return
    in_order = {node: attempt.prepared[node] for node in attempt.nodes}
    if reason := disagreement(in_order, job.spec.network.backend):
        transition.stop(job, "versions", reason)
        return
    job = replace(job, attempt=replace(attempt, ordered=True))
    transition.move(job, job.phase, "all nodes are ready and start")
    number, layout = attempt.number, attempt.layout
    transition.actions += [StartWorkers(job.id, number, node, layout) for node in attempt.nodes]


def workers_started(transition: Transition, job: Job, attempt: Attempt, node: str) -> None:
    """Count one more node whose ranks run; with the last of them the job runs."""
    if not attempt.ordered or node in attempt.up or node not in attempt.live:
        return
    attempt = replace(attempt, up=(*attempt.up, node))
    job = replace(job, attempt=attempt)
    if job.state == "stopping" or set(attempt.nodes) - set(attempt.up):
        transition.state.put(job)
        return
    transition.move(job, Running(transition.at), f"runs on {', '.join(attempt.nodes)}")
    transition.notify(job, "running", None, "")


def ask_again(transition: Transition, job: Job, phase: Starting) -> None:
    """Send the order again where no word of an allocation came for too long: its node may have lost
    it. A second one changes nothing there, and the node reports again what it knows. A node that is
    away is told everything when it is back."""
    attempt = job.attempt
    assert attempt is not None
    transition.move(job, replace(phase, asked_at=transition.at))
    action = StartWorkers if attempt.ordered else PrepareWorkers
    transition.actions += [
        action(job.id, attempt.number, node, attempt.layout)
        for node in attempt.unheard
        if node not in transition.state.absent
    ]


def _next(job: Job) -> int:
    return job.attempt.number + 1 if job.attempt is not None else 1
