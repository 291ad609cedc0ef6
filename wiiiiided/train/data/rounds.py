"""Which part of an epoch each host trains between two exchanges. Pure.

    numbers    position ─────────────── round ────────────────► │ next round …
               │ host 0: 12 batches │ host 1: 4 batches │     by speed: equal time, unequal steps
               │  │  │  │  …        │   │   │   │       │     a batch is cut for the host's ranks

A round has as many samples as `length` global batches; hosts take them by their *counts*: batches
of their own size. The rest of an epoch is a shorter round, in which every host has one batch at
least, if only of a sample that does not count: all hosts exchange in the same rounds. Hosts with
equal counts have equal counts there too.

A loop may have been stopped in the middle of a round (an exchange that a checkpoint asks for), or
have gone beyond its end (accumulation: a step takes several batches, and the last one crossed the
end). Each host tells at the exchange how many batches it has got; all hosts compute from
these numbers what is left.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wiiiiided.train.data.order import split
from wiiiiided.train.data.places import IndexRange


class HostSizes(NamedTuple):
    """The batches of a round, by host: their sizes and counts."""

    batches: tuple[int, ...]  # samples of a host's batch
    counts: tuple[int, ...]  # batches of a round

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples of each host in a whole round."""
        return tuple(b * n for b, n in zip(self.batches, self.counts, strict=True))


class HostRound(NamedTuple):
    """The numbers of one round."""

    ranges: tuple[IndexRange, ...]  # by host, one behind the other
    counts: tuple[int, ...]  # batches of each host
    last: bool  # of its epoch

    @property
    def end(self) -> int:
        """The end of the round: of the last host's range."""
        return self.ranges[-1].end

    def batch(self, host: int, number: int, size: int) -> IndexRange:
        """The numbers of a host's batch; an empty one is a step that does not count."""
        begin, end = self.ranges[host]
        low = min(begin + number * size, end)
        return IndexRange(low, min(low + size, end))


def cut_round(position: int, end: int, sizes: HostSizes) -> HostRound:
    """The round that begins at a number, of an epoch that ends at another."""
    samples, left = sizes.samples, end - position
    if left > sum(samples):
        cuts = [position + sum(samples[:host]) for host in range(len(samples) + 1)]
        return HostRound(_between(cuts), sizes.counts, False)
    cuts = [position + cut for cut in split(left, len(samples), samples)]
    ranges = _between(cuts)
    counts = [max(1, -(-r.size // b)) for r, b in zip(ranges, sizes.batches, strict=True)]
    if len(set(sizes.counts)) == 1:  # hosts that step alike do so to the end
        counts = [max(counts)] * len(counts)
    return HostRound(ranges, tuple(counts), True)


def rounds_from(position: int, end: int, sizes: HostSizes) -> Iterator[HostRound]:
    """The round at a number and those behind it, if hosts go on as they are."""
    while True:
        found = cut_round(position, end, sizes)
        yield found
        if found.last:
            return
        position = found.end


class RoundEnd(NamedTuple):
    """The place that rounds have reached at an exchange."""

    end: int  # all before it was given to a host
    left: list[IndexRange]  # and this of it was not trained
    is_epochs_last: bool  # nothing of the epoch is left


def round_end(position: int, end: int, sizes: HostSizes, made: Sequence[int]) -> RoundEnd:
    """Where rounds end once hosts have made so many batches since the one at `position` began."""
    missing, left = list(made), []
    found = None
    for found in rounds_from(position, end, sizes):
        for host, (stretch, size) in enumerate(zip(found.ranges, sizes.batches, strict=True)):
            trained = min(stretch.begin + missing[host] * size, stretch.end)
            if trained < stretch.end:
                left.append(IndexRange(trained, stretch.end))
            missing[host] = max(0, missing[host] - found.counts[host])
        if not any(missing):
            break
    assert found is not None
    return RoundEnd(found.end, left, found.last and not left)


def _between(cuts: Sequence[int]) -> tuple[IndexRange, ...]:
    return tuple(itertools.starmap(IndexRange, itertools.pairwise(cuts)))
