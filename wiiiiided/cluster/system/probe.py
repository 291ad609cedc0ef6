"""This machine's resources: detected, never asked for.

Cores are those this process may use (affinity, and a container's CPU quota); memory is what there
is, or a container's limit. GPUs are counted by their device files: no library is needed for that.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import psutil

from wiiiiided.domain.node import Node

CGROUP = Path("/sys/fs/cgroup")


def this_node() -> Node:
    """The machine this process runs on."""
    return Node(
        name=node_name(),
        cores=cores(),
        memory=memory(),
        gpus=gpus(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    )


def node_name() -> str:
    """The host's short name; what a name may not have is left out."""
    short = socket.gethostname().split(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "", short)[:63] or "localhost"


def cores() -> int:
    usable = len(os.sched_getaffinity(0))
    quota = cpu_quota(own_cgroups())
    return max(1, min(usable, int(quota))) if quota is not None else usable


def memory() -> int:
    total = psutil.virtual_memory().total
    limit = memory_limit(own_cgroups())
    return min(total, limit) if limit is not None else total


def gpus() -> int:
    try:
        names = os.listdir("/dev")
    except OSError:
        return 0
    return sum(bool(re.fullmatch(r"nvidia[0-9]+", name)) for name in names)


def own_cgroups() -> list[Path]:
    """This process's cgroup and those above it (version 2); limits of any of them hold."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if path is None:
        return []
    here = CGROUP / path.lstrip("/")
    return [here, *(parent for parent in here.parents if parent.is_relative_to(CGROUP))]


def cpu_quota(groups: list[Path]) -> float | None:
    """The tightest CPU quota in cores; None without one."""
    found = []
    for group in groups:
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def memory_limit(groups: list[Path]) -> int | None:
    """The tightest memory limit in bytes; None without one."""
    found = [int(text) for g in groups if (text := _read(g / "memory.max")).isdigit()]
    return min(found, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
