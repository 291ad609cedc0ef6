"""The facts behind `wiiiiide doctor`: everything that touches the machine, each in a few lines.

A fact not to be found is None and no reason to stop: the doctor is called when things are wrong.
Only torch is slow to ask; it is imported by the interpreter that jobs get, in a process of its own.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import psutil

from wiiiiided import __version__
from wiiiiided.cluster.rpc.messages import DaemonStatus
from wiiiiided.config import Paths
from wiiiiided.ui.cli.doctor.model import Facts, JobUserFacts, Socket, Unit
from wiiiiided.ui.cli.doctor.peers import reach
from wiiiiided.ui.cli.service.files import UNIT
from wiiiiided.ui.cli.service.system import System, is_lingering, run_command

TORCH_S = 60.0  # a first import from a slow disk
DAEMON_GROUP, JOB_USER = "wiiiiide", "wiiiiide-job"
CGROUP = Path("/sys/fs/cgroup")

T = TypeVar("T")


def gather(paths: Paths, daemon: DaemonStatus | None, problem: str, denied: bool = False) -> Facts:
    """All facts. `problem` says why there is no daemon, or none for this user."""
    name = user_name()
    interpreter = daemon_interpreter(daemon)
    torch, torch_problem = torch_of(interpreter)
    quota, limit = cgroup_limits(daemon.pid if daemon else os.getpid())
    jobs = paths.jobs if daemon is None else Path(daemon.jobs_directory)
    return Facts(
        version=__version__,
        mode=paths.mode,
        user=name,
        python=sys.version_info[:3],
        daemon=daemon,
        daemon_problem=problem,
        denied=denied,
        socket=socket_facts(paths.socket),
        is_root=os.geteuid() == 0,
        groups=own_groups(),
        listed=is_listed(name),
        state=str(paths.state),
        state_free=free_bytes(paths.state),
        state_writable=None if paths.mode == "system" else is_writable(paths.state),
        jobs=str(jobs),
        jobs_free=known(lambda: free_bytes(jobs)),
        unit=unit_facts(paths.mode),
        lingers=lingers(name) if paths.mode == "user" else None,
        interpreter=interpreter,
        torch=torch,
        torch_problem=torch_problem,
        torch_wanted=torch_wanted(),
        cores=len(os.sched_getaffinity(0)),
        all_cores=os.cpu_count() or 1,
        cpu_quota=quota,
        memory=psutil.virtual_memory().total,
        memory_limit=limit,
        swap_used=psutil.swap_memory().used,
        shm=known(lambda: _size_of(Path("/dev/shm"))),
        open_files=open_files(daemon.pid if daemon else None),
        hostname=socket.gethostname(),
        addresses=known(lambda: addresses(socket.gethostname())),
        boot_id=known(lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip()),
        clock_behind_s=clock_behind([Path(__file__), paths.state, paths.jobs]),
        loopback_up=known(lambda: psutil.net_if_stats()["lo"].isup),
        job_user=job_user(paths.state) if paths.mode == "system" else None,
        container=container(),
        seccomp=process_status().get("Seccomp", "0") != "0",
        port=reach(daemon.node) if daemon is not None and daemon.node.endpoint else None,
    )


def known(ask: Callable[[], T]) -> T | None:
    """An answer, or None where the machine gives none."""
    try:
        return ask()
    except (OSError, KeyError, ValueError):
        return None


# ---- daemon and service


def socket_facts(path: Path) -> Socket:
    try:
        about = path.stat()
    except OSError:
        return Socket(str(path), exists=False)
    group = known(lambda: grp.getgrgid(about.st_gid).gr_name) or str(about.st_gid)
    return Socket(str(path), True, stat.S_IMODE(about.st_mode), group)


def unit_facts(mode: str) -> Unit | None:
    """The unit of the daemon that this command uses; None without systemd."""
    if not Path("/run/systemd/system").is_dir():
        return None
    names = ("LoadState", "ActiveState", "UnitFileState")
    system = System(mode == "user", run_command, lambda _: None)
    lines = system.ask("show", *(f"--property={name}" for name in names), UNIT).splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    if not found.get("LoadState"):
        return None
    return Unit(
        found["LoadState"],
        found.get("ActiveState", ""),
        found.get("UnitFileState") or "not enabled",
        mode == "user",
    )


def lingers(name: str) -> bool | None:
    if not Path("/run/systemd/system").is_dir():
        return None
    return is_lingering(System(True, run_command, lambda _: None), name)


def daemon_interpreter(daemon: DaemonStatus | None) -> str:
    """The Python that runs jobs which name none: the daemon's own, else ours."""
    if daemon is not None:
        words = known(lambda: Path(f"/proc/{daemon.pid}/cmdline").read_bytes().split(b"\0"))
        if words and words[0].startswith(b"/"):
            return os.fsdecode(words[0])
    return sys.executable


