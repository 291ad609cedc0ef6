"""Where an action is carried out: on this node, or on another over its link.

    keeper ─► action of node a ─► Workers            a is this machine
           ─► action of node b ─► Do ─► link ─► b's Workers
                                  └─ no link: nothing. When b is back it is told everything anew

With every action goes what its node must know: the job, the attempt's key, where the other nodes'
ports are. Secrets go only where a share is still to start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wiiiiided.control import actions as a
from wiiiiided.control.job import Job, Starting
from wiiiiided.daemon.shares.workers import Workers
from wiiiiided.domain.node import Node
from wiiiiided.peering import messages as p
from wiiiiided.trust.identity import Identity
from wiiiiided.wire.messages import Message


class Assigner:
    """Says what a node is to know of a job. Alone there is neither key nor door."""

    def __init__(
        self,
        nodes: Callable[[], Mapping[str, Node]],
        secrets: Callable[[int], dict[str, str]],
        identity: Identity | None,
    ) -> None:
        self._nodes = nodes
        self._secrets = secrets
        self._identity = identity

    def given(self, job: Job) -> p.Assignment:
        """For any node of the job's latest attempt."""
        secrets = self._secrets(job.id) if isinstance(job.phase, Starting) else {}
        if self._identity is None or job.attempt is None:
            return p.Assignment(job, "", {}, secrets)
        nodes = self._nodes()
        doors = {name: nodes[name].door for name in job.attempt.nodes if name in nodes}
        key = self._identity.attempt_key(job.id, job.attempt.number).hex()
        return p.Assignment(job, key, doors, secrets)


class Performer:
    """The keeper's hands. `send` says something to another node, if it is linked."""

    def __init__(self, own: str, workers: Workers, assigner: Assigner) -> None:
        self.own = own
        self.workers = workers
        self.assigner = assigner
        self.send: Callable[[str, Message], None] = lambda node, message: None

    def __call__(self, action: a.AnyAction, job: Job) -> None:
        if isinstance(action, a.Tell):
            return  # the store and the log have it
        given = self.assigner.given(job)
        if action.node in ("", self.own):
            self.workers.perform(action, given)
        else:
            self.send(action.node, p.Do(action, p.pack(given)))
