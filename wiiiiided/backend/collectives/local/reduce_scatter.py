"""reduce_scatter: rank r gets the reduction of every rank's r-th array, and moves only that.

A rank puts the parts the others reduce and reads the parts it reduces: half the bytes of an
all_reduce, where an all_reduce would also copy the result back to all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wiiiiided.backend.collectives.local.relay import relay, room
from wiiiiided.backend.collectives.pieces import pieces
from wiiiiided.backend.engine.host_team import Team
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.engine.shared_tensors import PRIVATE, Placement
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import Combine
from wiiiiided.backend.shm.slots import Array


def reduce_scatter(
    team: Team,
    call: CallSignature,
    inputs: Sequence[Array],
    output: Array,
    combine: Combine,
    whole: Array | None = None,
    place: Placement = PRIVATE,
) -> Plan:
    """The plan. `whole` is the inputs as one array, if they are one; `place` says where it lies."""
    me, size = team.rank, team.size
    large, room_elements = room(team, output, output.nbytes * size)
    most = max(1, room_elements // size)  # a slot holds a part for each rank
    cuts = pieces(output.size, most)
    overlap = any(np.may_share_memory(x, output) for x in inputs)

    def put(k: int, slots: list[Array]) -> None:
        begin, end = cuts[k]
        for r, x in enumerate(inputs):
            if r != me:
                slots[me][r * most : r * most + end - begin] = x[begin:end]

    def take(k: int, slots: list[Array]) -> None:
        begin, end = cuts[k]
        mine = slice(me * most, me * most + end - begin)
        parts = [inputs[me][begin:end] if r == me else slots[r][mine] for r in range(size)]
        if overlap:  # the output is one of the inputs: it must not change before it is read
            combine(parts, slots[me][mine])
            output[begin:end] = slots[me][mine]
        else:
            combine(parts, output[begin:end])

    x = output if whole is None else whole
    if not large or overlap:
        place = PRIVATE
    views = yield from relay(team, call, x, place, large, len(cuts), put, take)
    if views is not None:
        n = output.size
        combine([view[me * n : (me + 1) * n] for view in views], output)
        yield team.arrive()  # no rank reads my tensor any more
