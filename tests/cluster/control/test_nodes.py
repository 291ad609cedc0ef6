"""Stories of several nodes: gangs, silence, drains and lost nodes, told event by event."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.control.world import GIB, World, spec, stops
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.actions import AnyAction, PrepareWorkers, RunNotify, StartWorkers
from wiiiiided.cluster.control.job import Saved, Stopping
from wiiiiided.cluster.control.node_table import NodeRow
from wiiiiided.cluster.control.node_texts import (
    node_why,
    refusal_to_drain,
    refusal_to_lose,
    refusal_to_remove,
    refusal_to_resume,
    told,
)
from wiiiiided.cluster.control.placement import NeverRuns, plan
from wiiiiided.cluster.control.state import State
from wiiiiided.cluster.control.step import step
from wiiiiided.cluster.handlers.resumption import waited_for
from wiiiiided.cluster.state.views import view
from wiiiiided.domain.limits import problems_of
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import Network, Notify, Output, Restart


def three() -> World:
    return World(*(Node(name, 2, GIB) for name in "abc"))


def gang(nodes: Any = (2, 2), **policy: Any) -> Any:
    return spec(policy=policy, resources={"nodes": nodes})


def starts(actions: list[AnyAction], kind: Any = StartWorkers) -> list[str]:
    return [action.node for action in actions if isinstance(action, kind)]


def nodes_of(world: World, job: int) -> tuple[str, ...]:
    attempt = world.job(job).attempt
    assert attempt is not None
    return attempt.nodes


# ---- gang start


def test_a_job_on_one_node_is_started_without_preparing() -> None:
    world = three()
    world.submit()
    assert starts(world.actions) == ["a"]
    assert not starts(world.actions, PrepareWorkers)


def test_a_gang_says_which_nodes_are_not_ready_yet() -> None:
    world = three()
    job = world.submit(gang((3, 3)))
    expected = "is being prepared on a, b, c: a, b and c are not ready yet"
    assert world.why(job) == expected
    world.prepared_on(job, "a", "c")
    assert world.why(job) == "is being prepared on a, b, c: b is not ready yet"
    world.prepared_on(job, "b")
    assert world.why(job) == "is being started on a, b, c"


def test_a_node_that_is_ready_twice_starts_no_worker_twice() -> None:
    world = three()
    job = world.submit(gang())
    world.prepared_on(job, "a", "a")
    assert starts(world.prepared_on(job, "b")) == ["a", "b"]
    assert world.prepared_on(job, "b") == []


def test_a_gang_is_not_started_while_one_that_was_ready_is_not_heard() -> None:
    """As after a restart of the coordinator: what it was told before is stored, the node that told
    it may be off by now."""
    world = three()
    job = world.submit(gang())
    world.prepared_on(job, "b")
    was, world.actions = world.state, []
    rows = [NodeRow(node) for node in was.nodes.values()]
    world.state = State([was.nodes["a"]], was.jobs.values(), rows, world.now)
    world.prepared_on(job, "a")
    assert not starts(world.actions)
    world.node_back("b")
    assert starts(world.prepared_on(job, "b")) == ["a", "b"]


@pytest.mark.parametrize("stopping", [False, True])
def test_a_node_that_is_back_learns_that_the_job_was_to_end_at_once(stopping: bool) -> None:
    world = three()
    job = world.submit(gang())
    world.prepared_on(job, "a", "b")
    world.started_on(job)
    world.node_left("b")
    if stopping:
        world.cancel(job)
    world.cancel(job, now=True)
    world.cancel(job)  # and that it is not taken back
    phase = world.job(job).phase
    assert isinstance(phase, Stopping)
    assert phase.now


def test_different_torch_fails_the_job_at_once_and_names_every_node() -> None:
    world = three()
    job = world.submit(gang((3, 3), restart=Restart(max=5)))
    world.prepared_on(job, "a", torch="2.13.0")
    world.prepared_on(job, "b", torch="2.13.0+cpu")
    actions = world.prepared_on(job, "c", torch="2.12.1")
    assert not starts(actions)
    assert [stop.node for stop in stops(actions)] == ["a", "b", "c"]
    world.ended_on(job, code=143)
    assert world.state_of(job) == "failed"
    assert world.why(job) == (
        "torch differs: a and b have 2.13.0, c has 2.12.1; install the same on all, or choose "
        "nodes with resources.use"
    )


def versions(world: World, job: int, node: str, *has: str) -> list[AnyAction]:
    return world.feed(e.WorkersPrepared(world.now, job, 1, node, *has))


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (("3.11.2", "2.13.0+cpu", "1"), ("3.11.9", "2.13.0+cu126", "1"), ""),
        (("3.11.2", "", ""), ("3.11.2", "", ""), ""),
        (("3.11.2", "2.13.0", "1"), ("3.12.2", "2.13.0", "1"), "python differs: a has 3.11, b has"),
        (("3.11.2", "2.13.0", "1"), ("3.11.2", "", "1"), "torch differs: a has 2.13.0, b has none"),
        (("3.11.2", "2.13.0", "1"), ("3.11.2", "2.13.0", "2"), "wiiiiided differs: a has 1, b"),
        (("3.1", "2", "1"), ("3.2", "3", "1"), "b has 3.2; torch differs: a has 2, b has 3;"),
        (("3.1", "2", "1"), ("3.1", "\x1b[2J" + "9" * 999, "1"), "b has ?[2J9999"),
    ],
)
def test_what_counts_as_the_same_version(
    one: tuple[str, ...], other: tuple[str, ...], says: str
) -> None:
    world = three()
    job = world.submit(gang())
    versions(world, job, "a", *one)
    actions = versions(world, job, "b", *other)
    assert bool(starts(actions)) == (not says)
    assert says in world.why(job)
    assert len(world.why(job)) < 300


def test_wiiiiided_may_differ_where_ranks_do_not_talk_through_it() -> None:
    world = three()
    job = world.submit(spec(resources={"nodes": (2, 2)}, network=Network(backend="gloo")))
    versions(world, job, "a", "3.11.2", "2.13.0", "1")
    assert starts(versions(world, job, "b", "3.11.2", "2.13.0", "2")) == ["a", "b"]


def test_a_node_that_cannot_prepare_stops_the_others_and_is_named() -> None:
    world = three()
    job = world.submit(gang(restart=Restart(max=1)))
    world.prepared_on(job, "a")
    actions = world.ended_on(job, "b", code=1, reason="there is no /srv/venv/bin/python")
    assert not starts(actions)
    assert [stop.node for stop in stops(actions)] == ["a"]
    world.ended_on(job, "a", code=143)
    assert world.state_of(job) == "backoff"
    assert "on b there is no /srv/venv/bin/python" in world.why(job)


def test_an_allocation_that_ends_well_before_it_was_started_starts_none() -> None:
    world = three()
    job = world.submit(gang())
    assert [stop.node for stop in stops(world.ended_on(job, "b", code=0))] == ["a"]
    assert not starts(world.prepared_on(job, "a"))


def test_a_node_lost_before_the_start_costs_no_restart_and_the_job_runs_elsewhere() -> None:
    world = three()
    job = world.submit(gang(restart=Restart(max=0)))
    world.prepared_on(job, "a")
    actions = world.node_left("b")
    assert [stop.node for stop in stops(actions)] == ["a", "b"]
    assert world.state_of(job) == "stopping"
    actions = world.ended_on(job, "a", code=143)
    assert starts(actions, PrepareWorkers) == ["a", "c"]
    assert world.job(job).restarts == 0
    assert "queued again: b was not heard of before all nodes were ready" in world.told(job)


def test_a_cancelled_gang_whose_node_left_before_the_start_is_over() -> None:
    world = three()
    job = world.submit(gang())
    world.cancel(job)
    world.node_left("b")
    world.ended_on(job, "a", code=143)
    assert world.state_of(job) == "cancelled"


def test_a_node_that_stays_away_after_a_restart_of_the_coordinator_holds_up_no_start() -> None:
    world = three()
    job = world.submit(gang())
    restart(world, "a")
    assert world.state_of(job) == "starting"
    world.node_back("c")
    world.pass_time(29.0)
    assert world.state_of(job) == "starting"
    world.pass_time(1.0)
    assert world.state_of(job) == "stopping"
    world.ended_on(job, "a", code=143)
    assert nodes_of(world, job) == ("a", "c")


@pytest.mark.parametrize("kind", [e.NodeDeclaredLost, e.NodeRemoved])
def test_a_node_that_was_preparing_and_is_given_up_costs_no_restart(kind: Any) -> None:
    world = three()
    job = world.submit(gang(restart=Restart(max=0)))
    restart(world, "a")
    world.node_back("c")
    world.feed(kind(world.now, "b", "root"))
    world.ended_on(job, "a", code=143)
    assert nodes_of(world, job) == ("a", "c")
    assert world.job(job).restarts == 0


def test_two_silent_nodes_are_both_named() -> None:
    world = three()
    job = world.submit(gang((3, 3)))
    world.started_on(job)
    world.node_left("b", "c")
    assert "b has not been heard of for 0 s (nor 1 other of its nodes)" in world.why(job)
    world.ended_on(job, "a", code=1)
    for node in "bc":
        world.node_back(node)
        world.ended_on(job, node, code=1)
    assert world.why(job).startswith("b and c were not heard of, and on a ")


def test_a_range_is_chosen_anew_at_each_start() -> None:
    world = three()
    job = world.submit(gang((2, 3), restart=Restart(max=1, backoff_s=1.0)))
    assert nodes_of(world, job) == ("a", "b", "c")
    world.started_on(job)
    world.feed(e.NodeDrained(world.now, "b", "root", ""))
    world.ended_on(job, code=1)
    world.pass_time(1.0)
    assert nodes_of(world, job) == ("a", "c")


# ---- silence


def restart(world: World, own: str) -> None:
    """The coordinator's daemon comes back with what is stored."""
    old = world.state
    rows = [row for name in old.nodes if (row := old.node_table.row(name)) is not None]
    world.state = State([old.nodes[own]], old.jobs.values(), rows, world.now)


