"""Callbacks of futures may wait for other operations: another thread drives meanwhile."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

from tests.kit.ranks import Rank, run_ranks


def _wait_inside_callbacks(me: Rank) -> list[float]:
    """As PowerSGD's hook does: the callback of one future waits for another, in C++."""
    results = []
    for _ in range(20):
        x, y = torch.ones(3), torch.ones(3)

        def then(_: torch.futures.Future[list[torch.Tensor]], y: torch.Tensor = y) -> float:
            inner = dist.all_reduce(y, async_op=True)
            assert inner is not None
            inner.get_future().wait()
            return float(y[0])

        outer = dist.all_reduce(x, async_op=True)
        assert outer is not None
        results.append(outer.get_future().then(then).wait())
    threads = [t for t in threading.enumerate() if t.name == "wiiiiide"]
    # Not one for each callback; how many depends on when the machine lets them run.
    assert len(threads) <= len(results) // 2, threads
    return results


def test_a_callback_that_waits_for_another_future_does_not_stop_the_loop() -> None:
    for size in (1, 2):
        assert run_ranks(_wait_inside_callbacks, size) == [[float(size)] * 20] * size
