"""Everything the control plane knows, with the indexes that keep an event's cost flat.

    jobs         not yet over; one that ends is forgotten here and lives on in the store
    queue        keys of queued jobs that wait for nothing but nodes, in order
    ready        the same, by what they ask for: of jobs that ask for the same only the first can
                 matter to a placement
    dependents   job → those that wait for it
    claims       node → job → cores
    deadlines    (when, job), earliest first

`put` is the only way to change a job, and keeps all of them in step. Until `settled`, the state
remembers what every changed job was before: when the store cannot take a change, `rollback` undoes
it, and nothing that was not written down has ever happened.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from wiiiiided.control.job import Backoff, Hung, Job, Queued, Running
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import Resources
from wiiiiided.domain.states import ENDED, ON_NODES

Key = tuple[int, int]  # Job.queue_key
MAX_BACKOFF_S = 600.0
STACKS_WITHIN_S = 15.0  # a hung job is stopped after this long even without its stacks


class State:
    """Mutable, and changed by `control/step` alone."""

    def __init__(self, nodes: Iterable[Node] = (), jobs: Iterable[Job] = ()) -> None:
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[int, Job] = {}
        self.queue: list[Key] = []
        self.ready: dict[Resources, list[Key]] = {}
        self.dependents: dict[int, set[int]] = {}
        self.claims: dict[str, dict[int, int]] = {}
        self.deadlines: list[tuple[float, int]] = []
        self.crowded = False  # something changed that may let a queued job start
        self._before: dict[int, Job | None] = {}
        self.touched: dict[int, Job] = {}  # as they are now, ended ones included
        for node in nodes:
            self.put_node(node)
        for job in jobs:
            self.put(job)
        self.settled()

    # ---- changing

    def put(self, job: Job) -> None:
        """This is the job from now on."""
        old = self.jobs.get(job.id)
        self._before.setdefault(job.id, old)
        self.touched[job.id] = job
        self._replace(job.id, old, job)

    def put_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.claims.setdefault(node.name, {})
        self.crowded = True

    def settled(self) -> None:
        """What changed is stored: forget what was before."""
        self._before.clear()
        self.touched.clear()

    def rollback(self) -> None:
        """Undo every change since the last `settled`."""
        for number, old in self._before.items():
            self._replace(number, self.jobs.get(number), old)
        self.settled()

    # ---- reading

    def free(self, node: str) -> int:
        """Cores that nobody has claimed; none while a job has the node for itself, even when the
        node has got more cores since."""
        claims = self.claims[node]
        if any(self.jobs[job].spec.resources.cores_per_worker is None for job in claims):
            return 0
        return self.nodes[node].cores - sum(claims.values())

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

    # ---- indexes

    def _replace(self, number: int, old: Job | None, new: Job | None) -> None:
        if old is not None:
            self._unlist(old)
            del self.jobs[number]
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
        if (when := deadline(job)) is not None:
            insort(self.deadlines, (when, job.id))

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
        if (when := deadline(job)) is not None:
            del self.deadlines[bisect_left(self.deadlines, (when, job.id))]


def is_ready(job: Job) -> bool:
    """It waits for nothing but nodes."""
    return isinstance(job.phase, Queued) and not job.waits_for


def deadline(job: Job) -> float | None:
    """When time alone changes something for this job."""
    match job.phase:
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
