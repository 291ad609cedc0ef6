"""Stories of single jobs and small queues, told event by event."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.cluster.control.world import GIB, World, spec, stops, with_priority
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.actions import (
    AnyAction,
    DumpStacks,
    PrepareWorkers,
    RunNotify,
    SignalWorkers,
    StartWorkers,
)
from wiiiiided.cluster.control.job import Backoff
from wiiiiided.cluster.control.state import SOON_S
from wiiiiided.cluster.control.transitions import SAME_END
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import Notify, Restart


def test_a_job_on_a_free_machine_is_placed_at_once() -> None:
    world = World()
    job = world.submit(spec(resources={"workers_per_node": 2}))
    assert world.state_of(job) == "starting"
    (start,) = [a for a in world.actions if isinstance(a, StartWorkers)]
    assert (start.node, start.layout.world_size, start.attempt) == ("a", 2, 1)
    world.started_on(job)
    assert world.why(job) == "runs on a"
    world.ended_on(job)
    assert world.state_of(job) == "done"
    assert world.told(job) == [
        "submitted by ada",
        "starting on a, attempt 1",
        "runs on a",
        "done",
    ]


def test_a_second_job_waits_and_says_for_what() -> None:
    world = World()
    first, second, third = world.submit(), world.submit(), world.submit()
    assert world.why(second) == f"waits for a, which runs job {first}"
    assert world.why(third) == f"waits for a, which runs job {first}; 1 job ahead of it"
    world.ended_on(first)
    assert world.state_of(second) == "starting"
    assert world.state_of(third) == "queued"


def test_higher_priority_goes_first_and_equals_in_order() -> None:
    world = World()
    running = world.submit()
    low, high, high_too = (
        world.submit(with_priority(spec(), priority)) for priority in (10, 90, 90)
    )
    order = []
    current = running
    for _ in range(3):
        world.ended_on(current)
        (current,) = [n for n, job in world.state.jobs.items() if job.state == "starting"]
        order.append(current)
    assert order == [high, high_too, low]


def test_jobs_that_name_their_cores_share_a_machine() -> None:
    world = World(Node("a", 4, 8 * GIB))
    shared = {"workers_per_node": 1, "cores_per_worker": 2}
    first, second, third = (world.submit(spec(resources=shared)) for _ in range(3))
    assert [world.state_of(n) for n in (first, second, third)] == ["starting"] * 2 + ["queued"]
    alone = world.submit()
    world.ended_on(first)
    assert world.state_of(third) == "starting"
    world.ended_on(second)
    assert world.state_of(alone) == "queued"  # third still has two cores
    world.ended_on(third)
    assert world.state_of(alone) == "starting"


def test_a_small_job_does_not_overtake_a_large_one_for_good() -> None:
    world = World(Node("a", 4, 8 * GIB))
    small = {"workers_per_node": 1, "cores_per_worker": 1}
    first = world.submit(spec(resources=small))
    large = world.submit()
    late = world.submit(spec(resources=small))
    assert world.state_of(late) == "queued"  # three cores are free, but the large one is first
    world.ended_on(first)
    assert world.state_of(large) == "starting"


def test_a_node_the_first_in_line_cannot_use_stays_open_to_others() -> None:
    world = World(Node("a", 4, 8 * GIB), Node("b", 4, 8 * GIB))
    world.submit(spec(resources={"use": ("a",)}))
    waiting = world.submit(spec(resources={"use": ("a",)}))
    other = world.submit(spec(resources={"use": ("b",)}))
    assert world.state_of(waiting) == "queued"
    assert world.state_of(other) == "starting"


def test_a_gang_starts_on_all_its_nodes_or_on_none() -> None:
    world = World(*(Node(name, 2, GIB) for name in "abc"))
    one = world.submit(spec(resources={"use": ("a",)}))
    gang = world.submit(spec(resources={"nodes": (3, 3), "workers_per_node": 2}))
    assert world.why(gang) == "waits for 3 nodes; 2 of 3 are free (a runs job 1)"
    assert not [a for a in world.actions if isinstance(a, StartWorkers) and a.id == gang]
    world.ended_on(one)
    asked = [a.node for a in world.actions if isinstance(a, PrepareWorkers) and a.id == gang]
    assert asked == ["a", "b", "c"]
    assert not world.prepared_on(gang, "a", "b")
    starts = [a for a in world.prepared_on(gang, "c") if isinstance(a, StartWorkers)]
    assert [(s.node, s.layout.on(s.node).first_rank) for s in starts] == [
        ("a", 0),
        ("b", 2),
        ("c", 4),
    ]
    world.started_on(gang, "a", "b")
    assert world.state_of(gang) == "starting"
    world.started_on(gang, "c")
    assert world.state_of(gang) == "running"


def test_a_range_of_nodes_takes_what_is_free_and_all_means_all() -> None:
    world = World(*(Node(name, 2, GIB) for name in "abc"))
    world.submit(spec(resources={"use": ("a",)}))
    some = world.submit(spec(resources={"nodes": (1, 4)}))
    assert world.job(some).attempt.nodes == ("b", "c")  # type: ignore[union-attr]
    every = world.submit(spec(resources={"nodes": (1, None)}))
    assert world.state_of(every) == "queued"


def test_one_failing_allocation_stops_the_others_and_is_the_one_named() -> None:
    world = World(Node("a", 2, GIB), Node("b", 2, GIB))
    gang = world.submit(spec(resources={"nodes": (2, 2)}))
    world.started_on(gang)
    actions = world.ended_on(gang, "b", code=3, reason="rank 1 ended with exit code 3")
    assert [stop.node for stop in stops(actions)] == ["a"]
    world.ended_on(gang, "a", code=143, reason="rank 0 was killed by SIGTERM")
    assert world.state_of(gang) == "failed"
    assert world.job(gang).phase.code == 3  # type: ignore[union-attr]
    assert world.why(gang) == "on b rank 1 ended with exit code 3"


def test_a_dependency_holds_a_job_back_until_it_is_done() -> None:
    world = World()
    first = world.submit()
    second = world.submit(spec(policy={"after": (first,)}))
    assert world.why(second) == f"waits for job {first} (starting)"
    world.ended_on(first)
    assert world.state_of(second) == "starting"


def test_a_failed_dependency_cancels_the_whole_chain() -> None:
    world = World()
    first = world.submit()
    second = world.submit(spec(policy={"after": (first,)}))
    third = world.submit(spec(policy={"after": (second,)}), hold=True)
    world.ended_on(first, code=1)
    assert world.state_of(second) == world.state_of(third) == "cancelled"
    assert world.why(third) == f"job {second}, which it was to run after, is cancelled"


def test_a_very_long_chain_of_dependencies_is_no_recursion() -> None:
    world = World()
    last = world.submit()
    first = last
    for _ in range(3000):
        number = world._next
        world._next += 1
        event = e.JobSubmitted(world.now, number, spec(), world.job(last).owner, "0", (last,))
        from wiiiiided.cluster.control.step import step

        step(world.state, event)
        world.last.update(world.state.touched)
        world.state.committed()
        last = number
    world.cancel(first)
    world.ended_on(first, code=143)
    assert world.state_of(last) == "cancelled"


def test_hold_and_release() -> None:
    world = World()
    job = world.submit(hold=True)
    assert world.why(job) == f"is held by ada; wiiiiide release {job} lets it run"
    world.feed(e.ReleaseRequested(world.now, job, "ada"))
    assert world.state_of(job) == "starting"
    waiting = world.submit()
    world.feed(e.HoldRequested(world.now, waiting, "root"))
    world.ended_on(job)
    assert world.state_of(waiting) == "held"


def test_restarts_back_off_and_then_give_up() -> None:
    world = World()
    restart = Restart(max=2, backoff_s=10.0)
    job = world.submit(spec(policy={"restart": restart}))
    for wait_s in (10.0, 20.0):
        world.started_on(job)
        world.ended_on(job, code=1)
        phase = world.job(job).phase
        assert isinstance(phase, Backoff)
        assert phase.until == world.now + wait_s
        assert f"starts again in {wait_s:.0f} s" in world.why(job)
        world.pass_time(wait_s - 0.5)
        assert world.state_of(job) == "backoff"
        world.pass_time(0.5)
        assert world.state_of(job) == "starting"
    world.ended_on(job, code=7)
    assert world.state_of(job) == "failed"
    assert world.why(job) == "rank 0 ended with exit code 7 (after 3 attempts)"


RESTARTS = {"restart": Restart(max=9, backoff_s=60.0)}


def test_an_early_end_is_tried_once_more_at_once_and_the_same_again_is_final() -> None:
    world = World()
    job = world.submit(spec(policy=RESTARTS))
    world.started_on(job)
    world.ended_on(job, code=1, idle=True, error="ImportError: no torch")
    assert world.state_of(job) == "backoff"
    world.pass_time(0.0)
    world.started_on(job)
    again = "rank 1 ended with exit code 1"  # which rank says it first is chance
    world.ended_on(job, code=1, reason=again, idle=True, error="ImportError: no torch")
    assert world.state_of(job) == "failed"
    assert world.why(job) == f"{again}: ImportError: no torch; {SAME_END}"
    assert world.told(job)[-1] == f"failed: {world.why(job)}"
    world.requeue(job)
    world.started_on(job)
    world.ended_on(job, code=1, idle=True, error="ImportError: no torch")
    assert world.state_of(job) == "backoff"  # a requeue has tries of its own


def test_a_command_that_cannot_be_run_is_tried_twice_however_long_it_takes_to_find_out() -> None:
    world = World()
    job = world.submit(spec(policy=RESTARTS))
    for _ in range(2):
        world.pass_time(100.0)
        assert world.state_of(job) == "starting"
        world.ended_on(job, code=127, reason="the command 'x' was not found", idle=True)
        world.pass_time(0.0)
    assert world.why(job) == f"the command 'x' was not found; {SAME_END}"


@pytest.mark.parametrize(
    ("more", "ran_s"),
    [
        ({"idle": False}, 1.0),  # it had begun to work
        ({"idle": True}, SOON_S),
        ({"idle": True, "lost": True}, 1.0),
        ({"idle": True, "code": 137}, 1.0),  # a signal comes from elsewhere
    ],
)
def test_other_ends_are_worth_every_restart_and_its_wait(more: Any, ran_s: float) -> None:
    world = World()
    job = world.submit(spec(policy=RESTARTS))
    for wait_s in (60.0, 120.0, 240.0):
        world.started_on(job)
        world.pass_time(ran_s)
        world.ended_on(job, **{"code": 1, **more})
        phase = world.job(job).phase
        assert isinstance(phase, Backoff)
        assert phase.until == world.now + wait_s
        world.pass_time(wait_s)


def test_two_different_early_ends_are_not_the_same_end() -> None:
    world = World()
    job = world.submit(spec(policy=RESTARTS))
    for error in ("OSError: busy, 1", "OSError: busy, 2", "OSError: busy, 1"):
        world.started_on(job)
        world.ended_on(job, code=1, idle=True, error=error)
        assert world.state_of(job) == "backoff"
        world.pass_time(0.0)


def test_ranks_that_train_apart_are_in_story_and_sentence_until_they_do_not() -> None:
    world = World()
    job = world.submit()
    world.feed(e.StepsCompared(world.now, job, 1, "too early"))
    world.started_on(job)
    apart = "rank 1 on a is 1,450 steps behind"
    for _ in range(2):
        world.feed(e.StepsCompared(world.now, job, 1, apart))
    assert world.why(job) == f"runs on a; {apart}"
    world.feed(e.StepsCompared(world.now, job, 1, ""))
    assert world.why(job) == "runs on a"
    told = [text for text in world.told(job) if "step" in text]
    assert told == [apart, "all ranks are at the same step again"]
    world.feed(e.StepsCompared(world.now, job, 1, apart))
    world.ended_on(job)
    attempt = world.job(job).attempt
    assert attempt is not None
    assert attempt.apart == apart  # for the report


def test_backoff_has_a_ceiling() -> None:
    world = World()
    job = world.submit(spec(policy={"restart": Restart(max=20, backoff_s=60.0)}))
    for _ in range(8):
        world.ended_on(job, code=1)
        phase = world.job(job).phase
        assert isinstance(phase, Backoff)
        assert phase.until - world.now <= 600.0
        world.pass_time(600.0)


@pytest.mark.parametrize(
    ("on", "lost", "again"), [("failure", True, False), ("node-lost", True, True)]
)
def test_the_policy_says_what_is_worth_a_restart(on: str, lost: bool, again: bool) -> None:
    world = World()
    job = world.submit(spec(policy={"restart": Restart(max=1, on=(on,))}))  # type: ignore[arg-type]
    world.started_on(job)
    world.ended_on(job, code=1, reason="the machine restarted while it ran", lost=lost)
    assert world.state_of(job) == ("backoff" if again else "failed")


def test_cancel_waits_for_the_end_of_the_workers() -> None:
    world = World()
    job = world.submit(spec(policy={"grace_s": 5.0}))
    world.started_on(job)
    (stop,) = stops(world.cancel(job))
    assert stop.grace_s == 5.0
    assert world.why(job) == "is being stopped: cancelled by ada"
    (now,) = stops(world.cancel(job, now=True))
    assert now.grace_s == 0.0
    waiting = world.submit()
    assert world.state_of(waiting) == "queued"  # the node is not free before it is empty
    world.ended_on(job, code=143)
    assert world.state_of(job) == "cancelled"
    assert world.state_of(waiting) == "starting"


def test_cancel_of_a_job_that_never_ran_is_immediate() -> None:
    world = World()
    world.submit()
    job = world.submit()
    assert stops(world.cancel(job)) == []
    assert world.state_of(job) == "cancelled"
    assert world.job(job).phase.code is None  # type: ignore[union-attr]


def test_cancel_during_a_restart_wait() -> None:
    world = World()
    job = world.submit(spec(policy={"restart": Restart(max=1)}))
    world.ended_on(job, code=1)
    assert world.state_of(job) == "backoff"
    world.cancel(job)
    assert world.state_of(job) == "cancelled"


def test_max_time_warns_then_stops_and_counts_all_attempts() -> None:
    world = World()
    policy = {"max_time_s": 100.0, "warn_before_s": 20.0, "restart": Restart(max=5, backoff_s=1.0)}
    job = world.submit(spec(policy=policy))
    world.started_on(job)
    world.now += 60.0
    world.ended_on(job, code=1)
    world.pass_time(1.0)
    world.started_on(job)
    actions = world.pass_time(19.0)
    assert not actions
    (warning,) = [a for a in world.pass_time(1.5) if isinstance(a, SignalWorkers)]
    assert warning.signal == "SIGUSR1"
    assert stops(world.pass_time(20.0))
    world.ended_on(job, code=143)
    assert world.state_of(job) == "failed"
    assert world.job(job).phase.code == 124  # type: ignore[union-attr]
    assert "max_time" in world.why(job)


def test_a_hang_writes_stacks_first_and_then_the_policy_applies() -> None:
    world = World(Node("a", 2, GIB), Node("b", 2, GIB))
    policy = {"hang_timeout_s": 600.0, "restart": Restart(max=1, on=("hang",))}
    job = world.submit(spec(policy=policy, resources={"nodes": (2, 2)}))
    world.started_on(job)
    world.feed(e.ProgressSampled(world.now, job, 1, 1, 599.0))
    assert world.state_of(job) == "running"
    actions = world.feed(e.ProgressSampled(world.now, job, 1, 1, 600.0))
    assert {a.node for a in actions if isinstance(a, DumpStacks)} == {"a", "b"}
    assert "rank 1 made no progress for 600 s" in world.why(job)
    assert not stops(world.feed(e.StacksDumped(world.now, job, 1, "a")))
    assert len(stops(world.feed(e.StacksDumped(world.now, job, 1, "b")))) == 2
    world.ended_on(job, code=143)
    assert world.state_of(job) == "backoff"


def test_a_hang_whose_stacks_never_come_is_stopped_all_the_same() -> None:
    world = World()
    job = world.submit(spec(policy={"hang_timeout_s": 10.0}))
    world.started_on(job)
    world.feed(e.ProgressSampled(world.now, job, 1, 0, 11.0))
    assert not stops(world.pass_time(14.0))
    assert stops(world.pass_time(1.0))


def test_requeue_runs_an_ended_job_again_as_another_attempt() -> None:
    world = World()
    job = world.submit()
    world.ended_on(job, code=1)
    world.requeue(job)
    assert world.state_of(job) == "starting"
    assert world.job(job).attempt.number == 2  # type: ignore[union-attr]


def test_requeue_of_a_running_job_stops_it_first() -> None:
    world = World()
    job = world.submit()
    world.started_on(job)
    world.requeue(job)
    assert world.state_of(job) == "stopping"
    world.ended_on(job, code=143)
    assert world.state_of(job) == "starting"
    assert world.job(job).attempt.number == 2  # type: ignore[union-attr]


def test_reports_of_an_earlier_attempt_change_nothing() -> None:
    world = World()
    job = world.submit(spec(policy={"restart": Restart(max=1, backoff_s=1.0)}))
    world.ended_on(job, code=1)
    world.pass_time(1.0)
    world.started_on(job)
    before = world.job(job)
    for event in (
        e.WorkersEnded(world.now, job, 1, "a", 0, ""),
        e.WorkersStarted(world.now, job, 1, "a"),
        e.ProgressSampled(world.now, job, 1, 0, 1e9),
        e.WorkersEnded(world.now, 99, 1, "a", 0, ""),
    ):
        assert world.feed(event) == []
    assert world.job(job) == before


def test_the_same_report_twice_counts_once() -> None:
    world = World()
    job = world.submit()
    world.started_on(job)
    event = e.WorkersEnded(world.now, job, 1, "a", 0, "")
    world.feed(event)
    assert world.feed(event) == []
    assert world.state_of(job) == "done"


def test_notify_runs_for_the_states_the_job_names() -> None:
    world = World()
    notify = Notify(("mail", "{id}"), ("running", "failed"))
    job = world.submit(spec(notify=notify))
    world.started_on(job)
    world.ended_on(job, code=2)
    states = [a.state for a in world.actions if isinstance(a, RunNotify)]
    assert states == ["running", "failed"]


def test_a_change_that_could_not_be_stored_is_undone() -> None:
    from wiiiiided.cluster.control.step import step

    world = World()
    first, second = world.submit(), world.submit()
    before = dict(world.state.jobs), deepcopy(world.state.ready), world.state.claims["a"].copy()
    step(world.state, e.WorkersEnded(world.now, first, 1, "a", 0, ""))
    assert first not in world.state.jobs
    world.state.rollback()
    assert (dict(world.state.jobs), world.state.ready, world.state.claims["a"]) == before
    world.ended_on(first)
    assert world.state_of(second) == "starting"


def test_a_requeued_job_waits_again_for_those_it_comes_after() -> None:
    world = World()
    first = world.submit()
    second = world.submit(spec(policy={"after": (first,)}))
    world.ended_on(first, code=1)
    assert world.state_of(second) == "cancelled"
    world.requeue(first)
    world.feed(e.RequeueRequested(world.now, second, "ada", world.job(second), (first,)))
    assert world.state_of(second) == "queued"
    assert world.why(second) == f"waits for job {first} (starting)"
    world.ended_on(first)
    assert world.state_of(second) == "starting"


def test_time_before_a_hang_counts_for_max_time() -> None:
    world = World()
    again = Restart(max=9, on=("hang",), backoff_s=1.0)
    policy = {"max_time_s": 100.0, "warn_before_s": 0.0, "hang_timeout_s": 10.0, "restart": again}
    job = world.submit(spec(policy=policy))
    world.started_on(job)
    world.now += 90.0
    world.feed(e.ProgressSampled(world.now, job, 1, 0, 11.0))
    world.feed(e.StacksDumped(world.now, job, 1, "a"))
    world.ended_on(job, code=143)
    world.pass_time(1.0)
    world.started_on(job)
    assert stops(world.pass_time(10.5))


def test_a_warning_says_how_long_there_really_is_and_leaves_time_to_listen() -> None:
    world = World()
    again = Restart(max=1, backoff_s=1.0)
    policy = {"max_time_s": 100.0, "warn_before_s": 60.0, "restart": again}
    job = world.submit(spec(policy=policy))
    world.started_on(job)
    world.pass_time(40.0)
    assert world.told(job)[-1].startswith("max_time ends it in 60 s")
    world.now += 50.0
    world.ended_on(job, code=1)
    world.pass_time(1.0)
    world.started_on(job)
    assert not world.pass_time(4.0)  # ten seconds are left: it is warned halfway
    world.pass_time(1.0)
    assert world.told(job)[-1].startswith("max_time ends it in 5 s")


@pytest.mark.parametrize("by", [-31_536_000.0, 31_536_000.0])
def test_a_clock_that_is_set_moves_no_deadline(by: float) -> None:
    world = World(Node("a", 2, GIB), Node("b", 2, GIB))
    limited = world.submit(spec(policy={"max_time_s": 100.0, "warn_before_s": 0.0}))
    world.started_on(limited)
    again = Restart(max=1, backoff_s=30.0)
    waiting = world.submit(spec(policy={"restart": again}))
    world.ended_on(waiting, code=1)
    world.pass_time(10.0)
    world.now += by
    world.feed(e.ClockJumped(world.now, by))
    assert not stops(world.pass_time(19.0))
    assert world.state_of(waiting) == "backoff"
    world.pass_time(1.0)
    assert world.state_of(waiting) == "starting"
    assert stops(world.pass_time(70.0))


def orders(actions: list[AnyAction]) -> list[tuple[type, str]]:
    return [(type(a), a.node) for a in actions if isinstance(a, PrepareWorkers | StartWorkers)]


def test_an_allocation_of_which_nothing_is_heard_is_asked_for_again() -> None:
    """An order may have been lost on its node; told twice it changes nothing."""
    world = World(Node("a", 2, GIB), Node("b", 2, GIB), Node("c", 2, GIB))
    job = world.submit(spec(resources={"nodes": (3, 3)}))
    world.prepared_on(job, "a", "b")
    assert orders(world.pass_time(59.0)) == []
    assert orders(world.pass_time(1.0)) == [(PrepareWorkers, "c")]
    assert orders(world.pass_time(59.0)) == []
    world.prepared_on(job, "c")
    world.started_on(job, "a")
    world.node_left("c")
    assert orders(world.pass_time(1.0)) == [(StartWorkers, "b")]  # c is told when it is back
    assert "on a, b, c: b and c are not up yet, asked again" in world.why(job)
    world.now += 3600.0  # as when the daemon was away: once, not sixty times
    world.feed(e.ClockJumped(world.now, 3540.0))
    assert orders(world.pass_time(0.0)) == [(StartWorkers, "b")]
    assert orders(world.pass_time(1.0)) == []
    world.started_on(job, "b", "c")
    assert world.state_of(job) == "running"
    assert world.pass_time(3600.0) == []


def test_an_end_that_became_known_later_is_told_with_its_own_time() -> None:
    world = World()
    job = world.submit(spec(policy={"max_time_s": 1000.0}))
    world.started_on(job)
    waiting = world.submit()
    ended_at = world.now + 5.0
    world.now += 3600.0  # the daemon was away
    world.feed(e.WorkersEnded(world.now, job, 1, "a", 0, "", ended_at=ended_at))
    assert world.job(job).phase.since == ended_at
    assert world.job(job).spent_s == 5.0
    assert world.job(waiting).attempt.placed_at == world.now  # type: ignore[union-attr]


def test_why_has_a_sentence_where_no_allocation_is_left_to_be_heard() -> None:
    world = World(Node("a", 2, GIB), Node("b", 2, GIB), Node("c", 2, GIB))
    job = world.submit(spec(resources={"nodes": (3, 3)}))
    world.prepared_on(job)
    world.started_on(job, "a")
    world.pass_time(60.0)
    world.ended_on(job, "c", code=0)
    world.ended_on(job, "b", code=0)
    assert world.why(job).startswith(("is being started on", "runs on"))
    world.node_left("a")
    world.pass_time(60.0)
    assert world.why(job)
