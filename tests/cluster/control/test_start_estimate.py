"""When queued jobs start: played forward, and checked against what the machine then does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.control.world import GIB, World, spec
from tests.kit.examples import examples
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.control.start_estimate import (
    AHEAD,
    AWAY,
    BEHIND,
    MANY,
    Estimate,
    RemainingTime,
    Start,
    remaining,
)
from wiiiiided.domain.node import Node

UNKNOWN = "when it starts is not known: "


def runs_for(seconds: Mapping[int, float | None], most: bool = False) -> Any:
    """How long each job has still to run; None: unknown."""

    def lasts(job: Job) -> RemainingTime:
        known = seconds.get(job.id, 100.0)
        return (
            RemainingTime(None, why=f"job {job.id} is endless")
            if known is None
            else RemainingTime(known, most)
        )

    return lasts


def starts(world: World, seconds: Mapping[int, float | None] = {}, **rest: Any) -> dict[int, Start]:
    estimate = Estimate(world.state, world.now, runs_for(seconds), **rest)
    return {number: estimate.of(job) for number, job in world.state.jobs.items()}


def test_jobs_start_one_after_the_other() -> None:
    world = World()
    first, second, third = (world.submit() for _ in range(3))
    world.started_on(first)
    found = starts(world, {first: 30.0, second: 100.0})
    assert found[first] == Start(None, "")
    assert found[second] == Start(1030.0, "starts in about 30 s")
    assert found[third] == Start(1130.0, "starts in about 2 min")


def test_a_limit_is_the_latest_and_not_the_likeliest() -> None:
    world = World()
    first, second = world.submit(), world.submit()
    estimate = Estimate(world.state, world.now, runs_for({first: 7200.0}, most=True))
    assert estimate.of(world.job(second)) == Start(8200.0, "starts within 2 h")


def test_an_unknown_end_is_the_reason_for_all_jobs_behind_it() -> None:
    world = World()
    first, second, third = (world.submit() for _ in range(3))
    assert starts(world, {first: None})[third] == Start(None, f"{UNKNOWN}job 1 is endless")
    found = starts(world, {second: None})
    assert found[second].at == 1100.0
    assert found[third].text == f"{UNKNOWN}job 2 is endless"


def test_machines_and_cores_are_counted() -> None:
    world = World(*(Node(name, 4, GIB) for name in "ab"))
    on_a = world.submit(spec(resources={"use": ("a",)}))
    two = world.submit(spec(resources={"use": ("b",), "cores_per_worker": 2}))
    small = world.submit(spec(resources={"use": ("b",), "cores_per_worker": 2}))
    wide = world.submit(spec(resources={"nodes": (2, 2)}))
    next_small = world.submit(spec(resources={"use": ("b",), "cores_per_worker": 1}))
    found = starts(world, {on_a: 50.0, two: 10.0, small: 20.0, wide: 5.0})
    assert found[wide].at == 1050.0  # when both are free,
    assert found[next_small].at == 1055.0  # and no job overtakes it
    assert starts(world, {on_a: None, wide: 5.0})[next_small].text == f"{UNKNOWN}{AHEAD}"


def test_what_comes_after_a_job_starts_when_that_has_ended() -> None:
    world = World(*(Node(name, 4, GIB) for name in "ab"))
    first = world.submit(spec(resources={"use": ("a",)}))
    after = world.submit(spec(policy={"after": (first,)}))
    later = world.submit(spec(policy={"after": (first, after)}))
    found = starts(world, {first: 40.0, after: 60.0})
    assert (found[after].at, found[later].at) == (1040.0, 1100.0)
    assert starts(world, {first: None})[after].text == f"{UNKNOWN}{BEHIND}"


def test_nodes_that_are_away_are_not_counted_upon() -> None:
    world = World(*(Node(name, 4, GIB) for name in "ab"))
    world.node_left("b")
    job = world.submit(spec(resources={"use": ("b",)}))
    assert starts(world)[job].text == f"{UNKNOWN}{AWAY}"


def test_only_a_job_that_waits_for_its_turn_has_a_start() -> None:
    world = World()
    world.submit()
    held = world.submit(hold=True)
    assert starts(world)[held] == Start(None, "")


def test_so_much_is_looked_at_and_no_more() -> None:
    world = World()
    jobs = [world.submit() for _ in range(50)]
    found = starts(world, looks=600)
    known = [number for number in jobs if found[number].at is not None]
    assert known == list(range(2, 2 + len(known)))
    assert 3 <= len(known) < 30
    assert found[jobs[-1]].text == f"{UNKNOWN}{MANY}"


# On one node each: several allocations end one by one, and the first end may decide what is next.
SHAPES = st.sampled_from(
    [
        {},
        {"cores_per_worker": 1},
        {"cores_per_worker": 2, "workers_per_node": 2},
        {"use": ("a",)},
        {"cores_per_worker": 3, "avoid": ("c",)},
    ]
)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(SHAPES, st.integers(1, 40), st.integers(48, 52)), min_size=1, max_size=14)
)
def test_what_is_estimated_comes_true_when_jobs_run_as_long_as_expected(jobs: list[Any]) -> None:
    world = World(*(Node(name, 4, GIB) for name in "abc"))
    lasts: dict[int, float] = {}
    for shape, seconds, priority in jobs:
        lasts[world.submit(spec(resources=shape, policy={"priority": priority}))] = seconds
    guess = starts(world, lasts)
    begun = {n: world.now for n, job in world.state.jobs.items() if job.attempt is not None}
    expected = {n: start.at for n, start in guess.items() if n not in begun}
    came: dict[int, float] = {}
    while world.state.jobs:
        world.now = min(begun[n] + lasts[n] for n in begun)
        due = [n for n in begun if begun[n] + lasts[n] <= world.now]
        for number in due:
            del begun[number]
        if len(due) > 1:
            return  # the order of two ends at one moment decides, and no estimate can know it
        world.started_on(due[0])
        world.ended_on(due[0])
        for number, job in world.state.jobs.items():
            if job.attempt is not None and number not in begun:
                begun[number] = came[number] = world.now
    assert came == expected


@pytest.mark.parametrize(
    ("policy", "longest_s", "eta_s", "expected"),
    [
        ({}, 100.0, None, RemainingTime(70.0)),
        ({}, 100.0, 12.0, RemainingTime(12.0)),
        ({"max_time_s": 80.0}, 100.0, None, RemainingTime(60.0)),
        ({"max_time_s": 80.0}, None, None, RemainingTime(60.0, most=True)),
        ({"max_time_s": 80.0}, 10.0, None, RemainingTime(60.0, most=True)),
        ({"max_time_s": 5.0}, None, None, RemainingTime(0.0, most=True)),
        (
            {},
            None,
            None,
            RemainingTime(
                None, why='job 1 has no max_time, and no earlier run named "job" is done'
            ),
        ),
        (
            {},
            10.0,
            None,
            RemainingTime(
                None, why="job 1 has no max_time, and runs longer than earlier ones of its name"
            ),
        ),
    ],
)
def test_how_long_a_job_has_still_to_run(
    policy: Any, longest_s: float | None, eta_s: float | None, expected: RemainingTime
) -> None:
    world = World()
    job = world.submit(spec(policy=policy))
    world.now += 10.0
    world.started_on(job)
    assert remaining(world.job(job), world.now + 20.0, longest_s, eta_s) == expected


def test_a_job_that_waits_has_all_of_its_time_before_it() -> None:
    world = World()
    world.submit()
    job = world.job(world.submit(spec(policy={"max_time_s": 60.0})))
    assert remaining(job, world.now + 500.0, 30.0) == RemainingTime(30.0)
    assert remaining(job, world.now + 500.0, None) == RemainingTime(60.0, most=True)
    stopped = World()
    number = stopped.submit(spec(policy={"grace_s": 7.0}))
    stopped.started_on(number)
    stopped.cancel(number)
    assert remaining(stopped.job(number), stopped.now, 1e9) == RemainingTime(7.0, most=True)
