"""A small world for the state machine: make events, feed them, and check what must always hold.

`check` is called after every step of every test here, so that a scenario that only looks at its own
assertions still notices when it broke something else.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.actions import (
    AnyAction,
    PrepareWorkers,
    StartWorkers,
    StopWorkers,
    Tell,
)
from wiiiiided.cluster.control.job import Job, Owner, Saved
from wiiiiided.cluster.control.placement import cores_on, fitting
from wiiiiided.cluster.control.state import State, is_ready
from wiiiiided.cluster.control.step import step
from wiiiiided.cluster.control.why import why
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import JobSpec, Policy, Resources, Run
from wiiiiided.domain.states import ENDED, ON_NODES

GIB = 1 << 30
ADA = Owner("a", 1000, "ada")


def spec(name: str = "job", *, policy: Any = None, resources: Any = None, **rest: Any) -> JobSpec:
    return JobSpec(
        name,
        Run(("python", "train.py")),
        policy=Policy(**(policy or {})),
        resources=Resources(**(resources or {})),
        **rest,
    )


class World:
    """A state, a clock that only tests move, and everything that was ever asked of the nodes."""

    def __init__(self, *nodes: Node) -> None:
        self.state = State(nodes or (Node("a", 4, 8 * GIB),))
        self.now = 1000.0
        self.actions: list[AnyAction] = []
        self.last: dict[int, Job] = {}  # ended ones too
        self.orders: dict[tuple[int, int, str], list[type]] = {}
        self._next = 1

    def feed(self, event: e.AnyEvent) -> list[AnyAction]:
        actions = step(self.state, event)
        for job in self.state.touched.values():
            _check_no_attempt_is_left_behind(self.last.get(job.id), job)
        self.last.update(self.state.touched)
        self.state.committed()
        self.actions += actions
        for action in actions:
            if isinstance(action, PrepareWorkers | StartWorkers):
                assert action.node not in self.state.absent, "nobody hears that"
                self._check_order(event, action)
        check(self.state, self.now)
        return actions

    def _check_order(self, event: e.AnyEvent, action: PrepareWorkers | StartWorkers) -> None:
        """Told once; and again after a minute without a word."""
        attempt = self.state.jobs[action.id].attempt
        assert attempt is not None
        known = self.orders.setdefault((action.id, action.attempt, action.node), [])
        if isinstance(action, PrepareWorkers) and not known:
            assert action.node not in self.state.drained
        if type(action) in known:
            assert isinstance(event, e.Ticked), f"{action} was told twice"
            assert action.node in attempt.unheard
        known.append(type(action))

    def submit(
        self, given: JobSpec | None = None, *, hold: bool = False, resumes: Saved | None = None
    ) -> int:
        number = self._next
        self._next += 1
        given = given or spec()
        waits = tuple(n for n in given.policy.after if n in self.state.jobs)
        job = (number, given, ADA, "0" * 64, waits, hold)
        self.feed(e.JobSubmitted(self.now, *job, resumes=resumes))
        return number

    def job(self, number: int) -> Job:
        return self.last[number]

    def state_of(self, number: int) -> str:
        return self.job(number).state

    def why(self, number: int) -> str:
        return why(self.state, self.job(number), self.now)

    def prepared_on(self, number: int, *nodes: str, torch: str = "2.13.0+cpu") -> list[AnyAction]:
        attempt = self.job(number).attempt
        assert attempt is not None
        actions: list[AnyAction] = []
        for node in nodes or attempt.live:
            actions += self.feed(
                e.WorkersPrepared(self.now, number, attempt.number, node, "3.11.7", torch, "0.6.0")
            )
        return actions

    def started_on(self, number: int, *nodes: str) -> None:
        attempt = self.job(number).attempt
        assert attempt is not None
        if not attempt.ordered:
            self.prepared_on(number)
        for node in nodes or attempt.live:
            self.feed(e.WorkersStarted(self.now, number, attempt.number, node))

    def ended_on(
        self,
        number: int,
        *nodes: str,
        code: int = 0,
        reason: str = "",
        lost: bool = False,
        **more: Any,
    ) -> list[AnyAction]:
        attempt = self.job(number).attempt
        assert attempt is not None
        actions: list[AnyAction] = []
        for node in nodes or attempt.live:
            reason = reason or (f"rank 0 ended with exit code {code}" if code else "")
            actions += self.feed(
                e.WorkersEnded(self.now, number, attempt.number, node, code, reason, lost, **more)
            )
        return actions

    def node_left(self, *nodes: str) -> list[AnyAction]:
        return [a for node in nodes for a in self.feed(e.NodeLeft(self.now, node))]

    def node_back(self, node: str) -> list[AnyAction]:
        return self.feed(e.NodeSeen(self.now, self.state.nodes[node]))

    def declare_lost(self, node: str) -> list[AnyAction]:
        return self.feed(e.NodeDeclaredLost(self.now, node, "root"))

    def cancel(self, number: int, *, now: bool = False) -> list[AnyAction]:
        return self.feed(e.CancelRequested(self.now, number, "ada", now))

    def requeue(self, number: int) -> None:
        ended = self.job(number) if self.state_of(number) in ENDED else None
        self.feed(e.RequeueRequested(self.now, number, "ada", ended))

    def pass_time(self, seconds: float) -> list[AnyAction]:
        self.now += seconds
        return self.feed(e.Ticked(self.now))

    def told(self, number: int) -> list[str]:
        return [a.text for a in self.actions if isinstance(a, Tell) and a.id == number]


def stops(actions: list[AnyAction]) -> list[StopWorkers]:
    return [action for action in actions if isinstance(action, StopWorkers)]


def check(state: State, now: float) -> None:
    """What holds after every step, whatever happened."""
    jobs = state.jobs.values()
    assert all(job.state not in ENDED for job in jobs), "an ended job is kept"
    # The indexes say what the jobs say.
    ready: dict[Resources, list[tuple[int, int]]] = {}
    for job in sorted(filter(is_ready, jobs), key=lambda job: job.queue_key):
        ready.setdefault(job.spec.resources, []).append(job.queue_key)
    assert state.ready == ready
    assert state.queue == sorted(key for keys in ready.values() for key in keys)
    expected = sorted((when, job.id) for job in jobs if (when := state.deadline(job)) is not None)
    assert state.deadlines == expected
    waiting: dict[int, set[int]] = {}
    for job in jobs:
        for other in job.waits_for:
            waiting.setdefault(other, set()).add(job.id)
    assert state.dependents == waiting
    _check_claims(state)
    _check_nobody_is_forgotten(state)
    for job in jobs:
        sentence = why(state, job, now)
        assert sentence
        assert "\n" not in sentence
        if job.waits_for:
            assert job.state in ("queued", "held")
            assert all(n < job.id for n in job.waits_for), "a job waits for a later one"
        if job.state in ON_NODES:
            assert job.attempt is not None
            assert job.attempt.live, "nothing runs, and the job does not know"
            assert job.state != "running" or set(job.attempt.nodes) == set(job.attempt.up)
            assert job.attempt.ordered or not job.attempt.up, "it runs and nobody started it"
            assert job.attempt.ordered or job.state in ("starting", "stopping")
        assert 0 <= job.restarts <= job.spec.policy.restart.max


def _check_no_attempt_is_left_behind(old: Job | None, new: Job) -> None:
    """Another begins only when every allocation of the one before has ended."""
    if old is not None and old.attempt is not None and new.attempt is not None:
        if new.attempt.number == old.attempt.number:
            gone = set(old.attempt.results) - set(new.attempt.results)
            assert not gone, f"ends of {gone} were forgotten"
            return
        assert new.attempt.number == old.attempt.number + 1
    if new.attempt is not None and new.state not in ON_NODES:
        assert not new.attempt.live, f"job {new.id} is {new.state} and may run on"


def _check_claims(state: State) -> None:
    claims: dict[str, dict[int, int]] = {name: {} for name in state.nodes}
    for job in state.jobs.values():
        if job.state in ON_NODES and job.attempt is not None:
            for allocation in job.attempt.layout.allocations:
                if allocation.node in job.attempt.live:
                    claims[allocation.node][job.id] = allocation.cores
            first = 0
            for allocation in job.attempt.layout.allocations:  # ranks of a host lie together
                assert allocation.first_rank == first
                first += allocation.workers
    assert state.claims == claims
    for name in state.nodes:
        assert state.free(name) >= 0, f"{name} is overbooked"
        alone = [n for n in claims[name] if state.jobs[n].spec.resources.cores_per_worker is None]
        assert not alone or len(claims[name]) == 1, f"{alone} should have {name} for itself"


def _check_nobody_is_forgotten(state: State) -> None:
    """The first of the queue waits only while it truly cannot start."""
    if not state.ready:
        return
    job = state.jobs[min(keys[0] for keys in state.ready.values())[1]]
    least, most = job.spec.resources.nodes
    fit = fitting(job.spec, state.counted())
    here = [n for n in fit if n.name not in state.absent and n.name not in state.drained]
    free = [n for n in here if state.free(n.name) >= cores_on(job.spec, n)]
    wanted = len(fit) if most is None else least
    assert len(free) < max(1, wanted), f"job {job.id} could run and does not"


def with_priority(given: JobSpec, priority: int) -> JobSpec:
    return replace(given, policy=replace(given.policy, priority=priority))
