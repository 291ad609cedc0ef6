"""One operation's buffers on one rank: fresh data before every call, and the check of the result.

Data must be like gradients to a codec, so whole numbers in a pattern (lib/one_host/buffers.py) will
not do. Noise is summed in another order by every backend: sums are held against one in double
precision, within what rounding may do, and all ranks must have the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
import torch.distributed as dist

from lib.one_host.buffers import WrongResult
from lib.one_host.cells import ALL_GATHER, ALL_REDUCE, FLOAT_BYTES, REDUCE_SCATTER
from lib.two_hosts.task import (
    ASYNC,
    BARRIER,
    BROADCAST,
    MANY_BYTES,
    ONE_BY_ONE,
    SPARSE,
    SPARSE_SHARE,
    Task,
)

_SEED = 20_260
_NOTHING_YET = -1.0
# Each addition of float32 rounds by at most half of this share of the sum of the absolute values.
_ROUNDING = torch.finfo(torch.float32).eps


def values(data: str, count: int, rank: int) -> torch.Tensor:
    """A rank's data, which every other rank can make as well."""
    source = torch.Generator().manual_seed(_SEED + rank)
    made = torch.randn(count, generator=source)
    if data == SPARSE:
        made *= torch.rand(count, generator=source) < SPARSE_SHARE
    return made


def _sums(data: str, count: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over all ranks, and how far off a float32 sum in any order may be."""
    total = torch.zeros(count, dtype=torch.float64)
    size = torch.zeros(count, dtype=torch.float64)
    for rank in range(ranks):
        one = values(data, count, rank)
        total += one
        size += one.abs_()
    return total.float(), (size * (_ROUNDING * ranks)).float()


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    return list(tensor.view(-1, MANY_BYTES // FLOAT_BYTES))


class TaskJob:
    """A task on this rank."""

    def __init__(self, task: Task, rank: int, ranks: int) -> None:
        self.task, self._rank, self._ranks = task, rank, ranks
        large = task.nbytes // FLOAT_BYTES
        if task.op in (REDUCE_SCATTER, ALL_GATHER):
            large -= large % ranks
        small = large // ranks
        self._fresh = values(task.data, small if task.op == ALL_GATHER else large, rank)
        self.target = torch.empty(small if task.op == REDUCE_SCATTER else large)
        self._expected, self._off_by = self._expect(large)
        self._pieces = _pieces(self.target) if task.op in (ASYNC, ONE_BY_ONE) else []
        self.call = self._calls()[task.op]
        self.reset()  # a user's tensors have their pages before the exchange begins

    def reset(self) -> None:
        """Data as if no call had been made."""
        op = self.task.op
        if op in (ALL_REDUCE, ASYNC, ONE_BY_ONE) or (op == BROADCAST and self._rank == 0):
            self.target.copy_(self._fresh)
        else:
            self.target.fill_(_NOTHING_YET)

    def check(self) -> str:
        """Raises WrongResult, or returns a digest of what must be the same on all ranks."""
        if self.task.op == BARRIER:
            return ""
        # Asked this way round, a NaN is wrong as well.
        wrong = ~((self.target - self._expected).abs_() <= self._off_by)
        if wrong.any():
            at = int(wrong.nonzero()[0, 0])
            got, wanted = self.target[at].item(), self._expected[at].item()
            raise WrongResult(f"wrong result: element {at} is {got} instead of {wanted}")
        if self.task.op == REDUCE_SCATTER:
            return ""
        return hashlib.blake2b(self.target.numpy().data, digest_size=16).hexdigest()

    def _expect(self, large: int) -> tuple[torch.Tensor, torch.Tensor]:
        data, op, exactly = self.task.data, self.task.op, torch.zeros(1)
        if op == BROADCAST:
            return values(data, large, 0), exactly
        if op == ALL_GATHER:
            parts = [values(data, large // self._ranks, rank) for rank in range(self._ranks)]
            return torch.cat(parts), exactly
        total, off_by = _sums(data, large, self._ranks)
        if op == REDUCE_SCATTER:
            own = slice(self._rank * self.target.numel(), (self._rank + 1) * self.target.numel())
            return total[own].clone(), off_by[own].clone()
        return total, off_by

    def _calls(self) -> dict[str, Callable[[], object]]:
        target, fresh = self.target, self._fresh
        return {
            ALL_REDUCE: lambda: dist.all_reduce(target),
            REDUCE_SCATTER: lambda: dist.reduce_scatter_tensor(target, fresh),
            ALL_GATHER: lambda: dist.all_gather_into_tensor(target, fresh),
            BROADCAST: lambda: dist.broadcast(target, 0),
            BARRIER: lambda: dist.barrier(),
            ONE_BY_ONE: self._one_by_one,
            ASYNC: self._all_at_once,
        }

    def _one_by_one(self) -> None:
        for piece in self._pieces:
            dist.all_reduce(piece)

    def _all_at_once(self) -> None:
        under_way = [dist.all_reduce(piece, async_op=True) for piece in self._pieces]
        for work in under_way:
            work.wait()
