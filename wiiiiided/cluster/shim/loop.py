"""One thread that waits for everything: pipes, sockets, signals, timers.

It sleeps without a deadline when no timer is set: a shim whose job is quiet costs nothing.
Everything is called from `run`; nothing that is called may block.
"""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import time

TYPE_CHECKING = False  # the typing module would be half a megabyte of a small process
if TYPE_CHECKING:
    from collections.abc import Callable

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Timer:
    """A call at a time of the monotonic clock; `cancel` may be called at any time."""

    __slots__ = ("_action", "at")

    def __init__(self, action: Callable[[], None], at: float) -> None:
        self._action: Callable[[], None] | None = action
        self.at = at

    def cancel(self) -> None:
        self._action = None

    @property
    def pending(self) -> bool:
        return self._action is not None

    def fire(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


class ShimLoop:
    """The watched descriptors, signals and timers."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._made = 0  # timers of the same moment fire in the order they were set
        self._on_round: list[Callable[[], None]] = []
        self._on_signal: dict[int, Callable[[], None]] = {}
        self._caught: set[int] = set()
        self._running = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.watch(self._wake_read, READ, self._woken)

    def watch(self, fd: int, events: int, action: Callable[[], None]) -> None:
        """Call `action` whenever the descriptor is ready; again to change the events."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, action)
        else:
            self._selector.register(fd, events, action)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor; to be called before it is closed."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        timer = Timer(action, time.monotonic() + seconds)
        self._made += 1
        heapq.heappush(self._timers, (timer.at, self._made, timer))
        return timer

    def on_signal(self, number: int, action: Callable[[], None]) -> None:
        """Call `action` after a signal, at the end of the round; several may be one call."""
        self._on_signal[number] = action
        signal.signal(number, lambda *_: self._caught.add(number))

    def every_round(self, action: Callable[[], None]) -> None:
        """Call `action` after each round of events, as for reporting what has changed."""
        self._on_round.append(action)

    def run(self) -> None:
        """Wait and call, until `stop`."""
        self._running = True
        while self._running:
            for key, _ in self._selector.select(self._next_timer_in_s()):
                if self._selector.get_map().get(key.fd) is key:  # not forgotten meanwhile
                    key.data()
            while self._caught:
                self._on_signal[self._caught.pop()]()
            self._fire()
            for action in self._on_round:
                action()

    def stop(self) -> None:
        self._running = False

    def _next_timer_in_s(self) -> float | None:
        while self._timers and not self._timers[0][2].pending:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _fire(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2].fire()

    def _woken(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass
