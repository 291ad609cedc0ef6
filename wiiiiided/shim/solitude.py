"""A share that nobody has asked after: ended after a time alone, where the job wants that.

    heard ── alone_s by CLOCK_BOOTTIME ──► act(overdue_s)

The coordinator starts a lost node's share elsewhere when it must have ended here. So the clock is
one that goes on while the machine sleeps, and what counts is when the coordinator was heard, not
when this process came to read of it: a shim that was stopped for an hour and then continued finds
old words in its socket, and they are old. And whoever was asleep when it was time is told how long
ago that was: so much of the grace is over.
"""

from __future__ import annotations

import os
import time

from wiiiiided.shim import kernel
from wiiiiided.shim.loop import READ, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Solitude:
    """Calls `act` once, when nothing was heard for `alone_s`, with how long ago that was so."""

    def __init__(
        self, loop: Loop, alone_s: float, act: Callable[[float], None], heard_at: float = 0.0
    ) -> None:
        """`heard_at` is when the coordinator was heard last; 0: just now."""
        self._loop, self._alone_s, self._act = loop, alone_s, act
        self._heard_at = min(heard_at, now()) if heard_at > 0 else now()
        self._alarm = kernel.make_alarm()
        loop.watch(self._alarm, READ, self._rang)
        kernel.set_alarm(self._alarm, self._heard_at + alone_s)

    def heard(self, at: object = None) -> None:
        """The coordinator was heard at that time, or just now."""
        moment = now()
        if isinstance(at, int | float) and at == at:  # a NaN is not itself
            moment = min(float(at), moment)
        if self._alarm >= 0 and moment > self._heard_at:
            self._heard_at = moment
            kernel.set_alarm(self._alarm, moment + self._alone_s)

    def close(self) -> None:
        if self._alarm >= 0:
            self._loop.forget(self._alarm)
            os.close(self._alarm)
            self._alarm = -1

    def _rang(self) -> None:
        kernel.set_alarm(self._alarm, now() + self._alone_s)  # quiet, until it is looked at
        # After this round: what the socket holds may be younger than the alarm.
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