def test_silence_ends_no_allocation_and_says_what_to_do() -> None:
    world = three()
    job = world.submit(gang())
    world.started_on(job)
    world.node_left("b")
    world.pass_time(40.0)
    assert world.state_of(job) == "running"
    assert world.why(job) == (
        "runs on a, b; b has not been heard of for 40 s, and its part counts as running until it "
        "is (wiiiiide nodes lost b, if that machine is off for good)"
    )
    world.cancel(job)
    world.ended_on(job, "a", code=143)
    world.pass_time(86400.0)
    assert world.state_of(job) == "stopping"
    assert world.why(job).startswith("is being stopped: cancelled by ada; b has not been heard of")


def test_a_node_that_comes_back_is_taken_in_and_its_job_goes_on() -> None:
    world = three()
    job = world.submit(gang())
    world.started_on(job)
    world.node_left("b")
    world.pass_time(40.0)
    world.node_back("b")
    assert world.why(job) == "runs on a, b"
    assert world.told(job)[-1] == "b is heard again, after 40 s"
    world.ended_on(job)
    assert world.state_of(job) == "done"


def test_a_short_silence_leaves_no_line_in_the_story() -> None:
    world = three()
    job = world.submit(gang())
    world.started_on(job)
    before = world.told(job)
    world.node_left("b")
    world.pass_time(3.0)
    world.node_back("b")
    assert world.told(job) == before


