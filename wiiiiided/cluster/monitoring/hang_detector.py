"""Watching for hangs: which rank has made no progress for how long.

Each node watches its own ranks, by its own clock, and says so when one is silent for too long; the
control plane takes the first report. Only jobs with a hang_timeout are looked at. A
rank counts from its first operation or progress report on: before that it may load data for as long
as it likes. After a restart of the daemon the clock starts anew.

A member knows a job as it was when it was told to start it, so `starting` may be long past: the
control plane hears only of ranks that have done something, and listens only while the job runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from wiiiiided.cluster.control.events import ProgressSampled
from wiiiiided.cluster.control.job import AttemptKey, Job, Running, Starting
from wiiiiided.cluster.monitoring.stats_pages import Reading, Words

AGAIN_S: Final = 5.0  # until it is said again: the first report may have been lost


@dataclass
class _LastSign:
    counters: Words
    since: float  # when they last moved


class HangDetector:
    """The last progress seen of each rank. `now` is monotonic: waiting is not a matter of date."""

    def __init__(self) -> None:
        self._seen: dict[AttemptKey, dict[int, _LastSign]] = {}
        self._said: dict[AttemptKey, float] = {}

    def wanted(self, job: Job) -> bool:
        there = isinstance(job.phase, Running | Starting)
        return there and job.spec.policy.hang_timeout_s is not None

    def sample(
        self, job: Job, readings: Iterable[Reading], over: Collection[int], now: float, at: float
    ) -> ProgressSampled | None:
        """The most silent rank of a job, if it is silent for long enough to be an event. Ranks
        that are `over` do not count."""
        assert job.attempt is not None
        key = (job.id, job.attempt.number)
        seen = self._seen.setdefault(key, {})
        silent = [
            (now - _since(seen, reading, now), reading.rank)
            for reading in readings
            if reading.rank not in over and any(reading.progress)
        ]
        longest, rank = max(silent, default=(0.0, 0))
        limit_s = job.spec.policy.hang_timeout_s
        if limit_s is None or longest < limit_s or now - self._said.get(key, -AGAIN_S) < AGAIN_S:
            return None
        self._said[key] = now
        return ProgressSampled(at, *key, rank, longest)

    def forget_all_but(self, keys: Collection[AttemptKey]) -> None:
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}
        self._said = {key: said for key, said in self._said.items() if key in keys}


def _since(seen: dict[int, _LastSign], reading: Reading, now: float) -> float:
    """Say since when a rank has done nothing."""
    last = seen.get(reading.rank)
    if last is None or last.counters != reading.progress:
        last = seen[reading.rank] = _LastSign(reading.progress, now)
    return last.since
