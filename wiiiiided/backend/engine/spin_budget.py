"""How long to spin before sleeping: as long as spinning has paid lately.

On a machine with a free core for every rank a peer is microseconds away, and falling asleep costs
more than it saves (a 4-byte all_reduce: 18 µs spinning, 48 sleeping). When something else wants the
cores, spinning burns the time slice that the peer needs, and the sleeper is the one the scheduler
prefers at wake-up. Which of the two is true changes under our feet, so it is learned:

    a spin that paid     allow four times what it took, next time; forget longer ones slowly
    a spin in vain       allow half, but never less than a sleep would cost anyway
    every 8th in vain    allow the most, whatever was learned: things may have become quiet

Pure: no clock. A unit is one pass over the board, 0.2 to 0.4 µs.
"""

from __future__ import annotations

from typing import Final

LEAST: Final = 64
PROBE_EVERY: Final = 8


class SpinBudget:
    """The spin budget of one process."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._allowed = most
        self._vain = 0

    def passes(self) -> int:
        """How many passes to spin now."""
        return self.most if self._vain % PROBE_EVERY == PROBE_EVERY - 1 else self._allowed

    def paid(self, used: int) -> None:
        """Note that the wait was over after `used` passes."""
        self._vain = 0
        self._allowed = min(self.most, max(LEAST, 4 * used, self._allowed - self._allowed // 16))

    def in_vain(self) -> None:
        """We spun and had to sleep all the same."""
        self._vain += 1
        self._allowed = max(min(LEAST, self.most), self._allowed // 2)