def test_a_lost_allocation_starts_elsewhere_only_when_its_end_is_confirmed() -> None:
    world = three()
    job = world.submit(gang(restart=Restart(max=1, backoff_s=1.0, on=("node-lost",))))
    world.started_on(job)
    world.node_left("b")
    actions = world.ended_on(job, "a", code=1, reason="rank 0 lost rank 1 on b")
    assert [stop.node for stop in stops(actions)] == ["b"]
    world.pass_time(3600.0)
    assert world.state_of(job) == "stopping"
    world.declare_lost("b")
    assert world.state_of(job) == "backoff"
    assert "on a rank 0 lost rank 1 on b; b was declared lost by root" in world.why(job)
    world.pass_time(1.0)
    assert nodes_of(world, job) == ("a", "c")


def test_a_node_that_leaves_after_an_allocation_failed_is_not_its_cause() -> None:
    world = three()
    job = world.submit(gang(restart=Restart(max=1, backoff_s=1.0)))
    world.started_on(job)
    world.ended_on(job, "a", code=1, reason="rank 0 ended with 1")
    world.pass_time(5.0)
    world.node_left("b")
    assert world.why(job).startswith("is being stopped: on a rank 0 ended with 1")
    world.node_back("b")
    world.ended_on(job, "b", code=143, reason="stopped")
    assert world.why(job).endswith("since on a rank 0 ended with 1; b was not heard of")


