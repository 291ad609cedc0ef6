"""What a shim is told to start: the job's file and the machine, brought together. Pure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from wiiiiided.control.job import Job
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.spawn import JobUser
from wiiiiided.domain.layout import Layout
from wiiiiided.shim.files import Order

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
INTERPRETERS = ("python", "python3")  # in a command: the job's own interpreter


@dataclass(frozen=True)
class Surroundings:
    """What of this daemon goes into every order."""

    node: str
    user: JobUser
    python: str  # the daemon's own interpreter
    inherited: Mapping[str, str]  # a person's own daemon passes on who and where that person is
    daemon_uid: int


def order_for(
    job: Job, attempt: int, layout: Layout, work: str, here: Surroundings, settings: Settings
) -> Order:
    """The order for this node's share of an attempt."""
    share = layout.on(here.node)
    policy = job.spec.policy
    python = interpreter(job.spec.run.python, here.python)
    return Order(
        job=job.id,
        attempt=attempt,
        name=job.spec.name,
        argv=command(job.spec.run.command, python),
        work=work,
        env=environment(job, python, here),
        world_size=layout.world_size,
        first_rank=share.first_rank,
        workers=share.workers,
        node=share.node,
        node_index=share.index,
        nodes=len(layout.shares),
        restart_count=job.restarts,
        max_restarts=policy.restart.max,
        grace_s=policy.grace_s,
        threads=max(1, share.cores // max(1, share.workers)),
        log_bytes=settings.log_bytes,
        archive_bytes=settings.archive_bytes,
        archive_files=settings.archive_files,
        listener_uid=here.daemon_uid,
        file_mode=here.user.file_mode,
    )


def interpreter(wanted: str | None, own: str) -> str:
    """The job's Python: the daemon's own, a venv's, or the one named."""
    if wanted is None:
        return own
    return os.path.join(wanted, "bin", "python") if os.path.isdir(wanted) else wanted


def command(argv: tuple[str, ...], python: str) -> list[str]:
    """The argv of a rank; `python` is the job's interpreter, whatever PATH says."""
    return [python, *argv[1:]] if argv[0] in INTERPRETERS else list(argv)


def environment(job: Job, python: str, here: Surroundings) -> dict[str, str]:
    """The environment all ranks share; the shim adds what differs from rank to rank."""
    user = here.user
    base = {
        "HOME": user.home,
        "USER": user.name,
        "LOGNAME": user.name,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        **here.inherited,
    }
    path = here.inherited.get("PATH", DEFAULT_PATH)
    base["PATH"] = f"{os.path.dirname(python)}:{path}"
    base["WIIIIIDE_BACKEND"] = job.spec.network.backend
    base["WIIIIIDE_LOG"] = job.spec.output.log
    return {**base, **job.spec.run.env}


def secret_lines(secrets: Mapping[str, str]) -> bytes:
    """What ranks find behind WIIIIIDE_SECRETS: lines a shell can read."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in secrets.items()).encode()
