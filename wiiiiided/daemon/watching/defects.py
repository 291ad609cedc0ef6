"""Looking at jobs must never disturb them: a defect in it is a line in the log, once.

guarded(look) ── works      nothing else happens
              └─ raises ──► told, unless it was told last; the next look is tried all the same
"""

from __future__ import annotations

from collections.abc import Callable

from wiiiiided.log import logger


class Defects:
    """Of one that looks."""

    def __init__(self) -> None:
        self._told = ""  # the last one

    def guarded(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception as problem:
            if self._told != repr(problem):
                logger.exception("a defect while looking at jobs; they go on")
            self._told = repr(problem)