def test_an_end_reported_late_is_told_once_and_restarts_the_gang() -> None:
    """The cable is out for a minute: both sides end by themselves, the far one unheard."""
    world = three()
    job = world.submit(gang(restart=Restart(max=1, backoff_s=1.0, on=("node-lost",))))
    world.started_on(job)
    world.ended_on(job, "a", code=1, reason="rank 0 lost rank 1")  # peers notice first
    world.node_left("b")
    said = "b was not heard of, and on a rank 0 lost rank 1"
    assert f"stopping: {said}" in world.told(job)
    world.pass_time(60.0)
    world.node_back("b")
    world.ended_on(job, "b", code=1, reason="rank 1 lost rank 0")
    assert world.state_of(job) == "backoff"
    assert world.why(job).endswith(f"since {said}")
    assert world.job(job).restarts == 1
    world.feed(e.WorkersEnded(world.now, job, 1, "b", 1, "rank 1 lost rank 0"))
    assert world.job(job).restarts == 1


def test_the_allocation_that_failed_first_is_the_cause_whichever_is_heard_first() -> None:
    """Ranks that lose their peer end by themselves, and the news of them may be faster."""
    world = three()
    job = world.submit(gang())
    world.started_on(job)
    lost, wrong = "wiiiiided.errors.PeerLost: rank 0 ended", "ValueError: shapes do not match"
    reason = "rank 1 ended with exit code 1"
    world.ended_on(job, "b", code=1, reason=reason, failed_at=world.now - 0.1, error=lost)
    assert world.why(job).startswith(f"is being stopped: on b {reason}: {lost}")
    world.ended_on(job, "a", code=3, failed_at=world.now - 0.3, error=wrong)
    world.ended_on(job, code=143, reason="stopped")
    assert world.why(job) == f"on a rank 0 ended with exit code 3: {wrong}"
    shown = view(world.state, world.job(job), world.now)
    assert (shown.code, shown.error) == (3, wrong)


def resuming(nodes: tuple[int, int | None] = (2, 2)) -> Any:
    policy = {"restart": Restart(max=9, backoff_s=1.0)}
    return spec(policy=policy, resources={"nodes": nodes}, output=Output(checkpoints=("ckpt/**",)))


def sources(world: World, job: int) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    """Whether it was told to start, on which nodes, and whose checkpoints they get before."""
    attempt = world.job(job).attempt
    assert attempt is not None
    return attempt.ordered, attempt.nodes, attempt.checkpoints_from


def test_checkpoints_come_from_the_nodes_of_the_last_attempt_that_began() -> None:
    world = three()
    job = world.submit(resuming())
    assert sources(world, job) == (False, ("a", "b"), ())
    world.started_on(job)
    world.feed(e.NodeDrained(world.now, "a", "root", "x"))
    world.ended_on(job, code=137)
    world.pass_time(1.0)
    assert sources(world, job) == (False, ("b", "c"), ("a", "b"))
    world.node_left("c")  # before the start: what b and c were to have, the next are to have
    world.ended_on(job, code=143, reason="stopped")
    world.feed(e.NodeResumed(world.now, "a", "root"))
    assert sources(world, job) == (False, ("a", "b"), ("a", "b"))
    world.started_on(job)
    world.ended_on(job, code=137)
    world.pass_time(2.0)
    assert sources(world, job) == (False, ("a", "b"), ("a", "b"))


def test_one_node_needs_no_checkpoints_but_those_of_another() -> None:
    world = three()
    job = world.submit(resuming((1, 1)))
    world.started_on(job)
    world.ended_on(job, code=137)
    world.pass_time(1.0)
    assert sources(world, job) == (True, ("a",), ())
    world.started_on(job)
    world.feed(e.NodeDrained(world.now, "a", "root", "x"))
    world.ended_on(job, code=137)
    world.pass_time(2.0)
    assert sources(world, job) == (False, ("b",), ("a",))
    moved = "1 file that differs was moved to /aside"
    world.feed(e.WorkersPrepared(world.now, job, 3, "b", "3.11.7", "2.13.0", "0.6.0", moved))
    assert sources(world, job)[0]
    assert f"on b {moved}" in world.told(job)


def test_files_of_wide_parallel_move_where_no_machine_of_before_is_used_again() -> None:
    world = three()
    policy = {"restart": Restart(max=9, backoff_s=1.0)}
    job = world.submit(spec(policy=policy, resources={"nodes": (1, 1)}))
    world.started_on(job)
    world.ended_on(job, code=137)
    world.pass_time(1.0)
    assert sources(world, job) == (True, ("a",), ())
    world.started_on(job)
    world.feed(e.NodeDrained(world.now, "a", "root", "x"))
    world.ended_on(job, code=137)
    world.pass_time(2.0)
    assert sources(world, job) == (False, ("b",), ("a",))

    several = world.submit(spec(policy=policy, resources={"nodes": (1, 2), "avoid": ("b",)}))
    world.started_on(several)
    assert sources(world, several)[1] == ("c",)
    world.feed(e.NodeResumed(world.now, "a", "root"))
    world.ended_on(several, code=137)
    world.pass_time(1.0)
    assert sources(world, several) == (False, ("a", "c"), ())  # c has its files; resume sends them
    world.node_left("c")  # before the start: a alone has none of them
    world.ended_on(several, code=143, reason="stopped")
    assert sources(world, several) == (False, ("a",), ("c",))


