"""The judgements of `wiiiiide doctor` on the facts: no I/O, one function per line it prints.

A check looks at the facts and returns a Finding, or None when it does not apply here. `fail` is
what keeps jobs from running, `warn` what will cause trouble later, `ok` the rest; what is not ok
says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from wiiiiided.cluster.rpc.messages import DaemonStatus
from wiiiiided.text import format_size
from wiiiiided.ui.cli.doctor_cluster import PortProbe, cluster, one_port
from wiiiiided.ui.cli.doctor_finding import Finding

GIB = 1 << 30
STATE_FAIL_BYTES = 100 << 20  # SQLite needs room for its journal to end any transaction
STATE_WARN_BYTES = 2 * GIB  # a few shipped working directories at their limit of 512 MiB
SWAP_WARN_BYTES = 256 << 20  # less is what any idle system puts away
SHM_WARN_BYTES = 1 * GIB  # docker gives 64 MB, and DataLoader workers die of it
FILES_WARN = 4096  # 1024, the usual default, is few for DataLoader workers
CLOCK_WARN_S = 60.0
PYTHON = (3, 11)
# The one to install; what is needed is the package's own requirement.
BOUND = re.compile(r"(>=|<|==)\s*(\d+(?:\.\d+)*)")
TORCH = "torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"


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
class Facts:
    """Everything that was found out; None where it could not be, or does not apply."""

    version: str
    mode: str  # system | user | private
    user: str
    python: tuple[int, int, int]
    daemon: DaemonStatus | None = None
    daemon_problem: str = ""
    denied: bool = False  # there is one, and it is not for this user
    socket: Socket | None = None
    is_root: bool = False
    groups: tuple[str, ...] = ()  # of this process
    listed: bool = False  # in the group wiiiiide according to the group file
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
    cores: int = 1  # that this process may use
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


Check = Callable[[Facts], Finding | None]


def examine(facts: Facts) -> list[Finding]:
    """All findings, in the order in which a person would look."""
    return [finding for check in CHECKS if (finding := check(facts)) is not None]


def daemon(facts: Facts) -> Finding:
    status = facts.daemon
    if status is None and facts.denied:
        who = group(facts)  # it says what to do; nothing has to be started
        remedy = who.do if who is not None else "use it as the user it belongs to"
        return Finding("fail", "daemon", f"it is there, but {facts.daemon_problem}", remedy)
    if status is None:
        return Finding("fail", "daemon", facts.daemon_problem, _how_to_start(facts))
    where = f"{status.version}, {status.mode}, process {status.pid}, node {status.node.name}"
    if status.problem:
        return Finding("fail", "daemon", f"{where}; {status.problem}", "see its log")
    if status.version != facts.version:
        return Finding(
            "warn",
            "daemon",
            f"it is {status.version}, this command is {facts.version}",
            f"restart the daemon, jobs go on: {_systemctl(facts)} restart wiiiiided",
        )
    return Finding("ok", "daemon", where)


def socket(facts: Facts) -> Finding | None:
    found = facts.socket
    if found is None or not found.exists:
        return None  # the line about the daemon says it
    words = f"{found.path} {found.mode:04o} {found.group}".rstrip()
    if found.mode & 0o007:
        return Finding(
            "fail",
            "socket",
            f"{words}: every user can use it",
            "restart the daemon; it sets the mode",
        )
    return Finding("ok", "socket", words)


def group(facts: Facts) -> Finding | None:
    if not is_service(facts) or facts.is_root:
        return None
    if "wiiiiide" in facts.groups:
        return Finding("ok", "group", f"{facts.user} is in the group wiiiiide")
    if facts.listed:
        return Finding(
            "fail",
            "group",
            f"{facts.user} is in the group wiiiiide, but this session began before that",
            "log in again, or: newgrp wiiiiide",
        )
    return Finding(
        "fail",
        "group",
        f"{facts.user} is not in the group wiiiiide",
        f"sudo usermod --append --groups wiiiiide {facts.user}, then log in again",
    )


def state(facts: Facts) -> Finding | None:
    if facts.state_free is None:
        return None
    words = f"{facts.state}: {format_size(facts.state_free)} free"
    if facts.state_writable is False:
        return Finding(
            "fail", "state", f"{facts.state} cannot be written", "check its owner and mode"
        )
    if facts.state_free < STATE_FAIL_BYTES:
        return Finding(
            "fail", "state", words, "make room: the daemon cannot write down what happens"
        )
    if facts.state_free < STATE_WARN_BYTES:
        return Finding("warn", "state", words, "make room: the folders of jobs arrive there")
    return Finding("ok", "state", words)


def jobs(facts: Facts) -> Finding | None:
    """Where jobs run and write, which may be another disk than the daemon's."""
    if facts.jobs_free is None:
        return None
    words = f"{facts.jobs}: {format_size(facts.jobs_free)} free"
    if facts.jobs_free < STATE_WARN_BYTES:
        remedy = "make room: jobs' working directories and logs are kept there"
        return Finding("warn", "jobs", words, remedy)
    return Finding("ok", "jobs", words)


