"""Works that outlive what Python has of them."""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.kit.data import random_of
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.torch import work as works
from wiiiiided.torch.work import held_by_cpp, let_go


def test_the_count_of_owners_in_cpp_is_read() -> None:
    work = dist.Work()
    assert not held_by_cpp(work)
    boxed = work.boxed()
    assert held_by_cpp(work)
    del boxed
    assert not held_by_cpp(work)


def _left_to_cpp(me: Rank) -> None:
    held: list[Any] = []
    for late in (True, False):  # let go of before it is done, and after
        x = torch.ones(3)
        if late and me.rank == 0:
            threading.Event().wait(0.3)
        work = dist.all_reduce(x, async_op=True)
        if not late:
            work.wait()
        held.append(work.boxed())  # a reference in C++, and nothing more
        del x, work
    dist.barrier()
    gc.collect()
    for box in held:
        again = dist.Work.unbox(box)
        assert again.wait(timedelta(seconds=60))
        assert again.get_future().wait()[0].tolist() == [me.size] * 3
    del again, box
    assert len(works._held) == 2
    held.clear()
    let_go()
    assert not works._held


def test_a_work_that_only_cpp_has_can_be_waited_for_and_goes_with_it() -> None:
    run_ranks(_left_to_cpp, 2)


def _join(me: Rank) -> None:
    model = DistributedDataParallel(nn.Linear(4, 1, bias=False))
    with model.join(divide_by_initial_world_size=False):
        for step in range(2 + 3 * me.rank):
            model.zero_grad()
            model(random_of(step, (2, 4))).sum().backward()
    grad = model.module.weight.grad
    assert grad is not None
    # The last steps were the last rank's alone: divided by the one that was left.
    want = random_of(1 + 3 * (me.size - 1), (2, 4)).sum(0)
    if me.rank == me.size - 1:
        torch.testing.assert_close(grad[0], want)


def test_ddp_join_divides_by_the_ranks_that_are_left() -> None:
    for hosts in ("aa", "aab"):
        run_ranks(_join, hosts)


def _wait_in_cpp(me: Rank) -> float:
    """CPU seconds while C++ waits two seconds for a late rank."""
    if me.rank == 0:
        threading.Event().wait(2.0)
        dist.all_reduce(torch.ones(3))
        return 0.0
    box = dist.all_reduce(torch.ones(3), async_op=True).boxed()
    before = time.process_time()
    assert dist.Work.unbox(box).wait()
    return time.process_time() - before


def test_a_wait_in_cpp_sleeps() -> None:
    assert max(run_ranks(_wait_in_cpp, 2)) < 0.5
