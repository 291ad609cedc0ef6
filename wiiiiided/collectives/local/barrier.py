"""barrier, and a monitored one that says who is missing without breaking the group."""

from __future__ import annotations

import numpy as np

from wiiiiided.engine.operation import Plan, Until
from wiiiiided.engine.team import Team
from wiiiiided.shm.board import Call

_NOTHING = np.empty(0, np.uint8)


def barrier(team: Team, call: Call) -> Plan:
    """Done when all ranks have called it."""
    yield from team.open(call, _NOTHING, (0, 0), False, lambda: None)


def monitored_barrier(team: Team) -> Plan:
    """Done when all have entered; words of its own, so that giving up leaves the group whole."""
    number = team.board.muster()
    for link in team.links.values():
        link.ring()
    yield Until(
        lambda: not team.board.unmustered(number),
        lambda: [team.ranks[place] for place in team.board.unmustered(number)],
        "the monitored barrier",
    )
