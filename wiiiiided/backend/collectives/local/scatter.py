"""scatter: the root's arrays, one to each rank."""

from __future__ import annotations

from collections.abc import Sequence

from wiiiiided.backend.collectives.local.relay import relay, room
from wiiiiided.backend.collectives.pieces import pieces
from wiiiiided.backend.engine.host_team import Team
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.slots import Array


def scatter(
    team: Team, call: CallSignature, inputs: Sequence[Array], output: Array, root: int
) -> Plan:
    """The plan. `inputs[r]` of the root becomes rank r's output; empty on the others."""
    me, size = team.rank, team.size
    large, room_elements = room(team, output, output.nbytes * size)
    most = max(1, room_elements // size)  # a slot holds a part for each rank
    cuts = pieces(output.size, most)

    def put(k: int, slots: list[Array]) -> None:
        begin, end = cuts[k]
        for r, x in enumerate(inputs):
            if r != me:
                slots[root][r * most : r * most + end - begin] = x[begin:end]

    def take(k: int, slots: list[Array]) -> None:
        begin, end = cuts[k]
        if me == root:
            output[begin:end] = inputs[me][begin:end]
        else:
            output[begin:end] = slots[root][me * most : me * most + end - begin]

    yield from relay(team, call, output, (0, 0), large, len(cuts), put, take)
