"""barrier, and a monitored one that says who is missing without breaking the group."""

from __future__ import annotations

import numpy as np

from wiiiiided.engine.group import Group
from wiiiiided.engine.operation import Plan, Until
from wiiiiided.shm.board import Call

_NOTHING = np.empty(0, np.uint8)


def barrier(group: Group, call: Call) -> Plan:
    """Done when all ranks have called it."""
    yield from group.open(call, _NOTHING, (0, 0), False, lambda: None)


def monitored_barrier(group: Group) -> Plan:
    """Done when all have entered; words of its own, so that giving up leaves the group whole."""
    number = group.board.muster()
    for link in group.links.values():
        link.ring()
    yield Until(
        lambda: not group.board.unmustered(number),
        lambda: group.board.unmustered(number),
        "the monitored barrier",
    )
