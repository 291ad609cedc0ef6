"""A job as clients see it."""

from __future__ import annotations

from tests.control.world import World, spec
from wiiiiided.daemon.views import count_states, goes_on, summary, view
from wiiiiided.domain.spec import Restart


def test_attempts_are_those_made_and_those_still_allowed() -> None:
    world = World()
    job = world.submit(spec(policy={"restart": Restart(max=2, backoff_s=1.0)}))

    def shown() -> tuple[int, int]:
        found = view(world.state, world.job(job), world.now)
        return found.attempt, found.attempts

    assert shown() == (1, 3)
    for number in (1, 2):
        world.started_on(job)
        world.ended_on(job, code=1)
        assert shown() == (number, 3)
        world.pass_time(2.0)
        assert shown() == (number + 1, 3)
    world.ended_on(job, code=1)
    assert shown() == (3, 3)
    world.requeue(job)
    assert shown() == (4, 6)
    waiting = world.submit(spec(policy={"restart": Restart(max=2)}))
    assert view(world.state, world.job(waiting), world.now).attempts == 3


def test_what_the_daemon_does_in_one_line() -> None:
    world = World()
    assert summary(world.state) == "idle, no jobs"
    first, second = world.submit(), world.submit()
    world.started_on(first)
    assert summary(world.state) == "1 queued, 1 running"
    assert count_states(world.state) == {"queued": 1, "running": 1}
    assert goes_on(world.state) == f"job {first} (job) goes on running without the daemon"
    world.ended_on(first)
    world.ended_on(second)
    assert goes_on(world.state) == ""
