"""barrier, and a monitored one that names the missing ranks without breaking the group."""

from __future__ import annotations

import numpy as np

from wiiiiided.backend.engine.host_team import Team
from wiiiiided.backend.engine.operation import Plan, Until
from wiiiiided.backend.shm.board import CallSignature

_NOTHING = np.empty(0, np.uint8)


def barrier(team: Team, call: CallSignature) -> Plan:
    """Done when all ranks have called it."""
    yield from team.open(call, _NOTHING, (0, 0), False, lambda: None)


def monitored_barrier(team: Team) -> Plan:
    """Done when all have entered; words of its own, so that giving up leaves the group whole."""
    number = team.board.enter_monitored_barrier()
    for link in team.links.values():
        link.ring()
    yield Until(
        lambda: not team.board.not_in_monitored_barrier(number),
        lambda: [team.ranks[place] for place in team.board.not_in_monitored_barrier(number)],
        "the monitored barrier",
    )