def test_a_machine_of_any_earlier_attempt_that_is_not_used_again_is_asked() -> None:
    world = three()
    policy = {"restart": Restart(max=9, backoff_s=1.0)}
    job = world.submit(spec(policy=policy, resources={"nodes": (1, 2)}))

    def again(drained: str, resumed: str = "") -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
        world.started_on(job)
        world.feed(e.NodeDrained(world.now, drained, "root", "x"))
        if resumed:
            world.feed(e.NodeResumed(world.now, resumed, "root"))
        world.ended_on(job, code=137)
        world.pass_time(600.0)
        return sources(world, job)

    assert sources(world, job)[1] == ("a", "b")
    # b is here again, and need not have saved anything: its disk may be full.
    assert again("a") == (False, ("b", "c"), ("a", "b"))
    assert again("b") == (False, ("c",), ("b", "c", "a"))
    assert again("c", "b") == (False, ("b",), ("c", "b", "a"))
    assert again("b", "a") == (False, ("a",), ("b", "c", "a"))
    attempt = world.job(job).attempt
    assert attempt is not None
    assert attempt.saved == Saved(job, ("b",), ("c", "a"))
    world.feed(e.NodeRemoved(world.now, "c", "root"))
    assert again("a", "b") == (False, ("b",), ("a", "b"))  # nothing of c can be had


def test_a_job_begins_with_the_checkpoints_of_another_until_it_has_begun() -> None:
    world = three()
    policy = {"restart": Restart(max=9, backoff_s=1.0)}
    made = spec(policy=policy, resources={"nodes": (1, 1)})
    job = world.submit(made, resumes=Saved(17, ("a",), ("b",)))
    assert "submitted by ada, goes on from job 17" in world.told(job)
    assert sources(world, job) == (False, ("a",), ("a", "b"))  # of another job, though it is on a
    world.node_left("a")
    assert sources(world, job) == (False, ("b",), ("a", "b"))
    attempt = world.job(job).attempt
    assert attempt is not None
    assert attempt.saved == Saved(17, ("a",), ("b",))
    assert waited_for(world.state.jobs.values()) == {17}
    world.started_on(job)
    assert waited_for(world.state.jobs.values()) == set()
    world.ended_on(job, code=137)
    world.pass_time(1.0)
    assert sources(world, job) == (True, ("b",), ())  # what it has itself saved since


def test_a_failure_while_all_are_heard_is_no_lost_node() -> None:
    world = three()
    job = world.submit(gang(restart=Restart(max=1, on=("node-lost",))))
    world.started_on(job)
    world.ended_on(job, code=1)
    assert world.state_of(job) == "failed"


def test_a_machine_that_restarted_is_node_lost_and_named() -> None:
    world = three()
    job = world.submit(gang(restart=Restart(max=1, on=("node-lost",))))
    world.started_on(job)
    world.node_left("b")
    world.node_back("b")
    world.ended_on(job, "b", code=143, reason="the machine restarted while it ran", lost=True)
    world.ended_on(job, "a", code=1)
    assert world.state_of(job) == "backoff"
    assert "on b the machine restarted while it ran" in world.why(job)


def test_nodes_lost_of_a_node_that_is_heard_changes_nothing() -> None:
    world = three()
    job = world.submit(gang())
    world.started_on(job)
    assert world.declare_lost("b") == []
    assert world.state_of(job) == "running"


def test_a_lost_node_that_returns_gets_jobs_again() -> None:
    world = three()
    world.node_left("b")
    world.declare_lost("b")
    assert world.state.lost == {"b"}
    world.node_back("b")
    assert not world.state.lost
    job = world.submit(spec(resources={"use": ("b",)}))
    assert world.state_of(job) == "starting"


