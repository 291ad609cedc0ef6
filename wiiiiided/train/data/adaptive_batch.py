"""`batch_size="auto"`: a global batch that follows the gradient noise scale. Pure.

A batch far below the noise scale learns from noise, one far above it wastes samples (`noise_scale`
has the argument). The scale grows while a model learns, so a batch that was right at the beginning
is too small later. It follows by at most a factor of two, for a half more or a third less at least,
and not before so many steps that the scale is known for the batch there is.

A learning rate belongs to a batch. `lr_rule` says how it goes along: "sqrt" suits Adam and its
family, "linear" SGD; "none" leaves it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from wiiiiided.errors import UsageError

AUTO: Final = "auto"
_RULES: Final[dict[str, Callable[[float], float]]] = {
    "sqrt": math.sqrt,
    "linear": lambda ratio: ratio,
    "none": lambda ratio: 1.0,
}
_LEAST_STEPS: Final = 200  # between two changes: some measurements of the noise scale
_IGNORED: Final = 1.5


class AdaptiveBatch:
    """The bounds of an adaptive batch, and how learning rates go along."""

    def __init__(self, between: Any, lr_rule: str) -> None:
        good = isinstance(between, tuple | list) and len(between) == 2
        if not good or not all(type(n) is int for n in between) or not 1 <= between[0] < between[1]:
            raise UsageError(
                f'batch_size="auto" needs two bounds, the smaller one first: between=(64, 1024), '
                f"not {between!r}"
            )
        if lr_rule not in _RULES:
            raise UsageError(f'lr_rule={lr_rule!r} is not "sqrt", "linear" or "none"')
        self.least, self.most = between
        self._rule = lr_rule
        self.steps = 0  # since the last change

    def __str__(self) -> str:
        return f'{self.least} to {self.most} (lr_rule="{self._rule}")'

    @property
    def changes_rates(self) -> bool:
        """Whether learning rates go along."""
        return self._rule != "none"

    def lr_factor(self, before: int, after: int) -> float:
        """The factor of learning rates when a batch becomes another."""
        return _RULES[self._rule](after / before)

    def follow(self, size: int, noise_scale: float | None) -> tuple[int, str]:
        """The next batch's size after a step with one of this size, and why if it is another."""
        self.steps += 1
        if noise_scale is None or self.steps < _LEAST_STEPS:
            return size, ""
        wanted = min(max(noise_scale, size / 2, self.least), 2 * size, self.most)
        if max(wanted / size, size / wanted) < _IGNORED and wanted not in (self.least, self.most):
            return size, ""
        found = round(wanted)
        if found == size:
            return size, ""
        self.steps = 0
        factor = self.lr_factor(size, found)
        rates = f", learning rates are multiplied by {factor:.3g}" if factor != 1 else ""
        return found, (
            f"the global batch has {found} samples instead of {size}: the gradient noise scale is "
            f"{noise_scale:.3g} samples{rates}"
        )
