"""An allocation without word of its coordinator: ended after a time alone, where the job wants it.

    heard ── alone_s by CLOCK_BOOTTIME ──► act(overdue_s)

The coordinator starts a lost node's allocation elsewhere when it must have ended here. So the clock
is one that goes on while the machine sleeps, and the time at which the coordinator was heard
counts, not the time at which this process reads of it: a shim that was stopped for an hour finds
old lines in its socket. `overdue_s` is how long ago the time was up, as on a machine that slept: so
much of the grace is over.
"""

from __future__ import annotations

import os
import time

from wiiiiided.cluster.shim import kernel
from wiiiiided.cluster.shim.loop import READ, ShimLoop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class OrphanTimeout:
    """Calls `act(overdue_s)` once, when the coordinator was not heard for `alone_s`."""

    def __init__(
        self, loop: ShimLoop, alone_s: float, act: Callable[[float], None], heard_at: float = 0.0
    ) -> None:
        """`heard_at` is when the coordinator was heard last; 0: just now."""
        self._loop, self._alone_s, self._act = loop, alone_s, act
        self._heard_at = min(heard_at, now()) if heard_at > 0 else now()
        self._alarm = kernel.make_alarm()
        loop.watch(self._alarm, READ, self._rang)
        kernel.set_alarm(self._alarm, self._heard_at + alone_s)

    def heard(self, at: float | None = None) -> None:
        """The coordinator was heard at that time, or just now."""
        moment = now() if at is None else min(at, now())
        if self._alarm >= 0 and moment > self._heard_at:
            self._heard_at = moment
            kernel.set_alarm(self._alarm, moment + self._alone_s)

    def close(self) -> None:
        if self._alarm >= 0:
            self._loop.forget(self._alarm)
            os.close(self._alarm)
            self._alarm = -1

    def _rang(self) -> None:
        kernel.set_alarm(self._alarm, now() + self._alone_s)  # not readable again before `_look`
        # After this round: a line in the socket may be younger than the alarm.
        self._loop.after(0, self._look)

    def _look(self) -> None:
        if self._alarm < 0:
            return
        overdue_s = now() - self._heard_at - self._alone_s
        if overdue_s >= 0:
            self.close()
            self._act(overdue_s)
        else:
            kernel.set_alarm(self._alarm, self._heard_at + self._alone_s)
