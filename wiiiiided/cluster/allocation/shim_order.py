"""The order that tells a shim what to start, made from the job's file and this machine.

Pure, except that it reads this machine's network interfaces, which a caller may replace, and that
`interpreter_of` looks where the job's Python is.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import psutil

from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.shim.protocol import FORMAT, WITH_ENDPOINT, LaunchOrder, host_and_port
from wiiiiided.cluster.system.file_looks import look
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.config import inherited
from wiiiiided.domain.node import Node
from wiiiiided.domain.rank_layout import Layout

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
Table = Mapping[str, tuple[str, ...]]  # network interface → its addresses
INTERPRETERS = ("python", "python3")  # in a command: the job's own interpreter


@dataclass(frozen=True)
class HostContext:
    """The facts about this daemon in every order."""

    node: str
    user: JobAccount
    python: str  # the daemon's own interpreter
    inherited: Mapping[str, str]  # what a person's own daemon passes on of its environment
    daemon_uid: int
    endpoint: str = ""  # this machine's one port, "ip:port"; empty: a machine alone

    @classmethod
    def of(cls, node: Node, system: bool) -> Self:
        """Describe this process: with `system` it is the service, else a person's own daemon."""
        return cls(
            node=node.name,
            user=JobAccount.service() if system else JobAccount.this(),
            python=sys.executable,
            inherited={} if system else inherited(),
            daemon_uid=os.getuid(),
            endpoint=node.endpoint,
        )


def interfaces() -> Table:
    """This machine's network interfaces and their addresses."""
    internet = (socket.AF_INET, socket.AF_INET6)
    return {
        name: tuple(entry.address for entry in entries if entry.family in internet)
        for name, entries in psutil.net_if_addrs().items()
    }


def order_for(
    job: Job,
    attempt: int,
    layout: Layout,
    work: str,
    here: HostContext,
    settings: Settings,
    endpoints: Mapping[str, str] = {},
    table: Callable[[], Table] = interfaces,
    python: str = "",
) -> LaunchOrder:
    """The order for this node's allocation; `endpoints` are the one ports of the job's nodes,
    `python` is the job's interpreter where that is not the daemon's own."""
    allocation = layout.on(here.node)
    several = len(layout.allocations) > 1 and bool(here.endpoint)
    policy = job.spec.policy
    python = python or here.python
    return LaunchOrder(
        job=job.id,
        attempt=attempt,
        name=job.spec.name,
        argv=command(job.spec.run.command, python),
        work=work,
        env=environment(job, python, here),
        world_size=layout.world_size,
        first_rank=allocation.first_rank,
        workers=allocation.workers,
        node=allocation.node,
        node_index=allocation.index,
        nodes=len(layout.allocations),
        restart_count=job.restarts,
        max_restarts=policy.restart.max,
        grace_s=policy.grace_s,
        threads=max(1, allocation.cores // max(1, allocation.workers)),
        log_bytes=settings.log_bytes,
        archive_bytes=settings.archive_bytes,
        archive_files=settings.archive_files,
        listener_uid=here.daemon_uid,
        file_mode=here.user.file_mode,
        door=here.endpoint,
        head=endpoints.get(layout.allocations[0].node, "") if allocation.index else here.endpoint,
        interface=interface(job.spec.network.interface, here.endpoint, table()) if several else "",
        alone_s=policy.stop_alone_s or 0.0 if here.endpoint else 0.0,
        format=WITH_ENDPOINT if here.endpoint else FORMAT,
        encrypt=job.spec.network.encrypt and several,
    )


def interface(wanted: str, endpoint: str, table: Table) -> str:
    """The network interface for backends that must be given one: the one that the job wants (by
    name, address or network), else the one with the endpoint's address; empty: neither is here."""
    if wanted in table:
        return wanted
    for place in (wanted, host_and_port(endpoint)[0]):
        try:
            network = ipaddress.ip_network(place, strict=False)
        except ValueError:  # "auto", or a name that this machine does not have
            continue
        for name, addresses in table.items():
            if any(_address(text) in network for text in addresses):
                return name
    return ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address of psutil's, which adds the interface to a link-local one: fe80::1%eth0."""
    return ipaddress.ip_address(text.partition("%")[0])


async def interpreter_of(job: Job, here: HostContext) -> str:
    """The job's Python: the daemon's own, a venv's, or the one named. Unanswered, or OSError: that
    cannot be known now."""
    wanted = job.spec.run.python
    return here.python if wanted is None else await look(wanted, interpreter, wanted)


def interpreter(wanted: str) -> str:
    """The Python of a venv, or the one named."""
    return os.path.join(wanted, "bin", "python") if os.path.isdir(wanted) else wanted


def command(argv: tuple[str, ...], python: str) -> list[str]:
    """The argv of a rank; `python` is the job's interpreter, whatever PATH says."""
    return [python, *argv[1:]] if argv[0] in INTERPRETERS else list(argv)


def environment(job: Job, python: str, here: HostContext) -> dict[str, str]:
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
    base["WIIIIIDE_CODEC"] = job.spec.network.codec
    base["WIIIIIDE_TLS"] = "on" if job.spec.network.encrypt else "off"
    base["WIIIIIDE_GRADIENTS"] = job.spec.network.gradients
    base["WIIIIIDE_EVERY"] = str(job.spec.network.every)
    base["WIIIIIDE_WARN_SIGNAL"] = job.spec.policy.warn_signal
    # A number may be given anew, by a coordinator that was restored from an old copy.
    base["WIIIIIDE_JOB"] = f"{job.id}-{round(job.submitted_at * 1000):x}"
    if job.resumes is not None:
        base["WIIIIIDE_RESUMES"] = str(job.resumes.job)
    if job.spec.network.interface != "auto":
        base["WIIIIIDE_INTERFACE"] = job.spec.network.interface
    return {**base, **job.spec.run.env}


def secret_lines(secrets: Mapping[str, str]) -> bytes:
    """The file behind WIIIIIDE_SECRETS: lines a shell can read."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in secrets.items()).encode()