def torch_of(interpreter: str) -> tuple[str | None, str]:
    """torch's version there; or None and the last words of the attempt."""
    try:
        done = subprocess.run(
            [interpreter, "-I", "-c", "import torch; print(torch.__version__)"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TORCH_S,
        )
    except subprocess.TimeoutExpired:
        return None, f"not done after {TORCH_S:g} s"
    except OSError as problem:
        return None, problem.strerror or str(problem)
    if done.returncode != 0:
        return None, last_line(done.stderr) or f"code {done.returncode}"
    return last_line(done.stdout), ""


def torch_wanted() -> str:
    """The torch this package requires, as its metadata says it; empty where it has none."""
    try:
        needs = metadata.requires("wiiiiided") or []
    except metadata.PackageNotFoundError:
        return ""
    found = (re.fullmatch(r"torch\s*\(?([<>=!~][^;()]*)\)?\s*", need) for need in needs)
    return next((match[1].strip() for match in found if match), "")


def last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""


def open_files(daemon: int | None) -> int | None:
    """The soft limit of the daemon, which jobs inherit; our own where there is none."""
    text = known(Path(f"/proc/{daemon or 'self'}/limits").read_text) or ""
    for line in text.splitlines():
        words = line.removeprefix("Max open files").split()
        if words != line.split() and words[0].isdigit():
            return int(words[0])
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


# ---- people


def user_name() -> str:
    return known(lambda: pwd.getpwuid(os.geteuid()).pw_name) or str(os.geteuid())


def own_groups() -> tuple[str, ...]:
    numbers = {os.getegid(), *os.getgroups()}
    return tuple(entry.gr_name for entry in grp.getgrall() if entry.gr_gid in numbers)


def is_listed(name: str) -> bool:
    return name in (known(lambda: grp.getgrnam(DAEMON_GROUP).gr_mem) or [])


def job_user(state: Path) -> JobUserFacts:
    """The jobs' user's rights on the daemon's state, by its owner, mode and group."""
    try:
        entry = pwd.getpwnam(JOB_USER)
    except KeyError:
        return JobUserFacts(exists=False)
    about = known(state.stat)
    return JobUserFacts(
        exists=True,
        state_mode=stat.S_IMODE(about.st_mode) if about else 0o700,
        owns_state=about is not None and about.st_uid == entry.pw_uid,
        in_daemon_group=is_listed(JOB_USER),
    )


# ---- the machine


def free_bytes(path: Path) -> int | None:
    """The free bytes of the file system that a directory lies on, or will."""
    for place in (path, *path.parents):
        if place.exists():
            return shutil.disk_usage(place).free
    return None


def is_writable(path: Path) -> bool:
    """Whether we can write there, or make it."""
    there = next(place for place in (path, *path.parents) if place.exists())
    return os.access(there, os.W_OK | os.X_OK)


def cgroup_limits(pid: int) -> tuple[float | None, int | None]:
    """The tightest CPU quota in cores and memory limit in bytes over a process (version 2)."""
    lines = (known(Path(f"/proc/{pid}/cgroup").read_text) or "").splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "")
    here = CGROUP / own.lstrip("/")
    groups = [here, *(up for up in here.parents if up.is_relative_to(CGROUP))]
    quotas, limits = [], []
    for group in groups:
        quota, _, period = (known((group / "cpu.max").read_text) or "").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
        limit = (known((group / "memory.max").read_text) or "").strip()
        if limit.isdigit():
            limits.append(int(limit))
    return min(quotas, default=None), min(limits, default=None)


def addresses(name: str) -> tuple[str, ...]:
    found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    return tuple(sorted({str(entry[4][0]) for entry in found}))


def clock_behind(places: list[Path]) -> float:
    """How far the newest of these files lies in the future."""
    times = [about.st_mtime for place in places if (about := known(place.stat))]
    return max(0.0, max(times, default=0.0) - time.time())


def container() -> str:
    """The kind of container this is, as far as it says so."""
    if name := known(Path("/run/systemd/container").read_text):
        return name.strip()
    if Path("/.dockerenv").exists():
        return "docker"
    return "podman" if Path("/run/.containerenv").exists() else ""


def process_status() -> dict[str, str]:
    text = known(Path("/proc/self/status").read_text) or ""
    return {name: value.strip() for name, _, value in (s.partition(":") for s in text.splitlines())}


def _size_of(path: Path) -> int:
    about = os.statvfs(path)
    return about.f_blocks * about.f_frsize
