"""When a job will be done: its steps of the last minute, and those that are left.

Only the moments at which the step changed are kept, so a step may take as long as it likes. Between
two steps the estimate counts down; when the next is overdue by far there is none any more.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 60.0
OVERDUE: Final = 5.0  # times the usual length of a step
PATIENCE_S: Final = 30.0  # before a step can be called overdue at all


class Pace:
    """The moments of a job's latest steps, and what follows for the rest."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()

    def take(self, at: float, step: int | None) -> None:
        steps = self._steps
        if step is None or (steps and step < steps[-1][1]):
            steps.clear()  # a new epoch counts from 0 again
        if step is None or (steps and step == steps[-1][1]):
            return
        steps.append((at, step))
        while len(steps) > 2 and at - steps[1][0] > WINDOW_S:
            steps.popleft()

    def left_s(self, at: float, total: int | None) -> float | None:
        """Seconds until the last step; None when that cannot be said."""
        if total is None or len(self._steps) < 2:
            return None
        (began, first), (last_at, last) = self._steps[0], self._steps[-1]
        step_s = (last_at - began) / (last - first)
        since = at - last_at
        if since > max(PATIENCE_S, OVERDUE * step_s):
            return None
        return max(0.0, (total - last) * step_s - since)
