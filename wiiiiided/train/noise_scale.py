"""How large a batch a model wants: the gradient noise scale, from what ranks exchange anyway. Pure.

A gradient of b samples is the true one plus noise, |g_b|² = |G|² + S/b in the mean. Rank i has one
of b_i samples, and their average by samples is one of all B together: two equations,

    mean of |g_i|²  = |G|² + S · mean of 1/b_i           |average|²  = |G|² + S / B

and the noise scale is S / |G|²: below it a larger batch is worth its samples, above it hardly
(McCandlish et al., 2018). Where hosts exchange coded gradients the average has errors beside the
noise, and its square those of it: what takes its place is the product of the average with each
host's exact sum, less what that host's own coding has added (`gradient_store`).

Both are noisy, and their ratio biased: each is averaged over the measurements before the ratio is
taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

# A measurement reads every gradient once more, as long as a tenth of a step takes: seldom enough to
# cost a few thousandths. The first ones come early, so that a short run has a figure too.
_EVERY: Final = 64
_EARLY: Final = frozenset((8, 16, 32))
_KEPT: Final = 0.9  # of the averages so far


def is_measured(step: int) -> bool:
    """Whether the noise is measured in this step."""
    return step % _EVERY == 0 or step in _EARLY


class BatchSizes(NamedTuple):
    """The samples of all ranks in one step, as far as the estimate needs them."""

    inverse: float  # the mean of 1/b
    total: float

    @classmethod
    def even(cls, samples: float, ranks: int) -> BatchSizes:
        """All have as many."""
        return cls(1 / samples, samples * ranks)

    @classmethod
    def of(cls, samples: Sequence[float]) -> BatchSizes | None:
        """None: a rank has no samples, and its gradient says nothing."""
        if min(samples) <= 0:
            return None
        return cls(sum(1 / count for count in samples) / len(samples), sum(samples))


class NoiseScale:
    """Averages of what was measured."""

    def __init__(self) -> None:
        self._noise = self._signal = 0.0
        self._is_known = False

    def add(self, own: float, mean: float, sizes: BatchSizes) -> None:
        """Add one step's squared norms: of ranks' gradients, in the mean, and of their average."""
        noise = (own - mean) / (sizes.inverse - 1 / sizes.total)
        kept = _KEPT if self._is_known else 0.0
        self._noise = kept * self._noise + (1 - kept) * noise
        self._signal = kept * self._signal + (1 - kept) * (own - noise * sizes.inverse)
        self._is_known = True

    @property
    def value(self) -> float | None:
        """The noise scale in samples; None: not known yet, or the noise hides the gradient."""
        return self._noise / self._signal if self._signal > 0 and self._noise > 0 else None

    def state(self) -> dict[str, float]:
        """The averages; nothing if there are none that can be gone on from."""
        is_good = self._is_known and math.isfinite(self._noise + self._signal)
        return {"noise": self._noise, "signal": self._signal} if is_good else {}

    def load(self, saved: Mapping[str, float]) -> None:
        """Go on from averages that were saved."""
        self._is_known = bool(saved)
        self._noise, self._signal = saved.get("noise", 0.0), saved.get("signal", 0.0)
