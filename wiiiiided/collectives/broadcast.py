"""broadcast: the root's array to all."""

from __future__ import annotations

from wiiiiided.collectives.pieces import pieces
from wiiiiided.collectives.relay import relay, room
from wiiiiided.engine.group import Group, Place
from wiiiiided.engine.operation import Plan
from wiiiiided.shm.board import Call
from wiiiiided.shm.slots import Array


def broadcast(group: Group, call: Call, x: Array, root: int, place: Place = (0, 0)) -> Plan:
    """The plan. The root is done when all have called; in place, when all have taken."""
    large, most = room(group, x, x.nbytes)
    cuts = pieces(x.size, most)
    is_root = group.rank == root

    def put(k: int, slots: list[Array]) -> None:
        if is_root:
            begin, end = cuts[k]
            slots[root][: end - begin] = x[begin:end]

    def take(k: int, slots: list[Array]) -> None:
        if not is_root:
            begin, end = cuts[k]
            x[begin:end] = slots[root][: end - begin]

    views = yield from relay(
        group, call, x, place if large else (0, 0), large, len(cuts), put, take
    )
    if views is not None:
        if not is_root:
            x[:] = views[root]
        yield group.arrive()
