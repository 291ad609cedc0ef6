"""The parts of a coordinator besides the queue: its members, its links, its certificate.

links ──── members that are heard   (the queue's orders, their reports)
dialer ─── ask ──► members          (handlers/node_rpc)

The one port is `coordinator_port`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from wiiiiided.cluster.allocation.workers import HEARD_S, Workers
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.membership.control_port import OpenConnections
from wiiiiided.cluster.membership.credentials import Credentials
from wiiiiided.cluster.membership.dial import Dialer
from wiiiiided.cluster.membership.dispatch import Assigner
from wiiiiided.cluster.membership.links import Links
from wiiiiided.cluster.membership.members import Members
from wiiiiided.cluster.peering.metrics_codec import NodeMetrics
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.trust.certificate import is_due
from wiiiiided.cluster.trust.identity import Identity
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.errors import WiiiiideError
from wiiiiided.log import logger


class CoordinatorServices:
    """The services of one cluster's coordinator besides its queue."""

    def __init__(
        self,
        members: Members,
        controller: Controller,
        assigner: Assigner,
        workers: Workers,
        on_metrics: Callable[[str, NodeMetrics], None],
    ) -> None:
        self.members = members
        self.controller = controller
        self.credentials = Credentials(members.identity)
        self.connections = OpenConnections()
        self.links = Links(controller, assigner, members, self.connections, on_metrics)
        self.dialer = Dialer(self.credentials.client, members.verdict)
        self._workers = workers
        self._beat: asyncio.TimerHandle | None = None

    @property
    def identity(self) -> Identity:
        return self.credentials.identity

    def open(self) -> None:
        self._tell_shims()
        for name in set(self.controller.state.nodes) - {*self.members.names(), self.identity.node}:
            text = (
                "%s was being removed when the daemon ended: wiiiiide nodes remove %s does the rest"
            )
            logger.warning(text, name, name)

    # ---- leaving, renewing

    async def part(self, by: str, force: bool) -> None:
        """The cluster ends with its coordinator; Refuse while it has members."""
        others = [name for name in self.members.names() if name != self.identity.node]
        if others and not force:
            named = ", ".join(others[:10]) + (" …" if len(others) > 10 else "")
            text = f"{named} {'is' if len(others) == 1 else 'are'} still in the cluster"
            hint = "let them leave first, or --force: then each must leave by force as well"
            raise Refuse(FAILED, f"{text}, which ends with its coordinator", hint)
        for name in {*others, *self.controller.state.nodes} - {self.identity.node}:
            self.links.remove(name, by)
            self.controller.report(e.NodeRemoved(self.controller.clock(), name, by))
        for name in others:
            self.members.remove(name)

    async def renew(self) -> Identity:
        self.credentials.take(self.members.renew_own())
        return self.identity

    def _renew_if_due(self) -> None:
        if is_due(self.identity.certificate.until, self.controller.clock()):
            try:
                self.credentials.take(self.members.renew_own())
                logger.info("this machine has a renewed certificate")
            except WiiiiideError as problem:
                logger.error("the certificate cannot be renewed: %s", problem)

    def _tell_shims(self) -> None:
        """A coordinator always hears itself."""
        self._workers.heard(time.clock_gettime(time.CLOCK_BOOTTIME))
        self._renew_if_due()
        self._beat = asyncio.get_running_loop().call_later(HEARD_S, self._tell_shims)

    def close(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self.links.close()
