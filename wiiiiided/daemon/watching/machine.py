"""How this machine is while somebody wants to know: processor, memory, swap, its ranks' memory.

Nothing here blocks or takes long: processor use is the difference of two readings, and a rank's
processes are found through the kernel's own lists of children, not by looking at every process.
Other users' figures can be read as well: the jobs' user is not the daemon's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import psutil

from wiiiiided.figures.picture import Health

STALE_S: Final = 60.0  # a mean over longer than this says nothing of now
SLOW_S: Final = 5.0  # between two looks at what is dear: swap, the memory of ranks
SWAPPING: Final = 1 << 20  # bytes a second, in and out
PROCESSES: Final = 64  # of one rank that are weighed: a data loader's workers, not a fork bomb
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Machine:
    """This machine's health, sample after sample."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.health = Health()
        self._monotonic = monotonic
        self._cpu: tuple[float, float, float] | None = None  # when, busy and all seconds
        self._swap: tuple[float, int] | None = None  # when, bytes
        self._swapping = False

    def look(self) -> Health:
        now = self._monotonic()
        memory = psutil.virtual_memory()
        used = 1.0 - memory.available / memory.total if memory.total else None
        if self._swap is None or now - self._swap[0] >= SLOW_S:
            self._look_at_swap(now)
        self.health = Health(self._processor(now), used, self._swapping)
        return self.health

    def _processor(self, now: float) -> float | None:
        times = psutil.cpu_times()
        whole = sum(times) - times.guest - times.guest_nice  # which are part of user and nice
        busy = whole - times.idle - times.iowait
        before, self._cpu = self._cpu, (now, busy, whole)
        if before is None or now - before[0] > STALE_S:
            return None
        if whole <= before[2]:
            return self.health.cpu  # twice within a tick of the kernel's clock
        return min(1.0, max(0.0, (busy - before[1]) / (whole - before[2])))

    def _look_at_swap(self, now: float) -> None:
        swap = psutil.swap_memory()
        moved = swap.sin + swap.sout
        before, self._swap = self._swap, (now, moved)
        # What was moved while nobody looked is not of now.
        self._swapping = (
            before is not None
            and now - before[0] <= STALE_S
            and moved - before[1] > SWAPPING * (now - before[0])
        )


def resident(pid: int) -> int | None:
    """Bytes of memory of a process and its descendants; None when it is not there."""
    own = _resident(pid)
    if own is None:
        return None
    found, queue = own, [pid]
    for parent in queue:
        for child in _children(parent):
            if len(queue) >= PROCESSES:
                return found
            queue.append(child)
            found += _resident(child) or 0
    return found


def _resident(pid: int) -> int | None:
    text = _content(f"/proc/{pid}/statm").split()
    return int(text[1]) * PAGE if len(text) > 1 else None


def _children(pid: int) -> list[int]:
    """Each thread has its own; a kernel without these lists has none."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    texts = (_content(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(word) for text in texts for word in text.split()]


def _content(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(fd)
