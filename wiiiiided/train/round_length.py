"""How many steps a host makes between two exchanges, and how the average is applied. Pure.

With `every="auto"` a run begins with the H that `wiiiiide plan` has found for its model, or with 1.
Of a round of H steps and one exchange,

    computing = H · step / (H · step + exchange) ≥ SHARE     hence     H ≥ SHARE/(1 - SHARE) · x/s

for the slowest host's step s and exchange x. Fragments that travel while hosts compute hold them up
only by what ranks do themselves (delta, outer step), provided the link keeps up:

    H · step ≥ link      and      H ≥ SHARE/(1 - SHARE) · busy/step      and      H ≥ fragments

H follows what is measured by at most a factor of two
a round, and not at all for less than a quarter: times on machines that do other things too vary.
The aim is a quarter more than that least H, so that an H that stays is not below it.
Both times are medians of the last few, so that a pause in the loop (an evaluation, a checkpoint) or
one slow exchange does not count as what steps and exchanges take.

Constants of the outer optimizer by H: the mean of the hosts' weights, without momentum. It learnt
more than Nesterov momentum 0.5 at 16 steps and 0.9 at 64 (docs/lab-log.md): a run of a few rounds
overshoots with momentum. 0.9 with a rate of 0.7 is what DiLoCo uses for rounds of 500 steps, whose
runs have hundreds of them.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from wiiiiided.train.balance import LastMinute

SHARE: Final = 0.9
MOST: Final = 16384  # a link of 10 Mbit/s and steps of 5 ms need about as many
_LONG: Final = 500
_IGNORED: Final = 0.25
_STEPS, _EXCHANGES = 31, 3  # whose medians count: a long one among three exchanges is no rule


class RoundTimes:
    """The times of this rank's last steps and exchanges."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._minute = LastMinute()
        self._busy: deque[float] = deque(maxlen=_EXCHANGES)
        self._link: deque[float] = deque(maxlen=_EXCHANGES)

    def add_step(self, seconds: float) -> None:
        """Add a step without exchange, timed from the end of the step before."""
        self._steps.append(seconds)
        self._minute.add(seconds, seconds)

    def add_exchange(self, busy_s: float, link_s: float = 0.0) -> None:
        """Add a round's exchange, from when all hosts were there: ranks' time, the link's."""
        self._busy.append(busy_s)
        self._link.append(link_s)

    @property
    def step_s(self) -> float:
        """The median; 0: there was none yet."""
        return statistics.median(self._steps or (0.0,))

    @property
    def usual_step_s(self) -> float:
        """The median over a minute: by it hosts are compared; 0: there was none yet."""
        return self._minute.median

    @property
    def busy_s(self) -> float:
        """The median; 0: there was none yet."""
        return statistics.median(self._busy or (0.0,))

    @property
    def link_s(self) -> float:
        """The median; 0: there was none yet."""
        return statistics.median(self._link or (0.0,))


def shape_of(named: Iterable[tuple[str, Any]]) -> str:
    """A digest of a model's parameters: of their names and shapes, not of what is in them."""
    said = "\n".join(f"{name} {list(value.shape)}" for name, value in named)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def first_length(every: int | str, found: str, shape: str) -> int:
    """The steps of the first round; with "auto" what `plan` has found for this shape, or 1."""
    if isinstance(every, int):
        return every
    lengths = re.findall(rf"\b([1-9][0-9]{{0,4}})@{shape}\b", found)
    return min(int(lengths[0]), MOST) if lengths else 1


class OuterConstants(NamedTuple):
    """The constants of SGD with Nesterov momentum on the anchor."""

    rate: float
    momentum: float


def outer_constants(steps: int) -> OuterConstants:
    """The constants that suit rounds of so many steps."""
    return OuterConstants(1.0, 0.0) if steps < _LONG else OuterConstants(0.7, 0.9)


def next_length(
    steps: int, step_s: float, busy_s: float, link_s: float = 0.0, fragments: int = 1
) -> tuple[int, str]:
    """The next round's steps, and why, in a sentence; an empty one if nothing changes."""
    if step_s <= 0 or busy_s + link_s <= 0:
        return steps, ""
    needed = _wanted(step_s, busy_s, link_s, fragments)
    wanted = min(needed, MOST)
    overlaps = fragments > 1 and wanted >= fragments
    begins = overlaps and steps < fragments  # a little longer, and the link does not hold it up
    if abs(wanted - steps) <= _IGNORED * steps and not begins:
        return steps, ""
    chosen = min(max(wanted, math.ceil(steps / 2)), 2 * steps)
    why = _why(steps, chosen, step_s, busy_s, link_s, fragments)
    if chosen < needed and chosen == MOST:
        why += f"; {MOST:,} steps are the most, and {needed:,} would be wanted"
    return chosen, why


def _wanted(step_s: float, busy_s: float, link_s: float, fragments: int) -> int:
    """A quarter more than the least steps that compute SHARE of the time."""
    waiting = SHARE / (1 - SHARE) * (busy_s + link_s)
    blocking = _more(waiting / step_s)
    if fragments == 1 or blocking < fragments:
        return blocking
    computing = max(link_s, SHARE / (1 - SHARE) * busy_s)
    return max(fragments, _more(computing / step_s))


def _more(least: float) -> int:
    return max(math.ceil((1 + _IGNORED) * least - 1e-9), 1)


def _why(
    steps: int, chosen: int, step_s: float, busy_s: float, link_s: float, fragments: int
) -> str:
    computing, meanwhile = chosen * step_s, ""
    whole = computing + busy_s + link_s
    if 1 < fragments <= chosen:
        whole, meanwhile = max(computing, link_s) + busy_s, " beside them"
    return (
        f"hosts exchange every {chosen} steps instead of every {steps}: a step takes "
        f"{1e3 * step_s:.3g} ms and an exchange {1e3 * (busy_s + link_s):.3g} ms{meanwhile}, so "
        f"they compute {100 * computing / whole:.0f} % of the time"
    )
