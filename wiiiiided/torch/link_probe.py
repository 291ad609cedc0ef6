"""`python -m wiiiiided.torch.link_probe BYTES SECONDS`: what machines carry to each other.

A job of `wiiiiide plan`: as many ranks on each machine as the user's own job has. In every round
each machine is in one pair at most, so that no transfer disturbs another:

    four machines    a-b c-d │ a-c b-d │ a-d b-c

A pair exchanges arrays, exact and in each codec, by what wide.parallel does it with: each rank its
share with its counterparts alone, as a host's own sums are part of a step of one machine. A small
average says what meeting takes, and more elements, up to BYTES of them, what a byte takes. Sizes
grow until one takes long enough to be measured. The pair's first rank says on stderr what was found
(domain/plan).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
import torch.distributed as dist

from wiiiiided.backend.collectives.wide.coded_all_reduce import shared_stretches
from wiiiiided.backend.collectives.wide.segment_exchange import (
    HostSegment,
    count_pieces,
    exchange_segments,
)
from wiiiiided.backend.lossy.registry import by_name
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.config import node_index
from wiiiiided.domain.plan import EXACT, TIMED, PairLine, spell
from wiiiiided.torch.process_group import WiiiiideProcessGroup
from wiiiiided.train.memory import run_plan

_SMALL, _FIRST, _MOST = 256, 1 << 14, 1 << 26  # elements
_TRIPS: Final = 3  # meetings of a step: records, the exchange, the end
_LEAST_S: Final = 0.1  # of a transfer that is measured


class PairTimer:
    """Times exchanges of the ranks of two machines. All of them make the same calls."""

    def __init__(self, group: WiiiiideProcessGroup, budget_s: float) -> None:
        self._group, self._inner = group, group.engine_group
        self._budget_s = budget_s

    def line(self, a: int, b: int, most: int) -> PairLine:
        """Time one pair of machines, with up to `most` elements."""
        self._meeting_s()  # connections and caches
        small_s = statistics.median(self._meeting_s() for _ in range(9))
        byte_s = {codec: self._byte_s(codec, most, small_s) for codec in TIMED}
        return PairLine(a, b, _TRIPS * small_s, byte_s, 8 / byte_s[EXACT])

    def _byte_s(self, codec: str, most: int, small_s: float) -> float:
        """Sizes grow until a transfer takes its part of the budget; then the median of some."""
        wanted_s = max(_LEAST_S, self._budget_s / (4 * len(TIMED)))
        count = min(_FIRST, most)
        taken_s = self._seconds(codec, count)
        while taken_s < wanted_s and count < most:
            factor = min(16.0, max(2.0, 1.2 * wanted_s / taken_s))
            count = min(most, int(count * factor))
            taken_s = self._seconds(codec, count)
        times = 2 if taken_s > wanted_s else min(9, int(2 * wanted_s / taken_s) + 1)
        taken_s = statistics.median([taken_s, *(self._seconds(codec, count) for _ in range(times))])
        return max(taken_s - small_s, 0.05 * taken_s) / (4 * count)

    def _seconds(self, codec: str, count: int) -> float:
        """Seconds of one exchange."""
        # Residuals too are memory that training has had before, and not new pages.
        values, left = torch.randn(count), torch.full((count,), 0.0)
        return self._slowest_s(lambda: self.exchange(codec, values, left))

    def _meeting_s(self) -> float:
        values = torch.randn(_SMALL)
        return self._slowest_s(lambda: dist.all_reduce(values, dist.ReduceOp.AVG, self._group))

    def _slowest_s(self, call: Callable[[], object]) -> float:
        """Seconds of the slowest rank, the same on all ranks."""
        dist.barrier(self._group)
        begun = time.monotonic()
        call()
        taken = torch.tensor([time.monotonic() - begun], dtype=torch.float64)
        dist.all_reduce(taken, dist.ReduceOp.MAX, self._group)
        return float(taken)

    def exchange(self, codec: str, values: torch.Tensor, left: torch.Tensor) -> None:
        """Sum this rank's share over the machines, in place."""
        if self._inner.wide is None:  # machines that are one host have no link
            dist.all_reduce(values, dist.ReduceOp.AVG, self._group)
            return
        call = CallSignature.of(f"a trial's {values.numel()} elements, {codec}")
        found = list(self._segments(values, left))
        plan = exchange_segments(self._inner, call, found, by_name(codec))
        run_plan(self._inner, "a trial's exchange", plan, sum(one.values.nbytes for one in found))

    def _segments(self, values: torch.Tensor, left: torch.Tensor) -> Iterator[HostSegment]:
        wide = self._inner.wide
        assert wide is not None
        first = 0
        for begin, end, members in shared_stretches(values.numel(), wide.hosts):
            if members[wide.host] == self._inner.rank:
                here = slice(begin, end)
                yield HostSegment(values.numpy()[here], members, first, left.numpy()[here])
            first += count_pieces(end - begin, values.itemsize)


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Every pair of so many machines once; in a round each machine is in one pair at most."""
    places = [*range(count), *([-1] if count % 2 else [])]  # -1: it has a pause
    found = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        places = [places[0], places[-1], *places[1:-1]]
    return found


def machines() -> list[list[int]]:
    """The ranks of each machine. A collective call."""
    mine = torch.tensor([node_index()])
    told = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(told, mine)
    numbers = [int(one) for one in told]
    return [[r for r, n in enumerate(numbers) if n == node] for node in sorted(set(numbers))]


def run(gradient_bytes: int, budget_s: float) -> None:
    """Time all pairs, in rounds that all machines begin together."""
    members: Sequence[list[int]] = machines()
    rank = dist.get_rank()
    turns = rounds(len(members))
    most = int(np.clip(gradient_bytes // 4, _SMALL, _MOST))
    for turn in turns:
        for a, b in turn:
            ranks = sorted(members[a] + members[b])
            if rank in ranks:
                group = dist.new_group(ranks, use_local_synchronization=True)
                assert isinstance(group, WiiiiideProcessGroup)
                line = PairTimer(group, budget_s / len(turns)).line(a, b, most)
                if rank == ranks[0]:
                    sys.stderr.write(spell(line) + "\n")
                    sys.stderr.flush()
                dist.destroy_process_group(group)
        dist.barrier()


def main() -> None:
    """Run the program."""
    dist.init_process_group("wiiiiide")
    torch.manual_seed(0)
    run(int(sys.argv[1]), float(sys.argv[2]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
