"""Most collectives: put a piece into my slot, take what I need from the others' slots.

    take a piece as soon as all have put it, while it is still in the cache
    else put the next, up to A pieces further than taken
    else wait

With a core for each rank this alternates put and take. When a rank loses its core for a while
(training threads and other programs want it too), the others run ahead instead of stopping at once.

Slots. A rank puts piece k only after it has taken piece k - A - 1, which all had put by then; so a
peer is reading piece k - 2A - 1 at the earliest, and S = 2A + 2 slots are enough. At the end a peer
may still read the last A + 1 pieces while the next operation puts its first.
The small slots are used for one piece only, where two are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from wiiiiided.backend.engine.host_team import Team
from wiiiiided.backend.engine.operation import Wait
from wiiiiided.backend.engine.shared_tensors import Placement
from wiiiiided.backend.shm.board import CallSignature, fence
from wiiiiided.backend.shm.slots import SMALL_BYTES, Array

Put = Callable[[int, list[Array]], None]
Take = Callable[[int, list[Array]], None]


def room(team: Team, x: Array, nbytes: int) -> tuple[bool, int]:
    """Whether `nbytes` to exchange need the large slots, and how many elements a slot has."""
    large = nbytes > SMALL_BYTES
    return large, (team.staging_bytes if large else SMALL_BYTES) // x.itemsize


def relay(
    team: Team,
    call: CallSignature,
    x: Array,
    place: Placement,
    large: bool,
    count: int,
    put: Put,
    take: Take,
) -> Generator[Wait, None, list[Array] | None]:
    """Exchange `count` pieces. Returns all ranks' x if they can be used in place: then the caller
    does its work on them (nothing was exchanged) and ends with `yield team.arrive()`."""
    slots: list[list[Array]] = []

    def put_next() -> None:
        source = team.staging if large else team.small
        assert source is not None
        slots.append(source.next(x.dtype))
        put(len(slots) - 1, slots[-1])

    views = yield from team.open(call, x, place, large, put_next)
    if views is not None:
        return views
    board, first = team.board, team.board.step  # the step of piece 0; piece k has first + k
    taken, ahead = 0, (team.staging_slots - 2) // 2
    while taken < count:
        if taken < len(slots) and board.lagging(first + taken) < 0:
            fence()
            take(taken, slots[taken])
            taken += 1
        elif len(slots) < count and len(slots) - taken <= ahead:
            put_next()
            team.arrive()
        else:
            yield first + taken
    return None
