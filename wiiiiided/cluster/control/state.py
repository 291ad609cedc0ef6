"""Everything the control plane knows, with the indexes that keep an event's cost flat.

    jobs         not yet over; one that ends is forgotten here and lives on in the store
    queue        keys of queued jobs that wait for nothing but nodes, in order
    ready        the same, by what they ask for: of jobs that ask for the same only the first can
                 matter to a placement
    dependents   job → those that wait for it
    claims       node → job → cores
    deadlines    (when, job), earliest first; of a job on a node that is not heard of, that counts
    nodes, absent, drained, lost     the nodes (control/node_table)

`put` is the only way to change a job, and keeps all of them in step. Until `committed`, the state
remembers what every changed job or node was before: when the store cannot take a change, `rollback`
undoes it, and nothing that was not written down has ever happened.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from wiiiiided.cluster.control.job import Backoff, Hung, Job, Queued, Running, Starting
from wiiiiided.cluster.control.node_table import NodeRow, NodeTable
from wiiiiided.domain.node import DrainRecord, Node
from wiiiiided.domain.spec import Resources
from wiiiiided.domain.states import ENDED, ON_NODES

QueueKey = tuple[int, int]  # Job.queue_key
MAX_BACKOFF_S = 600.0
ASK_AGAIN_S = 60.0  # an allocation that is to start and of which nothing is heard
STACKS_WITHIN_S = 15.0  # a hung job is stopped after this long even without its stacks
READY_WITHIN_S = 30.0  # after a start: a node that was preparing an allocation and is not heard of
SOON_S = 10.0  # an end before it, and before the first operation, is likely the program's own
ALONE_MARGIN_S = 60.0  # beyond stop_alone and grace: an allocation has ended itself by then


class State:
    """The state of the control plane. Mutable, and changed by `control/step` alone."""

    def __init__(
        self,
        nodes: Iterable[Node] = (),
        jobs: Iterable[Job] = (),
        rows: Iterable[NodeRow] = (),
        at: float = 0.0,
    ) -> None:
        """`nodes` are heard; those of `rows` besides are members of which nothing was heard."""
        self.node_table = NodeTable(nodes, rows, at)
        self.nodes = self.node_table.nodes
        self.absent = self.node_table.absent
        self.drained = self.node_table.drained
        self.lost = self.node_table.lost
        self.jobs: dict[int, Job] = {}
        self.queue: list[QueueKey] = []
        self.ready: dict[Resources, list[QueueKey]] = {}
        self.dependents: dict[int, set[int]] = {}
        self.claims: dict[str, dict[int, int]] = {name: {} for name in self.nodes}
        self.deadlines: list[tuple[float, int]] = []
        self.put_off_to: dict[int, float] = {}  # job → when a deadline that failed is tried again
        self.crowded = True  # something changed that may let a queued job start
        self._before: dict[int, Job | None] = {}
        self.touched: dict[int, Job] = {}  # as they are now, ended ones included
        for job in jobs:
            self.put(job)
        self.committed()

    # ---- changing

    def put(self, job: Job) -> None:
        """Put this job in the place of the one that had its number."""
        old = self.jobs.get(job.id)
        self._before.setdefault(job.id, old)
        self.touched[job.id] = job
        self._replace(job.id, old, job)

    def hear(self, node: Node) -> None:
        """Note that a node is heard, with its resources."""
        jobs = self._unlist_deadlines(node.name)
        self.node_table.hear(node)
        self.claims.setdefault(node.name, {})
        self._list_deadlines(jobs)

    def miss(self, name: str, since: float) -> None:
        """Note that a node is not heard of any more."""
        jobs = self._unlist_deadlines(name)
        self.node_table.miss(name, since)
        self._list_deadlines(jobs)

    def declare_lost(self, name: str) -> None:
        self.node_table.declare_lost(name)
        self.crowded = True

    def drain(self, name: str, drain: DrainRecord | None) -> None:
        """Keep new jobs from it; None: no longer."""
        self.node_table.drain(name, drain)
        self.crowded = True

    def remove(self, name: str) -> None:
        """Forget a node that is no member any more, and on which no allocation is."""
        self.node_table.remove(name)
        self.claims.pop(name)
        self.crowded = True

    def shift_silence(self, by: float) -> None:
        """The clock was set by so many seconds."""
        self.node_table.shift(by)
        self.put_off_to.clear()
        self._list_all_deadlines()

    def put_off(self, job: Job, until: float) -> None:
        """Its deadline cannot be taken now: others' must not wait for it."""
        self._unlist_deadline(job)
        self.put_off_to[job.id] = until
        self._list_deadline(job)

    def committed(self) -> None:
        """The changes are stored: forget what was before."""
        self._before.clear()
        self.touched.clear()
        self.node_table.committed()

    def rollback(self) -> None:
        """Undo every change since the last `committed`."""
        for number, old in self._before.items():
            self._replace(number, self.jobs.get(number), old)
        if self.node_table.changed():
            self.node_table.rollback()
            for name in self.nodes:
                self.claims.setdefault(name, {})
            # Those that are not empty are of jobs on a node that was removed.
            for name in [name for name in self.claims if name not in self.nodes]:
                if not self.claims[name]:
                    del self.claims[name]
            self._list_all_deadlines()
        self.committed()

    # ---- reading

    def free(self, node: str) -> int:
        """Cores that no job has claimed; none while a job has the node for itself, even when the
        node has got more cores since."""
        claims = self.claims[node]
        if any(self.jobs[job].spec.resources.cores_per_worker is None for job in claims):
            return 0
        return self.nodes[node].cores - sum(claims.values())

    def takes(self, node: str) -> bool:
        """New allocations may go there."""
        return node not in self.absent and node not in self.drained

    def counted(self) -> list[Node]:
        """Nodes that a job of `nodes = "all"` is to have: drained and lost ones are not waited
        for; one that is merely not heard of is."""
        away = self.drained.keys() | self.lost
        return [node for node in self.nodes.values() if node.name not in away]

    def on(self, node: str) -> list[Job]:
        """Jobs that may be running something there."""
        return [self.jobs[number] for number in sorted(self.claims.get(node, ()))]

    def ahead(self, job: Job) -> int:
        """How many ready jobs come before this one."""
        return bisect_left(self.queue, job.queue_key)

    def next_deadline(self) -> float | None:
        """When `Ticked` is due next."""
        return self.deadlines[0][0] if self.deadlines else None

    def due(self, at: float) -> list[Job]:
        """Jobs whose deadline has come, earliest first."""
        end = bisect_left(self.deadlines, (at, 1 << 62))
        return [self.jobs[number] for _, number in self.deadlines[:end]]

    def deadline(self, job: Job) -> float | None:
        """When time alone changes this job, or an allocation of it on a silent node."""
        found = [deadline(job)]
        if self.absent and job.attempt is not None and job.state in ON_NODES:
            found += [self.counts_as_ended_at(job, node) for node in job.attempt.live]
        when = min((when for when in found if when is not None), default=None)
        later = self.put_off_to.get(job.id)
        return when if when is None or later is None else max(when, later)

    def counts_as_ended_at(self, job: Job, node: str) -> float | None:
        """When a live allocation on a silent node counts as ended; None: never by time. One
        that was never ordered runs nowhere. One of a job with stop_alone ends itself."""
        since = self.absent.get(node)
        if since is None or job.attempt is None:
            return None
        if not job.attempt.ordered:
            return since + READY_WITHIN_S
        policy = job.spec.policy
        if policy.stop_alone_s is None:
            return None
        return since + policy.stop_alone_s + policy.grace_s + ALONE_MARGIN_S

    # ---- indexes

    def _unlist_deadlines(self, node: str) -> list[Job]:
        """Take the deadlines of the jobs on a node out of the index, before the node's state
        changes: they depend on it."""
        jobs = self.on(node)
        for job in jobs:
            self._unlist_deadline(job)
        return jobs

    def _list_deadlines(self, jobs: list[Job]) -> None:
        """Put the deadlines of these jobs back into the index, after their node's state has
        changed."""
        for job in jobs:
            self._list_deadline(job)
        self.crowded = True

    def _list_deadline(self, job: Job) -> None:
        if (when := self.deadline(job)) is not None:
            insort(self.deadlines, (when, job.id))

    def _unlist_deadline(self, job: Job) -> None:
        if (when := self.deadline(job)) is not None:
            del self.deadlines[bisect_left(self.deadlines, (when, job.id))]

    def _list_all_deadlines(self) -> None:
        """Make the index of deadlines anew from the jobs."""
        found = ((self.deadline(job), job.id) for job in self.jobs.values())
        self.deadlines = sorted((when, number) for when, number in found if when is not None)

    def _replace(self, number: int, old: Job | None, new: Job | None) -> None:
        if old is not None:
            self._unlist(old)
            del self.jobs[number]
        self.put_off_to.pop(number, None)
        if new is not None and new.state not in ENDED:
            self.jobs[number] = new
            self._list(new)
        self.crowded = True

    def _list(self, job: Job) -> None:
        if is_ready(job):
            insort(self.queue, job.queue_key)
            insort(self.ready.setdefault(job.spec.resources, []), job.queue_key)
        for other in job.waits_for:
            self.dependents.setdefault(other, set()).add(job.id)
        if job.state in ON_NODES and job.attempt is not None:
            for node in job.attempt.live:
                self.claims.setdefault(node, {})[job.id] = job.attempt.layout.on(node).cores
        self._list_deadline(job)

    def _unlist(self, job: Job) -> None:
        if is_ready(job):
            del self.queue[bisect_left(self.queue, job.queue_key)]
            keys = self.ready[job.spec.resources]
            del keys[bisect_left(keys, job.queue_key)]
            if not keys:
                del self.ready[job.spec.resources]
        for other in job.waits_for:
            self.dependents[other].discard(job.id)
            if not self.dependents[other]:
                del self.dependents[other]
        if job.attempt is not None:
            for node in job.attempt.nodes:
                self.claims.get(node, {}).pop(job.id, None)
        self._unlist_deadline(job)


def is_ready(job: Job) -> bool:
    """Whether a job waits for nothing but nodes."""
    return isinstance(job.phase, Queued) and not job.waits_for


def deadline(job: Job) -> float | None:
    """When time alone changes something for this job."""
    match job.phase:
        case Starting(since=since, asked_at=asked_at):
            return max(since, asked_at) + ASK_AGAIN_S
        case Running(since=since, warned=warned):
            policy = job.spec.policy
            if policy.max_time_s is None:
                return None
            end = since + policy.max_time_s - job.spent_s
            if warned or policy.warn_before_s <= 0:
                return end
            # An attempt that begins with less than that is warned halfway: it must first listen.
            warning = end - policy.warn_before_s
            return warning if warning > since else (since + end) / 2
        case Hung(since=since):
            return since + STACKS_WITHIN_S
        case Backoff(since=since, until=until):
            return min(until, since + MAX_BACKOFF_S)
        case _:
            return None