def test_a_job_that_stops_alone_is_lost_after_its_time_its_grace_and_a_minute() -> None:
    world = three()
    policy = {"stop_alone_s": 600.0, "grace_s": 10.0, "restart": Restart(max=1, backoff_s=1.0)}
    job = world.submit(gang(**policy))
    world.started_on(job)
    world.node_left("b")
    world.pass_time(70.0)
    assert "until it is, or for another 10 min (policy.stop_alone)" in world.why(job)
    actions = world.pass_time(599.0)
    assert not actions
    actions = world.pass_time(1.0)
    assert [stop.node for stop in stops(actions)] == ["a"]
    world.ended_on(job, "a", code=143)
    assert "b was not heard of for 670 s (policy.stop_alone)" in world.why(job)
    world.pass_time(1.0)
    assert nodes_of(world, job) == ("a", "c")


def test_an_allocation_alone_on_its_node_is_lost_by_stop_alone_too() -> None:
    world = three()
    job = world.submit(spec(policy={"stop_alone_s": 60.0}, resources={"use": ("b",)}))
    world.started_on(job)
    world.node_left("b")
    world.pass_time(130.0)
    assert world.state_of(job) == "failed"


def test_a_node_that_is_heard_in_time_starts_stop_alone_anew() -> None:
    world = three()
    job = world.submit(gang(stop_alone_s=60.0))
    world.started_on(job)
    for _ in range(3):
        world.node_left("b")
        world.pass_time(120.0)
        world.node_back("b")
    assert world.state_of(job) == "running"
    assert world.state.deadlines == []


def test_max_time_counts_while_a_node_is_silent() -> None:
    world = three()
    job = world.submit(gang(stop_alone_s=60.0, max_time_s=50.0, warn_before_s=0.0))
    world.started_on(job)
    world.node_left("b")
    assert stops(world.pass_time(50.0))
    world.ended_on(job, "a", code=143)
    world.pass_time(80.0)
    assert world.state_of(job) == "failed"
    assert world.job(job).phase.code == 124  # type: ignore[union-attr]


@pytest.mark.parametrize("by", [-31_536_000.0, 31_536_000.0])
def test_a_clock_that_is_set_makes_no_silence_longer(by: float) -> None:
    world = three()
    job = world.submit(gang(stop_alone_s=60.0))
    world.started_on(job)
    world.node_left("b")
    world.pass_time(20.0)
    world.now += by
    world.feed(e.ClockJumped(world.now, by))
    assert "for 20 s" in world.why(job)
    assert not world.pass_time(109.0)
    assert stops(world.pass_time(1.0))


def test_stop_alone_must_outlast_a_restart_of_a_daemon() -> None:
    assert problems_of(spec(policy={"stop_alone_s": 15.0})) == []
    for wrong in (0.0, 14.0, float("inf"), -1.0):
        assert problems_of(spec(policy={"stop_alone_s": wrong}))


def test_after_a_restart_only_the_coordinator_was_heard() -> None:
    world = three()
    job = world.submit(gang())
    world.started_on(job)
    world.now += 100.0
    restart(world, "a")
    assert world.state.absent == {"b": world.now, "c": world.now}
    assert world.state_of(job) == "running"
    waiting = world.submit(gang())
    assert world.state_of(waiting) == "queued"
    world.node_back("b")
    assert world.why(job) == "runs on a, b"


def test_an_operators_word_is_still_true_after_a_restart() -> None:
    world = three()
    world.node_left("c")
    world.declare_lost("c")
    world.feed(e.NodeDrained(world.now, "a", "root", "old"))
    restart(world, "a")
    assert world.state.lost == {"c"}
    assert world.state.drained["a"].reason == "old"
    world.node_back("b")
    assert nodes_of(world, world.submit(gang((1, None)))) == ("b",)


# ---- where new allocations go


def test_an_absent_node_gets_nothing_and_is_waited_for() -> None:
    world = three()
    world.node_left("c")
    job = world.submit(gang((3, 3)))
    world.pass_time(40.0)
    assert world.why(job) == (
        "waits for 3 nodes; 2 of 3 are free (c has not been heard of for 40 s)"
    )
    world.node_back("c")
    assert world.state_of(job) == "starting"


def test_a_job_that_waits_for_a_silent_node_does_not_block_the_others() -> None:
    world = three()
    world.node_left("c")
    large = world.submit(gang((3, 3)))
    small = world.submit()
    assert world.state_of(small) == "starting"
    world.node_back("c")
    late = world.submit()
    assert world.state_of(late) == "queued"  # now the large one can have all, and is first
    world.ended_on(small)
    assert world.state_of(large) == "starting"


