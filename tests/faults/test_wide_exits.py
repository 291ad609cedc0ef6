"""Ranks that leave, fork, or use several groups at once, with hosts between them: nothing that was
sent is lost."""

from __future__ import annotations

import os
import random
import threading

import pytest
import torch
import torch.distributed as dist

from tests.faults import test_forks as forks
from tests.faults import test_interrupts as interrupts
from tests.kit.faults import failure_of, make_group, together
from tests.kit.ranks import Rank, run_ranks, watch_ranks

LARGE = 2 * 1024 * 1024


def reduce_and_exit(me: Rank, round_: int) -> None:
    """As at the end of a script: 8 MB, destroy, out. What others still need is on its way."""
    make_group(me, 30.0)
    x = torch.full((LARGE,), float(me.rank + round_))
    dist.all_reduce(x)
    first, last = float(x[0]), float(x[-1])
    dist.destroy_process_group()
    assert first == last == sum(rank + round_ for rank in range(me.size))
    os._exit(0)


def test_leaving_right_after_the_last_operation_loses_nothing_ten_times() -> None:
    for round_ in range(10):
        hosts = ("ab", "aab", "abc")[round_ % 3]
        outcomes = watch_ranks(reduce_and_exit, hosts, round_, backend=None)
        assert [outcome.exit_code for outcome in outcomes] == [0] * len(hosts), outcomes
        assert [outcome.error for outcome in outcomes] == [""] * len(hosts), outcomes


def destroy_in_mid_flight(me: Rank) -> list[float]:
    """Work is under way when a group is destroyed; the next of the same name is not disturbed."""
    sums = []
    for round_ in range(4):
        group = dist.new_group([0, 1, 2], group_desc="the same")
        dist.barrier(group)
        together(me, f"round {round_}")
        works = [
            dist.all_reduce(torch.ones(LARGE // 2), group=group, async_op=True) for _ in range(3)
        ]
        works.append(dist.isend(torch.ones(LARGE // 2), (me.rank + 1) % 3, group=group))
        first = [works.pop(0)] if me.rank == round_ % 3 else []
        failures = [failure_of(work.wait) for work in first]
        dist.destroy_process_group(group)
        failures += [failure_of(work.wait) for work in works]
        for failure in failures:
            if failure is not None:  # it was done before, or it says why not
                assert failure.kind in ("GroupClosed", "PeerLost"), failure
        again = dist.new_group([0, 1, 2], group_desc="the same")
        x = torch.full((LARGE,), float(round_ + me.rank))
        dist.all_reduce(x, group=again)
        assert x[0] == x[-1]
        sums.append(float(x[0]))
        dist.destroy_process_group(again)
    return sums


def test_a_group_destroyed_with_work_in_flight_can_be_made_again() -> None:
    want = [float(3 * round_ + 3) for round_ in range(4)]
    assert run_ranks(destroy_in_mid_flight, "aab") == [want] * 3


def restart_the_world(me: Rank) -> list[float]:
    """The world group itself, made and destroyed again and again: every link too."""
    sums = []
    for round_ in range(5):
        make_group(me, 50.0, f"store {round_}")
        together(me, f"round {round_}")
        work = dist.all_reduce(torch.ones(LARGE), async_op=True)
        if round_ % 2:
            work.wait()
        x = torch.ones(8)
        if round_ % 2:
            dist.all_reduce(x)
        sums.append(float(x[0]))
        dist.destroy_process_group()
    return sums


def test_the_world_can_be_destroyed_in_mid_flight_and_made_again() -> None:
    assert run_ranks(restart_the_world, "aba", backend=None) == [[1.0, 3.0, 1.0, 3.0, 1.0]] * 3


def cross_two_groups(me: Rank) -> list[float]:
    """Two groups in opposite orders on different ranks: all started, then waited for."""
    one, two = (dist.new_group([0, 1, 2]) for _ in range(2))
    sums = []
    for round_ in range(20):
        x, y = (torch.full((50_000 + round_,), float(k + me.rank)) for k in (1, 10))
        pairs = [(x, one), (y, two)]
        if me.rank % 2:
            pairs.reverse()
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in pairs]
        for work in works:
            work.wait()
        sums += [float(x[-1]), float(y[-1])]
    return sums


def test_two_groups_in_opposite_orders_on_different_hosts_do_not_wait_for_each_other() -> None:
    assert run_ranks(cross_two_groups, "abb") == [[6.0, 33.0] * 20] * 3


def reduce_in_threads(me: Rank) -> list[float]:
    """Four threads, each with a group of its own, small and large at once."""
    groups = [dist.new_group(list(range(me.size))) for _ in range(4)]
    sums = [0.0] * 4
    problems: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for _ in range(30):
                x = torch.full((8 if number % 2 else 60_000,), float(number + 1))
                dist.all_reduce(x, group=groups[number])
                sums[number] += float(x[-1])
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return sums


def test_threads_with_a_group_each_exchange_over_one_link() -> None:
    want = [30.0 * 3 * (number + 1) for number in range(4)]
    assert run_ranks(reduce_in_threads, "aab") == [want] * 3


def wait_out_of_order(me: Rank) -> bool:
    xs = [torch.full((1 + (k * 37) % 3000,), float(k + me.rank)) for k in range(300)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    order = list(range(300))
    random.Random(me.rank).shuffle(order)
    for k in order:
        works[k].wait()
        want = sum(float(k + rank) for rank in range(me.size))
        assert float(xs[k][0]) == float(xs[k][-1]) == want, k
    return True


@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_three_hundred_operations_may_be_waited_for_in_any_order(hosts: str) -> None:
    assert run_ranks(wait_out_of_order, hosts) == [True] * len(hosts)


def test_a_forked_child_cannot_use_a_group_over_hosts_and_the_parent_goes_on() -> None:
    told = run_ranks(forks.use_the_group_in_a_child, "ab")[0]
    assert told.pop("destroy") == "fine"
    for name, answer in told.items():
        assert answer.startswith("('GroupClosed', True,"), (name, answer)
        assert "forked" in answer, (name, answer)


def test_forked_children_may_make_a_group_over_hosts_of_their_own() -> None:
    assert run_ranks(forks.make_a_group_in_a_child, "ab") == [("2.0", 2.0)] * 2


def test_a_program_run_from_a_rank_inherits_no_connection() -> None:
    for told in run_ranks(forks.run_a_program, "ab"):
        for listing in told:
            assert listing.startswith("[")
            assert "socket" not in listing, listing


def test_a_send_to_another_host_that_gave_up_leaves_the_way_free_for_the_next() -> None:
    assert run_ranks(interrupts._give_up_a_send, "ab") == [5.0, 5.0]


def test_a_group_closed_in_mid_transfer_leaves_the_link_to_the_others() -> None:
    for _ in range(3):
        assert run_ranks(interrupts._close_in_mid_transfer, "ab") == [3.0, 3.0]


def test_everything_queued_behind_a_mismatch_between_hosts_fails_however_much_it_is() -> None:
    assert run_ranks(interrupts._mismatch_before_many, "ab", timeout_s=60) == [2001, 2001]
