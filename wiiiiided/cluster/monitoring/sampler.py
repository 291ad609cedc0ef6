"""When to look: once a second while a job runs, oftener while a client watches, else never.

    a job runs       │  s      s      s      s      s        EVERY_S
    top -i 0.5       │  s  s  s  s  s  s  s  s  s  s         as the watcher asks, never < LEAST_S
    neither          │                                       no timer at all

A watcher is woken by the sample that is due for it, so that what they show is fresh and
two samples of the same moment are never taken. Samples of other nodes (`take`) come when they come
and count from the next sample on. A defect in here is logged and disturbs no job.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wiiiiided.cluster.monitoring.attempt_tracker import AttemptTracker
from wiiiiided.cluster.monitoring.defects import Defects
from wiiiiided.cluster.monitoring.host_stats import HostStats
from wiiiiided.cluster.peering.metrics_codec import NodeMetrics
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.metrics.snapshot import Health, Trend, node_rates

EVERY_S: Final = 1.0
LEAST_S: Final = 0.25
EARLY_S: Final = 0.05  # a watcher that is due this soon is served now: timers do not strike alike
FLUSH_S: Final = 0.2  # after an end: a burst of short jobs is written at once


@dataclass(eq=False)
class Watcher:
    every_s: float
    due: float
    bell: asyncio.Event = field(default_factory=asyncio.Event)


class NodeReport(NamedTuple):
    """A node's last word about itself, and when it came."""

    health: Health
    at: float


class Sampler:
    """Looks at this machine and all jobs at the pace that watchers need."""

    def __init__(
        self,
        controller: Controller,
        tracker: AttemptTracker,
        machine: HostStats,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.controller = controller
        self.tracker = tracker
        self.machine = machine
        self.trends: dict[str, Trend] = {}  # by node
        self.heard: dict[str, NodeReport] = {}  # of other nodes
        self.sampled_at = float("-inf")
        self.changes = 0  # of the state, that were seen
        self._loop = loop
        self._watchers: set[Watcher] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._flusher: asyncio.TimerHandle | None = None
        self._guarded = Defects().guarded

    def adopt(self) -> None:
        """Take over what earlier daemons left: at the start, before anything can end."""
        self.changed()
        self._guarded(self.tracker.end_what_was_left)

    def changed(self) -> None:
        """The state has changed: jobs may have come or gone."""
        self.changes += 1
        self._guarded(self._update)
        if self.tracker.waiting and self._flusher is None:
            self._flusher = self._loop.call_later(FLUSH_S, self._flush)
        self._plan()

    def take(self, node: str, metrics: NodeMetrics) -> None:
        """Metrics of another node; they may be anything."""
        health = Health(_ratio(metrics.cpu), _ratio(metrics.memory_used), metrics.swapping)
        self.heard[node] = NodeReport(health, self._loop.time())
        self._guarded(lambda: self.tracker.take(node, metrics))

    @contextlib.contextmanager
    def watching(self, every_s: float) -> Iterator[asyncio.Event]:
        """An event that is set for every sample that is due: at once, then every `every_s`."""
        watcher = Watcher(every_s, self._loop.time())
        self._watchers.add(watcher)
        if self.age_s < LEAST_S:
            self._serve(watcher, self.sampled_at)
        self._plan()
        try:
            yield watcher.bell
        finally:
            self._watchers.discard(watcher)
            self._plan()

    @property
    def now(self) -> float:
        return self._loop.time()

    @property
    def age_s(self) -> float:
        return self.now - self.sampled_at

    def refresh(self) -> None:
        """Make sure that what is known is not older than a second."""
        if self.age_s > EVERY_S + LEAST_S:
            self._tick()

    def close(self) -> None:
        for timer in (self._timer, self._flusher):
            if timer is not None:
                timer.cancel()
        self._guarded(self.tracker.close)

    # ---- the timer

    def _plan(self) -> None:
        due = [watcher.due for watcher in self._watchers]
        if self.tracker.live:
            due.append(self.sampled_at + EVERY_S)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due:
            at = max(min(due), self.sampled_at + LEAST_S)
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self.sampled_at = self._loop.time()
        self._guarded(self._sample)
        for watcher in self._watchers:
            if watcher.due <= self.sampled_at + EARLY_S:
                self._serve(watcher, self.sampled_at)
        self._plan()

    def _serve(self, watcher: Watcher, at: float) -> None:
        watcher.due = at + watcher.every_s
        watcher.bell.set()

    def _sample(self) -> None:
        news = self.tracker.sample()
        self.machine.look()
        attempts = [followed.attempt_metrics for followed in self.tracker.live.values()]
        working = {node for attempt in attempts for node, _ in attempt.fresh.values()}
        for node in [node for node in self.trends if node not in working]:
            del self.trends[node]
        for node in news:
            self.trends.setdefault(node, Trend()).take(node_rates(node, attempts))

    def _update(self) -> None:
        state = self.controller.state
        self.tracker.update(state)
        self.heard = {node: heard for node, heard in self.heard.items() if node in state.nodes}

    def _flush(self) -> None:
        self._flusher = None
        self._guarded(self.tracker.flush)


def _ratio(value: float | None) -> float | None:
    """A ratio from 0 to 1, as another node says it; None for anything else."""
    return value if value is not None and math.isfinite(value) and 0 <= value <= 1 else None
