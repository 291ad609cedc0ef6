"""A user's choice of how ranks update the weights: `wide.parallel(…, updates=…, staleness=…)`."""

from __future__ import annotations

from dataclasses import dataclass

from wiiiiided.errors import UsageError


@dataclass(frozen=True)
class Updates:
    """How ranks update the weights."""

    how: str = "sync"
    staleness: int = 16  # steps that a rank may be ahead of the slowest; asynchronous ones only

    def __post_init__(self) -> None:
        if self.how not in ("sync", "async"):
            raise UsageError(f'updates={self.how!r} is not known; use "sync" or "async"')
        if not isinstance(self.staleness, int) or not 1 <= self.staleness < 1 << 31:
            raise UsageError(f"staleness={self.staleness!r} is not a whole number from 1 on")

    @property
    def sync(self) -> bool:
        """Whether all ranks step together."""
        return self.how == "sync"
