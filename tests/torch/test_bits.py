"""Sums of floats have the same bits on every rank and in every run."""

from __future__ import annotations

import hashlib

import pytest
import torch
import torch.distributed as dist

from tests.kit.data import assert_same, bits, random_of
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


def _half_precision(me: Rank) -> None:
    # 60000 + 60000 is more than float16 has, and those two ranks share a host.
    x = torch.full((5,), (60000.0, 60000.0, -60000.0)[me.rank], dtype=torch.float16)
    dist.all_reduce(x)
    assert x.tolist() == [60000.0] * 5
    for dtype in (torch.bfloat16, torch.float16):
        for count in (7, 1_000, 300_001):
            every = [random_of(r, count, salt=9).to(dtype) for r in range(me.size)]
            want = torch.stack([t.float() for t in every]).sum(0).to(dtype)
            one, many = every[me.rank].clone(), [every[me.rank].clone() for _ in range(20)]
            dist.all_reduce(one)
            assert_same(one, want, f"all_reduce of {count} {dtype}")
            if count <= 1_000:  # several small ones travel as one
                for work in [dist.all_reduce(t, async_op=True) for t in many]:
                    work.wait()
                for t in many:
                    assert_same(t, want, f"one of many of {count} {dtype}")
            part = torch.empty(count, dtype=dtype)
            dist.reduce_scatter(part, [every[me.rank].clone() for _ in range(me.size)])
            assert_same(part, want, f"reduce_scatter of {count} {dtype}")


def test_half_precision_is_rounded_once_between_hosts_too() -> None:
    for hosts in ("aab", "aba"):
        run_ranks(_half_precision, hosts)
