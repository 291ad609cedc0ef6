"""Random mixtures of operations, the same on all ranks, each compared with plain torch."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.kit.data import assert_same, random_of, reduced
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.torch import shared_empty

COUNTS = [0, 1, 7, 1_000, 16_384, 16_385, 44_444, 131_072, 140_001]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8]

Check = Callable[[], None]
Job = tuple[dist.Work | None, Check]


class _Mixture:
    """One rank's part of a random program; the seed is that of all ranks."""

    def __init__(self, me: Rank, seed: int) -> None:
        self.me = me
        self.chance = random.Random(seed)
        self.shared = {dtype: shared_empty(150_000, dtype) for dtype in DTYPES}

    def job(self, salt: int) -> Job:
        kind = self.chance.choice(
            [self._all_reduce, self._broadcast, self._gather, self._scatter, self._exchange]
        )
        count, dtype = self.chance.choice(COUNTS), self.chance.choice(DTYPES)
        return kind([random_of(r, count, dtype, salt) for r in range(self.me.size)], count)

    def _async(self) -> bool:
        return self.chance.random() < 0.5

    def _mine(self, inputs: list[torch.Tensor], later: bool) -> torch.Tensor:
        """This rank's input: private, strided, or (when it is free again) shared."""
        mine = inputs[self.me.rank]
        way = [self.chance.random() for _ in range(self.me.size)][self.me.rank]
        if way < 0.3 and not later:
            return self.shared[mine.dtype][: mine.numel()].copy_(mine)
        if way < 0.5:
            return torch.stack([mine, mine], 1)[:, 0]
        return mine.clone()

    def _all_reduce(self, inputs: list[torch.Tensor], count: int) -> Job:
        op, later = self.chance.choice(["SUM", "MAX", "AVG"]), self._async()
        x = self._mine(inputs, later)
        work = dist.all_reduce(x, getattr(dist.ReduceOp, op), async_op=later)
        return work, lambda: assert_same(x, reduced(op, inputs), f"{op} of {count}")

    def _broadcast(self, inputs: list[torch.Tensor], count: int) -> Job:
        root, later = self.chance.randrange(self.me.size), self._async()
        x = self._mine(inputs, later)
        work = dist.broadcast(x, root, async_op=later)
        return work, lambda: assert_same(x, inputs[root], f"broadcast of {count}")

    def _gather(self, inputs: list[torch.Tensor], count: int) -> Job:
        later = self._async()
        x, out = self._mine(inputs, later), torch.empty(count * self.me.size).to(inputs[0].dtype)
        work = dist.all_gather_single(out, x, async_op=later)
        return work, lambda: assert_same(out, torch.cat(inputs), f"all_gather of {count}")

    def _scatter(self, inputs: list[torch.Tensor], count: int) -> Job:
        later, out = self._async(), torch.empty_like(inputs[0])
        work = dist.reduce_scatter_single(out, torch.cat(inputs), async_op=later)
        want = reduced("SUM", [inputs[self.me.rank]] * self.me.size)
        return work, lambda: assert_same(out, want, f"reduce_scatter of {count}")

    def _exchange(self, inputs: list[torch.Tensor], count: int) -> Job:
        later, size = self._async(), self.me.size
        outs = [torch.empty_like(t) for t in inputs]
        work = dist.all_to_all(outs, [inputs[self.me.rank]] * size, async_op=later)

        def check() -> None:
            for out, want in zip(outs, inputs, strict=True):
                assert_same(out, want, f"all_to_all of {count}")

        return work, check


def _mixture(me: Rank, seed: int, number: int) -> None:
    mixture = _Mixture(me, seed)
    pending: list[Job] = []
    own = random.Random(me.rank)  # when a rank waits is its own business
    for salt in range(number):
        work, check = mixture.job(salt)
        if work is None:
            check()
        else:
            pending.append((work, check))
        while pending and (len(pending) > 8 or own.random() < 0.3):
            work, check = pending.pop(own.randrange(len(pending)))
            assert work is not None
            work.wait()
            check()
    for work, check in pending:
        assert work is not None
        work.wait()
        check()


@pytest.mark.parametrize(("size", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_a_random_mixture_of_operations_gives_the_results_of_plain_torch(
    size: int, seed: int
) -> None:
    run_ranks(_mixture, size, seed, 150)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
def test_long_random_mixtures_give_the_results_of_plain_torch(seed: int) -> None:
    run_ranks(_mixture, 2 + seed % 4, seed, 5_000, timeout_s=600)


def _gigabytes(me: Rank) -> None:
    count = 2**31 + 12_345  # of bytes: beyond what 32 bits count
    x = torch.full((count,), me.rank + 1, dtype=torch.uint8)
    dist.all_reduce(x)
    assert int(x.min()) == int(x.max()) == 3
    x.fill_(me.rank)
    dist.broadcast(x, 1)
    assert int(x.min()) == 1
    if me.rank == 0:
        x[-1] = 7
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
        assert x[-1] == 7


@pytest.mark.soak
def test_more_than_two_gigabytes_go_through() -> None:
    run_ranks(_gigabytes, 2, timeout_s=600, group_timeout_s=300)


def _shared_gigabytes(me: Rank) -> None:
    x = shared_empty(2**31 + 12_345, torch.uint8).fill_(me.rank + 1)
    dist.all_reduce(x)
    assert int(x.min()) == int(x.max()) == 3
    part = x[2**31 :]
    part.fill_(me.rank)
    dist.broadcast(part, 1)
    assert int(part.min()) == 1


@pytest.mark.soak
def test_more_than_two_gigabytes_in_a_shared_tensor_go_through() -> None:
    run_ranks(_shared_gigabytes, 2, timeout_s=600, group_timeout_s=300)