def test_a_drained_node_gets_no_new_job_and_keeps_those_it_has() -> None:
    world = three()
    running = world.submit(spec(resources={"use": ("b",)}))
    world.started_on(running)
    assert world.feed(e.NodeDrained(world.now, "b", "root", "fan broken")) == []
    waiting = world.submit(spec(resources={"use": ("b",)}))
    world.ended_on(running)
    assert world.state_of(running) == "done"
    assert world.why(waiting) == (
        "waits for 1 node; 0 of 1 are free (b is drained by root: fan broken)"
    )
    world.feed(e.NodeResumed(world.now, "b", "root"))
    assert world.state_of(waiting) == "starting"


def test_the_coordinator_can_be_drained() -> None:
    world = three()
    world.feed(e.NodeDrained(world.now, "a", "root", ""))
    assert nodes_of(world, world.submit()) == ("b",)


def test_all_waits_for_silent_nodes_and_leaves_out_drained_and_lost_ones() -> None:
    world = World(*(Node(name, 2, GIB) for name in "abcd"))
    world.feed(e.NodeDrained(world.now, "b", "root", ""))
    world.node_left("c")
    job = world.submit(gang((1, None)))
    assert "c has not been heard of" in world.why(job)
    world.declare_lost("c")
    assert nodes_of(world, job) == ("a", "d")


def test_resources_count_per_node_of_several() -> None:
    nodes = [Node("a", 2, GIB), Node("b", 8, 8 * GIB, gpus=2), Node("c", 8, 8 * GIB)]
    world = World(*nodes)
    by_memory = {"nodes": (2, 2), "min_memory": 4 * GIB, "avoid": ("x",)}
    assert nodes_of(world, world.submit(spec(resources=by_memory))) == ("b", "c")
    with pytest.raises(NeverRuns) as never:
        plan(spec(resources={"nodes": (2, 2), "min_gpus": 1}), nodes)
    assert str(never.value) == (
        "the job needs 2 nodes, 1 of 3 fits (a has 0 GPUs, the job needs 1; c has 0 GPUs, the job "
        "needs 1)"
    )


def test_a_job_that_can_never_run_is_told_of_names_that_no_node_has() -> None:
    nodes = [Node(name, 2, GIB) for name in "abcdefgh"]
    with pytest.raises(NeverRuns, match="needs 9 nodes, there are 8"):
        plan(gang((9, 9)), nodes)
    with pytest.raises(NeverRuns, match=r"0 of 8 fit \(there is no node z; .*; 4 more\)"):
        plan(spec(resources={"use": ("z",)}), nodes)


def test_a_member_that_is_away_still_counts_for_what_can_ever_run() -> None:
    world = three()
    world.node_left("b", "c")
    assert plan(gang((3, 3)), list(world.state.nodes.values())).world_size == 3


# ---- removing


def test_a_removed_node_is_gone_and_its_allocations_are_over() -> None:
    world = three()
    job = world.submit(gang(restart=Restart(max=1, backoff_s=1.0)))
    world.started_on(job)
    world.node_left("b")
    actions = world.feed(e.NodeRemoved(world.now, "b", "root"))
    assert [stop.node for stop in stops(actions)] == ["a"]
    assert list(world.state.nodes) == ["a", "c"]
    world.ended_on(job, "a", code=143)
    assert "b was removed by root" in world.why(job)
    world.pass_time(1.0)
    assert nodes_of(world, job) == ("a", "c")


def test_what_cannot_be_done_to_a_node_is_said_in_a_sentence() -> None:
    world = three()
    job = world.submit(spec(resources={"use": ("b",)}))
    state = world.state
    assert refusal_to_lose(state, "b").startswith("b is heard")
    assert refusal_to_lose(state, "x") == "there is no node x"
    assert "a is the coordinator" in refusal_to_remove(state, "a", "a", force=True)
    assert f"job {job} is on b" in refusal_to_remove(state, "b", "a")
    assert refusal_to_remove(state, "b", "a").endswith("--force, which ends it there")
    assert refusal_to_remove(state, "b", "a", force=True) == ""
    assert refusal_to_remove(state, "c", "a") == ""
    assert refusal_to_remove(state, "x", "a") == "there is no node x"
    assert refusal_to_drain(state, "x") == "there is no node x"
    assert refusal_to_drain(state, "a") == ""
    assert refusal_to_resume(state, "b") == "b is not drained: nothing changed"
    world.node_left("b")
    assert refusal_to_lose(state, "b") == ""
    assert refusal_to_remove(state, "b", "a").endswith("counts its jobs as ended")
    world.feed(e.NodeDrained(world.now, "b", "root", "old"))
    assert refusal_to_resume(state, "b") == ""


