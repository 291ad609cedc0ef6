"""How many steps a host makes between two exchanges, and how the average is applied. Pure.

With `every="auto"`, of a round of H steps and one exchange,

    computing = H · step / (H · step + exchange) ≥ SHARE     hence     H ≥ SHARE/(1 - SHARE) · x/s

for the slowest host's step s and exchange x. H follows what is measured by at most a factor of two
a round, and not at all for less than a quarter: times on machines that do other things too vary.
What is aimed at is a quarter more than that least H, so that an H that stays is not below it.
Both times are medians of the last few, so that a pause in the loop (an evaluation, a checkpoint) or
one slow exchange does not count as what steps and exchanges take.

Constants of the outer optimizer by H: the mean of the hosts' weights, without momentum. It learnt
more than Nesterov momentum 0.5 at 16 steps and 0.9 at 64 (docs/lab-log.md): a run of a few rounds
overshoots with momentum. 0.9 with a rate of 0.7 is what DiLoCo uses for rounds of 500 steps, whose
runs have hundreds of them.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final, NamedTuple

SHARE: Final = 0.9
MOST: Final = 1024
_LONG: Final = 500
_IGNORED: Final = 0.25
_STEPS, _EXCHANGES = 31, 3  # whose medians count: a long one among three exchanges is no rule


class RoundTimes:
    """What the last steps and exchanges of this rank have taken."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._exchanges: deque[float] = deque(maxlen=_EXCHANGES)

    def add_step(self, seconds: float) -> None:
        """A step without exchange, from the end of the step before."""
        self._steps.append(seconds)

    def add_exchange(self, seconds: float) -> None:
        """An exchange, once all hosts had come to it."""
        self._exchanges.append(seconds)

    @property
    def step_s(self) -> float:
        """The median; 0: there was none yet."""
        return statistics.median(self._steps or (0.0,))

    @property
    def exchange_s(self) -> float:
        """The median; 0: there was none yet."""
        return statistics.median(self._exchanges or (0.0,))


class OuterConstants(NamedTuple):
    """Of SGD with Nesterov momentum on the anchor."""

    rate: float
    momentum: float


def outer_constants(steps: int) -> OuterConstants:
    """What suits rounds of so many steps."""
    return OuterConstants(1.0, 0.0) if steps < _LONG else OuterConstants(0.7, 0.9)


def next_length(steps: int, step_s: float, exchange_s: float) -> tuple[int, str]:
    """The next round's steps, and why, in a sentence; an empty one if nothing changes."""
    if step_s <= 0 or exchange_s <= 0:
        return steps, ""
    least = SHARE / (1 - SHARE) * exchange_s / step_s
    wanted = math.ceil((1 + _IGNORED) * least - 1e-9)
    wanted = min(max(wanted, 1), MOST)
    if abs(wanted - steps) <= _IGNORED * steps:
        return steps, ""
    chosen = min(max(wanted, math.ceil(steps / 2)), 2 * steps)
    share = chosen * step_s / (chosen * step_s + exchange_s)
    return chosen, (
        f"hosts exchange every {chosen} steps instead of every {steps}: a step takes "
        f"{1e3 * step_s:.3g} ms and an exchange {1e3 * exchange_s:.3g} ms, so they compute "
        f"{100 * share:.0f} % of the time"
    )
