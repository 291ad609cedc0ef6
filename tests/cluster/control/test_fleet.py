"""Any order of cuts, crashes, power losses and people: no job runs twice, and all come to an end.

Hypothesis drives the pretended machines of `fleet`. The operator is honest: `nodes lost` and
`nodes remove --force` are for machines that are off.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.cluster.control.fleet import Box, Fleet
from tests.cluster.control.world import spec
from tests.kit.examples import examples
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.step import step
from wiiiiided.domain.spec import Restart
from wiiiiided.domain.states import ON_NODES

pick = st.integers(0, 1 << 30)
others = st.sampled_from("bc")
anybody = st.sampled_from("abc")
# What is wanted more often stands here more often: a drained cluster runs nothing, shows nothing.
AGAIN = Restart(max=3, backoff_s=3.0)
OPERATOR = ["drain", "resume", "resume", "resume", "lost", "remove"]


@st.composite
def specs(draw: Any) -> Any:
    resources = {
        "nodes": draw(st.sampled_from([(1, 1), (1, 3), (2, 2), (2, 2), (2, 3), (3, 3), (1, None)])),
        "cores_per_worker": draw(st.sampled_from([None, 1])),
    }
    policy = {
        "max_time_s": draw(st.sampled_from([None, None, 100.0])),
        "stop_alone_s": draw(st.sampled_from([None, 20.0])),
        "restart": Restart(max=draw(st.sampled_from([0, 3, 3, 3])), backoff_s=3.0),
    }
    return spec(policy=policy, resources=resources)


class Machines(RuleBasedStateMachine):
    """Everything that can happen to three machines."""

    @initialize()
    def build(self) -> None:
        self.fleet = Fleet([2, 2, 2])
        self.away: dict[str, Box] = {}  # removed ones

    def box(self, name: str) -> Box | None:
        return self.fleet.boxes.get(name)

    @precondition(lambda self: len(self.fleet.world.state.jobs) < 4)
    @rule(given=specs())
    def submit(self, given: Any) -> None:
        before = len(self.fleet.world.actions)
        self.fleet.world.submit(given)
        self.fleet.do(self.fleet.world.actions[before:])

    @rule(n=pick, what=st.sampled_from(["cancel", "requeue", "", "", ""]))
    def somebody_wants_no_more_of_a_job(self, n: int, what: str) -> None:
        kind = e.RequeueRequested if what == "requeue" else e.CancelRequested
        if what and self.jobs():
            self.fleet.feed(kind(self.fleet.world.now, self.one_of(self.jobs(), n), "ada"))

    # ---- what jobs do

    @rule(turns=st.integers(1, 3))
    def life_goes_on(self, turns: int = 1) -> None:
        """Every node that is heard does what it is told."""
        for _ in range(turns):
            self.stopped_shares_end()
            self.fleet.pass_time(4.0)
            self.all_ready_and_started()
            self.fleet.check()

    @rule(name=anybody)
    def one_is_ready(self, name: str) -> None:
        if box := self.box(name):
            self.fleet.report_ready(box)

    @rule(name=anybody, n=pick, code=st.sampled_from([0, 1]))
    def a_share_ends(self, name: str, n: int, code: int) -> None:
        box = self.box(name)
        if box is not None and box.running:
            box.end(self.one_of(sorted(box.running), n), code)
            self.fleet.report_ends(box)

    def all_ready_and_started(self) -> None:
        for report in (self.fleet.report_ready, self.fleet.report_started):
            for box in list(self.fleet.boxes.values()):
                report(box)

    def stopped_shares_end(self) -> None:
        for box in list(self.fleet.boxes.values()):
            for key in sorted(box.stopping):
                box.end(key, 143)
            self.fleet.report_ends(box)

    # ---- what becomes of machines

    @rule(
        name=others,
        fault=st.sampled_from(["cut", "cut unnoticed", "power"]),
        seconds=st.sampled_from([0.5, 5.0, 200.0]),
        turns=st.integers(0, 4),
    )
    def a_machine_is_gone(self, name: str, fault: str, seconds: float, turns: int) -> None:
        """And life goes on without it, for so long at least."""
        box = self.box(name)
        if box is not None and fault == "power":
            self.fleet.power_off(box)
        elif box is not None:
            self.fleet.unlink(box, noticed=fault == "cut")
        self.time_passes(seconds, turns)

    @rule(name=others)
    def a_machine_is_back(self, name: str) -> None:
        """Also one that was removed: it joins anew."""
        if name in self.away:
            self.fleet.boxes[name] = self.away.pop(name)
        box = self.fleet.boxes[name]
        box.on = True
        self.fleet.link(box)

    @rule(name=anybody, what=st.sampled_from(OPERATOR))
    def the_operator_acts(self, name: str, what: str) -> None:
        box, now = self.box(name), self.fleet.world.now
        if what == "drain":
            self.fleet.feed(e.NodeDrained(now, name, "root", ""))
        elif what == "resume":
            self.fleet.feed(e.NodeResumed(now, name, "root"))
        elif box is None or box.on:
            return
        elif what == "lost":
            self.fleet.feed(e.NodeDeclaredLost(now, name, "root"))
        else:
            self.away[name] = self.fleet.boxes.pop(name)
            self.fleet.feed(e.NodeRemoved(now, name, "root"))

    @rule(seconds=st.sampled_from([0.5, 31.0, 200.0]), turns=st.integers(0, 3))
    def time_passes(self, seconds: float, turns: int) -> None:
        self.fleet.pass_time(seconds)
        self.life_goes_on(turns)

    # ---- what becomes of the coordinator

    @rule(n=pick, mute=st.sampled_from([True, False, False, False]))
    def the_coordinator_restarts(self, n: int, mute: bool) -> None:
        """Mute: it has stored something, and died before it told any node."""
        world = self.fleet.world
        if mute and self.jobs():
            world.feed(e.CancelRequested(world.now, self.one_of(self.jobs(), n), "ada"))
        self.fleet.restart_coordinator()
        for box in list(self.fleet.boxes.values()):
            if box.cabled:
                self.fleet.link(box)

    @rule(n=pick, name=others)
    def a_write_fails(self, n: int, name: str) -> None:
        """An event that cannot be stored leaves no trace."""
        state, now = self.fleet.world.state, self.fleet.world.now
        before = self.seen()
        for event in (
            e.NodeRemoved(now, name, "root"),
            e.NodeLeft(now, name),
            e.CancelRequested(now, n % self.fleet.world._next, "ada"),
        ):
            step(state, event)
            state.rollback()
            assert self.seen() == before

    def jobs(self) -> list[int]:
        return sorted(self.fleet.world.state.jobs)

    @staticmethod
    def one_of(things: list[Any], n: int) -> Any:
        return things[n % len(things)]

    def seen(self) -> Any:
        state = self.fleet.world.state
        rows = [state.node_table.row(name) for name in state.nodes]
        claims = {name: dict(jobs) for name, jobs in state.claims.items()}
        return rows, dict(state.absent), dict(state.jobs), claims, list(state.deadlines)

    @invariant()
    def nothing_runs_twice(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.check()

    def teardown(self) -> None:
        """All machines come back and time passes: then every job comes to an end."""
        if not hasattr(self, "fleet"):
            return
        self.fleet.boxes.update(self.away)
        for name, box in self.fleet.boxes.items():
            box.on = True
            self.fleet.link(box)
            self.the_operator_acts(name, "resume")
        for _ in range(200):
            if not self.fleet.world.state.jobs:
                return
            self.all_ready_and_started()
            for box in self.fleet.boxes.values():
                for key in sorted(box.running):
                    box.end(key, 0)
                self.fleet.report_ends(box)
            self.fleet.pass_time(1000.0)
            self.fleet.check()
        stuck = {n: job for n, job in self.fleet.world.state.jobs.items() if job.state in ON_NODES}
        raise AssertionError(f"never ends: {stuck or self.fleet.world.state.jobs}")


TestMachines = Machines.TestCase
TestMachines.settings = settings(
    max_examples=examples(30),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def walk(dice: random.Random, steps: int) -> None:
    """The same rules, thrown with dice: faults meet running jobs far more often than above."""
    machines = Machines()
    machines.build()
    for _ in range(steps):
        name = dice.choice("bc")
        match dice.choice(["submit", "submit", "life", "gone", "back", "ends", "acts", "again"]):
            case "submit" if len(machines.jobs()) < 3:
                nodes = dice.choice([(1, 1), (1, 3), (2, 2), (2, 2), (2, 3), (1, None)])
                policy = {"stop_alone_s": dice.choice([None, 20.0]), "restart": AGAIN}
                machines.submit(spec(policy=policy, resources={"nodes": nodes}))
                machines.life_goes_on()
            case "life":
                machines.life_goes_on(dice.randint(1, 3))
            case "gone":
                fault = dice.choice(["cut", "cut", "cut unnoticed", "power"])
                machines.a_machine_is_gone(name, fault, dice.choice([0.5, 200.0]), 3)
            case "back":
                machines.a_machine_is_back("b")
                machines.a_machine_is_back("c")
            case "ends":
                machines.a_share_ends(dice.choice("abc"), dice.randrange(9), dice.choice([0, 1]))
            case "acts":
                machines.the_operator_acts(name, dice.choice(OPERATOR))
            case "again":
                machines.the_coordinator_restarts(dice.randrange(9), mute=dice.random() < 0.1)
            case _:
                pass
        machines.nothing_runs_twice()
    machines.teardown()


@pytest.mark.parametrize("seed", range(4))
def test_forty_walks_with_dice(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(40):
        walk(dice, 40)
