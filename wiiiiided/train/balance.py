"""What part of a global batch each rank should take, by the speed it is measured at. Pure.

    step n       │ forward, backward ──────────── │ wait │ average, update │   a fast rank
                 │ forward, backward ───────────────────│ average, update │   a slow one
                 └──── own time, of so many samples ────┘

A rank's speed is the median of samples / own time over its last steps: a pause in the loop (an
evaluation, a checkpoint) is no rule. Now and then ranks tell each other their speeds; all hear the
same and decide the same. Parts go by speeds. A step has a fixed cost too, so a speed depends on the
part: a machine that was slow and has little to do looks slower than it is, but done earlier than
the others it gets more at each change, until all need the same time.

A change needs a minute of steps since the last one, and a part that is wrong by a tenth: what other
programs do on a machine for some seconds is no reason to cut batches anew.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

_EVERY: Final = 16  # steps between two times that ranks tell their speeds
_STEPS: Final = 64  # whose median is a rank's speed
LEAST_S: Final = 60.0  # of steps between two changes
_IGNORED: Final = 0.1
_LEAST: Final = 0.05  # of an even share: a rank that gets nothing could not be measured


class RankSpeed(NamedTuple):
    """What a rank tells of itself."""

    samples_per_s: float  # 0: not known
    measured_s: float  # since the last change


def is_told(step: int) -> bool:
    """Whether ranks tell their speeds in this step."""
    return step % _EVERY == 0


class StepClock:
    """A rank's own time in its steps, and so its speed."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=_STEPS)
        self._begun = self._since = time.monotonic()
        self._arrived: float | None = None
        self._waited_s = 0.0

    def arrive(self) -> None:
        """This rank has its gradients; what it does from here on it does with the others."""
        if self._arrived is None:
            self._arrived = time.monotonic()

    def wait(self, seconds: float) -> None:
        """So much of this step's own time was spent waiting for another rank."""
        self._waited_s += seconds

    def stepped(self, samples: float | None) -> None:
        """The step is over."""
        now = time.monotonic()
        own_s = (self._arrived or now) - self._begun - self._waited_s
        if samples and own_s > 0:
            self._rates.append(samples / own_s)
        self._begun, self._arrived, self._waited_s = now, None, 0.0

    def begin_anew(self) -> None:
        """Parts have changed: what was measured before them is of other batches."""
        self._rates.clear()
        self._since = time.monotonic()

    @property
    def speed(self) -> RankSpeed:
        """As it is known now."""
        rate = statistics.median(self._rates) if self._rates else 0.0
        return RankSpeed(rate, time.monotonic() - self._since)


class Balance:
    """The shares of all ranks, the same on every one."""

    def __init__(self, ranks: int, least_s: float) -> None:
        self._least_s = least_s
        self._even = 1 / ranks
        self.shares = (self._even,) * ranks
        self.spread = 1.0  # the fastest rank's speed to the slowest one's
        self.gain = 1.0  # the time of a step with even shares to that with these

    def hear(self, told: Sequence[RankSpeed]) -> str:
        """Every rank has told its speed: why shares change, in a sentence; empty: they do not."""
        speeds = [speed.samples_per_s for speed in told]
        if min(speeds) <= 0:
            return ""
        self.spread = max(speeds) / min(speeds)
        self.gain = _step_s([self._even] * len(speeds), speeds) / _step_s(self.shares, speeds)
        if min(speed.measured_s for speed in told) < self._least_s:
            return ""
        wanted = _shares(speeds, _LEAST * self._even)
        off = [abs(new / old - 1) for new, old in zip(wanted, self.shares, strict=True)]
        if max(off) <= _IGNORED:
            return ""
        before, self.shares = self.shares, wanted
        self.gain = _step_s([self._even] * len(speeds), speeds) / _step_s(wanted, speeds)
        most = off.index(max(off))
        return (
            f"ranks take their parts of a global batch by their speeds, which lie "
            f"{self.spread:.2f} times apart: rank {most} takes {100 * wanted[most]:.3g} % instead "
            f"of {100 * before[most]:.3g} %; with even parts a step would take "
            f"{self.gain:.2f} times as long"
        )


def _shares(speeds: Sequence[float], least: float) -> tuple[float, ...]:
    """In proportion to speeds, none below the least."""
    total = sum(speeds)
    raised = [max(speed / total, least) for speed in speeds]
    return tuple(share / sum(raised) for share in raised)


def _step_s(shares: Sequence[float], speeds: Sequence[float]) -> float:
    """What the slowest rank needs for its part of a batch of one sample."""
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
