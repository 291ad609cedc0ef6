"""What a user says of the exchange between hosts: `wide.parallel(…, between=wide.Between(…))`."""

from __future__ import annotations

from dataclasses import dataclass

from wiiiiided.backend.lossy.interface import GradientCodec
from wiiiiided.backend.lossy.registry import EXACT, by_name
from wiiiiided.errors import UsageError


@dataclass(frozen=True)
class Between:
    """How hosts exchange what their ranks have learnt. Inside a host all is exact.

    gradients      "exact", or coded in fewer bits with error feedback: "bf16", "int8", "int4",
                   "topk:0.01" (of each 4,096 elements the largest hundredth)
    warmup_steps   so many steps, from the beginning of this run, are exact nevertheless
    """

    gradients: str = EXACT
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        by_name(self.gradients)
        if not isinstance(self.warmup_steps, int) or self.warmup_steps < 0:
            raise UsageError(f"warmup_steps={self.warmup_steps!r} is not a whole number from 0 on")

    def codec(self) -> GradientCodec | None:
        """A codec for one exchange after the other; None: exact."""
        return by_name(self.gradients)
