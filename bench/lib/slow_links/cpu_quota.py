"""A slower machine made of this one: processes that get only a part of a core.

A control group with a quota stops its processes for the rest of each period once they have used
their part. Of 10 ms: several times in a step, so that a step takes longer as on a slow machine, and
does not stand still for a while. Both versions of control groups will do, whichever is there:

    version 2   <root>/wiiiiide-bench-N/cpu.max             "3333 10000"
    version 1   <cpu>/wiiiiide-bench-N/cpu.cfs_quota_us     "3333", and cpu.cfs_period_us
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from lib.fleet import FleetError

_ROOT = Path("/sys/fs/cgroup")
_OLD = ("cpu", "cpu,cpuacct")
_PERIOD_US = 10_000
_NAME = "wiiiiide-bench-"


class NoQuota(FleetError):
    """Why no process can be slowed down here."""


class CpuQuota:
    """A control group; processes taken into it must have ended before it is closed."""

    def __init__(self, share: float, root: Path = _ROOT) -> None:
        """`share`: of one core."""
        parent = _parent(root)
        for left in parent.glob(f"{_NAME}*"):  # by a run that was killed
            _remove(left)
        self._folder = parent / f"{_NAME}{os.getpid()}"
        quota_us = round(share * _PERIOD_US)
        try:
            self._folder.mkdir()
            if (self._folder / "cpu.max").exists():
                (self._folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
            else:
                (self._folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (self._folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        except OSError as problem:
            _remove(self._folder)
            raise NoQuota(f"no host can be slowed down here: {problem.strerror}") from None

    def close(self) -> None:
        """Its processes have ended."""
        _remove(self._folder)

    def take(self, pids: Iterable[int]) -> None:
        """These processes, all their threads and what they start."""
        for pid in pids:
            (self._folder / "cgroup.procs").write_text(str(pid))


def _parent(root: Path) -> Path:
    """The group in which one with a quota can be made."""
    for folder in (root, root / "unified"):
        controllers = folder / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text().split():
            (folder / "cgroup.subtree_control").write_text("+cpu")
            return folder
    for name in _OLD:
        if (root / name / "cgroup.procs").exists():
            return root / name
    raise NoQuota("no host can be slowed down here: there is no control group for processors")


def _remove(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass  # it is not there, or processes of another run are in it
