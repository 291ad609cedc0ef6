"""Slots: one writer each, in turn, and none over another."""

from __future__ import annotations

import os

import numpy as np

from wiiiiided.backend.shm.segment import PAGE, Segment
from wiiiiided.backend.shm.slots import SMALL_BYTES, SMALL_SLOTS, Slots, slots_bytes, staging_shape


def _slots(size: int, count: int, slot_bytes: int) -> list[Slots]:
    segment = Segment.create("slots", PAGE + slots_bytes(size, count, slot_bytes))
    return [Slots(segment, PAGE, size, count, slot_bytes) for _ in range(size)]


def test_what_one_rank_writes_the_others_find_in_the_same_turn() -> None:
    every = _slots(3, 4, 8192)
    for turn in range(9):
        seen = [slots.next(np.dtype(np.float32)) for slots in every]
        for rank in range(3):
            seen[rank][rank][:] = 10 * turn + rank
        for mine in seen:
            assert [slot[0] for slot in mine] == [10 * turn + r for r in range(3)]
            assert [slot[-1] for slot in mine] == [10 * turn + r for r in range(3)]


def test_no_slot_overlaps_another() -> None:
    (slots,) = _slots(1, 4, 8192)
    every = [slots.next(np.dtype(np.uint8))[0] for _ in range(4)]
    for value, slot in enumerate(every):
        slot[:] = value
    assert [set(slot.tolist()) for slot in every] == [{0}, {1}, {2}, {3}]
    assert slots.next(np.dtype(np.uint8))[0][0] == 0, "the fifth turn is the first slot again"


def test_dtypes_share_the_turns() -> None:
    (slots,) = _slots(1, 2, 8192)
    slots.next(np.dtype(np.int64))[0][:] = -1
    slots.next(np.dtype(np.int64))[0][:] = 0
    assert slots.next(np.dtype(np.uint8))[0][:3].tolist() == [255] * 3


def test_a_slot_holds_whole_elements_of_the_largest_dtype() -> None:
    for nbytes, count in (
        (SMALL_BYTES, SMALL_SLOTS),
        staging_shape(2)[::-1],
        staging_shape(3)[::-1],
    ):
        assert nbytes % np.dtype(np.complex128).itemsize == 0
        (slots,) = _slots(1, count, nbytes)
        assert slots.next(np.dtype(np.complex128))[0].nbytes == nbytes


def test_reserving_allocates_the_pages_of_one_rank() -> None:
    segment = Segment.create("slots", slots_bytes(2, 2, PAGE))
    slots = Slots(segment, 0, 2, 2, PAGE)
    slots.reserve(1)
    assert os.fstat(segment.fd).st_blocks * 512 == 2 * PAGE
