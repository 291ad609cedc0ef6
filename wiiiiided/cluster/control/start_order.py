"""Which queued jobs start, and on which nodes: the one loop of the scheduler and of its forecast.

    heads     of jobs that ask for the same, the first         the earliest of them is next
              ├─ fits the open nodes ─► yielded, and started by the caller; the next that asks for
              │                         the same takes its place
              └─ must wait ─► keeps every node it could use, closed to those behind it; none that
                              asks for the same is looked at

The heads are a heap, so n kinds of jobs cost n looks and not n²: a user's sweep may have as many
kinds as jobs.

So no job overtakes one that waits for the same nodes for good; there is backfill only on nodes that
the first in line could never use, and no preemption: a job that runs is never stopped for another.
A job keeps no node while others that it needs are not heard of: that may last for days.

`control/scheduler` walks through the queue as it is, `control/start_estimate` through the queue as
it will be, so an estimate cannot be of another order than the starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heapreplace
from typing import Protocol

from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.control.placement import place, wanted_nodes
from wiiiiided.cluster.control.state import QueueKey, State
from wiiiiided.domain.node import Node
from wiiiiided.domain.rank_layout import Layout
from wiiiiided.domain.spec import Resources


class QueueView(Protocol):
    """The queue and the nodes' free cores at one time, now or later."""

    def heads(self) -> list[tuple[QueueKey, Resources]]:
        """Give the first job of each kind, in any order."""

    def head(self, wanted: Resources) -> QueueKey | None:
        """Give the first job of a kind."""

    def fitting(self, job: Job) -> list[Node]:
        """Give the nodes that could ever take an allocation of this job."""

    def free(self, node: str) -> int:
        """Count the cores of a node that no job has."""

    def open(self, nodes: AbstractSet[str]) -> set[str]:
        """Give those of these nodes that have a free core."""


def starts(state: State, queue: QueueView, open_nodes: set[str]) -> Iterator[tuple[Job, Layout]]:
    """Yield each job that fits the open nodes, in queue order. The caller starts it, so that it has
    left the queue, before it asks for the next."""
    heads = queue.heads() if open_nodes else []
    heapify(heads)  # no two have one key: what they ask for is not compared
    while open_nodes and heads:
        (_, number), wanted = heads[0]
        job = state.jobs[number]
        fit = queue.fitting(job)
        free = {n.name: queue.free(n.name) if n.name in open_nodes else -1 for n in fit}
        layout = place(job.spec, fit, free)
        if layout is not None:
            yield job, layout
            open_nodes = queue.open(open_nodes)
            following = queue.head(wanted)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following, wanted))
            continue
        heappop(heads)
        heard = [node.name for node in fit if node.name not in state.absent]
        if len(heard) >= wanted_nodes(job.spec, fit)[0]:  # else freeing them would not help
            open_nodes = open_nodes.difference(heard)
