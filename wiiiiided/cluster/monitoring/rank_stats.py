"""This node's own ranks: their pages, what they use, their silence. The same on every node.

    following ──► (job, attempt) ──► ranks of this node's allocation
                                       ├─ pages      ──► AttemptReading
                                       ├─ shim.ranks ──► memory and processor of their processes
                                       └─ progress   ──► report(ProgressSampled)

The coordinator takes what it reads here together with what other nodes send (attempt_tracker); a
member sends it on (metrics_pusher). The caller says when: there is no timer here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from wiiiiided.cluster.allocation.shim_process import Shim
from wiiiiided.cluster.control.events import ProgressSampled
from wiiiiided.cluster.control.job import Attempt, AttemptKey, Job
from wiiiiided.cluster.monitoring import host_stats
from wiiiiided.cluster.monitoring.defects import Defects
from wiiiiided.cluster.monitoring.hang_detector import HangDetector
from wiiiiided.cluster.monitoring.host_stats import SLOW_S
from wiiiiided.cluster.monitoring.stats_pages import Reading, StatsPageReader
from wiiiiided.cluster.peering.metrics_codec import Observed

WEIGHED: Final = 256  # ranks whose processes are looked at
YOUNG_S, YOUNG_EVERY_S = 15.0, 0.9  # at first oftener: a short job has a memory too


class AttemptReading(NamedTuple):
    """One attempt's samples of one moment."""

    key: AttemptKey
    readings: list[Reading]

    @property
    def observed(self) -> list[Observed]:
        return [
            Observed(found.sample, lived(found))
            for found in self.readings
            if found.sample is not None
        ]


@dataclass
class _FollowedAttempt:
    """An attempt that is being looked at."""

    ranks: range
    since: float
    weighed: float = float("-inf")
    turn: int = 0  # the rank that is looked at first: there may not be time for all


class RankStatsReader:
    """`shims` look after the ranks of this node; a rank that hangs is told to `report`."""

    def __init__(
        self,
        node: str,
        pages: StatsPageReader,
        shims: Mapping[AttemptKey, Shim],
        report: Callable[[ProgressSampled], None],
        monotonic: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.node = node
        self.report = report
        self.monotonic = monotonic
        self.clock = clock
        self._pages = pages
        self._shims = shims
        self._progress = HangDetector()
        self._seen: dict[AttemptKey, _FollowedAttempt] = {}
        self._defects = Defects()

    def look(self, following: Mapping[AttemptKey, Job]) -> list[AttemptReading]:
        """Read all attempts of which a part is on this node; silence that is too long is
        reported."""
        for key in [key for key in self._seen if key not in following]:
            self.forget(*key)
        self._progress.forget_all_but(
            [key for key in following if self._is_watched(key, following)]
        )
        found: list[AttemptReading] = []
        for key, job in following.items():
            with self._defects.of(job.id):  # what one job does to its files hides no other
                look = self._look(key, job)
                found.append(look)
                if self._is_watched(key, following):
                    self._watch_for_hangs(job, look)
        return found

    def last(self, job: int, attempt: int, ranks: range | None = None) -> AttemptReading:
        """Read an attempt that ends once more, then forget it. `ranks` where it may never have been
        looked at."""
        seen = self._seen.get((job, attempt))
        if seen is not None:
            ranks = seen.ranks
        found = self._pages.read(job, attempt, ranks or range(0))
        self.forget(job, attempt)
        return AttemptReading((job, attempt), found)

    def forget(self, job: int, attempt: int) -> None:
        self._seen.pop((job, attempt), None)
        self._pages.forget(job, attempt)

    def _look(self, key: AttemptKey, job: Job) -> AttemptReading:
        now = self.monotonic()
        seen = self._seen.get(key)
        if seen is None:
            assert job.attempt is not None
            seen = self._seen[key] = _FollowedAttempt(ranks_on(self.node, job.attempt), now)
        young = now - seen.since < YOUNG_S
        if now - seen.weighed >= (YOUNG_EVERY_S if young else SLOW_S):
            self._weigh(key, seen, now)
        return AttemptReading(key, self._pages.read(*key, seen.ranks))

    def _weigh(self, key: AttemptKey, seen: _FollowedAttempt, now: float) -> None:
        seen.weighed = now
        shim = self._shims.get(key)
        told = shim.ranks[:WEIGHED] if shim is not None else ()
        seen.turn %= max(1, len(told))
        look = host_stats.ProcessScan()
        for place, rank in enumerate((*told[seen.turn :], *told[: seen.turn])):
            if rank.pid is None:
                continue
            if rank.code is not None:
                self._pages.weigh(*key, rank.rank, rank.pid, None)
            elif usage := look.usage(rank.pid, rank.ticks):
                self._pages.weigh(*key, rank.rank, rank.pid, usage)
            if look.is_over:  # the rest comes first the next time
                seen.turn += max(1, place)
                break

    def _is_watched(self, key: AttemptKey, following: Mapping[AttemptKey, Job]) -> bool:
        """Whether the attempt is watched for hangs. Without a shim the allocation is over, and its
        end on the way."""
        return key in self._shims and self._progress.wanted(following[key])

    def _watch_for_hangs(self, job: Job, look: AttemptReading) -> None:
        over, now = self._shims[look.key].over, self.monotonic()
        event = self._progress.sample(job, look.readings, over, now, self.clock())
        if event is not None:
            self.report(event)


def ranks_on(node: str, attempt: Attempt) -> range:
    for allocation in attempt.layout.allocations:
        if allocation.node == node:
            return allocation.ranks
    return range(0)


def lived(reading: Reading) -> float | None:
    """How long the rank has lived, if its page says a time that can be."""
    if reading.sample is None or not 0 < reading.born < reading.sample.at:
        return None
    return reading.sample.at - reading.born