def unit(facts: Facts) -> Finding | None:
    found = facts.unit
    if facts.mode == "private":
        return None
    if found is None:
        return Finding("ok", "service", "no systemd here: wiiiiided runs as you start it")
    command = "systemctl --user" if found.user else _systemctl(facts)
    install = f"wiiiiide service install{' --user' if found.user else ''}"
    words = f"{'user unit' if found.user else 'unit'} is {found.active}, {found.enabled}"
    if found.load == "not-found":
        return Finding("warn", "service", "wiiiiided is not installed as a service", install)
    if found.load != "loaded":
        return Finding("fail", "service", f"the unit cannot be used: {found.load}", install)
    if found.active == "failed":
        log = f"journalctl {'--user ' if found.user else ''}-e -u wiiiiided"
        return Finding("fail", "service", words, f"see why: {log}; then {command} start wiiiiided")
    if found.active != "active":
        return Finding("warn", "service", words, f"{command} start wiiiiided")
    if found.enabled not in ("enabled", "static", "linked"):
        return Finding(
            "warn",
            "service",
            f"{words}: it does not come back by itself",
            f"{command} enable wiiiiided",
        )
    return Finding("ok", "service", words)


def lingering(facts: Facts) -> Finding | None:
    if facts.mode != "user" or facts.lingers is None:
        return None
    if facts.lingers:
        return Finding("ok", "lingering", "on: daemon and jobs go on when you log out")
    return Finding(
        "warn",
        "lingering",
        "off: daemon and jobs end when you log out",
        f"loginctl enable-linger {facts.user}",
    )


def python(facts: Facts) -> Finding:
    words = ".".join(map(str, facts.python))
    if facts.python[:2] < PYTHON:
        return Finding("fail", "python", words, f"use {PYTHON[0]}.{PYTHON[1]} or newer")
    return Finding("ok", "python", words)


def torch(facts: Facts) -> Finding:
    install = f"{facts.interpreter} -m pip install {TORCH}"
    remedy = f"{install}, or name another interpreter in run.python"
    if facts.torch is None:
        words = f"{facts.interpreter} cannot import it: {facts.torch_problem}"
        return Finding("fail", "torch", words, remedy)
    words = f"{facts.torch} in {facts.interpreter}"
    if not satisfies(facts.torch, facts.torch_wanted):
        words += f"; the backend wiiiiide needs {facts.torch_wanted}"
        return Finding("warn", "torch", words, remedy)
    return Finding("ok", "torch", words)


def satisfies(version: str, wanted: str) -> bool:
    """Whether `2.13.0+cpu` is within `>=2.13,<2.14`. An unreadable bound is taken as right."""
    bounds = [BOUND.fullmatch(bound.strip()) for bound in wanted.split(",") if bound.strip()]
    return all(bound is None or _within(_release(version), bound) for bound in bounds)


def _within(found: tuple[int, ...], bound: re.Match[str]) -> bool:
    limit = _release(bound[2])
    size = max(len(found), len(limit))
    one, other = (release + (0,) * (size - len(release)) for release in (found, limit))
    return {">=": one >= other, "<": one < other, "==": one == other}[bound[1]]


