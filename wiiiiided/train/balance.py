"""The part of the work each rank or host should take, by its measured speed. Pure.

Load balancing, so that a slow machine is no straggler that all others wait for:

    step n       │ forward, backward ──────────── │ wait │ average, update │   a fast rank
                 │ forward, backward ───────────────────│ average, update │   a slow one
                 └──── own time, of so many samples ────┘

A rank's speed is the median of samples / own time over a minute of steps: a pause in the loop (an
evaluation, a checkpoint) is no rule, nor is what another program does for seconds (`LastMinute`).
Now and then ranks tell each other their speeds; all hear the
same and decide the same. Parts go by speeds. A step has a fixed cost too, so a speed depends on the
part: a machine that was slow and has little to do looks slower than it is, but done earlier than
the others it gets more at each change, until all need the same time.

A change needs a minute of steps since the last one, and a part that is wrong by a tenth: what other
programs do on a machine for some seconds is no reason to cut batches anew. The first one comes
earlier: machines that are far apart from the beginning lose most until then.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

_EVERY: Final = 16  # steps between two times that ranks tell their speeds
LEAST_S: Final = 60.0  # of steps between two changes
FIRST_S: Final = 15.0  # … and before the first one
_IGNORED: Final = 0.1
_LEAST: Final = 0.05  # of an even share: a rank that gets nothing could not be measured
_STRETCH_S: Final = 1.0
_FEWEST: Final = 15  # stretches whose median counts, where a minute has fewer
_MOST: Final = 256  # steps of a stretch that are looked at


class RankSpeed(NamedTuple):
    """A rank's word on its own speed, or its host's."""

    samples_per_s: float  # 0: not known
    measured_s: float  # since the last change


def is_told(step: int) -> bool:
    """Whether ranks tell their speeds in this step."""
    return step % _EVERY == 0


class LastMinute:
    """The usual one of a minute's values: the median of its stretches, each of which is a second of
    steps, or one longer step, and has the median of its steps. However fast steps are, one slow
    second among sixty is one value among sixty.
    """

    def __init__(self) -> None:
        self._over: deque[tuple[float, float]] = deque()  # stretches: seconds and value
        self._over_s = 0.0
        self._now: list[float] = []  # the values of this stretch
        self._now_s = 0.0

    def add(self, value: float, seconds: float) -> None:
        """Add the value of a step that took so long."""
        if len(self._now) < _MOST:
            self._now.append(value)
        self._now_s += seconds
        if self._now_s >= _STRETCH_S:
            self._over.append((self._now_s, statistics.median(self._now)))
            self._over_s += self._now_s
            self._now, self._now_s = [], 0.0
            while len(self._over) > _FEWEST and self._over_s - self._over[0][0] >= LEAST_S:
                self._over_s -= self._over.popleft()[0]

    @property
    def median(self) -> float:
        """0: there was no step yet."""
        found = [value for _, value in self._over]
        if self._now:
            found.append(statistics.median(self._now))
        return statistics.median(found or (0.0,))


class StepClock:
    """A rank's own time in its steps, and so its speed."""

    def __init__(self) -> None:
        self._rates = LastMinute()
        self._begun = self._since = time.monotonic()
        self._arrived: float | None = None
        self._waited_s = 0.0

    def arrive(self) -> None:
        """Gradients are ready: this rank's own time of the step ends here."""
        if self._arrived is None:
            self._arrived = time.monotonic()

    def wait(self, seconds: float) -> None:
        """Note that so much of this step's own time was spent waiting for another rank."""
        self._waited_s += seconds

    def stepped(self, samples: float | None) -> None:
        """Note that the step is over."""
        now = time.monotonic()
        own_s = (self._arrived or now) - self._begun - self._waited_s
        if samples and own_s > 0:
            self._rates.add(samples / own_s, now - self._begun)
        self._begun, self._arrived, self._waited_s = now, None, 0.0

    def begin_anew(self) -> None:
        """Parts have changed: what was measured before them is of other batches."""
        self._rates = LastMinute()
        self._since = time.monotonic()

    @property
    def speed(self) -> RankSpeed:
        """The speed of this rank, as far as it is known now."""
        return RankSpeed(self._rates.median, time.monotonic() - self._since)


class Parts(NamedTuple):
    """The work that is divided, in words, and its parts before anything is measured."""

    taker: str  # "rank" or "host"
    whole: str  # "a global batch" or "a round"
    before: tuple[float, ...]

    @classmethod
    def of_ranks(cls, ranks: int) -> Parts:
        """A global batch, evenly."""
        return cls("rank", "a global batch", (1 / ranks,) * ranks)


class Balance:
    """The shares of all ranks, or of all hosts, the same everywhere."""

    def __init__(self, parts: Parts, least_s: float = LEAST_S, first_s: float = FIRST_S) -> None:
        self._parts, self._least_s, self._wait_s = parts, least_s, min(first_s, least_s)
        self.shares = parts.before
        self.spread = 1.0  # the fastest one's speed to the slowest one's
        self.gain = 1.0  # the time of the whole as it was divided before to that with these shares
        self._speeds: Sequence[float] = parts.before  # as they were told last
        self.is_measured = False  # all have told their speeds

    def hear(self, told: Sequence[RankSpeed]) -> str:
        """All have told their speeds: why shares change, in a sentence; empty: they do not."""
        speeds = [speed.samples_per_s for speed in told]
        if min(speeds) <= 0:
            return ""
        self._speeds, self.is_measured = speeds, True
        self.spread = max(speeds) / min(speeds)
        self.gain = self.gain_of(self.shares)
        if min(speed.measured_s for speed in told) < self._wait_s:
            return ""
        wanted = _shares(speeds, _LEAST / len(speeds))
        off = [abs(new / old - 1) for new, old in zip(wanted, self.shares, strict=True)]
        if max(off) <= _IGNORED:
            return ""
        before, self.shares, self._wait_s = self.shares, wanted, self._least_s
        self.gain = self.gain_of(wanted)
        most, (taker, whole, _) = off.index(max(off)), self._parts
        return (
            f"{taker}s take their parts of {whole} by their speeds, which lie {self.spread:.2f} "
            f"times apart: {taker} {most} takes {100 * wanted[most]:.3g} % instead of "
            f"{100 * before[most]:.3g} %; as it was divided at the beginning {whole} would take "
            f"{self.gain:.2f} times as long"
        )

    def gain_of(self, parts: Sequence[float]) -> float:
        """The time of the whole as it was divided at the beginning to that with these parts, by
        the speeds told last."""
        return _whole_s(self._parts.before, self._speeds) / _whole_s(parts, self._speeds)


def _shares(speeds: Sequence[float], least: float) -> tuple[float, ...]:
    """Shares in proportion to speeds, none below the least."""
    total = sum(speeds)
    raised = [max(speed / total, least) for speed in speeds]
    return tuple(share / sum(raised) for share in raised)


def _whole_s(shares: Sequence[float], speeds: Sequence[float]) -> float:
    """Seconds the slowest rank takes for its share of one sample."""
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
