"""A process's use of the machine, where psutil does not say it."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time of all its threads so far.

    stat counts in clock ticks of 10 ms, and those of threads that have ended too; schedstat counts
    nanoseconds of the threads there are. The larger one is taken.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / _TICKS
    try:
        threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return max(ticks, sum(int(path.read_text().split()[0]) for path in threads) / 1e9)
    except OSError:
        return ticks  # a kernel without it, or a thread that has just ended


def own_bytes(pid: int) -> int:
    """Memory of its own and its part of what it shares; no pages of files, which all have once."""
    return pss_bytes(pid, "Anon", "Shmem")


def pss_bytes(pid: int, *kinds: str) -> int:
    """The proportional set size in pages of these kinds: Anon, Shmem or File."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = dict(re.findall(r"^Pss_(\w+):\s+(\d+) kB$", text, re.MULTILINE))
    if lacking := set(kinds) - found.keys():
        raise OSError(f"this kernel's smaps_rollup has no Pss_{lacking.pop()} (Linux 5.9 has)")
    return sum(int(found[kind]) * 1024 for kind in kinds)
