"""Three tiers of log lines, silent, normal, verbose, for workers and the daemon.

              worker (WIIIIIDE_LOG, output.log of a job)    daemon (`log` of its settings, --log)
    silent    nothing: errors are raised anyway             errors
    normal    what a person should see: a stall, a lost     a line at every birth, death and change
              rank                                          of a job, and what goes wrong
    verbose   also birth and death of groups and links,     also birth and death of each rank
              and changes of codec

No line is logged per step or per operation. Lines go to the logger "wiiiiide". A program that
has set up logging gets them there; for one that has not they go to stderr. A line about a job says
so in its text, and to programs in its record: `logger.info("…", extra=about(job=17))`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

logger = logging.getLogger("wiiiiide")

COMPLAINT_S: Final = 1.0
LEVELS = {"silent": logging.CRITICAL + 1, "normal": logging.WARNING, "verbose": logging.INFO}


def about(
    job: int | None = None, rank: int | None = None, node: tuple[str, ...] = ()
) -> dict[str, object]:
    """The `extra` of a line: what it is about."""
    return {"job": job, "rank": rank, "node": node}


class _FallbackHandler(logging.StreamHandler[TextIO]):
    """Prints where a program has set up no logging. Python's own last resort does so too, but only
    from warnings on."""

    def emit(self, record: logging.LogRecord) -> None:
        if logger.handlers == [self] and not logging.getLogger().handlers:
            self.stream = sys.stderr  # as it is now: a program may have put another in its place
            super().emit(record)


_fallback = _FallbackHandler()


def set_tier(tier: str) -> None:
    """Apply a tier. A program's own setup of logging, now or later, is left alone."""
    logger.setLevel(LEVELS[tier])
    if _fallback not in logger.handlers:
        logger.addHandler(_fallback)


def warn(who: str, text: str) -> None:
    """A change a person should see, with its speaker: `[rank 1 pid 77 group default_pg]`."""
    logger.warning("[%s] %s", who, text)


def tell(who: str, text: str) -> None:
    """Birth, death and other news of the verbose tier."""
    logger.info("[%s] %s", who, text)


class Complaints:
    """Warnings about unauthenticated peers, at most one a second: many must not flood the log."""

    def __init__(self, who: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._who, self._clock = who, clock
        self._quiet_until = float("-inf")
        self._count = 0  # held back
        self._last = ""

    @property
    def pending(self) -> bool:
        """Whether warnings are held back: call `flush` in a second."""
        return self._count > 0

    def say(self, text: str) -> None:
        """Log it now, or with the others when the second is over."""
        self._count += 1
        self._last = text
        self.flush()

    def flush(self, at_once: bool = False) -> None:
        """Log what is held back, if it is time."""
        if not self._count or (self._clock() < self._quiet_until and not at_once):
            return
        more = f" (and {self._count - 1} more such lines)" if self._count > 1 else ""
        warn(self._who, self._last + more)
        self._count = 0
        self._quiet_until = self._clock() + COMPLAINT_S
