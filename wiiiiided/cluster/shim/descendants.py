"""All processes of a job: the descendants of this one, and how to end them.

The shim is a child subreaper: it reaps zombies, and an orphan, whose parent has ended, becomes its
own child, also one that was daemonised. waitpid then says with certainty that none is left.

epoll tells which process ended first: it reports pidfds in the order in which they became ready,
where waitpid goes by age. When ranks fail one after the other, the first one is the cause.
"""

from __future__ import annotations

import os
import signal
import time

from wiiiiided.cluster.shim import processes
from wiiiiided.cluster.shim.exit_reason import Exit
from wiiiiided.cluster.shim.loop import READ, ShimLoop
from wiiiiided.cluster.shim.processes import ProcessEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN_S = 0.05  # between two looks for processes that were born meanwhile …
AGAIN_MOST_S = 1.0  # … and when some do not die: they wait for a disk
ROUNDS = 20  # of killing in one look, to outrun a program that forks all the time


class Family:
    """Calls `ended` with (pid, Exit) of the processes that ended, and `empty` when none is left."""

    def __init__(
        self,
        loop: ShimLoop,
        ended: Callable[[list[tuple[int, Exit]]], None],
        empty: Callable[[], None],
    ) -> None:
        self._loop, self._ended, self._empty = loop, ended, empty
        self._again_s = 0.0  # 0: not killing yet
        self._order: list[int] = []  # pids of watched children that ended and are not reaped yet
        loop.on_signal(signal.SIGCHLD, self.reap)

    def watch(self, pid: int) -> None:
        """Note in which order this child and the other watched ones end."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # no descriptor left: the child is reaped all the same
            return

        def ended() -> None:
            self._loop.forget(fd)
            os.close(fd)
            self._order.append(pid)

        self._loop.watch(fd, READ, ended)

    def reap(self) -> None:
        """Reap the children that have ended, the first one first."""
        if batch := _ended_children():
            place = {pid: index for index, pid in enumerate(self._order)}
            batch.sort(key=lambda pair: place.get(pair[0], len(place)))
            self._order = []
            self._ended(batch)
        if not has_children():
            self._empty()

    def members(self) -> list[ProcessEntry]:
        return processes.descendants(os.getpid())

    def terminate(self) -> None:
        """Send SIGTERM to all, and SIGCONT: a stopped process could not handle it."""
        for process in self.members():
            processes.send(process, signal.SIGTERM)
            processes.send(process, signal.SIGCONT)

    def kill(self) -> None:
        """Kill all of them, now and until none is left."""
        if not self._again_s:
            self._again_s = AGAIN_S
            self._kill()

    def _kill(self) -> None:
        kill_members()
        if has_children():
            self._loop.after(self._again_s, self._kill)
            self._again_s = min(2 * self._again_s, AGAIN_MOST_S)
        else:  # perhaps there never was one: then no SIGCHLD comes
            self._loop.after(0, self.reap)


def kill_members() -> None:
    """Kill all descendants, again until no new one is found."""
    seen: set[ProcessEntry] = set()
    for _ in range(ROUNDS):
        found = set(processes.descendants(os.getpid())) - seen
        if not found:
            break
        for process in found:
            processes.send(process, signal.SIGKILL)
        seen |= found


def kill_and_wait() -> None:
    """Kill all descendants and return when none is left, without a loop."""
    while has_children():
        kill_members()
        _ended_children()
        if has_children():
            time.sleep(AGAIN_S)


def has_children() -> bool:
    """Whether this process has a child, or anything in its subtree."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _ended_children() -> list[tuple[int, Exit]]:
    found: list[tuple[int, Exit]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append((pid, Exit.of(status)))
