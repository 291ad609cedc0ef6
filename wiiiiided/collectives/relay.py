"""What most collectives are: put a piece into my slot, take what I need from the others' slots.

    step            0        1        2        3
    put        piece 0  piece 1  piece 2
    take                piece 0  piece 1  piece 2

A rank puts piece k+1 before it waits for piece k of the others, so short delays of one rank do not
stop the rest. So a rank may write turn t while another still reads t-1, t-2 or t-3: four slots.
The small slots are used for one piece only, where two are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from wiiiiided.engine.group import Group, Place
from wiiiiided.engine.operation import Wait
from wiiiiided.shm.board import Call
from wiiiiided.shm.slots import SMALL_BYTES, STAGING_BYTES, Array

Put = Callable[[int, list[Array]], None]
Take = Callable[[int, list[Array]], None]


def room(x: Array, slot_nbytes: int) -> tuple[bool, int]:
    """For `slot_nbytes` to exchange: whether the large slots are needed, and a slot's elements."""
    large = slot_nbytes > SMALL_BYTES
    return large, (STAGING_BYTES if large else SMALL_BYTES) // x.itemsize


def relay(
    group: Group, call: Call, x: Array, place: Place, large: bool, count: int, put: Put, take: Take
) -> Generator[Wait, None, list[Array] | None]:
    """Exchange `count` pieces. Returns all ranks' x if they can be used in place: then the caller
    does its work on them (nothing was exchanged) and ends with `yield group.arrive()`."""
    slots: list[list[Array]] = []

    def put_next() -> None:
        source = group.staging if large else group.small
        assert source is not None
        slots.append(source.next(x.dtype))
        put(len(slots) - 1, slots[-1])

    views = yield from group.open(call, x, place, large, put_next)
    if views is not None:
        return views
    step = group.board.step
    for k in range(1, count):
        put_next()
        step = group.arrive()
        if k > 1:
            yield step - 1
        take(k - 1, slots[k - 1])
    if count > 1:
        yield step
    take(count - 1, slots[count - 1])
    return None
