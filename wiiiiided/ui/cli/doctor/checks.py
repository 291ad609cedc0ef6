"""The judgements of `wiiiiide doctor` on the facts: no I/O, one function per line it prints.

A check looks at the facts and returns a Finding, or None when it does not apply here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from wiiiiided.text import format_size
from wiiiiided.ui.cli.doctor.cluster import cluster, one_port
from wiiiiided.ui.cli.doctor.model import Facts, Finding, fail, ok, warn

GIB = 1 << 30
STATE_FAIL_BYTES = 100 << 20  # SQLite needs room for its journal to end any transaction
STATE_WARN_BYTES = 2 * GIB  # a few shipped working directories at their limit of 512 MiB
SWAP_WARN_BYTES = 256 << 20  # less is what any idle system puts away
SHM_WARN_BYTES = 1 * GIB  # docker gives 64 MB, and DataLoader workers die of it
FILES_WARN = 4096  # 1024, the usual default, is few for DataLoader workers
CLOCK_WARN_S = 60.0
PYTHON = (3, 11)
# The torch to install; the one that is required stands in the package's metadata.
BOUND = re.compile(r"(>=|<|==)\s*(\d+(?:\.\d+)*)")
TORCH = "torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"


def examine(facts: Facts) -> list[Finding]:
    """All findings, in the order in which a person would look."""
    found = ((title, check(facts)) for title, check in CHECKS.items())
    return [replace(one, title=title) for title, one in found if one is not None]


def daemon(facts: Facts) -> Finding:
    status = facts.daemon
    if status is None and facts.denied:
        who = group(facts)  # this finding says what to do: nothing has to be started
        remedy = who.do if who is not None else "use it as the user it belongs to"
        return fail(f"it is there, but {facts.daemon_problem}", remedy)
    if status is None:
        return fail(facts.daemon_problem, _how_to_start(facts))
    where = f"{status.version}, {status.mode}, process {status.pid}, node {status.node.name}"
    if status.problem:
        return fail(f"{where}; {status.problem}", "see its log")
    if status.version != facts.version:
        return warn(
            f"it is {status.version}, this command is {facts.version}",
            f"restart the daemon, jobs go on: {_systemctl(facts)} restart wiiiiided",
        )
    return ok(where)


def socket(facts: Facts) -> Finding | None:
    found = facts.socket
    if found is None or not found.exists:
        return None  # the line about the daemon says it
    words = f"{found.path} {found.mode:04o} {found.group}".rstrip()
    if found.mode & 0o007:
        return fail(f"{words}: every user can use it", "restart the daemon; it sets the mode")
    return ok(words)


def group(facts: Facts) -> Finding | None:
    if not is_service(facts) or facts.is_root:
        return None
    if "wiiiiide" in facts.groups:
        return ok(f"{facts.user} is in the group wiiiiide")
    if facts.listed:
        return fail(
            f"{facts.user} is in the group wiiiiide, but this session began before that",
            "log in again, or: newgrp wiiiiide",
        )
    return fail(
        f"{facts.user} is not in the group wiiiiide",
        f"sudo usermod --append --groups wiiiiide {facts.user}, then log in again",
    )


def state(facts: Facts) -> Finding | None:
    if facts.state_free is None:
        return None
    words = f"{facts.state}: {format_size(facts.state_free)} free"
    if facts.state_writable is False:
        return fail(f"{facts.state} cannot be written", "check its owner and mode")
    if facts.state_free < STATE_FAIL_BYTES:
        return fail(words, "make room: the daemon cannot write down what happens")
    if facts.state_free < STATE_WARN_BYTES:
        return warn(words, "make room: the folders of jobs arrive there")
    return ok(words)


def jobs(facts: Facts) -> Finding | None:
    """Where jobs run and write, which may be another disk than the daemon's."""
    if facts.jobs_free is None:
        return None
    words = f"{facts.jobs}: {format_size(facts.jobs_free)} free"
    if facts.jobs_free < STATE_WARN_BYTES:
        remedy = "make room: jobs' working directories and logs are kept there"
        return warn(words, remedy)
    return ok(words)


def unit(facts: Facts) -> Finding | None:
    found = facts.unit
    if facts.mode == "private":
        return None
    if found is None:
        return ok("no systemd here: wiiiiided runs as you start it")
    command = "systemctl --user" if found.user else _systemctl(facts)
    install = f"wiiiiide service install{' --user' if found.user else ''}"
    words = f"{'user unit' if found.user else 'unit'} is {found.active}, {found.enabled}"
    if found.load == "not-found":
        return warn("wiiiiided is not installed as a service", install)
    if found.load != "loaded":
        return fail(f"the unit cannot be used: {found.load}", install)
    if found.active == "failed":
        log = f"journalctl {'--user ' if found.user else ''}-e -u wiiiiided"
        return fail(words, f"see why: {log}; then {command} start wiiiiided")
    if found.active != "active":
        return warn(words, f"{command} start wiiiiided")
    if found.enabled not in ("enabled", "static", "linked"):
        return warn(f"{words}: it does not come back by itself", f"{command} enable wiiiiided")
    return ok(words)


def lingering(facts: Facts) -> Finding | None:
    if facts.mode != "user" or facts.lingers is None:
        return None
    if facts.lingers:
        return ok("on: daemon and jobs go on when you log out")
    return warn("off: daemon and jobs end when you log out", f"loginctl enable-linger {facts.user}")


