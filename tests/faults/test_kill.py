"""A rank is killed in the middle of an exchange: the others say which, where and in what, at once.

On one host and on several; what only several can have is in test_wide_kill. Hosts are pretended
(tests.kit.ranks): ranks with different letters talk over TCP on loopback, and the kernel ends a
killed process's connections as it would on another machine.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.cases import thinned
from tests.kit.conditions import wait_until
from tests.kit.faults import Failure, FaultPlan, failure_of, make_group, named, reach, together
from tests.kit.leaks import Footprint, children_of, dev_shm
from tests.kit.ranks import Outcome, Rank, run_ranks, watch_ranks
from wiiiiided.torch import shared_empty

PROMISE_S = 2.0  # one on one host
DEADLINE_S = 5 * PROMISE_S
LARGE = 4 * 1024 * 1024  # elements: 16 MiB of float32, many pieces
STEP = 3  # the step the victim is killed at

Step = Callable[[Rank, int], None]


def small_all_reduce(me: Rank, step: int) -> None:
    for _ in range(50):
        dist.all_reduce(torch.ones(8))


def large_all_reduce(me: Rank, step: int) -> None:
    dist.all_reduce(torch.ones(LARGE))


def all_gather(me: Rank, step: int) -> None:
    dist.all_gather([torch.empty(LARGE // 4) for _ in range(me.size)], torch.ones(LARGE // 4))


def reduce_scatter(me: Rank, step: int) -> None:
    dist.reduce_scatter_tensor(torch.empty(LARGE // 4), torch.ones(LARGE // 4 * me.size))


def broadcast(me: Rank, step: int) -> None:
    dist.broadcast(torch.ones(LARGE), src=0)


def all_to_all(me: Rank, step: int) -> None:
    whole = torch.ones(LARGE // 4 * me.size)
    dist.all_to_all_single(torch.empty_like(whole), whole)


def barrier(me: Rank, step: int) -> None:
    for _ in range(50):
        dist.barrier()


def messages(me: Rank, count: int) -> None:
    """All ranks write to the last one, which answers."""
    x, last = torch.ones(count), me.size - 1
    if me.rank == last:
        for other in range(last):
            dist.recv(x, other)
            dist.send(x, other)
    else:
        dist.send(x, last)
        dist.recv(x, last)


def small_messages(me: Rank, step: int) -> None:
    messages(me, 16)


def large_messages(me: Rank, step: int) -> None:
    messages(me, LARGE // 4)


def from_any(me: Rank, step: int) -> None:
    """All wait for a message from any rank; only the last rank ever writes."""
    x, last = torch.ones(16), me.size - 1
    if me.rank == last:
        for other in range(last):
            dist.send(x, other)
        dist.recv(x, 0)
    else:
        dist.recv(x)
        if me.rank == 0:
            dist.send(x, last)


def several_async(me: Rank, step: int) -> None:
    works = [dist.all_reduce(torch.ones(LARGE // 8), async_op=True) for _ in range(4)]
    works.append(dist.barrier(async_op=True))
    for work in works:
        work.wait()


def in_place(me: Rank, step: int) -> None:
    x = shared_empty(LARGE // 4)
    for _ in range(8):
        dist.all_reduce(x)


def futures(me: Rank, step: int) -> None:
    works = [dist.all_reduce(torch.ones(LARGE // 8), async_op=True) for _ in range(4)]
    for work, future in [(work, work.get_future()) for work in works]:
        try:
            future.wait()
        except RuntimeError as error:  # torch wraps what its futures raise
            if "PeerLost" in str(error):
                work.wait()
            raise


def rooted(me: Rank, step: int) -> None:
    x = torch.ones(LARGE // 8)
    everyone = [torch.empty_like(x) for _ in range(me.size)] if me.rank == 0 else None
    dist.reduce(x, 0)
    dist.gather(x, everyone)
    dist.scatter(x, everyone)


NAMES = {
    small_all_reduce: "all_reduce",
    large_all_reduce: "all_reduce",
    all_gather: "all_gather",
    reduce_scatter: "reduce_scatter",
    broadcast: "broadcast",
    all_to_all: "all_to_all",
    barrier: "barrier",
    small_messages: "(send|recv)",
    large_messages: "(send|recv)",
    from_any: "(send|recv)",
    several_async: "(all_reduce|barrier)",
    in_place: "(all_reduce|shared_empty)",
    futures: "all_reduce",
    rooted: "(reduce|gather|scatter)",
}


def exchange_until_it_fails(me: Rank, step: Step) -> dict[str, Any]:
    """Steps without end; the failure, the next calls' failures, how long leaving took, leaks."""
    torch.ones(1).sum()
    before = Footprint.before()
    make_group(me)
    number = 0
    failure: Failure | None = None
    while failure is None:
        number += 1
        reach(number)
        failure = failure_of(step, me, number)
    later = [failure_of(step, me, number), failure_of(dist.barrier)]
    began = time.monotonic()
    dist.destroy_process_group()
    left_s = time.monotonic() - began
    return {
        "failure": failure,
        "later": later,
        "left_s": left_s,
        "leaks": Footprint.now().leaked_since(before),
    }


def nothing_new_in_dev_shm(before: set[str]) -> None:
    """What others make there for a moment is not ours; what we would leave stays."""
    wait_until(lambda: dev_shm() <= before, 30.0, "nothing new is left in /dev/shm")


