"""Requests about machines: tokens, the list, drain, resume, lost, removed.

    Nodes                                         every user
    CreateToken · Drain · Resume                  root, or the daemon's own user, on any machine of
    DeclareLost · RemoveNode                      the cluster

A machine that is removed is refused from then on whatever else fails: its certificate goes first,
then its place in the control plane, then its link. Asked again, what is left of that is done.

    heard, with jobs      certificate ─► drained, told ─► it ends them and says so ─► place ─► link
    else                  certificate ─────────────────────────────────────────────► place ─► link

Its jobs may begin elsewhere as soon as it has no place. So of a machine that is heard that is
not before its allocations have ended; of a silent one, the operator vouches for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.node_texts import (
    jobs_on,
    refusal_to_drain,
    refusal_to_lose,
    refusal_to_remove,
    refusal_to_resume,
)
from wiiiiided.cluster.handlers.jobs import JobRequests
from wiiiiided.cluster.membership.members import Members
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller
from wiiiiided.cluster.rpc.errors import Refuse, only_admin
from wiiiiided.cluster.state import views
from wiiiiided.domain.exit_codes import FAILED, NO_SUCH
from wiiiiided.domain.node import Node
from wiiiiided.log import logger
from wiiiiided.text import plain

REASON_CHARS = 200
ENDS_S = 60.0  # for allocations of a removed machine; a shim that disobeys is killed by then
ANSWER_S = 20.0  # the client waits 30 s
LOOK_S = 0.05
MachineRequest = m.ListNodes | m.CreateToken | m.Drain | m.Resume | m.DeclareLost


class RemoveMember(Protocol):
    """Tell a machine that it is no member any more, and hang up; with `listen`, hang up on all but
    its link, on which it says what becomes of its allocations."""

    def __call__(self, node: str, by: str, listen: bool = False) -> None: ...


@dataclass(frozen=True)
class Cluster:
    """The parts only a coordinator has."""

    name: str
    members: Members
    removed: RemoveMember


class NodeRequests:
    """The machines of the cluster; of a machine alone, that one. `cluster` is None then."""

    def __init__(self, jobs: JobRequests, cluster: Cluster | None) -> None:
        self.jobs = jobs
        self.cluster = cluster
        self._removals: dict[str, asyncio.Task[None]] = {}  # that wait for allocations to end

    def answer(self, caller: Caller, request: MachineRequest) -> m.Answer:
        match request:
            case m.ListNodes():
                return self.list()
            case m.CreateToken():
                return self.create_token(caller, request)
            case m.Drain():
                return self.drain(caller, request)
            case m.Resume():
                return self.resume(caller, request)
            case m.DeclareLost():
                return self.declare_lost(caller, request)

    def list(self) -> m.NodeList:
        names = self.jobs.controller.state.nodes
        title = self.cluster.name if self.cluster is not None else ""
        return m.NodeList(title, tuple(self.view(name) for name in names))

    def view(self, name: str) -> m.NodeView:
        """A machine as it is now; of one that is not known any more, its name."""
        controller = self.jobs.controller
        if name not in controller.state.nodes:
            return m.NodeView(Node(name, 0, 0), "lost", "is no member any more")
        until = self.cluster.members.until(name) if self.cluster is not None else None
        coordinator = self.jobs.own if self.cluster is not None else ""
        found = views.node_view(controller.state, name, controller.clock(), coordinator)
        return replace(found, certificate_until=until)

    def create_token(self, caller: Caller, request: m.CreateToken) -> m.TokenCreated:
        only_admin(caller, "make a token")
        made = self._clustered().members.create_token(request.ttl_s, request.uses, caller.user)
        logger.info("%s made a token for %d uses", caller.user, request.uses)
        return made

    def drain(self, caller: Caller, request: m.Drain) -> m.NodeView:
        only_admin(caller, "drain a node")
        name, controller = request.name, self.jobs.controller
        self._check(name, refusal_to_drain(controller.state, name))
        reason = plain(request.reason, REASON_CHARS)
        self.jobs.ask(e.NodeDrained(controller.clock(), name, caller.user, reason))
        return self.view(name)

    def resume(self, caller: Caller, request: m.Resume) -> m.NodeView:
        only_admin(caller, "resume a node")
        name, controller = request.name, self.jobs.controller
        self._check(name, refusal_to_resume(controller.state, name))
        self.jobs.ask(e.NodeResumed(controller.clock(), name, caller.user))
        return self.view(name)

    def declare_lost(self, caller: Caller, request: m.DeclareLost) -> m.NodeView:
        only_admin(caller, "declare a node lost")
        name, controller = request.name, self.jobs.controller
        # Jobs may still count on a node of a cluster that has ended.
        if name in controller.state.nodes or not controller.state.on(name):
            self._clustered()
        self._check(name, refusal_to_lose(controller.state, name))
        self.jobs.ask(e.NodeDeclaredLost(controller.clock(), name, caller.user))
        return self.view(name)

    async def remove(self, caller: Caller, request: m.RemoveNode) -> m.NodeView:
        """A removal that has begun goes to its end, even when the client goes away."""
        only_admin(caller, "remove a node")
        cluster, state, name = self._clustered(), self.jobs.controller.state, request.name
        before = self.view(name)
        if name not in self._removals:
            half = name in state.nodes and name not in cluster.members.names()
            no = refusal_to_remove(state, name, self.jobs.own, request.force)
            self._check(name, "" if half else no)
            if not half:  # else only its certificate was taken away before something failed
                cluster.members.remove(name)
            if name in state.absent or not state.on(name):
                self._removed(cluster, name, caller.user)
            else:
                self._begin_removal(cluster, name, caller.user)
        if work := self._removals.get(name):
            await asyncio.wait({work}, timeout=ANSWER_S)
            if not work.done():
                what = f"its part of {jobs_on(state, name)} has not ended yet"
                text = f"{name} is refused from now on, but {what}"
                raise Refuse(FAILED, f"{text}; it is listed until then, {ENDS_S:g} s at most")
            work.result()
        return replace(before, state="lost", why=f"removed by {caller.user}", jobs=())

    def _begin_removal(self, cluster: Cluster, name: str, by: str) -> None:
        """Let a node get nothing new, and tell it to end what it has."""
        controller = self.jobs.controller
        self.jobs.ask(e.NodeDrained(controller.clock(), name, by, "is being removed"))
        if any(job.attempt and not job.attempt.ordered for job in controller.state.on(name)):
            # Those run nowhere yet, and must not be told to start there.
            controller.report(e.NodeLeft(controller.clock(), name))
        cluster.removed(name, by, listen=True)
        work = asyncio.ensure_future(self._end_removal(cluster, name, by))
        self._removals[name] = work
        work.add_done_callback(lambda done: self._removal_ended(name, done))

    async def _end_removal(self, cluster: Cluster, name: str, by: str) -> None:
        state, loop = self.jobs.controller.state, asyncio.get_running_loop()
        deadline = loop.time() + ENDS_S
        while state.on(name) and loop.time() < deadline:
            await asyncio.sleep(LOOK_S)
        if state.on(name):
            text = "%s did not say within %g s that its part of %s has ended: it counts as ended"
            logger.warning(text, name, ENDS_S, jobs_on(state, name))
        self._removed(cluster, name, by)

    def _removed(self, cluster: Cluster, name: str, by: str) -> None:
        self.jobs.ask(e.NodeRemoved(self.jobs.controller.clock(), name, by))
        cluster.removed(name, by)

    def _removal_ended(self, name: str, work: asyncio.Task[None]) -> None:
        del self._removals[name]
        if not work.cancelled() and (problem := work.exception()) is not None:
            text = "%s is refused, but still listed: %s; wiiiiide nodes remove %s does the rest"
            logger.error(text, name, problem, name)

    def _clustered(self) -> Cluster:
        if self.cluster is None:
            text = f"{self.jobs.own} is in no cluster"
            raise Refuse(FAILED, text, "wiiiiide init makes this machine the first of one")
        return self.cluster

    def _check(self, name: str, refusal: str) -> None:
        if refusal:
            known = name in self.jobs.controller.state.nodes
            hint = "" if known else "wiiiiide nodes lists them"
            raise Refuse(FAILED if known else NO_SUCH, plain(refusal), hint)
