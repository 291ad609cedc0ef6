"""Groups between hosts do not get in each other's way: orders, ends and give-ups beside traffic."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.kit.faults import failure_of
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.torch import monitored_barrier

LARGE = 4_000_000  # elements: more than sockets and rings hold


def _ring_of_roots(me: Rank) -> None:
    groups = [dist.new_group(list(range(me.size))) for _ in range(me.size)]
    tensors = [torch.full((LARGE,), float(me.rank)) for _ in groups]
    works: list[Any] = []
    for root, (group, x) in enumerate(zip(groups, tensors, strict=True)):
        works.append(dist.broadcast(x, root, group, async_op=True))
    for root, (work, x) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        assert bool((x == root).all())


def test_broadcasts_from_every_host_at_once_do_not_wait_for_each_other() -> None:
    run_ranks(_ring_of_roots, "abc")


def _opposite_orders(me: Rank) -> None:
    groups = [dist.new_group(list(range(me.size))) for _ in range(2)]
    order = (0, 1) if me.rank % 2 else (1, 0)
    for turn in range(3):
        tensors = [torch.full((LARGE // 4,), float(me.rank + turn)) for _ in groups]
        outs = [[torch.empty(LARGE // 4) for _ in range(me.size)] for _ in groups]
        works: list[Any] = []
        for g in order:
            works.append(dist.all_reduce(tensors[g].clone(), group=groups[g], async_op=True))
            into = outs[g] if me.rank == 2 else None
            works.append(dist.gather(tensors[g], into, dst=2, group=groups[g], async_op=True))
        for work in works:
            work.wait()
        if me.rank == 2:
            for out in outs:
                assert [float(x[-1]) for x in out] == [r + turn for r in range(me.size)]


def test_two_groups_in_opposite_orders_do_not_deadlock() -> None:
    run_ranks(_opposite_orders, "abbcc")


def _give_up_beside_a_message(me: Rank) -> None:
    x = torch.arange(LARGE, dtype=torch.float32)
    if me.rank == 0:
        work = dist.isend(x, 1)
        assert work is not None
        work.wait()
    else:
        got = torch.zeros(LARGE)
        work = dist.irecv(got, 0)
        assert work is not None
        failure = failure_of(lambda: monitored_barrier(timeout=timedelta(milliseconds=1)))
        assert failure is not None
        assert failure.kind == "PeerLate"
        work.wait()
        assert torch.equal(got, x)
    dist.barrier()


def test_a_barrier_that_gives_up_leaves_a_message_beside_it_whole() -> None:
    for _ in range(3):
        run_ranks(_give_up_beside_a_message, "ab")


def _group_ends_in_a_message(me: Rank) -> None:
    side = dist.new_group([0, 1])
    x = torch.ones(LARGE * 4)
    work = dist.isend(x, 1, side) if me.rank == 0 else dist.irecv(x, 0, side)
    assert work is not None
    dist.destroy_process_group(side)
    failure_of(work.wait)
    y = torch.full((LARGE,), 7.0 * (me.rank == 0))
    if me.rank == 0:
        dist.send(y, 1)
    else:
        dist.recv(y, 0)
        assert bool((y == 7).all())


def test_a_group_that_ends_in_the_middle_of_a_message_leaves_the_link_to_the_others() -> None:
    run_ranks(_group_ends_in_a_message, "ab")


def _last_word_behind_data(me: Rank) -> None:
    side = dist.new_group([0, 1])
    data = torch.ones(LARGE)
    work = dist.isend(data, 1) if me.rank == 0 else dist.irecv(data, 0)
    small = torch.ones(4)
    dist.all_reduce(small, group=side)
    assert float(small[0]) == 2
    dist.destroy_process_group(side)
    assert work is not None
    work.wait()


def test_the_last_word_of_a_group_arrives_although_data_is_before_it() -> None:
    for _ in range(3):
        run_ranks(_last_word_behind_data, "ab")


def _many_groups(me: Rank) -> None:
    waiting = torch.zeros(8)
    work = dist.irecv(waiting, 0) if me.rank == 1 else None  # keeps this rank's loop awake
    for _ in range(20):
        group = dist.new_group([0, 1])
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        assert float(x[0]) == 2
        dist.destroy_process_group(group)
    if me.rank == 0:
        dist.send(torch.ones(8), 1)
    elif work is not None:
        work.wait()


def test_groups_are_made_while_the_loop_listens_for_something_else() -> None:
    run_ranks(_many_groups, "ab")
