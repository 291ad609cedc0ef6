"""The order of an epoch's samples, its cuts into batches, and batches' cuts into parts. Pure.

    places   0 ─────────────────────────────────────────────────────────────► length
             │      batch 0      │      batch 1      │ … │ short last batch │
             │ rank 0 │ 1  │  2  │

A place of the order has the same sample whatever the number of ranks: seed and epoch alone decide.
So a run may go on with more ranks or fewer (elastic training).
A batch is the next `batch_size` places; an epoch may be taken up at any place. Ranks' parts lie one
behind the other, even, or by shares that a caller gives; where there are fewer samples than ranks,
some parts are empty, never the first one's unless its share is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from wiiiiided.errors import UsageError
from wiiiiided.train.data.permutation import Numbers, Permutation
from wiiiiided.train.data.places import PlacesLeft

_ALL: Final = PlacesLeft()
_WINDOW: Final = 8192  # places that are computed at once: 20 times faster each than 16 at a time


class BatchSpan(NamedTuple):
    """The places of one global batch."""

    begin: int
    end: int
    last: bool  # of its epoch


class EpochOrder:
    """The samples of one epoch, in their order; `places`: of the numbers that are left of it."""

    def __init__(
        self, length: int, seed: int, epoch: int, shuffle: bool, places: PlacesLeft = _ALL
    ) -> None:
        self._length, self._places = length, places
        self._permutation = Permutation(length, seed, epoch) if shuffle else None
        self._begin, self._window = 0, np.empty(0, np.int64)

    def samples(self, begin: int, end: int) -> Numbers:
        """The data set's samples at these of the numbers that are left."""
        if begin >= self._places.tail:
            return self._at(begin, end)
        return np.concatenate([self._at(*stretch) for stretch in self._places.of(begin, end)])

    def _at(self, begin: int, end: int) -> Numbers:
        if self._permutation is None:
            return np.arange(begin, end)
        if not self._begin <= begin <= end <= self._begin + len(self._window):
            last = min(max(end, begin + _WINDOW), self._length)
            self._begin, self._window = begin, self._permutation.span(begin, last)
        return self._window[begin - self._begin : end - self._begin]


def batch_spans(place: int, length: int, batch_size: int, drop_last: bool) -> Iterator[BatchSpan]:
    """The batches from a place to the epoch's end; without a short one if it is dropped."""
    least = batch_size if drop_last else 1
    while length - place >= least:
        end = min(place + batch_size, length)
        yield BatchSpan(place, end, length - end < least)
        place = end


def split(count: int, ranks: int, shares: Sequence[float] | None = None) -> list[int]:
    """Where each rank's part of `count` samples begins, and where the last one ends.

    Without shares parts differ by one sample at most; with shares, each from its ideal by less
    than one.
    """
    if shares is None:
        return [-(-count * rank // ranks) for rank in range(ranks + 1)]
    if len(shares) != ranks or not all(math.isfinite(s) and s >= 0 for s in shares):
        raise UsageError(f"{ranks} ranks need {ranks} shares from 0 on, not {list(shares)}")
    total = math.fsum(shares)
    if total <= 0:
        raise UsageError(f"the shares of the ranks are {list(shares)}: one must be more than 0")
    # Rounded up but for what floating point adds: a rank with share 0 gets nothing.
    sums = [math.fsum(shares[:rank]) for rank in range(ranks)]
    cuts = [min(count, math.ceil(count * part / total - 1e-9)) for part in sums]
    used = [rank for rank in range(ranks) if shares[rank] > 0]
    return [count if rank > used[-1] else cuts[rank] for rank in range(ranks + 1)]
