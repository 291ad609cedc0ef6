"""init, join, leave, renew: what this machine is, changed by its administrator.

    alone ──init──► coordinator ──leave──► alone      refused while others are members
      └────join──► member ───────leave──► alone      the coordinator is told first

Each checks, does, answers, and then asks for the daemon to be built anew in its new role, inside
the same process: jobs do not notice. A change that has begun goes to its end, even when the
client goes away. While it is under way no job is taken in: it would belong to a queue that is
about to be another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from wiiiiided.cluster.membership.joining import init_cluster, join_cluster, view_of
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse, only_admin
from wiiiiided.cluster.trust.identity import Identity, forget
from wiiiiided.domain.exit_codes import FAILED, USAGE
from wiiiiided.domain.node import Node
from wiiiiided.errors import WiiiiideError
from wiiiiided.log import logger

AGAIN_S = 0.05  # after the answer: it has left by then

RoleRequest = m.Init | m.Join | m.Leave | m.Renew
Handle = Callable[[RpcConnection, m.Request], Awaitable[None]]


class CurrentRole(Protocol):
    """The part of a role about leaving it, and about its certificate."""

    def unfinished(self) -> str:
        """Why this machine cannot join another queue now; empty: it can."""

    async def part(self, by: str, force: bool) -> None:
        """Say goodbye; Refuse: it stays."""

    async def renew(self) -> Identity:
        """A new certificate."""

    def rebuild(self) -> None:
        """Ask for the daemon to be built anew in its new role."""


class Roles:
    """Changes the role of one machine. `own` is the node as it is called when it is alone."""

    def __init__(
        self, state: Path, own: Node, identity: Identity | None, place: CurrentRole
    ) -> None:
        self._state = state
        self._own = own
        self._identity = identity
        self._place = place
        self._changing = ""  # what is under way
        self._submitting = 0
        self._work: asyncio.Future[m.ClusterView] | None = None

    def before(self, handle: Handle) -> Handle:
        """A handler of requests that takes those about this machine's role out."""

        async def sorted_out(connection: RpcConnection, request: m.Request) -> None:
            if isinstance(request, RoleRequest):
                await self.handle(connection, request)
            elif isinstance(request, m.Submission | m.Requeue):
                await self._unless_changing(handle, connection, request)
            else:
                await handle(connection, request)

        return sorted_out

    async def _unless_changing(
        self, handle: Handle, connection: RpcConnection, request: m.Request
    ) -> None:
        if self._changing:
            text = f"{self._changing} is under way on this machine: try again in a moment"
            raise Refuse(FAILED, text)
        self._submitting += 1
        try:
            await handle(connection, request)
        finally:
            self._submitting -= 1

    async def handle(self, connection: RpcConnection, request: RoleRequest) -> None:
        """Answer one request about this machine, and do what follows from it."""
        caller, verb = connection.caller, request.tag.lower()
        assert caller is not None
        if connection.peer is not None:
            raise Refuse(USAGE, f"{verb} is asked of the machine that it is about")
        only_admin(caller, verb)
        if self._changing:
            raise Refuse(FAILED, f"{self._changing} is under way on this machine already")
        self._changing = verb
        self._work = asyncio.ensure_future(self._carry_out(caller, request))
        try:
            answer = await asyncio.shield(self._work)
        except Refuse:
            raise
        except WiiiiideError as problem:
            raise Refuse(FAILED, str(problem)) from problem
        await connection.say(answer)

    async def _carry_out(self, caller: Caller, request: RoleRequest) -> m.ClusterView:
        verb, done = self._changing, False
        try:
            answer = await self._change(caller, request)
            done = not isinstance(request, m.Renew)
        finally:
            if not done:
                self._changing = ""
        if done:
            logger.info("%s by %s: this machine is %s now", verb, caller.user, _words(answer))
            asyncio.get_running_loop().call_later(AGAIN_S, self._place.rebuild)
        return answer

    async def _change(self, caller: Caller, request: RoleRequest) -> m.ClusterView:
        match request:
            case m.Init():
                self._must_be_alone("init")
                return init_cluster(self._state, self._own, request)
            case m.Join():
                self._must_be_alone("join")
                self._must_be_idle()
                return await join_cluster(self._state, self._own, request)
            case m.Leave(force=force):
                self._must_be_in_one("leave")
                await self._place.part(caller.user, force)
                forget(self._state)
                return view_of(None, self._own.name)
            case m.Renew():
                self._must_be_in_one("renew")
                self._identity = await self._place.renew()
                return view_of(self._identity)

    def _must_be_alone(self, verb: str) -> None:
        if self._identity is not None:
            role, cluster = self._identity.role, self._identity.cluster
            hint = "wiiiiide token create prints the line that lets another machine join"
            if (role, verb) != ("coordinator", "init"):
                hint = f"wiiiiide leave, then wiiiiide {verb}"
            raise Refuse(USAGE, f"this machine is {_called(role)} of {cluster} already", hint)

    def _must_be_in_one(self, verb: str) -> None:
        if self._identity is None:
            text = f"this machine is in no cluster: there is nothing to {verb}"
            raise Refuse(USAGE, text, "wiiiiide init or wiiiiide join begins one")

    def _must_be_idle(self) -> None:
        if self._submitting:
            raise Refuse(FAILED, "a job is being submitted on this machine: try again in a moment")
        if why := self._place.unfinished():
            raise Refuse(FAILED, why, "wait for them, or wiiiiide cancel them")


def _words(view: m.ClusterView) -> str:
    return "alone" if view.role == "alone" else f"{_called(view.role)} of {view.cluster}"


def _called(role: str) -> str:
    return "the coordinator" if role == "coordinator" else "a member"
