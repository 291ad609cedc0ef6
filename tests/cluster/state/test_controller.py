"""What the controller does with clocks that creep and deadlines that cannot be taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.control.world import ADA, GIB, spec
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control import step as control_step
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.control.transitions import Transition
from wiiiiided.cluster.state.controller import PUT_OFF_S, Controller
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.domain.node import Node


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    made = StateStore(tmp_path / "state")
    yield made
    made.close()


LIMIT = {"max_time_s": 10.0, "warn_before_s": 0.0}


class Clocked(Controller):
    """With a clock that the test moves, and one that stands or goes along with it."""

    def __init__(self, store: StateStore, *, steady_stands: bool) -> None:
        self.now = 1000.0
        clock = lambda: self.now  # noqa: E731
        super().__init__(
            *(store, [Node("a", 4, GIB)], lambda action, job: None, lambda: None),
            clock=clock,
            steady=(lambda: 0.0) if steady_stands else clock,
        )

    def run(self, **policy: float) -> int:
        """A job that runs on one of four cores."""
        number = self.store.next_id()
        wanted = spec(policy=policy, resources={"cores_per_worker": 1})
        self.ask(e.JobSubmitted(self.now, number, wanted, ADA, "0" * 64))
        self.report(e.WorkersStarted(self.now, number, 1, "a"))
        return number


def test_small_steps_of_the_clock_add_up_to_a_jump(store: StateStore) -> None:
    """Of sixty times 1.9 s nothing was told, and deadlines came two minutes early."""

    async def scene() -> None:
        controller = Clocked(store, steady_stands=True)
        job = controller.run(max_time_s=100.0)
        for _ in range(60):
            controller.now += 1.9
            controller.tick()
        assert controller.state.jobs[job].state == "running"
        assert controller.state.jobs[job].phase.since == pytest.approx(controller.now, abs=2.0)
        controller.close()

    asyncio.run(scene())


@pytest.mark.parametrize("problem", [KeyError("x"), "no such move"])
def test_a_deadline_that_raises_keeps_no_other_from_being_taken(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, problem: KeyError | str
) -> None:
    tried: list[float] = []
    real = control_step._phase_due

    def broken(transition: Transition, job: Job) -> None:
        if job.id != 1:
            real(transition, job)
            return
        tried.append(transition.at)
        if isinstance(problem, KeyError):
            raise problem
        transition.check("done", job.phase)

    monkeypatch.setattr(control_step, "_phase_due", broken)

    async def scene() -> None:
        controller = Clocked(store, steady_stands=False)
        jobs = [controller.run(**LIMIT), controller.run(**LIMIT)]
        controller.now += 10.0
        controller.tick()
        assert [controller.state.jobs[job].state for job in jobs] == ["running", "stopping"]
        assert len(tried) == 2  # with all others, and alone
        assert controller.state.next_deadline() == controller.now + PUT_OFF_S
        controller.tick()
        assert len(tried) == 2
        controller.report(e.WorkersEnded(controller.now, 1, 1, "a", 0, ""))
        assert controller.state.put_off_to == {}
        assert controller.state.deadlines == []
        controller.close()

    asyncio.run(scene())
