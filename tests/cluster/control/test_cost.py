"""What an event costs does not grow with the jobs that are over or wait: steps, not seconds.

A step is one bytecode of Python. Counting them gives the same number on every machine, however
busy it is, and sees every loop, also one that calls nothing.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Owner
from wiiiiided.cluster.control.start_estimate import Estimate, RemainingTime
from wiiiiided.cluster.control.state import State
from wiiiiided.cluster.control.step import step
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import JobSpec, Policy, Resources, Restart, Run

FEW, MANY = 100, 10_000
AT_MOST = 1.5  # times as many steps; a cost that grows with the jobs would be near 100 times
ADA = Owner("a", 1000, "ada")
ONE_CORE = Resources(cores_per_worker=1)


class Machine:
    """The state machine and a clock; what the world would answer is fed in by hand."""

    def __init__(self) -> None:
        # A core for each of four jobs that run at once, and one for the first: while that runs,
        # no job can take the whole node.
        self.state = State([Node("a", 5, 8 << 30)])
        self.now = 1000.0
        self.next = 1
        self.steps: Counter[str] = Counter()  # by kind of event
        self.counting = False
        self.first = self.submit()
        self.starts(self.first)

    def feed(self, event: e.AnyEvent) -> None:
        if self.counting:
            self.steps[type(event).__name__] += steps_of(lambda: step(self.state, event))
        else:
            step(self.state, event)
        self.state.committed()

    def submit(self, resources: Resources = ONE_CORE, *, hold: bool = False, **policy: Any) -> int:
        number, self.next = self.next, self.next + 1
        spec = JobSpec("job", Run(("python",)), resources=resources, policy=Policy(**policy))
        waits_for = tuple(spec.policy.after)
        self.feed(e.JobSubmitted(self.now, number, spec, ADA, "0" * 64, waits_for, hold))
        return number

    def starts(self, job: int) -> None:
        self.feed(e.WorkersStarted(self.now, job, self.attempt(job), "a"))

    def ends(self, job: int, code: int = 0) -> None:
        self.feed(e.WorkersEnded(self.now, job, self.attempt(job), "a", code, "it ended"))

    def cancel(self, job: int) -> None:
        self.feed(e.CancelRequested(self.now, job, "ada"))

    def attempt(self, job: int) -> int:
        attempt = self.state.jobs[job].attempt
        assert attempt is not None
        return attempt.number

    def every_way_to_end(self) -> int:
        """Eight jobs through the whole machine, each to another end; all of them are over."""
        before = self.next
        done, failed, stopped, again = (
            self.submit(max_time_s=60.0),
            self.submit(),
            self.submit(),
            self.submit(restart=Restart(max=1, backoff_s=1.0)),
        )
        follower, orphan = self.submit(after=(done,)), self.submit(after=(failed,))
        held, queued = self.submit(hold=True), self.submit(priority=0)
        for job in (done, failed, stopped, again):
            self.starts(job)
        self.cancel(queued)
        self.feed(e.ReleaseRequested(self.now, held, "ada"))
        self.feed(e.HoldRequested(self.now, held, "ada"))
        self.cancel(held)
        self.ends(done)
        self.ends(failed, 3)
        self.cancel(stopped)
        self.ends(stopped, 143)
        self.starts(follower)
        self.ends(follower)
        self.ends(again, 1)
        self.now += 2.0
        self.feed(e.Ticked(self.now))
        self.starts(again)
        self.ends(again)
        assert orphan not in self.state.jobs
        return self.next - before

    def finish(self, jobs: int) -> None:
        while jobs > 0:
            jobs -= self.every_way_to_end()

    def counted(self) -> Counter[str]:
        """The steps of one time through the whole machine, by kind of event."""
        self.counting = True
        self.every_way_to_end()
        self.counting = False
        return self.steps


def steps_of(run: Callable[[], object]) -> int:
    """How many bytecodes `run` takes."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal steps
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # what it calls, for whatever was here before, is not of `run`
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
        gc.enable()
    return steps


def finished(machine: Machine, jobs: int) -> None:
    machine.finish(jobs)


