"""What can be asked about machines, and the wait until this one has taken up a new role.

    init, join, leave ──► ClusterView: it is decided and on the disk
                     └──► settle: Status again and again, until the daemon is what it was made
                          alone ──init──► coordinator      alone ──join──► member, and heard
                            ▲───────────────leave───────────────┘

Between the two the daemon rebuilds itself inside its process: for a moment nobody may answer, or
somebody of the old role. Jobs go on meanwhile.
"""

from __future__ import annotations

import time
from typing import Literal

from wiiiiided.client.asking import Asking
from wiiiiided.client.connection import ANSWER_S, PATIENT_S
from wiiiiided.client.errors import DaemonLost, NoDaemon, NotSettled
from wiiiiided.wire import messages as m

Role = Literal["alone", "coordinator", "member"]

JOIN_S = 60.0  # two connections to another machine, each of which may be slow to fail
LEAVE_S = 300.0  # by force it first ends the shares of jobs that it has, each in its grace
SETTLE_S = 30.0  # until a daemon has taken up its new role
PROBLEM_S = 5.0  # a problem that stands for so long will not go by itself
LOOK_S = 0.1  # between two looks


class Machines(Asking):
    """Nodes of the cluster. Init, join, leave and renew are about this machine."""

    def init(self, cluster: str = "", address: str = "", port: int = 0) -> m.ClusterView:
        return self._ask(m.Init(cluster, address, port), m.ClusterView, PATIENT_S)

    def join(self, request: m.Join) -> m.ClusterView:
        return self._ask(request, m.ClusterView, JOIN_S)

    def leave(self, force: bool = False) -> m.ClusterView:
        return self._ask(m.Leave(force), m.ClusterView, LEAVE_S)

    def renew(self) -> m.ClusterView:
        return self._ask(m.Renew(), m.ClusterView, PATIENT_S)

    def create_token(self, ttl_s: float = 3600.0, uses: int = 1) -> m.TokenCreated:
        return self._ask(m.CreateToken(ttl_s, uses), m.TokenCreated)

    def nodes(self, within_s: float = ANSWER_S) -> m.NodeList:
        return self._ask(m.Nodes(), m.NodeList, within_s)

    def remove_node(self, name: str, force: bool = False) -> m.NodeView:
        return self._ask(m.RemoveNode(name, force), m.NodeView, PATIENT_S)

    def declare_lost(self, name: str) -> m.NodeView:
        return self._ask(m.DeclareLost(name), m.NodeView, PATIENT_S)

    def drain(self, name: str, reason: str = "") -> m.NodeView:
        return self._ask(m.Drain(name, reason), m.NodeView)

    def resume(self, name: str) -> m.NodeView:
        return self._ask(m.Resume(name), m.NodeView)

    def settle(self, role: Role, within_s: float = SETTLE_S) -> m.DaemonStatus:
        """The daemon once it is what it was made; NotSettled says what keeps it from that."""
        end = time.monotonic() + within_s
        since: float | None = None  # when a problem was first seen that is the daemon's own
        while True:
            status, away = self._look()
            if status is not None and not missing(status, role):
                return status
            now = time.monotonic()
            stuck = status is not None and status.role == role and status.linked
            since = (now if since is None else since) if stuck else None
            if now >= end or (since is not None and now - since >= PROBLEM_S):
                raise NotSettled(role, away if status is None else missing(status, role))
            time.sleep(LOOK_S)

    def _look(self) -> tuple[m.DaemonStatus | None, str]:
        """What it says of itself; or None, and why: it is being rebuilt, or gone."""
        try:
            return self.status(), ""
        except (NoDaemon, DaemonLost) as problem:
            return None, str(problem)


def missing(status: m.DaemonStatus, role: Role) -> str:
    """What this daemon lacks to be in that role; empty when it is."""
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
