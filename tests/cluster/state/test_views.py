"""Jobs and nodes as clients see them."""

from __future__ import annotations

from tests.cluster.control.world import GIB, World, spec
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.peering.messages import AllocationView
from wiiiiided.cluster.state.views import count_states, goes_on, node_view, ranks, summary, view
from wiiiiided.domain.node import Node
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


def test_a_node_is_shown_as_it_stands_and_since_when() -> None:
    world = World(*(Node(name, 2, GIB) for name in "ab"))

    def shown(name: str) -> tuple[str, float, str]:
        found = node_view(world.state, name, world.now, "a")
        assert found.coordinator == (name == "a")
        return found.state, found.since, found.why

    assert shown("a") == ("idle", 0.0, "nothing runs on it")
    job = world.submit(spec(resources={"use": ("b",)}))
    assert shown("b") == ("ok", 1000.0, f"runs job {job}")
    assert node_view(world.state, "b", world.now, "a").jobs == (job,)
    world.pass_time(10.0)
    world.feed(e.NodeDrained(world.now, "b", "root", "fan broken"))
    assert shown("b") == ("drained", 1010.0, f"drained by root: fan broken; job {job} still there")
    world.pass_time(10.0)
    world.node_left("b")
    assert shown("b")[:2] == ("lost", 1020.0)


def test_ranks_are_as_their_own_nodes_tell_them_and_else_as_the_control_plane_knows() -> None:
    world = World(*(Node(name, 2, GIB) for name in "ab"))
    job = world.submit(spec(resources={"nodes": (2, 2), "workers_per_node": 2}))

    def shown(told: dict[str, AllocationView]) -> list[tuple[str, str, int | None, int | None]]:
        found = ranks(world.job(job), told)
        assert [rank.rank for rank in found] == [0, 1, 2, 3]
        return [(rank.node, rank.state, rank.pid, rank.code) for rank in found]

    assert {state for _, state, _, _ in shown({})} == {"starting"}
    world.started_on(job, "a", "b")
    # What a says of b's ranks is not heard: b says nothing, and its allocation runs.
    told = {"a": AllocationView(pids={0: 11, 1: 12, 2: 13}, codes={1: 9, 3: 1})}
    assert shown(told) == [
        ("a", "running", 11, None),
        ("a", "ended", 12, 9),
        ("b", "running", None, None),
        ("b", "running", None, None),
    ]
    # The daemon of a has just started again, and its shim has not spoken to it yet.
    assert {(state, pid) for _, state, pid, _ in shown({"a": AllocationView()})} == {
        ("running", None)
    }
    world.ended_on(job, "b", code=1)
    assert [state for _, state, _, _ in shown(told)] == ["running", "ended", "ended", "ended"]