def test_how_a_node_stands_in_one_sentence() -> None:
    world = three()
    assert node_why(world.state, "b", world.now) == "nothing runs on it"
    job = world.submit(spec(resources={"use": ("b",)}))
    assert node_why(world.state, "b", world.now) == f"runs job {job}"
    world.feed(e.NodeDrained(world.now, "b", "root", "fan broken"))
    expected = f"drained by root: fan broken; job {job} still there"
    assert node_why(world.state, "b", world.now) == expected
    world.node_left("b")
    world.pass_time(40.0)
    said = node_why(world.state, "b", world.now)
    assert said.startswith(f"not heard of for 40 s; job {job} may go on there (wiiiiide nodes lost")
    assert said.endswith("; drained by root: fan broken")
    world.declare_lost("b")
    world.feed(e.NodeResumed(world.now, "b", "root"))
    assert node_why(world.state, "b", world.now) == "not heard of for 40 s, declared lost"


def test_the_log_says_what_happened_to_a_node() -> None:
    seen = e.NodeSeen(1.0, Node("b", 2, GIB, address="10.0.0.2", port=9461))
    assert told(seen) == "b is heard (10.0.0.2:9461)"
    assert told(e.NodeDrained(1.0, "b", "root", "fan")) == "b is drained by root: fan"
    assert told(e.Ticked(1.0)) == ""


# ---- notify, and undoing


def test_notify_runs_on_its_owners_node_while_that_is_heard() -> None:
    world = three()
    notify = Notify(("mail", "{id}"), ("running", "done"))
    job = world.submit(spec(resources={"use": ("b",)}, notify=notify))
    world.started_on(job)
    world.node_left("a")  # the owner's
    world.ended_on(job)
    assert [a.node for a in world.actions if isinstance(a, RunNotify)] == ["a", ""]


@pytest.mark.parametrize(
    "event",
    [
        e.NodeLeft(2000.0, "b"),
        e.NodeSeen(2000.0, Node("b", 8, GIB)),
        e.NodeSeen(2000.0, Node("d", 8, GIB)),
        e.NodeSeen(2000.0, Node("c", 2, GIB)),
        e.NodeDrained(2000.0, "b", "root", ""),
        e.NodeResumed(2000.0, "a", "root"),
        e.NodeDeclaredLost(2000.0, "c", "root"),
        e.NodeRemoved(2000.0, "b", "root"),
        e.NodeRemoved(2000.0, "c", "root"),
        e.ClockJumped(2000.0, 500.0),
    ],
)
def test_a_change_of_a_node_that_could_not_be_stored_is_undone(event: e.AnyEvent) -> None:
    world = three()
    job = world.submit(gang((3, 3), stop_alone_s=100.0))
    world.started_on(job)
    world.submit(gang())
    world.node_left("c")
    world.feed(e.NodeDrained(world.now, "a", "root", ""))
    before = everything(world.state)
    step(world.state, event)
    assert everything(world.state) != before
    world.state.rollback()
    assert everything(world.state) == before
    assert not world.state.node_table.touched()


def everything(state: State) -> Any:
    rows: list[NodeRow | None] = [state.node_table.row(name) for name in state.nodes]
    claims = {name: dict(jobs) for name, jobs in state.claims.items()}
    return rows, dict(state.absent), dict(state.jobs), claims, list(state.deadlines)


def test_an_allocation_on_an_unknown_node_is_not_forgotten_by_a_change_undone() -> None:
    """It is all that lets an operator vouch for its end."""
    world = three()
    job = world.submit(gang((3, 3)))
    world.started_on(job)
    state = State([world.state.nodes["a"]], [world.job(job)])
    step(state, e.NodeDrained(world.now, "a", "root", ""))
    state.rollback()
    assert [found.id for found in state.on("c")] == [job]
    step(state, e.NodeSeen(world.now, Node("x", 2, GIB)))
    state.rollback()
    assert set(state.claims) == {"a", "b", "c"}


def test_a_node_is_silent_since_its_last_word_not_since_that_was_noticed() -> None:
    world = three()
    world.feed(e.NodeLeft(world.now, "b", silent_s=10.0))
    assert node_why(world.state, "b", world.now + 5) == "not heard of for 15 s"
