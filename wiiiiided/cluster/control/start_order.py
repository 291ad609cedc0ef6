"""Which queued jobs start, and on which nodes: the one loop of the scheduler and of its forecast.

    heads     of jobs that ask for the same, the first         the earliest of them is next
              ├─ fits the open nodes ─► yielded, and started by the caller
              └─ must wait ─► keeps every node it could use, closed to those behind it

So no job overtakes one that waits for the same nodes for good; there is backfill only on nodes that
the first in line could never use, and no preemption: a job that runs is never stopped for another.
A job keeps no node while others that it needs are not heard of: that may last for days.

`control/scheduler` walks through the queue as it is, `control/start_estimate` through the queue as
it will be, so an estimate cannot be of another order than the starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Protocol

from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.control.placement import place, wanted_nodes
from wiiiiided.cluster.control.state import QueueKey, State
from wiiiiided.domain.node import Node
from wiiiiided.domain.rank_layout import Layout
from wiiiiided.domain.spec import Resources


class QueueView(Protocol):
    """The queue and the nodes' free cores at one time, now or later."""

    def heads(self, waiting: AbstractSet[Resources]) -> list[tuple[QueueKey, Resources]]:
        """Give the first job of each kind, but of those that wait already."""

    def fitting(self, job: Job) -> list[Node]:
        """Give the nodes that could ever take an allocation of this job."""

    def free(self, node: str) -> int:
        """Count the cores of a node that no job has."""

    def open(self, nodes: AbstractSet[str]) -> set[str]:
        """Give those of these nodes that have a free core."""


def starts(state: State, queue: QueueView, open_nodes: set[str]) -> Iterator[tuple[Job, Layout]]:
    """Yield each job that fits the open nodes, in queue order. The caller starts it, so that it has
    left the queue, before it asks for the next."""
    waiting: set[Resources] = set()  # what no job can have now
    while open_nodes:
        heads = queue.heads(waiting)
        if not heads:
            return
        (_, number), wanted = min(heads, key=lambda head: head[0])
        job = state.jobs[number]
        fit = queue.fitting(job)
        free = {n.name: queue.free(n.name) if n.name in open_nodes else -1 for n in fit}
        layout = place(job.spec, fit, free)
        if layout is not None:
            yield job, layout
            open_nodes = queue.open(open_nodes)
            continue
        waiting.add(wanted)
        heard = [node.name for node in fit if node.name not in state.absent]
        if len(heard) >= wanted_nodes(job.spec, fit)[0]:  # else freeing them would not help
            open_nodes = open_nodes.difference(heard)
