"""A coordinator's one port: data for its ranks, and requests of other machines.

mux ── control port ─┬ greet, join   members: tokens, certificates
                     ├ link          links ─ controller
                     ├ request       api: people on other machines
                     └ fetch         archives, checkpoints
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.allocation.workers import Workers
from wiiiiided.cluster.membership.control_port import (
    FIRST_WORDS_S,
    CertificateVerdict,
    ControlPort,
    nothing_more,
)
from wiiiiided.cluster.membership.coordinator import CoordinatorServices
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.port.fd_handoff import FdHandoff
from wiiiiided.cluster.port.port_mux import PortMux
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.rpc.server import RpcServer
from wiiiiided.cluster.trust.tls import VerifiedPeer
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.errors import WiiiiideError
from wiiiiided.log import Complaints, logger
from wiiiiided.text import plain

NAME_CHARS = 64


class CoordinatorPort:
    """The one port of a cluster's coordinator. `api` answers people, whichever machine they are
    on."""

    def __init__(
        self,
        cluster: CoordinatorServices,
        api: RpcServer,
        send_checkpoints: Callable[[RpcConnection, p.FetchCheckpoints], Awaitable[None]],
        archives: Archives,
        workers: Workers,
    ) -> None:
        self._members = cluster.members
        self._links = cluster.links
        self._api = api
        self._send_checkpoints = send_checkpoints
        self._archives = archives
        self._complaints = Complaints("port")
        handlers = {
            "greet": nothing_more,
            "join": self._join,
            "link": self._link,
            "request": self._request,
            "fetch": self._fetch,
        }
        here = cluster.identity
        elsewhere = f"{here.node} is the coordinator: it asks, and is not asked"
        port = ControlPort(handlers, self._judge, elsewhere, cluster.connections, here.authority)
        self.mux = PortMux(
            here.address,
            here.port,
            tls=cluster.credentials.server,
            on_control=port.serve,
            handoff=FdHandoff(workers.job_dirs, lambda: workers.shims),
            jobs_uid=workers.here.user.uid,
        )

    def _judge(self, peer: VerifiedPeer | None) -> CertificateVerdict:
        """Whether a certificate counts, by this machine's tables and clock."""
        why = self._members.verdict(peer)
        removed = bool(why) and peer is not None and self._members.was_removed(peer)
        return CertificateVerdict(why, removed)

    # ---- what comes in

    async def _join(self, connection: RpcConnection, opening: p.Opening) -> None:
        async with asyncio.timeout(FIRST_WORDS_S):
            request = p.decode_join(await connection.message())
        try:
            joined = self._members.admit(request)
        except Refuse as no:
            self._complaints.say(f"a machine may not join: {no}")
            await connection.say(p.TurnedAway(no.code, str(no), no.hint))
            return
        logger.info("%s has joined %s", request.node.name, joined.cluster)
        await connection.say(joined)

    async def _link(self, connection: RpcConnection, opening: p.Opening) -> None:
        await self._links.serve(connection)

    async def _request(self, connection: RpcConnection, opening: p.Opening) -> None:
        person = opening.person
        if person is None or connection.peer is None:
            await connection.say(m.Refusal(2, "a request is a person's, and none was named"))
            return
        user = plain(person.user, NAME_CHARS)
        await self._api.serve(
            connection, Caller(person.uid, user, person.admin, connection.peer.name)
        )

    async def _fetch(self, connection: RpcConnection, opening: p.Opening) -> None:
        try:
            async with asyncio.timeout(FIRST_WORDS_S):
                wanted = p.decode_fetch(await connection.message())
            if isinstance(wanted, p.FetchCheckpoints):
                await self._send_checkpoints(connection, wanted)
                return
            with self._archives.pinned(wanted.digest):
                await self._archives.send(wanted.digest, connection)
        except (FileNotFoundError, WiiiiideError, msgspec.DecodeError) as problem:
            await connection.say(m.Refusal(FAILED, f"that archive is not here: {problem}"))
