"""Where an action is carried out: on this node, or on another over its link.

    controller ─► action of node a ─► Workers         a is this machine
               ─► action of node b ─► Do ─► link ─► b's Workers
                                      └─ no link: nothing. When b is back it is told everything

With every action goes what its node must know: the job, the attempt's key, where the other nodes'
ports are. Secrets go only to allocations that are still to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wiiiiided.cluster.allocation.workers import Workers
from wiiiiided.cluster.control import actions as a
from wiiiiided.cluster.control.job import Job, Starting
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.trust.identity import Identity

if TYPE_CHECKING:
    from wiiiiided.cluster.membership.links import Links


class Assigner:
    """Says what a node is to know of a job. A machine alone has neither key nor port."""

    def __init__(self, controller: Controller, identity: Identity | None) -> None:
        self._controller = controller
        self._identity = identity

    def given(self, job: Job) -> p.Assignment:
        """Say what any node of the job's latest attempt is to know."""
        secrets = self._controller.store.secrets(job.id) if isinstance(job.phase, Starting) else {}
        if self._identity is None or job.attempt is None:
            return p.Assignment(job, "", {}, secrets)
        nodes = self._controller.state.nodes
        endpoints = {name: nodes[name].endpoint for name in job.attempt.nodes if name in nodes}
        key = self._identity.attempt_key(job.id, job.attempt.number).hex()
        return p.Assignment(job, key, endpoints, secrets)


class ActionDispatcher:
    """Carries actions out. A machine alone has no links."""

    def __init__(self, own: str, workers: Workers, assigner: Assigner, links: Links | None) -> None:
        self.own = own
        self.workers = workers
        self.assigner = assigner
        self.links = links

    def __call__(self, action: a.AnyAction, job: Job) -> None:
        if isinstance(action, a.Tell):
            return  # the store and the log have it
        given = self.assigner.given(job)
        if action.node in ("", self.own):
            self.workers.perform(action, given)
        elif self.links is not None:
            self.links.send(action.node, p.Do(action, p.pack(given)))