def check_survivors(
    outcomes: list[Outcome], plan: FaultPlan, victim: int, name: str, hosts: str
) -> None:
    """Every survivor raised in time, named everything, failed later calls, left at once, and left
    nothing."""
    died = f"{named(outcomes[victim], hosts)} died"
    assert outcomes[victim].exit_code == -9
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.exit_code == 0, outcome.trace or outcome.error
        failure = outcome.value["failure"]
        assert failure.kind == "PeerLost", failure
        assert died in failure.text, failure
        assert re.search(rf"{name} #\d+ \(\d+ bytes\)", failure.text), failure
        assert failure.at - plan.when(victim) < DEADLINE_S
        for later in outcome.value["later"]:
            assert later is not None
            assert later.kind == "PeerLost", later
            assert died in later.text, later
            assert later.took_s < DEADLINE_S
        assert outcome.value["left_s"] < 4.0, "it waited for those who did the same"
        assert outcome.value["leaks"] == []


# Where the ranks are, and which is killed: of one host the last; a host's only rank; one of two, so
# that its mate sees the death in shared memory and the others on the wire; one whose mate is not
# beside it in rank.
PLACES = {"aa": 1, "ab": 1, "aaaa": 3, "aab": 1, "aaa": 2, "abab": 3}


@pytest.mark.parametrize(("step", "hosts"), thinned(NAMES, PLACES, 2))
def test_the_others_name_a_rank_that_is_killed_in_an_exchange(step: Step, hosts: str) -> None:
    victim = PLACES[hosts]
    plan = FaultPlan().kill(rank=victim, step=STEP, after_s=0.002 * len(hosts))
    files = dev_shm()
    outcomes = watch_ranks(exchange_until_it_fails, hosts, step, backend=None, during=plan)
    check_survivors(outcomes, plan, victim, NAMES[step], hosts)
    nothing_new_in_dev_shm(files)


def exchange_in_two_threads(me: Rank) -> Any:
    """Each thread has a group of its own; a third operation is under way in the background."""
    groups = [dist.new_group(list(range(me.size))) for _ in range(2)]
    dist.barrier()
    together(me)
    failures: dict[int, Failure | None] = {}

    def run(number: int) -> None:
        failure = None
        while failure is None:
            failure = failure_of(
                dist.all_reduce, torch.ones(8 + number * 100_000), dist.ReduceOp.SUM, groups[number]
            )
        failures[number] = failure

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    reach(1)
    work = dist.all_reduce(torch.ones(8), async_op=True) if me.rank == 0 else None
    for thread in threads:
        thread.join()
    return [*failures.values(), *([failure_of(work.wait)] if work is not None else [])]


@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_every_thread_of_a_survivor_is_told(hosts: str) -> None:
    plan = FaultPlan().kill(rank=2, step=1, after_s=0.2)
    outcomes = watch_ranks(exchange_in_two_threads, hosts, during=plan)
    for outcome in outcomes[:2]:
        assert outcome.exit_code == 0, outcome.error
        assert not outcome.error, outcome.trace
        assert len(outcome.value) == 3 - outcome.rank
        for failure in outcome.value:
            assert failure is not None
            assert failure.kind == "PeerLost", failure
            assert f"{named(outcomes[2], hosts)} died" in failure.text, failure
            assert failure.at - plan.when(2) < DEADLINE_S


def leave_nothing_behind(me: Rank) -> list[str]:
    before = Footprint.before()
    make_group(me)
    dist.all_reduce(torch.ones(LARGE))
    work = dist.isend(torch.ones(LARGE), (me.rank + 1) % me.size)
    dist.recv(torch.ones(LARGE), (me.rank - 1) % me.size)
    work.wait()
    del work  # a Work that is kept keeps its group's memory
    held = Footprint.now().leaked_since(before)
    assert any("socket" in what for what in held)
    assert any("thread wiiiiide" in what for what in held)
    assert any("shared maps" in what for what in held)
    dist.destroy_process_group()
    return Footprint.now().leaked_since(before)


@pytest.mark.parametrize("hosts", ["aaa", "aba"])
def test_a_group_that_is_destroyed_leaves_nothing_behind(hosts: str) -> None:
    files = dev_shm()
    assert run_ranks(leave_nothing_behind, hosts, backend=None) == [[], [], []]
    nothing_new_in_dev_shm(files)


def exchange_without_end(me: Rank) -> None:
    step = 0
    while True:
        step += 1
        reach(step)
        dist.all_reduce(torch.ones(LARGE // 8))


def test_nothing_is_left_when_all_ranks_are_killed_at_once() -> None:
    plan = FaultPlan()
    for rank in range(4):
        plan = plan.kill(rank, step=4)
    run_ranks(leave_nothing_behind, 2, backend=None)  # the fork server is up from here on
    files, helpers = dev_shm(), set(children_of())
    outcomes = watch_ranks(exchange_without_end, 4, during=plan)
    assert [outcome.exit_code for outcome in outcomes] == [-9] * 4
    nothing_new_in_dev_shm(files)
    for outcome in outcomes:
        assert not Path(f"/proc/{outcome.pid}").exists()
    assert set(children_of()) <= helpers
