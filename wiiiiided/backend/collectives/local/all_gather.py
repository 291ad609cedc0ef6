"""all_gather and gather: every rank's array to all, or to the root."""

from __future__ import annotations

from collections.abc import Sequence

from wiiiiided.backend.collectives.local.relay import relay, room
from wiiiiided.backend.collectives.pieces import pieces
from wiiiiided.backend.engine.host_team import Team
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.engine.shared_tensors import PRIVATE, Placement
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.slots import Array


def all_gather(
    team: Team, call: CallSignature, x: Array, outputs: Sequence[Array], place: Placement = PRIVATE
) -> Plan:
    """The plan. `outputs[r]` becomes rank r's x; empty where the result is not wanted (gather)."""
    me = team.rank
    large, most = room(team, x, x.nbytes)
    cuts = pieces(x.size, most)
    own = bool(outputs) and outputs[me].ctypes.data != x.ctypes.data

    def put(k: int, slots: list[Array]) -> None:
        begin, end = cuts[k]
        slots[me][: end - begin] = x[begin:end]

    def take(k: int, slots: list[Array]) -> None:
        begin, end = cuts[k]
        if own:
            outputs[me][begin:end] = x[begin:end]  # warm: it was just put
        for r, output in enumerate(outputs):
            if r != me:
                output[begin:end] = slots[r][: end - begin]

    views = yield from relay(
        team, call, x, place if large else PRIVATE, large, len(cuts), put, take
    )
    if views is not None:
        for r, output in enumerate(outputs):
            if r != me or own:
                output[:] = views[r]
        yield team.arrive()  # no rank reads my tensor any more
