"""One operation's buffers, the loop that times it and the check that its result is right.

Shared by the torch ranks and the Open MPI ranks, so that every contender gets memory from the
same allocator, the same data and the same clock.
"""

import gc
import time
from collections.abc import Callable

import torch

from lib.one_host.cells import ALL_GATHER, ALL_REDUCE, FLOAT_BYTES, REDUCE_SCATTER

# A prime, so that no chunk or page boundary falls together with the pattern's.
_PERIOD = 1021
_PER_RANK = 3
# An all_reduce multiplies its buffer by the number of ranks; refilling keeps it finite.
_REFILL_EVERY = 32
# Several calls back to back: a race between two calls does not show in a single one.
_PROOF_CALLS = 3
_BLOCK = 1 << 20

Call = Callable[[], object]
Allocate = Callable[[int], torch.Tensor]


class WrongResult(Exception):
    """A contender returned something other than the exact expected values."""


class Pattern:
    """Small whole numbers that differ by position and rank: their float32 sums are exact."""

    def __init__(self) -> None:
        self._tile = torch.empty(0)

    def _slice(self, start: int, count: int) -> torch.Tensor:
        if self._tile.numel() < count + _PERIOD:
            once = torch.arange(1, _PERIOD + 1, dtype=torch.float32)
            self._tile = once.repeat(count // _PERIOD + 2)
        return self._tile[start % _PERIOD :][:count]

    def fill(self, tensor: torch.Tensor, rank: int) -> None:
        tensor.copy_(self._slice(0, tensor.numel())).add_(_PER_RANK * rank)

    def check_rank(self, tensor: torch.Tensor, rank: int) -> None:
        self._check(tensor, 0, 1, _PER_RANK * rank)

    def check_sum(self, tensor: torch.Tensor, start: int, ranks: int, times: int = 1) -> None:
        added = _PER_RANK * ranks * (ranks - 1) // 2
        self._check(tensor, start, ranks * times, added * times)

    def _check(self, tensor: torch.Tensor, start: int, factor: int, added: int) -> None:
        pattern = self._slice(start, tensor.numel())
        for begin in range(0, tensor.numel(), _BLOCK):
            got = tensor[begin : begin + _BLOCK]
            expected = pattern[begin : begin + _BLOCK] * factor + added
            if not torch.equal(got, expected):
                at = int((got != expected).nonzero()[0, 0])
                raise WrongResult(
                    f"wrong result: element {begin + at} is {got[at].item()}"
                    f" instead of {expected[at].item()}"
                )


class OperationJob:
    """The buffers of one operation on one rank. `nbytes` is the size of the larger one."""

    def __init__(
        self, op: str, nbytes: int, rank: int, ranks: int, allocate: Allocate, pattern: Pattern
    ) -> None:
        self.op, self.rank, self.ranks = op, rank, ranks
        self._pattern = pattern
        large = nbytes // FLOAT_BYTES
        if op != ALL_REDUCE:
            large -= large % ranks
        small = large // ranks
        self.source = allocate(small if op == ALL_GATHER else large)
        if op == ALL_REDUCE:
            self.target = self.source
        else:
            self.target = allocate(small if op == REDUCE_SCATTER else large)
        self._fill()

    def _fill(self) -> None:
        self._pattern.fill(self.source, self.rank)

    def time(self, call: Call, iterations: int, warmup: int) -> list[int]:
        """Nanoseconds of each call as this rank saw it."""
        clock = time.perf_counter_ns
        refill = self.op == ALL_REDUCE
        self._fill()
        for number in range(warmup):
            if refill and number % _REFILL_EVERY == 0:
                self._fill()
            call()
        taken: list[int] = []
        gc.collect()
        gc.disable()
        try:
            while len(taken) < iterations:
                if refill:
                    # Ranks finish refilling at different times; one untimed call evens that out.
                    self._fill()
                    call()
                for _ in range(min(_REFILL_EVERY, iterations - len(taken))):
                    begin = clock()
                    call()
                    taken.append(clock() - begin)
        finally:
            gc.enable()
        return taken

    def prove(self, call: Call) -> None:
        """Runs the operation on fresh data and compares every element; raises WrongResult."""
        self._fill()
        if self.op != ALL_REDUCE:
            self.target.fill_(-1.0)
        for _ in range(_PROOF_CALLS):
            call()
        if self.op == ALL_REDUCE:
            times = self.ranks ** (_PROOF_CALLS - 1)
            self._pattern.check_sum(self.target, 0, self.ranks, times)
        elif self.op == REDUCE_SCATTER:
            self._pattern.check_sum(self.target, self.rank * self.target.numel(), self.ranks)
        else:
            for rank, part in enumerate(self.target.chunk(self.ranks)):
                self._pattern.check_rank(part, rank)


class Jobs:
    """Keeps the buffers of the cell being measured, so that a round does not allocate anew."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._cell: tuple[str, int] | None = None
        self._jobs: dict[str, OperationJob] = {}
        self.pattern = Pattern()

    def get(self, kind: str, op: str, nbytes: int, allocate: Allocate) -> OperationJob:
        if self._cell != (op, nbytes):
            self._jobs.clear()
            self._cell = (op, nbytes)
        if kind not in self._jobs:
            self._jobs[kind] = OperationJob(
                op, nbytes, self._rank, self._ranks, allocate, self.pattern
            )
        return self._jobs[kind]

    def clear(self) -> None:
        self._jobs.clear()


def ordinary(count: int) -> torch.Tensor:
    """Memory as a user's tensor has it."""
    return torch.empty(count, dtype=torch.float32)


def run(job: OperationJob, call: Call, message: dict[str, int]) -> dict[str, list[int]]:
    """Times a call as a message asks for it, then checks the result, outside of the time."""
    times = job.time(call, message["iterations"], message["warmup"])
    job.prove(call)
    return {"ns": times}
