"""Sums of floats have the same bits on every rank and in every run."""

from __future__ import annotations

import hashlib

import pytest
import torch
import torch.distributed as dist

from tests.kit.data import bits, random_of
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.torch import shared_empty

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
COUNTS = [3, 1_000, 30_001, 300_001]


def _sums(me: Rank) -> list[str]:
    found = []
    for dtype in DTYPES:
        for count in COUNTS:
            x = random_of(me.rank, count, dtype)
            mine = [x.clone() for _ in range(4)]
            dist.all_reduce(mine[0])
            dist.all_reduce(mine[1], async_op=True).wait()
            dist.all_reduce(mine[2], dist.ReduceOp.AVG)
            shared = shared_empty(count, dtype).copy_(x)
            dist.all_reduce(shared)
            # In place, async, or from private memory: one sum.
            assert bits(mine[0]) == bits(mine[1]) == bits(shared)
            # Rank 0 cannot get other bits than all do.
            dist.reduce(mine[3], 0)
            assert me.rank or bits(mine[3]) == bits(mine[0])
            found += [hashlib.sha256(bits(result)).hexdigest() for result in (mine[0], mine[2])]
    return found


@pytest.mark.parametrize("size", [3, 5])
def test_results_are_bit_identical_on_all_ranks_and_from_run_to_run(size: int) -> None:
    first, second = run_ranks(_sums, size), run_ranks(_sums, size)
    assert all(digests == first[0] for digests in first)
    assert second == first
