"""When a queued job starts: the queue played forward, from how long jobs are expected to run.

    what runs ──remaining──► ends ─┐   the earliest end frees its nodes
    queue ────────────────────────►├─► whatever fits then starts, in the order of
                                   │   control/start_order, and its own end joins the others
                                   └─► until no end is known, or so much was looked at

The caller says how long a job has still to run: `remaining` is what its script says of its steps,
else what earlier runs of its name took, else max_time, which is the latest and not the likeliest.
Where nothing of that is known, that is the reason why there is no estimate for the jobs behind it.

Played once for an answer, however many jobs that lists. The cost is bounded by LOOKS at a node, not
by jobs times nodes: the first of a long queue are estimated, 2,000 on one machine and 50 on a
thousand, and the others are told why not.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from wiiiiided.cluster.control.job import Job, Running
from wiiiiided.cluster.control.placement import fitting
from wiiiiided.cluster.control.start_order import starts
from wiiiiided.cluster.control.state import QueueKey, State, is_ready
from wiiiiided.domain.node import Node
from wiiiiided.domain.rank_layout import Layout
from wiiiiided.domain.spec import Resources
from wiiiiided.text import format_duration_words

LOOKS: Final = 100_000  # at a node, of one answer: some 60 ms
START: Final = 50  # looks that a start is worth, whatever the number of nodes
MANY: Final = "there are too many jobs ahead of it"
AWAY: Final = "too few of the nodes that it needs are there"
AHEAD: Final = "when a job ahead of it starts is not known"
BEHIND: Final = "the jobs that it waits for have no known end"
SOON_S: Final = 1.0


class RemainingTime(NamedTuple):
    """How long a job has its nodes from now on, or from its start."""

    seconds: float | None  # None: not known, and `why` says so
    most: bool = False  # the latest, not the likeliest
    why: str = ""


class Start(NamedTuple):
    """The time at which a job starts, in a sentence; at None the sentence says why that is not
    known."""

    at: float | None
    text: str


def remaining(
    job: Job, now: float, longest_s: float | None, eta_s: float | None = None
) -> RemainingTime:
    """Estimate from the longest of a job's earlier runs, and from what its script says while it
    runs."""
    policy = job.spec.policy
    if job.state == "stopping":
        return RemainingTime(policy.grace_s, most=True)
    ran_s = 0.0
    if job.attempt is not None and job.state in ("starting", "running", "hung"):
        ran_s = max(0.0, now - job.attempt.placed_at)
    limit_s = None
    if policy.max_time_s is not None:
        ran_of_it = now - job.phase.since if isinstance(job.phase, Running) else 0.0
        limit_s = max(0.0, policy.max_time_s - job.spent_s - ran_of_it)
    likely = eta_s if eta_s is not None else None if longest_s is None else longest_s - ran_s
    if likely is not None and likely >= 0:
        return RemainingTime(likely if limit_s is None else min(likely, limit_s))
    if limit_s is not None:
        return RemainingTime(limit_s, most=True)
    has = f"job {job.id} has no max_time"
    if likely is None:
        return RemainingTime(None, why=f'{has}, and no earlier run named "{job.spec.name}" is done')
    return RemainingTime(None, why=f"{has}, and runs longer than earlier ones of its name")


class Estimate:
    """The starts of all queued jobs, from one state of the cluster."""

    def __init__(
        self,
        state: State,
        now: float,
        remaining: Callable[[Job], RemainingTime],
        looks: int = LOOKS,
    ) -> None:
        self._state = state
        self._now = self._at = now
        self._remaining = remaining
        self._looks = looks
        self._most = False  # an end that is only the latest has been passed
        self._starts: dict[int, Start] = {}
        self._endless: dict[int, str] = {}  # jobs on nodes whose end is not known, and why
        self._ends: list[tuple[float, int, bool]] = []
        self._layouts: dict[int, Layout] = {}
        self._free: dict[str, int] = {}
        self._fit: dict[Resources, list[Node]] = {}
        self._reasons: dict[Resources, str] = {}
        self._taken = dict.fromkeys(state.ready, 0)  # of each kind, how many have started
        self._late: dict[Resources, list[QueueKey]] = {}  # those whose dependencies ended meanwhile
        self._missing: dict[int, int] = {}  # job → how many of its dependencies have not ended
        if state.queue or state.dependents:
            self._play()

    def of(self, job: Job) -> Start:
        """The sentence is empty for a job that does not wait for its turn."""
        if job.state != "queued":
            return Start(None, "")
        if job.id in self._starts:
            return self._starts[job.id]
        why = self._reason(job) if is_ready(job) else BEHIND
        return Start(None, f"when it starts is not known: {why}")

    # ---- playing

    def _play(self) -> None:
        state = self._state
        for name, node in state.nodes.items():
            if state.takes(name):
                self._free[name] = node.cores - sum(state.claims[name].values())
        running = {number for claims in state.claims.values() for number in claims}
        for number in sorted(running):
            job = state.jobs[number]
            if job.attempt is not None:
                self._runs(job, job.attempt.layout)
        heapify(self._ends)
        self._place()
        while self._ends and self._looks > 0:
            at, number, most = heappop(self._ends)
            self._at, self._most = max(self._at, at), self._most or most
            self._end(number)
            while self._ends and self._ends[0][0] <= self._at:  # together: as one event
                _, number, most = heappop(self._ends)
                self._most = self._most or most
                self._end(number)
            self._place()

    def _runs(self, job: Job, layout: Layout) -> None:
        self._layouts[job.id] = layout
        found = self._remaining(job)
        if found.seconds is None:
            self._endless[job.id] = found.why
        else:
            heappush(self._ends, (self._at + found.seconds, job.id, found.most))

    def _end(self, number: int) -> None:
        for allocation in self._layouts.pop(number).allocations:
            if allocation.node in self._free:
                self._free[allocation.node] += allocation.cores
        for other in sorted(self._state.dependents.get(number, ())):
            job = self._state.jobs[other]
            missing = self._missing.get(other, len(job.waits_for)) - 1
            self._missing[other] = missing
            if missing == 0 and job.state == "queued":
                insort(self._late.setdefault(job.spec.resources, []), job.queue_key)

    def _place(self) -> None:
        """Start all jobs for which there is room by then."""
        self._looks -= len(self._free)
        open_nodes = {name for name, free in self._free.items() if free > 0}
        for job, layout in starts(self._state, self, open_nodes):
            self._start(job, layout)

    # ---- what start_order looks at, and how often it looked

    def heads(self) -> list[tuple[QueueKey, Resources]]:
        if self._looks <= 0:
            return []
        kinds = (*self._taken, *(kind for kind in self._late if kind not in self._taken))
        self._looks -= len(kinds)
        return [(key, wanted) for wanted in kinds if (key := self.head(wanted)) is not None]

    def fitting(self, job: Job) -> list[Node]:
        if self._looks <= 0:
            return []  # so it does not start, nor does any behind it
        found = self._fits(job)
        self._looks -= len(found)
        return found

    def free(self, node: str) -> int:
        return self._free[node]

    def open(self, nodes: AbstractSet[str]) -> set[str]:
        found = {name for name in nodes if self._free[name] > 0}
        self._looks -= len(found)
        return found

    def head(self, wanted: Resources) -> QueueKey | None:
        """The first that asks for this and has not started."""
        ready, late = self._state.ready.get(wanted, ()), self._late.get(wanted)
        taken = self._taken.get(wanted, 0)
        first = ready[taken] if taken < len(ready) else None
        if late and (first is None or late[0] < first):
            return late[0]
        return first

    def _start(self, job: Job, layout: Layout) -> None:
        wanted = job.spec.resources
        self._looks -= START
        late = self._late.get(wanted)
        if late and late[0] == job.queue_key:
            del late[0]
        else:
            self._taken[wanted] += 1
        for allocation in layout.allocations:
            self._free[allocation.node] -= allocation.cores
        self._starts[job.id] = Start(self._at, self._sentence())
        self._runs(job, layout)

    def _sentence(self) -> str:
        wait_s = self._at - self._now
        if wait_s < SOON_S:
            return "starts at any moment"
        return f"starts {'within' if self._most else 'in about'} {format_duration_words(wait_s)}"

    def _fits(self, job: Job) -> list[Node]:
        found = self._fit.get(job.spec.resources)
        if found is None:
            counted = self._state.counted()
            self._looks -= len(counted)
            found = self._fit[job.spec.resources] = fitting(job.spec, counted)
        return found

    # ---- why not

    def _reason(self, job: Job) -> str:
        wanted = job.spec.resources
        if wanted not in self._reasons:
            self._reasons[wanted] = self._find_reason(job)
        return self._reasons[wanted]

    def _find_reason(self, job: Job) -> str:
        if self._looks <= 0:
            return MANY
        nodes = {node.name for node in self._fits(job)}
        for number, why in self._endless.items():
            self._looks -= len(self._layouts[number].allocations)
            if any(allocation.node in nodes for allocation in self._layouts[number].allocations):
                return why
        return AHEAD if self._endless else AWAY