def queued(machine: Machine, jobs: int) -> None:
    """Behind everything else, and waiting for the whole node."""
    for _ in range(jobs):
        machine.submit(Resources(), priority=0)


def held(machine: Machine, jobs: int) -> None:
    for _ in range(jobs):
        machine.submit(hold=True)


def dependent(machine: Machine, jobs: int) -> None:
    first = machine.submit(hold=True)
    for _ in range(jobs):
        machine.submit(after=(first,))


def in_backoff(machine: Machine, jobs: int) -> None:
    """Each has a deadline of its own, far away."""
    for _ in range(jobs):
        job = machine.submit(restart=Restart(max=1, backoff_s=1e6))
        machine.starts(job)
        machine.ends(job, 1)


def test_a_loop_that_calls_nothing_is_counted() -> None:
    def loop(turns: int) -> None:
        for _ in range(turns):
            pass

    assert steps_of(lambda: loop(1000)) > steps_of(lambda: loop(10)) + 900


def test_the_state_holds_nothing_of_jobs_that_are_over() -> None:
    machine = Machine()
    machine.finish(MANY)
    machine.ends(machine.first)
    state = machine.state
    assert machine.next > MANY
    indexes = (state.jobs, state.ready, state.dependents, state.deadlines, state.touched)
    assert [len(index) for index in indexes] == [0] * len(indexes)
    assert state.claims == {"a": {}}
    assert state._before == {}


@pytest.mark.parametrize("crowd", [finished, queued, held, dependent, in_backoff])
def test_an_events_cost_does_not_depend_on_the_crowd(
    crowd: Callable[[Machine, int], None],
) -> None:
    counts = []
    for jobs in (FEW, MANY):
        machine = Machine()
        crowd(machine, jobs)
        counts.append(machine.counted())
    few, many = counts
    assert few.keys() == many.keys()
    grown = {kind: many[kind] / few[kind] for kind in few if many[kind] > AT_MOST * few[kind]}
    assert not grown, f"times as many steps with {MANY} jobs as with {FEW}: {grown}"


def test_estimating_starts_does_not_grow_with_the_queue() -> None:
    def cost(jobs: int) -> int:
        state = State([Node(f"n{number}", 4, 8 << 30) for number in range(20)])
        spec = JobSpec("job", Run(("python",)))
        events = (e.JobSubmitted(0.0, n, spec, ADA, "0" * 64) for n in range(1, jobs + 1))
        step(state, e.SweepSubmitted(0.0, 1, tuple(events)))
        state.committed()
        return steps_of(
            lambda: Estimate(state, 0.0, lambda job: RemainingTime(job.id % 7 + 1.0), 5000)
        )

    assert cost(MANY) <= AT_MOST * cost(10 * FEW)


def all_for_one_node(kinds: int) -> State:
    """A node is idle, and every job is for the other and of a kind of its own."""
    state = State([Node("a", 4, 8 << 30), Node("b", 4, 8 << 30)])
    wanted = (Resources(use=("b",), min_memory=n) for n in range(kinds + 1))
    specs = [JobSpec("job", Run(("python",)), resources=one) for one in wanted]
    events = (e.JobSubmitted(0.0, n, spec, ADA, "0" * 64) for n, spec in enumerate(specs, 1))
    step(state, e.SweepSubmitted(0.0, 1, tuple(events)))
    state.committed()
    assert len(state.ready) == kinds
    return state


def scheduled(state: State) -> None:
    step(state, e.NodeSeen(1.0, Node("a", 5, 8 << 30)))


def estimated(state: State) -> None:
    Estimate(state, 0.0, lambda job: RemainingTime(None, why="it is endless"), looks=1 << 40)


@pytest.mark.parametrize("look", [scheduled, estimated])
def test_a_look_at_the_queue_looks_at_each_kind_of_job_once(look: Callable[[State], None]) -> None:
    few, many = (steps_of(partial(look, all_for_one_node(kinds))) for kinds in (FEW, 10 * FEW))
    assert many <= AT_MOST * 10 * few
