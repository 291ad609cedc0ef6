"""A daemon's status, whatever its role: asked on the machine it is about."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from wiiiiided import __version__
from wiiiiided.cluster.handlers.cluster_role import ClusterRole
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.node import Node


@dataclass(frozen=True)
class DaemonFacts:
    """The part that does not change while a daemon runs in a role."""

    mode: Literal["system", "user", "private"]
    node: Node
    started_at: float
    state_directory: str
    jobs_directory: str
    job_user: str


def status_of(
    facts: DaemonFacts, cluster_role: ClusterRole, counts: dict[str, int], problem: str = ""
) -> m.DaemonStatus:
    """`counts` are jobs per state that it knows of; `problem` goes before the cluster's."""
    return m.DaemonStatus(
        version=__version__,
        pid=os.getpid(),
        mode=facts.mode,
        node=facts.node,
        started_at=facts.started_at,
        state_directory=facts.state_directory,
        jobs_directory=facts.jobs_directory,
        job_user=facts.job_user,
        counts=counts,
        problem=problem or cluster_role.trouble,
        role=cluster_role.role,
        cluster=cluster_role.cluster,
        coordinator=cluster_role.coordinator,
        linked=cluster_role.linked,
    )
