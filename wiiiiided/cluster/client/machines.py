"""The wait until this machine has taken up a new role.

    init, join, leave ──► ClusterView: it is decided and on the disk
                     └──► settle: Status again and again, until the daemon is what it was made
                          alone ──init──► coordinator      alone ──join──► member, and heard
                            ▲───────────────leave───────────────┘

Between the two the daemon rebuilds itself inside its process: for a moment no daemon may answer,
or one of the old role. Jobs go on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from wiiiiided.cluster.client.errors import DaemonLost, NoDaemon, NotSettled
from wiiiiided.cluster.rpc import messages as m

Role = Literal["alone", "coordinator", "member"]

SETTLE_S = 30.0  # until a daemon has taken up its new role
PROBLEM_S = 5.0  # a problem that stands for so long will not go by itself
LOOK_S = 0.1  # between two looks


def settle(
    status: Callable[[], m.DaemonStatus], role: Role, within_s: float = SETTLE_S
) -> m.DaemonStatus:
    """The daemon once it is what it was made; NotSettled says what keeps it from that."""
    end = time.monotonic() + within_s
    since: float | None = None  # when a problem was first seen that is the daemon's own
    while True:
        found, away = _look(status)
        if found is not None and not missing(found, role):
            return found
        now = time.monotonic()
        stuck = found is not None and found.role == role and found.linked
        since = (now if since is None else since) if stuck else None
        if now >= end or (since is not None and now - since >= PROBLEM_S):
            raise NotSettled(role, away if found is None else missing(found, role))
        time.sleep(LOOK_S)


def _look(status: Callable[[], m.DaemonStatus]) -> tuple[m.DaemonStatus | None, str]:
    """The daemon's own status; or None, and why: it is being rebuilt, or gone."""
    try:
        return status(), ""
    except (NoDaemon, DaemonLost) as problem:
        return None, str(problem)


def missing(status: m.DaemonStatus, role: Role) -> str:
    """Why this daemon is not in that role yet; empty when it is."""
    if status.role != role:
        return f"the daemon is still {ROLES[status.role]}"
    if status.problem:
        return f"the daemon says: {status.problem}"
    if role == "member" and not status.linked:
        return f"the coordinator {status.coordinator} does not hear it"
    return ""


ROLES: dict[Role, str] = {
    "alone": "that of a machine alone",
    "coordinator": "that of a coordinator",
    "member": "that of a member",
}
