"""What a daemon says of itself, whatever its role: asked on the machine it is about."""

from __future__ import annotations

import os
from dataclasses import dataclass

from wiiiiided import __version__
from wiiiiided.daemon.answers.standing import Standing
from wiiiiided.daemon.shares.runs import Runs
from wiiiiided.domain.node import Node
from wiiiiided.wire import messages as m


@dataclass(frozen=True)
class DaemonFacts:
    """What does not change while a daemon is what it is."""

    mode: str
    node: Node
    started_at: float
    state_directory: str


def status_of(
    facts: DaemonFacts, runs: Runs, standing: Standing, counts: dict[str, int], problem: str = ""
) -> m.DaemonStatus:
    """`counts` are jobs per state that it knows of; `problem` goes before the cluster's."""
    return m.DaemonStatus(
        version=__version__,
        pid=os.getpid(),
        mode=facts.mode,  # type: ignore[arg-type]
        node=facts.node,
        started_at=facts.started_at,
        state_directory=facts.state_directory,
        jobs_directory=str(runs.root),
        job_user=runs.user.name,
        counts=counts,
        problem=problem or standing.trouble,
        role=standing.role,
        cluster=standing.cluster,
        coordinator=standing.coordinator,
        linked=standing.linked,
    )
