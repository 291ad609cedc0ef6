"""Any order of events whatever: the invariants of `world.check` hold after every step.

Hypothesis drives a few nodes and many jobs with everything people, nodes and clocks can do, the
impossible included (reports of jobs that do not exist, of attempts long over, twice, late).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.cluster.control.world import GIB, World, check, spec
from tests.kit.examples import examples
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.state import State
from wiiiiided.cluster.control.step import step
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import Restart
from wiiiiided.domain.states import ENDED, MOVES, ON_NODES

NAMES = ["a", "b", "c"]
pick = st.integers(0, 1 << 30)


@st.composite
def specs(draw: Any) -> Any:
    least = draw(st.integers(1, 3))
    most = draw(st.sampled_from([least, 3, None]))
    resources = {
        "nodes": (least if most is not None else 1, most),
        "workers_per_node": draw(st.sampled_from([1, 2, "cores"])),
        "cores_per_worker": draw(st.sampled_from([None, None, 1, 2])),
        "use": tuple(draw(st.sets(st.sampled_from(NAMES), max_size=2))),
    }
    policy = {
        "priority": draw(st.sampled_from([10, 50, 90])),
        "max_time_s": draw(st.sampled_from([None, 5.0, 100.0])),
        "warn_before_s": draw(st.sampled_from([0.0, 2.0, 60.0])),
        "hang_timeout_s": draw(st.sampled_from([None, 10.0])),
        "restart": Restart(max=draw(st.integers(0, 2)), backoff_s=3.0),
    }
    return spec(policy=policy, resources=resources)


class Cluster(RuleBasedStateMachine):
    """Everything that can happen, in any order."""

    @initialize(cores=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def build(self, cores: list[int]) -> None:
        nodes = [Node(NAMES[i], n, 8 * GIB) for i, n in enumerate(cores)]
        self.world = World(*nodes)
        self.ends: dict[int, int] = {}

    def some(self, number: int) -> int:
        """A job there is, or one that never was."""
        return number % (self.world._next + 1)

    @rule(given=specs(), after=st.sets(pick, max_size=2), hold=st.booleans())
    def submit(self, given: Any, after: set[int], hold: bool) -> None:
        from msgspec.structs import replace

        waits = tuple(sorted({n for n in map(self.some, after) if n in self.world.state.jobs}))
        given = replace(given, policy=replace(given.policy, after=waits))
        self.world.submit(given, hold=hold)

    @rule(
        n=pick, attempt=st.integers(0, 1), node=st.sampled_from(NAMES), torch=st.sampled_from("112")
    )
    def workers_prepared(self, n: int, attempt: int, node: str, torch: str) -> None:
        job = self.world.state.jobs.get(self.some(n))
        number = job.attempt.number - attempt if job is not None and job.attempt else 1
        self.world.feed(
            e.WorkersPrepared(self.world.now, self.some(n), number, node, "3.11.7", torch, "1")
        )

    @rule()
    def all_nodes_are_ready(self) -> None:
        for job in list(self.world.state.jobs.values()):
            if job.state == "starting":
                self.world.prepared_on(job.id)

    @rule(n=pick, attempt=st.integers(0, 1), node=st.sampled_from(NAMES))
    def workers_started(self, n: int, attempt: int, node: str) -> None:
        job = self.world.state.jobs.get(self.some(n))
        number = job.attempt.number - attempt if job is not None and job.attempt else 1
        self.world.feed(e.WorkersStarted(self.world.now, self.some(n), number, node))

    @rule(
        n=pick,
        attempt=st.integers(0, 1),
        node=st.sampled_from(NAMES),
        code=st.sampled_from([0, 0, 1, 137]),
        lost=st.booleans(),
    )
    def workers_ended(self, n: int, attempt: int, node: str, code: int, lost: bool) -> None:
        job = self.world.state.jobs.get(self.some(n))
        number = job.attempt.number - attempt if job is not None and job.attempt else 1
        event = e.WorkersEnded(
            self.world.now, self.some(n), number, node, code, "it ended", lost and code != 0
        )
        self.world.feed(event)

    @rule()
    def all_live_workers_end(self) -> None:
        for job in list(self.world.state.jobs.values()):
            if job.state in ON_NODES:
                self.world.ended_on(job.id)

    @rule(n=pick, now=st.booleans())
    def cancel(self, n: int, now: bool) -> None:
        self.world.cancel(self.some(n), now=now)

    @rule(n=pick)
    def hold(self, n: int) -> None:
        self.world.feed(e.HoldRequested(self.world.now, self.some(n), "ada"))

    @rule(n=pick)
    def release(self, n: int) -> None:
        self.world.feed(e.ReleaseRequested(self.world.now, self.some(n), "ada"))

    @rule(n=pick)
    def requeue(self, n: int) -> None:
        if self.some(n) in self.world.last:
            self.world.requeue(self.some(n))

    @rule(n=pick, silent_s=st.sampled_from([1.0, 9.0, 11.0]))
    def progress(self, n: int, silent_s: float) -> None:
        job = self.world.state.jobs.get(self.some(n))
        number = job.attempt.number if job is not None and job.attempt else 1
        self.world.feed(e.ProgressSampled(self.world.now, self.some(n), number, 0, silent_s))

    @rule(n=pick, node=st.sampled_from(NAMES))
    def stacks(self, n: int, node: str) -> None:
        job = self.world.state.jobs.get(self.some(n))
        number = job.attempt.number if job is not None and job.attempt else 1
        self.world.feed(e.StacksDumped(self.world.now, self.some(n), number, node))

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(by=st.sampled_from([-1e6, -5.0, 5.0, 1e6]))
    def the_clock_is_set(self, by: float) -> None:
        self.world.now += by
        self.world.feed(e.ClockJumped(self.world.now, by))

    @rule(more=st.integers(0, 2))
    def a_node_grows(self, more: int) -> None:
        cores = self.world.state.nodes["a"].cores + more
        self.world.feed(e.NodeSeen(self.world.now, Node("a", cores, 8 * GIB)))

    @rule()
    def the_daemon_restarts(self) -> None:
        """What is stored is all there is: a state made from it is the same state."""
        old = self.world.state
        new = State(old.nodes.values(), old.jobs.values())
        assert (new.ready, new.claims, new.deadlines) == (old.ready, old.claims, old.deadlines)
        assert new.dependents == old.dependents
        self.world.state = new

    @rule(n=pick)
    def a_write_fails(self, n: int) -> None:
        """An event that cannot be stored leaves no trace."""
        state = self.world.state
        before = (dict(state.jobs), deepcopy(state.ready), list(state.deadlines))
        step(state, e.CancelRequested(self.world.now, self.some(n), "ada"))
        state.rollback()
        assert (state.jobs, state.ready, state.deadlines) == before
        check(state, self.world.now)

    @invariant()
    def an_end_is_final_unless_requeued(self) -> None:
        if not hasattr(self, "world"):
            return
        for number, job in self.world.last.items():
            assert (job.state in ENDED) == (number not in self.world.state.jobs)

    def teardown(self) -> None:
        """Whatever happened: when all workers end and time passes, everything comes to an end."""
        if not hasattr(self, "world"):
            return
        for _ in range(200):
            if not self.world.state.jobs:
                return
            for job in list(self.world.state.jobs.values()):
                if job.state == "held":
                    self.world.feed(e.ReleaseRequested(self.world.now, job.id, "ada"))
                elif job.state in ON_NODES:
                    self.world.ended_on(job.id)
            self.world.pass_time(1000.0)
            stuck = [j for j in self.world.state.jobs.values() if j.state == "queued"]
            if stuck and len(stuck) == len(self.world.state.jobs):
                # Only what these nodes can never run, or waits for such a job, may stay.
                for job in stuck:
                    assert job.waits_for or "that fit" in self.world.why(job.id), job
                return
        raise AssertionError(f"never ends: {self.world.state.jobs}")


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=examples(75),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_every_state_and_event_of_the_table_exists() -> None:
    kinds = {cls.__name__ for cls in vars(e).values() if isinstance(cls, type)}
    for state, moves in MOVES.items():
        for kind in moves:
            assert kind in kinds | {"Placed", "DependencyEnded"}, (state, kind)
