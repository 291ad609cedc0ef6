"""The loop sleeps on it: every descriptor of ours in one epoll, and a way to be nudged.

Links, pidfds, listening sockets and the connections to other hosts are all here.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

Handler = Callable[[int], None]


class EpollPoller:
    """An epoll with a handler for each descriptor. Only the driver of the loop uses it."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._wanted: dict[int, int] = {}
        self._epoll = select.epoll()
        self._nudge = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.add(self._nudge, self._on_nudge)

    def add(self, fd: int, handler: Handler) -> None:
        """Call `handler(events)` when fd is readable."""
        self._handlers[fd] = handler
        self._wanted[fd] = select.EPOLLIN
        self._epoll.register(fd, select.EPOLLIN)

    def writes(self, fd: int, wanted: bool) -> None:
        """Call it when fd is writable too, or no longer."""
        self.interest(fd, reads=True, writes=wanted)

    def interest(self, fd: int, *, reads: bool, writes: bool) -> None:
        """Say anew what it is to be called for."""
        wanted = (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if writes else 0)
        if self._wanted.get(fd, wanted) != wanted:  # most often nothing changes: no syscall then
            self._wanted[fd] = wanted
            self._epoll.modify(fd, wanted)

    def remove(self, fd: int) -> None:
        """Forget a descriptor, before it is closed."""
        if self._handlers.pop(fd, None) is not None:
            del self._wanted[fd]
            self._epoll.unregister(fd)

    def poll(self, timeout_s: float) -> None:
        """Sleep until something happens or time is up, and handle what happened."""
        for fd, events in self._epoll.poll(timeout_s):
            handler = self._handlers.get(fd)  # it may have gone with an event before it
            if handler is not None:
                handler(events)

    def nudge(self) -> None:
        """End the present `poll`. Any thread may call it."""
        try:
            os.eventfd_write(self._nudge, 1)
        except OSError:
            pass  # closed: no driver is left to wake

    def close(self) -> None:
        """Give the descriptors back. Those watched stay open and, in a fork's parent, watched."""
        self._epoll.close()
        os.close(self._nudge)

    def _on_nudge(self, _: int) -> None:
        try:
            os.eventfd_read(self._nudge)
        except BlockingIOError:
            pass
