"""Requests about machines: tokens, the list, drain, resume, lost, removed.

    Nodes                                         anybody
    CreateToken · Drain · Resume                  root, or the daemon's own user, on any machine of
    DeclareLost · RemoveNode                      the cluster

A machine that is removed is refused from then on whatever else fails: its certificate goes first,
then its place in the control plane, then its link. Asked again, what is left of that is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from wiiiiided.control import events as e
from wiiiiided.control.nodes import (
    refusal_to_drain,
    refusal_to_lose,
    refusal_to_remove,
    refusal_to_resume,
)
from wiiiiided.daemon.answers import views
from wiiiiided.daemon.answers.api import Refuse, only_admin
from wiiiiided.daemon.answers.jobs import Jobs
from wiiiiided.daemon.answers.talk import Caller
from wiiiiided.daemon.cluster.members import Members
from wiiiiided.domain.codes import FAILED, NO_SUCH
from wiiiiided.domain.node import Node
from wiiiiided.log import logger
from wiiiiided.text import plain
from wiiiiided.wire import messages as m

REASON_CHARS = 200
NodeRequest = m.Nodes | m.CreateToken | m.Drain | m.Resume | m.DeclareLost | m.RemoveNode


@dataclass(frozen=True)
class Cluster:
    """What a coordinator has besides."""

    name: str
    members: Members
    removed: Callable[[str, str], None]  # (node, by): tell it, and hang up


class NodeRequests:
    """The machines of the cluster; of a machine alone, that one. `cluster` is None then."""

    def __init__(self, jobs: Jobs, cluster: Cluster | None) -> None:
        self.jobs = jobs
        self.cluster = cluster

    def answer(self, caller: Caller, request: NodeRequest) -> m.Answer:
        match request:
            case m.Nodes():
                return self.list()
            case m.CreateToken():
                return self.create_token(caller, request)
            case m.Drain():
                return self.drain(caller, request)
            case m.Resume():
                return self.resume(caller, request)
            case m.DeclareLost():
                return self.declare_lost(caller, request)
            case m.RemoveNode():
                return self.remove(caller, request)

    def list(self) -> m.NodeList:
        names = self.jobs.keeper.state.nodes
        title = self.cluster.name if self.cluster is not None else ""
        return m.NodeList(title, tuple(self.view(name) for name in names))

    def view(self, name: str) -> m.NodeView:
        """A machine as it stands now; one that nobody knows has only its name left."""
        keeper = self.jobs.keeper
        if name not in keeper.state.nodes:
            return m.NodeView(Node(name, 0, 0), "lost", "is no member any more")
        until = self.cluster.members.until(name) if self.cluster is not None else None
        coordinator = self.jobs.own if self.cluster is not None else ""
        found = views.node_view(keeper.state, name, keeper.clock(), coordinator)
        return replace(found, certificate_until=until)

    def create_token(self, caller: Caller, request: m.CreateToken) -> m.TokenCreated:
        only_admin(caller, "make a token")
        made = self._clustered().members.create_token(request.ttl_s, request.uses, caller.user)
        logger.info("%s made a token for %d uses", caller.user, request.uses)
        return made

    def drain(self, caller: Caller, request: m.Drain) -> m.NodeView:
        only_admin(caller, "drain a node")
        name, keeper = request.name, self.jobs.keeper
        self._check(name, refusal_to_drain(keeper.state, name))
        reason = plain(request.reason, REASON_CHARS)
        self.jobs.ask(e.NodeDrained(keeper.clock(), name, caller.user, reason))
        return self.view(name)

    def resume(self, caller: Caller, request: m.Resume) -> m.NodeView:
        only_admin(caller, "resume a node")
        name, keeper = request.name, self.jobs.keeper
        self._check(name, refusal_to_resume(keeper.state, name))
        self.jobs.ask(e.NodeResumed(keeper.clock(), name, caller.user))
        return self.view(name)

    def declare_lost(self, caller: Caller, request: m.DeclareLost) -> m.NodeView:
        only_admin(caller, "declare a node lost")
        name, keeper = request.name, self.jobs.keeper
        self._clustered()
        self._check(name, refusal_to_lose(keeper.state, name))
        self.jobs.ask(e.NodeDeclaredLost(keeper.clock(), name, caller.user))
        return self.view(name)

    def remove(self, caller: Caller, request: m.RemoveNode) -> m.NodeView:
        only_admin(caller, "remove a node")
        cluster, keeper, name = self._clustered(), self.jobs.keeper, request.name
        half = name in keeper.state.nodes and name not in cluster.members.names()
        no = refusal_to_remove(keeper.state, name, self.jobs.own, request.force)
        self._check(name, "" if half else no)
        before = self.view(name)
        if not half:  # else only its certificate was taken away before something failed
            cluster.members.remove(name)
        self.jobs.ask(e.NodeRemoved(keeper.clock(), name, caller.user))
        cluster.removed(name, caller.user)
        return replace(before, state="lost", why=f"removed by {caller.user}", jobs=())

    def _clustered(self) -> Cluster:
        if self.cluster is None:
            text = f"{self.jobs.own} is in no cluster"
            raise Refuse(FAILED, text, "wiiiiide init makes this machine the first of one")
        return self.cluster

    def _check(self, name: str, refusal: str) -> None:
        if refusal:
            known = name in self.jobs.keeper.state.nodes
            hint = "" if known else "wiiiiide nodes lists them"
            raise Refuse(FAILED if known else NO_SUCH, plain(refusal), hint)
