"""An operation: one call of one group, from the moment it is made until it is done or has failed.

    submitted ──► begun ──► (waits and advances, piece by piece) ──► done
                     └──────────────────────────────────────────────► failed

Its *plan* is a generator that does a rank's part and yields what it waits for: a step of the
group's board (an int: all ranks must arrive at it), or an `Until`. It never blocks: the progress
loop resumes it when the wait is over, so plans of many groups move side by side in one thread.
A message (send, receive) has no plan: frames from the link complete it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from wiiiiided.errors import Mismatch

if TYPE_CHECKING:
    from _thread import LockType

    from wiiiiided.backend.engine.group import Group
    from wiiiiided.backend.shm.kernels import Reduction
    from wiiiiided.backend.shm.slots import Array


@dataclass(frozen=True, slots=True)
class Until:
    """A wait for something other than a step of the board."""

    ready: Callable[[], bool]
    missing: Callable[[], list[int]]  # the ranks it waits for
    what: str  # "shared memory from rank 0"


Wait = int | Until
Plan = Generator[Wait, None, None]

NOT_STARTED: Final = -1  # in place of a wait: the plan's first part has not been run
_first_waiter = threading.Lock()  # two threads may begin to wait for one operation at once


def different_calls(group: str, mine: int, my_call: str, other: int, their_call: str) -> Mismatch:
    """The error where rank `mine` has called one operation of a group and `other` another."""
    return Mismatch(
        f"the ranks of group {group} called different operations: rank {mine} {my_call}; "
        f"rank {other} {their_call}"
    )


class BatchItem(NamedTuple):
    """A small all_reduce that may travel with those queued beside it (collectives.wide)."""

    reduction: Reduction
    digest: int  # of the call: equal on all ranks if the calls are
    x: Array


class Operation:
    """The state of one call. Only the driver of the loop changes it, until it is done."""

    __slots__ = (
        "batch_item",
        "begin",
        "begun_ns",
        "callbacks",
        "collective",
        "copy_backs",
        "deadline_ns",
        "done",
        "error",
        "group",
        "handle",
        "harmless",
        "late",
        "name",
        "nbytes",
        "peers",
        "plan",
        "seq",
        "source",
        "timeout_s",
        "wait",
        "waited_ns",
        "waiter",
        "warn_ns",
    )

    def __init__(
        self,
        group: Group,
        name: str,
        nbytes: int,
        plan: Plan | None = None,
        *,
        begin: Callable[[Operation], None] | None = None,
        harmless: bool = False,
        timeout_s: float | None = None,
        seq: int = 0,
    ) -> None:
        self.group = group
        self.name = name
        self.nbytes = nbytes
        self.plan = plan
        self.begin = begin  # of a message: sends or posts it
        self.collective = begin is None
        self.harmless = harmless or begin is not None  # giving up on it leaves the group usable
        self.timeout_s = group.timeout_s if timeout_s is None else timeout_s
        self.seq = seq or group.number()
        self.wait: Wait = NOT_STARTED
        self.done = False
        self.error: BaseException | None = None
        self.batch_item: BatchItem | None = None  # of a small all_reduce between hosts
        self.copy_backs: list[Callable[[], None]] = []  # copies back to where the caller wants it
        self.source = -1  # of a receive: the sender
        self.peers: list[int] = []  # of a message: the ranks it needs
        self.begun_ns = 0
        self.waited_ns = 0  # when the present wait began; 0: not waiting
        self.late = -1  # the rank it waits for, or waited for last
        self.deadline_ns = 0
        self.warn_ns = 0
        self.handle: object = None  # what the caller got: as long as this is under way it lives
        self.waiter: LockType | None = None  # a held lock that a waiting thread sleeps on
        self.callbacks: list[Callable[[], None]] = []  # each is taken once, and then called

    def __str__(self) -> str:
        return f"{self.name} #{self.seq} ({self.nbytes} bytes)"

    def start_clock(self, warn_after_s: float) -> None:
        """Begin to count the operation's timeout, and the time to its first stall warning."""
        now = time.monotonic_ns()
        self.begun_ns = now
        self.warn_ns = now + int(warn_after_s * 1e9)
        self.deadline_ns = now + int(self.timeout_s * 1e9)

    def missing(self) -> list[int]:
        """The ranks it waits for now."""
        if not self.collective:
            return self.peers
        if isinstance(self.wait, int):
            return self.group.team.missing(self.wait)
        return self.wait.missing()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call this once, when the operation is over: in the thread that completes it, or now."""
        self.callbacks.append(callback)
        if self.done:  # else the driver sees the callback: it marks `done` first, and then looks
            self.run_callbacks()

    def run_callbacks(self) -> None:
        """It is over. Two threads may come here at once: a callback is taken by one of them."""
        while self.callbacks:
            try:
                callback = self.callbacks.pop(0)
            except IndexError:
                break
            callback()

    def sleep_until_done(self, timeout_s: float) -> bool:
        """Block the calling thread (not the driver) until done; False when time is up."""
        with _first_waiter:
            waiter = self.waiter
            if waiter is None:
                waiter = threading.Lock()
                waiter.acquire()
                self.waiter = waiter
        if self.done:
            return True
        if waiter.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            waiter.release()  # several threads may wait for the same operation
        return self.done

    def finish(self, error: BaseException | None = None) -> None:
        """Mark it done and wake its waiters. The driver alone calls this."""
        self.error = error
        self.plan = None
        self.begin = None
        self.done = True
        self.handle = None
        if self.waiter is not None:
            try:
                self.waiter.release()
            except RuntimeError:  # a waiter passed it on already
                pass
