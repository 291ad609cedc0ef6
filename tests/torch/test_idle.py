"""A group that is not used costs nothing."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist

from tests.kit.conditions import wait_until
from tests.kit.ranks import Rank, run_ranks


def _idle(me: Rank) -> None:
    groups = [dist.new_group(list(range(me.size))) for _ in range(10)]
    for group in groups:
        dist.all_reduce(torch.ones(50_000), group=group, async_op=True).wait()
    dist.barrier()
    nothing = threading.Event()

    def quiet() -> bool:
        before = time.process_time()
        nothing.wait(1.0)  # the second that is measured, not a wait for something
        return time.process_time() - before < 0.020

    wait_until(quiet, 40, "a second in which ten idle groups use less than 20 ms of CPU")
    dist.barrier()


def test_ten_idle_groups_use_no_cpu() -> None:
    run_ranks(_idle, 2)


def _threads(me: Rank) -> list[int]:
    counts = [threading.active_count()]
    groups = [dist.new_group(list(range(me.size))) for _ in range(10)]
    for group in groups:
        dist.all_reduce(torch.ones(5), group=group, async_op=True).wait()
    counts.append(threading.active_count())
    dist.destroy_process_group()
    counts.append(threading.active_count())
    return counts


def test_ten_groups_share_one_thread_which_ends_with_the_last() -> None:
    for before, with_ten, after in run_ranks(_threads, 2):
        assert with_ten == before
        assert after == before - 1
