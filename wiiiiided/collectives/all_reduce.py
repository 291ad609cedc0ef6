"""all_reduce and reduce: every rank's array, element by element, into one result.

Three ways, by size and place:

    direct     up to 64 KiB: lay mine in a slot, arrive; everyone reduces everything itself
               (one step; the same operations on the same values in the same order: same bits)
    scattered  larger: pieces go through slots; rank r reduces share r of each piece and lays the
               result where its own share would have been, the others take it from there

        slot of rank 1, piece k:   │ share 0 of 1's input │ RESULT of share 1 │ share 2 of 1's input │

               In step k a rank puts piece k, reduces its share of k-1 and takes k-2, so one wait
               serves three phases. Its own share never goes through a slot as input.
    in place   all tensors in shared memory: rank r reduces share r where it lies and writes it
               into every rank's tensor

Slots: a rank puts at most one piece beyond the last step all have arrived at, and reads the last
two, so four slots are enough (three would be).
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from wiiiiided.collectives.pieces import pieces, share_bounds
from wiiiiided.engine.group import Group, Place
from wiiiiided.engine.operation import Plan, Wait
from wiiiiided.shm.board import Call
from wiiiiided.shm.kernels import Combine
from wiiiiided.shm.slots import SMALL_BYTES, STAGING_BYTES, Array

# In place, a share is worked on in blocks that stay in the L2 cache until they are copied.
BLOCK_BYTES = 256 * 1024


def all_reduce(
    group: Group, call: Call, x: Array, combine: Combine, place: Place = (0, 0), root: int = -1
) -> Plan:
    """The plan. `root` ≥ 0: only that rank gets the result, the others' arrays are not changed."""
    wanted = root in (-1, group.rank)
    if x.nbytes <= SMALL_BYTES:
        return _direct(group, call, x, combine, place, wanted)
    return _scattered(group, call, x, combine, place, root < 0, wanted)


def _direct(
    group: Group, call: Call, x: Array, combine: Combine, place: Place, wanted: bool
) -> Plan:
    count = x.size
    slots: list[Array] = []

    def put() -> None:
        slots.extend(group.small.next(x.dtype))
        slots[group.rank][:count] = x

    # Small tensors gain nothing from being worked on in place: the place is not announced.
    yield from group.open(call, x, (0, 0), False, put)
    if wanted:
        combine([slot[:count] for slot in slots], x)


def _scattered(
    group: Group,
    call: Call,
    x: Array,
    combine: Combine,
    place: Place,
    all_wanted: bool,
    wanted: bool,
) -> Plan:
    me, size = group.rank, group.size
    cuts = pieces(x.size, STAGING_BYTES // x.itemsize)
    slots: list[list[Array]] = []

    def put() -> None:  # the shares of the next piece that the others reduce
        begin, end = cuts[len(slots)]
        assert group.staging is not None
        slots.append(group.staging.next(x.dtype))
        low, high = share_bounds(end - begin, size)[me]
        mine, piece = slots[-1][me], x[begin:end]
        if low:
            mine[:low] = piece[:low]
        if high < piece.size:
            mine[high : piece.size] = piece[high:]

    views = yield from group.open(call, x, place if all_wanted else (0, 0), True, put)
    if views is not None:
        yield from _in_place(group, views, combine)
        return
    last = len(cuts) + 1
    for k in range(1, last + 1):
        if k < len(cuts):
            put()
        if k <= len(cuts):
            _reduce_share(group, x, cuts[k - 1], slots[k - 1], combine, wanted)
        if k >= 2 and wanted:  # take the others' shares
            begin, end = cuts[k - 2]
            for r, (low, high) in enumerate(share_bounds(end - begin, size)):
                if r != me and low < high:
                    x[begin + low : begin + high] = slots[k - 2][r][low:high]
        if k < last:
            yield group.arrive()


def _reduce_share(
    group: Group,
    x: Array,
    cut: tuple[int, int],
    slots: list[Array],
    combine: Combine,
    wanted: bool,
) -> None:
    begin, end = cut
    low, high = share_bounds(end - begin, group.size)[group.rank]
    if low == high:
        return
    mine = x[begin + low : begin + high]
    result = slots[group.rank][low:high]
    inputs = [mine if r == group.rank else slots[r][low:high] for r in range(group.size)]
    combine(inputs, result)
    if wanted:
        mine[:] = result


def _in_place(
    group: Group, views: list[Array], combine: Combine
) -> Generator[Wait, None, None]:
    low, high = share_bounds(views[0].size, group.size)[group.rank]
    block = BLOCK_BYTES // views[0].itemsize
    result = np.empty(min(block, high - low), views[0].dtype)
    for begin in range(low, high, block):
        end = min(begin + block, high)
        part = result[: end - begin]
        combine([view[begin:end] for view in views], part)
        for view in views:
            view[begin:end] = part
    yield group.arrive()  # nobody reads or writes my tensor any more
