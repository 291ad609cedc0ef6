"""all_reduce and reduce: every rank's array, element by element, into one result.

Four ways, by size, number of ranks and place:

    direct     up to 64 KiB: lay mine in a slot, arrive; every rank reduces everything itself
               (one step; the same operations on the same values in the same order: same bits)
    scattered  larger: pieces go through slots; rank r reduces share r of each piece and lays the
               result where its own share would have been, the others take it from there (that is
               a reduce-scatter and an all-gather)

        slot of rank 1, piece k:   │ share 0 of its input │ RESULT of 1 │ share 2 of its input │

               In step k a rank puts piece k, reduces its share of k-D and takes k-2D, having waited
               for all to be done with step k-D. So one wait serves three phases, and a rank that
               loses its core stops the others only after D steps. Piece k-3D is taken by all when
               piece k is put: 3D slots. Its own share never goes through a slot as input.
    paired     two ranks: pieces go through slots, each rank reduces all of every piece itself.
               The same bytes cross between the cores as scattered, with half the waits and calls
    in place   all tensors in shared memory: rank r reduces share r where it lies and writes it
               into every rank's tensor
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from wiiiiided.backend.collectives.local.relay import relay
from wiiiiided.backend.collectives.pieces import pieces, share_bounds
from wiiiiided.backend.engine.host_team import Team
from wiiiiided.backend.engine.operation import Plan, Wait
from wiiiiided.backend.engine.shared_tensors import PRIVATE, Placement
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import Combine
from wiiiiided.backend.shm.slots import SMALL_BYTES, SMALL_SLOTS, Array

# In place, a share is worked on in blocks that stay in the L2 cache until they are copied.
BLOCK_BYTES = 256 * 1024


def all_reduce(
    team: Team,
    call: CallSignature,
    x: Array,
    combine: Combine,
    place: Placement = PRIVATE,
    root: int = -1,
) -> Plan:
    """The plan. `root` ≥ 0: only that rank gets the result, the others' arrays are not changed."""
    wanted = root in (-1, team.rank)
    if x.nbytes <= SMALL_BYTES:
        return SmallLocalAllReduce(team, call, combine, x.dtype, x.size).plan(x, wanted)
    if team.size == 2:
        return _paired(team, call, x, combine, place if root < 0 else PRIVATE, wanted)
    return _scattered(team, call, x, combine, place, root < 0, wanted)


class SmallLocalAllReduce:
    """A small all_reduce, made ready once for all calls of its kind: training repeats itself.

    It opens as `Group.open` does, less what only large tensors need: small ones gain nothing from
    being used in place, so no rank announces a place.
    """

    def __init__(
        self, team: Team, call: CallSignature, combine: Combine, dtype: np.dtype[Any], count: int
    ) -> None:
        self._team, self._call, self._combine = team, call, combine
        self._turns = [[slot[:count] for slot in turn] for turn in team.small.turns(dtype)]
        self._mine = [turn[team.rank] for turn in self._turns]

    def plan(self, x: Array, wanted: bool = True) -> Plan:
        """One call. Without `wanted` the result is for others."""
        team, board, small = self._team, self._team.board, self._team.small
        team.parity = parity = team.parity ^ 1
        board.announce(self._call, parity)
        turn = small.turn % SMALL_SLOTS
        small.turn += 1
        self._mine[turn][:] = x
        yield team.arrive()
        if not board.same_calls(self._call, parity):
            team.verify(self._call)
        if wanted:
            self._combine(self._turns[turn], x)


def _paired(
    team: Team, call: CallSignature, x: Array, combine: Combine, place: Placement, wanted: bool
) -> Plan:
    me = team.rank
    cuts = pieces(x.size, team.staging_bytes // x.itemsize)

    def put(k: int, slots: list[Array]) -> None:
        begin, end = cuts[k]
        slots[me][: end - begin] = x[begin:end]

    def take(k: int, slots: list[Array]) -> None:
        if wanted:
            begin, end = cuts[k]
            mine, other = x[begin:end], slots[1 - me][: end - begin]
            combine([mine, other] if me == 0 else [other, mine], mine)

    views = yield from relay(team, call, x, place, True, len(cuts), put, take)
    if views is not None:
        yield from _in_place(team, views, combine)


def _scattered(
    team: Team,
    call: CallSignature,
    x: Array,
    combine: Combine,
    place: Placement,
    all_wanted: bool,
    wanted: bool,
) -> Plan:
    me, size = team.rank, team.size
    cuts = pieces(x.size, team.staging_bytes // x.itemsize)
    slots: list[list[Array]] = []

    def put() -> None:  # the shares of the next piece that the others reduce
        begin, end = cuts[len(slots)]
        assert team.staging is not None
        slots.append(team.staging.next(x.dtype))
        low, high = share_bounds(end - begin, size)[me]
        mine, piece = slots[-1][me], x[begin:end]
        if low:
            mine[:low] = piece[:low]
        if high < piece.size:
            mine[high : piece.size] = piece[high:]

    views = yield from team.open(call, x, place if all_wanted else PRIVATE, True, put)
    if views is not None:
        yield from _in_place(team, views, combine)
        return
    count = len(cuts)
    delay = min(team.staging_slots // 3, count)
    first = team.board.step
    for k in range(1, count + 2 * delay):
        if k >= delay:
            yield first + k - delay
        if k < count:
            put()
        if 0 <= k - delay < count:
            at = k - delay
            _reduce_share(team, x, cuts[at], slots[at], combine, wanted)
        if k - 2 * delay >= 0 and wanted:  # take the others' shares
            at = k - 2 * delay
            begin, end = cuts[at]
            for r, (low, high) in enumerate(share_bounds(end - begin, size)):
                if r != me and low < high:
                    x[begin + low : begin + high] = slots[at][r][low:high]
        if k < count + delay:
            team.arrive()


def _reduce_share(
    team: Team,
    x: Array,
    cut: tuple[int, int],
    slots: list[Array],
    combine: Combine,
    wanted: bool,
) -> None:
    begin, end = cut
    low, high = share_bounds(end - begin, team.size)[team.rank]
    if low == high:
        return
    mine = x[begin + low : begin + high]
    result = slots[team.rank][low:high]
    inputs = [mine if r == team.rank else slots[r][low:high] for r in range(team.size)]
    combine(inputs, result)
    if wanted:
        mine[:] = result


def _in_place(team: Team, views: list[Array], combine: Combine) -> Generator[Wait, None, None]:
    low, high = share_bounds(views[0].size, team.size)[team.rank]
    block = BLOCK_BYTES // views[0].itemsize
    for begin in range(low, high, block):
        parts = [view[begin : min(begin + block, high)] for view in views]
        combine(parts, parts[0])  # element by element: the first input may be the output
        for part in parts[1:]:
            part[:] = parts[0]
    yield team.arrive()  # no rank reads or writes my tensor any more
