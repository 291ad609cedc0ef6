"""How large a batch a model wants: the gradient noise scale, from what ranks exchange anyway. Pure.

A gradient of b samples is the true one plus noise, |g_b|² = |G|² + S/b in the mean. Every rank has
one of b samples, and their average is one of L·b: two equations, hence

    |G|² = (L |mean|² - |g|²) / (L - 1)           |g|²: the mean over ranks
    S    = b (|g|² - |mean|²) · L / (L - 1)

and the noise scale is S / |G|²: below it a larger batch is worth its samples, above it hardly
(McCandlish et al., 2018). Both are noisy, and their ratio biased: each is averaged over the
measurements before the ratio is taken.
"""

from __future__ import annotations

from typing import Final

# A measurement reads every gradient once more, as long as a tenth of a step takes: seldom enough to
# cost a few thousandths. The first ones come early, so that a short run has a figure too.
_EVERY: Final = 64
_EARLY: Final = frozenset((8, 16, 32))
_KEPT: Final = 0.9  # of the averages so far


def is_measured(step: int) -> bool:
    """Whether the noise is measured in this step."""
    return step % _EVERY == 0 or step in _EARLY


class NoiseScale:
    """Averages of what was measured."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._noise = self._signal = self._weight = 0.0

    def add(self, own: float, mean: float, samples: float) -> None:
        """One step's squared norms: of ranks' gradients, in the mean, and of their average."""
        more = self._ranks / (self._ranks - 1)
        kept = _KEPT if self._weight else 0.0
        self._noise = kept * self._noise + (1 - kept) * samples * (own - mean) * more
        self._signal = kept * self._signal + (1 - kept) * (mean * more - own / (self._ranks - 1))
        self._weight = 1.0

    @property
    def value(self) -> float | None:
        """In samples; None: not known yet, or the noise hides the gradient altogether."""
        return self._noise / self._signal if self._signal > 0 and self._noise > 0 else None
