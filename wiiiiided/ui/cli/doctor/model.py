"""The facts that `wiiiiide doctor` finds out, and its judgement of each.

Facts ──check──► Finding ──title──► one line, or one object of --json
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wiiiiided.cluster.rpc.messages import DaemonStatus

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """A judgement: how it is, and what to do where it is not ok. One line, or object of --json."""

    level: Level
    title: str  # empty until the list of checks gives it one
    sentence: str
    do: str = ""


def ok(sentence: str) -> Finding:
    return Finding("ok", "", sentence)


def warn(sentence: str, do: str) -> Finding:
    """A finding that will cause trouble later."""
    return Finding("warn", "", sentence, do)


def fail(sentence: str, do: str) -> Finding:
    """A finding that keeps jobs from running."""
    return Finding("fail", "", sentence, do)


# ---- facts


@dataclass(frozen=True)
class Socket:
    path: str
    exists: bool
    mode: int = 0
    group: str = ""


@dataclass(frozen=True)
class Unit:
    """A unit as systemctl shows it."""

    load: str
    active: str
    enabled: str
    user: bool


@dataclass(frozen=True)
class JobUserFacts:
    """The jobs' user of the service, and what it could do to the daemon's state."""

    exists: bool
    state_mode: int = 0o700
    owns_state: bool = False
    in_daemon_group: bool = False


@dataclass(frozen=True)
class PortProbe:
    """How a TCP connection to a port went: its time, or what kept it from coming about."""

    seconds: float | None = None
    problem: str = ""  # refused | silent | no-route | forbidden | other
    words: str = ""  # the kernel's, for `other`
    mtu: int | None = None


@dataclass(frozen=True)
class PeerFacts:
    """Another machine of the cluster, seen from this one."""

    name: str
    endpoint: str
    state: str
    version: str
    reach: PortProbe | None  # None: it has no address


@dataclass(frozen=True)
class Facts:
    """Everything that was found out; None where it could not be, or does not apply."""

    version: str
    mode: str  # system | user | private
    user: str
    python: tuple[int, int, int]
    daemon: DaemonStatus | None = None
    daemon_problem: str = ""
    denied: bool = False  # a daemon is there, and it is not for this user
    socket: Socket | None = None
    is_root: bool = False
    groups: tuple[str, ...] = ()  # the groups of this process
    listed: bool = False  # the group file has this user in the group wiiiiide
    state: str = ""
    state_free: int | None = None
    state_writable: bool | None = None
    jobs: str = ""
    jobs_free: int | None = None
    unit: Unit | None = None
    lingers: bool | None = None
    interpreter: str = ""
    torch: str | None = None
    torch_problem: str = ""
    torch_wanted: str = ""  # as the package requires it, ">=2.13,<2.14"
    cores: int = 1  # cores that this process may use
    all_cores: int = 1
    cpu_quota: float | None = None
    memory: int = 0
    memory_limit: int | None = None
    swap_used: int = 0
    shm: int | None = None
    open_files: int | None = None  # soft limit of the daemon, or of this process
    hostname: str = ""
    addresses: tuple[str, ...] | None = None  # what the hostname resolves to
    boot_id: str | None = None
    clock_behind_s: float = 0.0  # how far the newest file of ours lies in the future
    loopback_up: bool | None = None
    job_user: JobUserFacts | None = None
    container: str = ""
    seccomp: bool = False
    port: PortProbe | None = None  # the daemon's own; None: a machine alone has none
