"""broadcast: the root's array to all."""

from __future__ import annotations

from wiiiiided.backend.collectives.local.relay import relay, room
from wiiiiided.backend.collectives.pieces import pieces
from wiiiiided.backend.engine.host_team import Team
from wiiiiided.backend.engine.operation import Plan
from wiiiiided.backend.engine.shared_tensors import PRIVATE, Place
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.slots import Array


def broadcast(team: Team, call: CallSignature, x: Array, root: int, place: Place = PRIVATE) -> Plan:
    """The plan. The root is done when all have called; in place, when all have taken."""
    large, most = room(team, x, x.nbytes)
    cuts = pieces(x.size, most)
    is_root = team.rank == root

    def put(k: int, slots: list[Array]) -> None:
        if is_root:
            begin, end = cuts[k]
            slots[root][: end - begin] = x[begin:end]

    def take(k: int, slots: list[Array]) -> None:
        if not is_root:
            begin, end = cuts[k]
            x[begin:end] = slots[root][: end - begin]

    views = yield from relay(
        team, call, x, place if large else PRIVATE, large, len(cuts), put, take
    )
    if views is not None:
        if not is_root:
            x[:] = views[root]
        yield team.arrive()
