"""Watching for hangs: which rank has made no progress for how long.

Only jobs with a hang_timeout are looked at, once a second, by reading the counters in the ranks'
stats pages. A rank counts from its first operation or progress report on: before that it may load
data for as long as it likes. After a restart of the daemon the clock starts anew.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass

from wiiiiided.control.events import ProgressSampled
from wiiiiided.control.job import Job, Running
from wiiiiided.daemon.runs import Runs
from wiiiiided.errors import HostError
from wiiiiided.shm import stats

EVERY_S = 1.0
# What moves when a rank does something: operations, failures, messages, steps.
COUNTERS = (stats.OPERATIONS, stats.FAILED, stats.SENT, stats.RECEIVED, stats.STEP)
Counters = tuple[int, ...]


@dataclass
class _Seen:
    counters: Counters
    since: float  # when they last moved


class Progress:
    """What was seen of each rank. `monotonic` is the clock: waiting is not a matter of date."""

    def __init__(self, runs: Runs, monotonic: Callable[[], float]) -> None:
        self.runs = runs
        self.monotonic = monotonic
        self._seen: dict[tuple[int, int, int], _Seen] = {}

    def wanted(self, job: Job) -> bool:
        return isinstance(job.phase, Running) and job.spec.policy.hang_timeout_s is not None

    def sample(self, job: Job, at: float, over: Collection[int]) -> ProgressSampled | None:
        """The most silent rank of a job, if it is silent for long enough to be an event. Ranks
        that are `over` owe nobody anything."""
        assert job.attempt is not None
        attempt = job.attempt.number
        now = self.monotonic()
        silent = [
            (now - seen.since, rank)
            for rank in range(job.attempt.layout.world_size)
            if rank not in over and (seen := self._look(job.id, attempt, rank, now)) is not None
        ]
        longest, rank = max(silent, default=(0.0, 0))
        limit_s = job.spec.policy.hang_timeout_s
        if limit_s is None or longest < limit_s:
            return None
        return ProgressSampled(at, job.id, attempt, rank, longest)

    def forget_all_but(self, jobs: set[int]) -> None:
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in jobs}

    def _look(self, job: int, attempt: int, rank: int, now: float) -> _Seen | None:
        counters = read_counters(self.runs, job, attempt, rank)
        if counters is None or not any(counters):
            return None
        key = (job, attempt, rank)
        seen = self._seen.get(key)
        if seen is None or seen.counters != counters:
            seen = self._seen[key] = _Seen(counters, now)
        return seen


def read_counters(runs: Runs, job: int, attempt: int, rank: int) -> Counters | None:
    """A rank's counters; None before it has written any."""
    try:
        fd = runs.open(job, attempt, f"stats-{rank}")
    except (OSError, HostError):
        return None
    try:
        page = os.pread(fd, stats.PAGE_BYTES, 0)
    finally:
        os.close(fd)
    if len(page) < stats.PAGE_BYTES:
        return None
    words = struct.unpack(f"={stats.PAGE_BYTES // 8}q", page)
    if words[0] != stats.MAGIC or words[1] != stats.VERSION:
        return None
    return tuple(words[index] for index in COUNTERS)
