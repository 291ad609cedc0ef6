"""This machine's load: processor, memory, swap, what its ranks use.

Nothing here blocks or takes long: processor use is the difference of two readings, and a rank's
processes are found through the kernel's own lists of children, not by looking at every process.
A look at ranks reads so many files and no more, however many processes a job makes.
Other users' processes can be read as well: the jobs' user is not the daemon's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import psutil

from wiiiiided.metrics.snapshot import Health

STALE_S: Final = 60.0  # a mean over longer than this says nothing of now
SLOW_S: Final = 5.0  # between two looks at what is dear: swap, the memory of ranks
SWAPPING: Final = 1 << 20  # bytes a second, in and out
PROCESSES: Final = 64  # of one rank that are looked at: a data loader's workers, not a fork bomb
FILES: Final = 2048  # of /proc in one look: 20 ms, once in five seconds
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
TICKS: Final = os.sysconf("SC_CLK_TCK")


class HostStats:
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
        # Pages moved before this look began are not of now.
        self._swapping = (
            before is not None
            and now - before[0] <= STALE_S
            and moved - before[1] > SWAPPING * (now - before[0])
        )


class Usage(NamedTuple):
    """The use of a rank's processes."""

    memory: int  # resident bytes, shared memory counted in each
    cpu_s: float  # processor seconds so far, those of children that have ended included


class ProcessScan:
    """Looks at process trees, until FILES have been read: the event loop waits meanwhile.

    One look is for all ranks of a node. `usage` of a tree that does not fit is None, unless it is
    the first: then it is what was seen of it, so that a rank with a thousand processes costs no
    more than any other and hides no other next time.
    """

    def __init__(self, files: int = FILES) -> None:
        self._most = self._left = files

    def usage(self, pid: int, ticks: int | None = None) -> Usage | None:
        """Add up a process and its descendants; None when it is not there (or is another: `ticks`
        is when it was started), or there is no room left."""
        first = self._left == self._most
        own = self._stat(pid)
        if own is None or (ticks is not None and own.ticks != ticks):
            return None
        memory, cpu_s, queue = own.memory, own.cpu_s, [pid]
        for parent in queue:
            for child in self._children(parent):
                if len(queue) >= PROCESSES:
                    return Usage(memory, cpu_s)
                queue.append(child)
                if (found := self._stat(child)) is not None:
                    memory, cpu_s = memory + found.memory, cpu_s + found.cpu_s
        return Usage(memory, cpu_s) if self._left > 0 or first else None

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def _stat(self, pid: int) -> _Stat | None:
        self._left -= 1
        if self._left < 0:
            return None
        # The name in parentheses may have anything in it, parentheses and blanks too.
        words = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if len(words) < 22:
            return None
        spent = sum(int(word) for word in words[11:15])  # its own and its dead children's
        return _Stat(int(words[21]) * PAGE, spent / TICKS, int(words[19]))

    def _children(self, pid: int) -> Iterator[int]:
        """The children of a process. Each thread has its own; a kernel without these lists has
        none."""
        try:
            with os.scandir(f"/proc/{pid}/task") as threads:
                for thread in threads:
                    self._left -= 1
                    if self._left < 0:
                        return
                    yield from map(int, _content(f"{thread.path}/children").split())
        except OSError:
            return


class _Stat(NamedTuple):
    memory: int
    cpu_s: float
    ticks: int  # when it was started


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