def _release(version: str) -> tuple[int, ...]:
    """The numbers a version begins with."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def cores(facts: Facts) -> Finding:
    words = f"{facts.cores} of {facts.all_cores}"
    if facts.cpu_quota is not None:
        words += f", by quota {facts.cpu_quota:g}"
    if facts.cpu_quota is not None and facts.cpu_quota < 1:
        return Finding(
            "warn", "cores", words, "raise the quota: every rank wants a core of its own"
        )
    return Finding("ok", "cores", words)


def memory(facts: Facts) -> Finding:
    words = format_size(facts.memory)
    if facts.memory_limit is not None and facts.memory_limit < facts.memory:
        words = f"{format_size(facts.memory_limit)} by limit, of {words}"
    return Finding("ok", "memory", words)


def swap(facts: Facts) -> Finding:
    words = f"{format_size(facts.swap_used)} in use"
    if facts.swap_used > SWAP_WARN_BYTES:
        return Finding("warn", "swap", words, "end what fills the memory: a rank that swaps crawls")
    return Finding("ok", "swap", words)


def shm(facts: Facts) -> Finding | None:
    if facts.shm is None:
        return Finding(
            "warn", "/dev/shm", "there is none", "mount a tmpfs there: DataLoader workers need it"
        )
    words = f"{format_size(facts.shm)}; wiiiiide needs none of it, DataLoader workers do"
    if facts.shm < SHM_WARN_BYTES:
        return Finding("warn", "/dev/shm", words, "in docker: --shm-size=8g, or --ipc=host")
    return Finding("ok", "/dev/shm", words)


def open_files(facts: Facts) -> Finding | None:
    if facts.open_files is None:
        return None
    if facts.open_files < FILES_WARN:
        return Finding(
            "warn",
            "open files",
            f"at most {facts.open_files}",
            "raise it for the daemon (ulimit -n 65536, or LimitNOFILE= in its unit): "
            "DataLoader workers hold many",
        )
    return Finding("ok", "open files", f"at most {facts.open_files}")


def hostname(facts: Facts) -> Finding | None:
    if facts.daemon is not None and facts.daemon.role != "alone":
        return None  # machines of a cluster meet by their addresses
    if facts.denied:
        return None  # whether this one is of a cluster is not known
    if not facts.addresses:
        return Finding(
            "warn",
            "hostname",
            f"{facts.hostname} does not resolve, and gloo looks it up",
            f"add to /etc/hosts: 127.0.1.1 {facts.hostname}",
        )
    words = f"{facts.hostname} is {', '.join(facts.addresses)}"
    if all(address.startswith("127.") or address == "::1" for address in facts.addresses):
        words += ": fine on one machine; other machines could not be told this name"
    return Finding("ok", "hostname", words)


def boot(facts: Facts) -> Finding:
    if facts.boot_id is None:
        return Finding(
            "fail",
            "boot id",
            "/proc/sys/kernel/random/boot_id cannot be read: the daemon could not tell a job of "
            "before a restart from one of now",
            "mount /proc as usual",
        )
    return Finding("ok", "boot id", facts.boot_id)


def clock(facts: Facts) -> Finding:
    if facts.clock_behind_s > CLOCK_WARN_S:
        return Finding(
            "warn",
            "clock",
            f"it stands {facts.clock_behind_s:.0f} s before files that are already here",
            "set it: timedatectl set-ntp true",
        )
    return Finding("ok", "clock", "not before any file of ours")


def loopback(facts: Facts) -> Finding | None:
    if facts.loopback_up is None:
        return None
    if not facts.loopback_up:
        return Finding("fail", "loopback", "lo is down: ranks meet there", "ip link set lo up")
    return Finding("ok", "loopback", "lo is up")


def job_user(facts: Facts) -> Finding | None:
    found = facts.job_user
    if not is_service(facts) or found is None:
        return None
    if not found.exists:
        return Finding(
            "fail", "job user", "there is no user wiiiiide-job", "wiiiiide service install makes it"
        )
    if found.owns_state or found.state_mode & 0o007 or found.in_daemon_group:
        return Finding(
            "fail",
            "job user",
            f"jobs could read {facts.state}",
            "chown -R wiiiiide:wiiiiide and chmod 0700 that directory; "
            "take wiiiiide-job out of the group wiiiiide",
        )
    return Finding("ok", "job user", "wiiiiide-job is there and cannot read the daemon's state")


def surroundings(facts: Facts) -> Finding | None:
    """A container or a sandbox is no fault, but explains much."""
    words = f"in a container ({facts.container})" if facts.container else "on the machine itself"
    if facts.seccomp:
        words += ", with a system call filter"
    return Finding("ok", "surroundings", words)


CHECKS: tuple[Check, ...] = (
    *(daemon, cluster, one_port, socket, group, unit, lingering, state, jobs, job_user),
    *(python, torch, cores, memory, swap, shm, open_files),
    *(hostname, loopback, boot, clock, surroundings),
)


def is_service(facts: Facts) -> bool:
    """Whether it is about the machine's service, and there is one."""
    installed = facts.unit is not None and facts.unit.load == "loaded"
    return facts.mode == "system" and (facts.daemon is not None or facts.denied or installed)


def _systemctl(facts: Facts) -> str:
    if facts.mode != "system":
        return "systemctl --user"
    return "systemctl" if facts.is_root else "sudo systemctl"


def _how_to_start(facts: Facts) -> str:
    if facts.mode == "private":
        return "start it: wiiiiided, with the same WIIIIIDE_HOME"
    found = facts.unit
    if found is not None and found.load == "loaded":
        return f"start it: {_systemctl(facts)} start wiiiiided"
    return "start one of your own: wiiiiided; or install the service: wiiiiide service install"