def python(facts: Facts) -> Finding:
    words = ".".join(map(str, facts.python))
    if facts.python[:2] < PYTHON:
        return fail(words, f"use {PYTHON[0]}.{PYTHON[1]} or newer")
    return ok(words)


def torch(facts: Facts) -> Finding:
    install = f"{facts.interpreter} -m pip install {TORCH}"
    remedy = f"{install}, or name another interpreter in run.python"
    if facts.torch is None:
        words = f"{facts.interpreter} cannot import it: {facts.torch_problem}"
        return fail(words, remedy)
    words = f"{facts.torch} in {facts.interpreter}"
    if not satisfies(facts.torch, facts.torch_wanted):
        words += f"; the backend wiiiiide needs {facts.torch_wanted}"
        return warn(words, remedy)
    return ok(words)


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
        return warn(words, "raise the quota: every rank wants a core of its own")
    return ok(words)


def memory(facts: Facts) -> Finding:
    words = format_size(facts.memory)
    if facts.memory_limit is not None and facts.memory_limit < facts.memory:
        words = f"{format_size(facts.memory_limit)} by limit, of {words}"
    return ok(words)


def swap(facts: Facts) -> Finding:
    words = f"{format_size(facts.swap_used)} in use"
    if facts.swap_used > SWAP_WARN_BYTES:
        return warn(words, "end what fills the memory: a rank that swaps crawls")
    return ok(words)


def shm(facts: Facts) -> Finding | None:
    if facts.shm is None:
        return warn("there is none", "mount a tmpfs there: DataLoader workers need it")
    words = f"{format_size(facts.shm)}; wiiiiide needs none of it, DataLoader workers do"
    if facts.shm < SHM_WARN_BYTES:
        return warn(words, "in docker: --shm-size=8g, or --ipc=host")
    return ok(words)


def open_files(facts: Facts) -> Finding | None:
    if facts.open_files is None:
        return None
    if facts.open_files < FILES_WARN:
        return warn(
            f"at most {facts.open_files}",
            "raise it for the daemon (ulimit -n 65536, or LimitNOFILE= in its unit): "
            "DataLoader workers hold many",
        )
    return ok(f"at most {facts.open_files}")


def hostname(facts: Facts) -> Finding | None:
    if facts.daemon is not None and facts.daemon.role != "alone":
        return None  # machines of a cluster meet by their addresses
    if facts.denied:
        return None  # whether this one is of a cluster is not known
    if not facts.addresses:
        return warn(
            f"{facts.hostname} does not resolve, and gloo looks it up",
            f"add to /etc/hosts: 127.0.1.1 {facts.hostname}",
        )
    words = f"{facts.hostname} is {', '.join(facts.addresses)}"
    if all(address.startswith("127.") or address == "::1" for address in facts.addresses):
        words += ": fine on one machine; other machines could not be told this name"
    return ok(words)


def boot(facts: Facts) -> Finding:
    if facts.boot_id is None:
        return fail(
            "/proc/sys/kernel/random/boot_id cannot be read: the daemon could not tell a job of "
            "before a restart from one of now",
            "mount /proc as usual",
        )
    return ok(facts.boot_id)


def clock(facts: Facts) -> Finding:
    if facts.clock_behind_s > CLOCK_WARN_S:
        return warn(
            f"it stands {facts.clock_behind_s:.0f} s before files that are already here",
            "set it: timedatectl set-ntp true",
        )
    return ok("not before any file of ours")


def loopback(facts: Facts) -> Finding | None:
    if facts.loopback_up is None:
        return None
    if not facts.loopback_up:
        return fail("lo is down: ranks meet there", "ip link set lo up")
    return ok("lo is up")


def job_user(facts: Facts) -> Finding | None:
    found = facts.job_user
    if not is_service(facts) or found is None:
        return None
    if not found.exists:
        return fail("there is no user wiiiiide-job", "wiiiiide service install makes it")
    if found.owns_state or found.state_mode & 0o007 or found.in_daemon_group:
        return fail(
            f"jobs could read {facts.state}",
            "chown -R wiiiiide:wiiiiide and chmod 0700 that directory; "
            "take wiiiiide-job out of the group wiiiiide",
        )
    return ok("wiiiiide-job is there and cannot read the daemon's state")


def surroundings(facts: Facts) -> Finding | None:
    """The container or sandbox around: no fault, but it explains much."""
    words = f"in a container ({facts.container})" if facts.container else "on the machine itself"
    if facts.seccomp:
        words += ", with a system call filter"
    return ok(words)


# In the order of the lines, each with its title.
CHECKS: dict[str, Callable[[Facts], Finding | None]] = {
    "daemon": daemon,
    "cluster": cluster,
    "one port": one_port,
    "socket": socket,
    "group": group,
    "service": unit,
    "lingering": lingering,
    "state": state,
    "jobs": jobs,
    "job user": job_user,
    "python": python,
    "torch": torch,
    "cores": cores,
    "memory": memory,
    "swap": swap,
    "/dev/shm": shm,
    "open files": open_files,
    "hostname": hostname,
    "loopback": loopback,
    "boot id": boot,
    "clock": clock,
    "surroundings": surroundings,
}


def is_service(facts: Facts) -> bool:
    """Whether these facts are about the machine's service, and there is one."""
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
