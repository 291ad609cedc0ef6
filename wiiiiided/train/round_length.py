"""How many steps a host makes between two exchanges, and how the average is applied. Pure.

With `every="auto"`, of a round of H steps and one exchange,

    computing = H · step / (H · step + exchange) ≥ SHARE     hence     H ≥ SHARE/(1 - SHARE) · x/s

for the slowest host's step s and exchange x. H follows what is measured by at most a factor of two
a round, and not at all for less than a quarter: times on machines that do other things too vary.

Constants of the outer optimizer by H: below 16 steps hosts have hardly moved apart, and the mean of
their weights is what every-step training would have; momentum pays from long rounds on. Nesterov
0.9 with a rate of 0.7 is what DiLoCo uses for 500 steps.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

SHARE: Final = 0.9
MOST: Final = 1024
_IGNORED: Final = 0.25


class OuterConstants(NamedTuple):
    """Of SGD with Nesterov momentum on the anchor."""

    rate: float
    momentum: float


def outer_constants(steps: int) -> OuterConstants:
    """What suits rounds of so many steps."""
    if steps < 16:
        return OuterConstants(1.0, 0.0)
    return OuterConstants(0.9, 0.5) if steps < 64 else OuterConstants(0.7, 0.9)


def next_length(steps: int, step_s: float, exchange_s: float) -> tuple[int, str]:
    """The next round's steps, and why, in a sentence; an empty one if nothing changes."""
    if step_s <= 0 or exchange_s <= 0:
        return steps, ""
    wanted = math.ceil(SHARE / (1 - SHARE) * exchange_s / step_s - 1e-9)
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
