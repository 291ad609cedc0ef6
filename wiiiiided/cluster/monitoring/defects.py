"""Looking at jobs must never disturb them: a defect in it is a line in the log, once.

of(job)  ── works      nothing else happens
         └─ raises ──► told, unless it was told of that job last; the next look is tried all the
                       same, and so are the other jobs of this one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wiiiiided.log import about, logger


class Defects:
    """The defects of one reader of jobs."""

    def __init__(self) -> None:
        self._told: dict[int | None, str] = {}  # job → the last one

    @contextmanager
    def of(self, job: int | None) -> Iterator[None]:
        """Log an exception of the block, in which one job is looked at; None: all jobs."""
        try:
            yield
        except Exception as problem:
            if self._told.get(job) != repr(problem):
                which = "jobs; they go on" if job is None else f"job {job}; it goes on"
                logger.exception("a defect while looking at %s", which, extra=about(job))
            self._told[job] = repr(problem)

    def guarded(self, look: Callable[[], None]) -> None:
        with self.of(None):
            look()
