"""Which places of an epoch's order are still to be trained, as one stretch of numbers. Pure.

Training goes along the order, so what is left is mostly "from here to the end". Hosts that make
rounds of their own may be stopped in the middle of one: then each has left a part of its range.

    order       ── trained ──│ left by 0 │ trained │ left by 1 │────── not begun ──────►
    numbered                   position ─│─────────│───── tail ──────────────────────►

The rest is numbered so that the last part keeps its places' numbers (from `tail` on a number is
a place), and what was left behind lies directly before it. So the first number that is left is also
the count of what was trained, and batches, parts and rounds are cut from numbers as if nothing were
missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class IndexRange(NamedTuple):
    """Positions, numbers or elements from `begin` up to, not including, `end`."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many."""
        return self.end - self.begin


class PlacesLeft(NamedTuple):
    """Numbers → places; from `tail` on they are the same."""

    tail: int = 0
    left: tuple[IndexRange, ...] = ()  # places before the tail, whose numbers end at it

    @property
    def begin(self) -> int:
        """The first number."""
        return self.tail - sum(stretch.size for stretch in self.left)

    def of(self, begin: int, end: int) -> Iterator[IndexRange]:
        """The places of these numbers, in their order."""
        at = self.begin
        for stretch in self.left:
            low, high = max(begin, at), min(end, at + stretch.size)
            if low < high:
                yield IndexRange(stretch.begin + low - at, stretch.begin + high - at)
            at += stretch.size
        if end > max(begin, self.tail):
            yield IndexRange(max(begin, self.tail), end)

    def after(self, end: int, left: Iterable[IndexRange]) -> PlacesLeft:
        """All numbers before `end` were handed out, and these of them were not trained."""
        tail = max(self.tail, end)
        numbers = [*left, IndexRange(end, tail)]
        return PlacesLeft(tail, _joined(p for n in numbers for p in self.of(*n)))

    def rest(self, begin: int) -> PlacesLeft:
        """The places without those before a number."""
        return PlacesLeft(self.tail, tuple(self.of(begin, self.tail)) if begin < self.tail else ())


def _joined(stretches: Iterable[IndexRange]) -> tuple[IndexRange, ...]:
    """The stretches in the order of places, those that touch as one."""
    found: list[IndexRange] = []
    for stretch in sorted(stretches):
        if found and found[-1].end == stretch.begin:
            found[-1] = IndexRange(found[-1].begin, stretch.end)
        else:
            found.append(stretch)
    return tuple(found)
