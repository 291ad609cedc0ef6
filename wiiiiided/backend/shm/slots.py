"""Slots: where ranks lay pieces of their tensors for the others to read.

    slot 0 | slot 1 | … slot S-1     of rank 0
    slot 0 | slot 1 | … slot S-1     of rank 1     one rank's slots lie together, near its core
    …

A slot is written by its owner alone, before it arrives at a step, and read by all after that. Ranks
take the slots in turn and in the same order, so that turn t is slot t mod S everywhere.

Why S: no rank may write turn t while a peer can still read turn t - S. Each collective says how far
its ranks can drift apart and why S is enough. Small slots are for one piece: S = 2.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wiiiiided.backend.shm.segment import PAGE, Segment, page_up

Array = np.ndarray[Any, Any]

# Every group has these from its birth: an operation that fits needs one step.
SMALL_SLOTS: Final = 2
SMALL_BYTES: Final = 64 * 1024

# A group gets staging inside its first larger operation: 3 MiB a rank, so that two ranks and ten
# groups stay under 64 MiB. Two ranks do best with many pieces that stay in the L2 cache; more ranks
# have more to do for each piece, and want fewer of them (docs/lab-log.md).
_PAIR: Final = (12, 256 * 1024)
_MANY: Final = (6, 512 * 1024)


# A team whose group reaches other hosts needs a slot for every piece on its way over the wire
# (the arithmetic stands in collectives.wide: all_gather needs most).
_ACROSS: Final = (18, 1024 * 1024)


def staging_shape(size: int, *, across: bool = False) -> tuple[int, int]:
    """How many staging slots each rank of a team has, and their bytes."""
    if across:
        return _ACROSS
    return _PAIR if size <= 2 else _MANY


def slots_bytes(size: int, count: int, slot_bytes: int) -> int:
    """How much of a segment the slots of `size` ranks take."""
    return size * page_up(count * slot_bytes)


class Slots:
    """One set of slots of all ranks, seen by one of them."""

    def __init__(self, segment: Segment, start: int, size: int, count: int, slot_bytes: int):
        assert start % PAGE == 0
        self.count = count
        self.slot_bytes = slot_bytes
        self.turn = 0
        self._segment = segment
        self._start = start
        self._stride = page_up(count * slot_bytes)
        raw = np.frombuffer(segment.map, np.uint8, size * self._stride, start)
        self._raw = [
            [raw[r * self._stride + s * slot_bytes :][:slot_bytes] for r in range(size)]
            for s in range(count)
        ]
        self._typed: dict[np.dtype[Any], list[list[Array]]] = {}

    def reserve(self, rank: int) -> None:
        """Allocate the pages of one rank's slots; the owner calls it."""
        self._segment.reserve(self._start + rank * self._stride, self._stride)

    def release(self) -> None:
        """Let go of the memory; there is no next turn."""
        self._raw.clear()
        self._typed.clear()
        del self._segment

    def turns(self, dtype: np.dtype[Any]) -> list[list[Array]]:
        """The slots of every turn as arrays of `dtype`: turns(t)[turn % count][rank]."""
        typed = self._typed.get(dtype)
        if typed is None:
            typed = [[slot.view(dtype) for slot in ranks] for ranks in self._raw]
            self._typed[dtype] = typed
        return typed

    def next(self, dtype: np.dtype[Any]) -> list[Array]:
        """The slots of the next turn, one array of `dtype` for each rank."""
        slot = self.turns(dtype)[self.turn % self.count]
        self.turn += 1
        return slot
