"""Watching for hangs: which rank has made no progress for how long.

Only jobs with a hang_timeout are looked at, with what `pages` has read of their ranks. A rank
counts from its first operation or progress report on: before that it may load data for as long as
it likes. After a restart of the daemon the clock starts anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from wiiiiided.control.events import ProgressSampled
from wiiiiided.control.job import Job, Running
from wiiiiided.daemon.pages import Reading, Words


@dataclass
class _Seen:
    counters: Words
    since: float  # when they last moved


class Progress:
    """What was seen of each rank. `now` is monotonic: waiting is not a matter of date."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int], _Seen] = {}

    def wanted(self, job: Job) -> bool:
        return isinstance(job.phase, Running) and job.spec.policy.hang_timeout_s is not None

    def sample(
        self, job: Job, readings: Iterable[Reading], over: Collection[int], now: float, at: float
    ) -> ProgressSampled | None:
        """The most silent rank of a job, if it is silent for long enough to be an event. Ranks
        that are `over` owe nobody anything."""
        assert job.attempt is not None
        attempt = job.attempt.number
        silent = [
            (now - self._look((job.id, attempt, reading.rank), reading.progress, now), reading.rank)
            for reading in readings
            if reading.rank not in over and any(reading.progress)
        ]
        longest, rank = max(silent, default=(0.0, 0))
        limit_s = job.spec.policy.hang_timeout_s
        if limit_s is None or longest < limit_s:
            return None
        return ProgressSampled(at, job.id, attempt, rank, longest)

    def forget_all_but(self, jobs: set[int]) -> None:
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in jobs}

    def _look(self, key: tuple[int, int, int], counters: Words, now: float) -> float:
        seen = self._seen.get(key)
        if seen is None or seen.counters != counters:
            seen = self._seen[key] = _Seen(counters, now)
        return seen.since
