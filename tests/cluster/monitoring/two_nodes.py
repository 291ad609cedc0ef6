"""A job on two nodes without a network: a coordinator's courses, a member's reader and pusher.

a (coordinator)   ranks 0 1      tracker ◄──take── NodeMetrics as bytes and back
b (member)        ranks 2 3      Reader ──► MetricsPusher ┘  its clock is far ahead
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.cluster.control.world import World, spec
from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.stats import StatsPage
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import AttemptKey, Job
from wiiiiided.cluster.monitoring.attempt_tracker import AttemptTracker
from wiiiiided.cluster.monitoring.metrics_pusher import MetricsPusher
from wiiiiided.cluster.monitoring.rank_stats import RankStatsReader
from wiiiiided.cluster.monitoring.stats_pages import StatsPageReader
from wiiiiided.cluster.peering.messages import MetricsUpdate, decode_from_member, encode
from wiiiiided.cluster.peering.metrics_codec import NodeMetrics
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.domain.metrics import RunRecord
from wiiiiided.domain.node import Node
from wiiiiided.metrics.snapshot import Health

DAY = 1_800_000_000.0  # the clock's difference to monotonic time
AHEAD = 500_000.0  # of b's monotonic clock
RANKS = {"a": (0, 1), "b": (2, 3)}


class TwoNodes:
    """A job of four ranks on two nodes; the test moves it, and the clocks, by hand."""

    def __init__(self, root: Path, policy: Any = None) -> None:
        self.now = 1000.0
        self.world = World(*(Node(name, 4, 8 << 30) for name in RANKS))
        self.world.now = self.now + DAY
        resources = {"nodes": (2, 2), "workers_per_node": 2}
        self.job = self.world.submit(spec("digits", resources=resources, policy=policy))
        self.store = StateStore(root / "state")
        self.job_dirs = {name: JobDirs(root / name, JobAccount.this()) for name in RANKS}
        self.shims: dict[AttemptKey, Any] = {(self.job, 1): SimpleNamespace(ranks=[], over=set())}
        self.report: Callable[[Any], None] = lambda event: None  # the coordinator's
        self.tracker = self.new_coordinator()
        self.following: dict[AttemptKey, Job] = {}
        self.sent: list[NodeMetrics] = []
        self.hung: list[e.ProgressSampled] = []
        self.linked = True
        self.reader = RankStatsReader(
            "b",
            StatsPageReader(self.job_dirs["b"], lambda: self.now + AHEAD, lambda: self.now + DAY),
            self.shims,
            self.hung.append,
            *(lambda: self.now + AHEAD, lambda: self.now + DAY),
        )
        machine: Any = SimpleNamespace(look=lambda: Health(0.51234, 0.25, False))
        loop: Any = SimpleNamespace(time=lambda: self.now)
        self.pusher = MetricsPusher(self.reader, lambda: self.following, machine, loop, self._send)
        self.pages: dict[int, StatsPage] = {}
        for name in RANKS:
            self.job_dirs[name].make(self.job, 1)
            prepared = e.WorkersPrepared(self.world.now, self.job, 1, name, "3.11.7", "2.13.0", "1")
            self.world.feed(prepared)
        self.following[self.job, 1] = self.world.job(self.job)  # as it was when b was told
        self.world.started_on(self.job)
        self.tracker.update(self.world.state)

    def new_coordinator(self) -> AttemptTracker:
        pages = StatsPageReader(self.job_dirs["a"], lambda: self.now, lambda: self.now + DAY)
        times = (lambda: self.now, lambda: self.now + DAY)
        report: Callable[[Any], None] = lambda event: self.report(event)  # noqa: E731
        reader = RankStatsReader("a", pages, self.shims, report, *times)
        return AttemptTracker(reader, self.store.records, self.world.last.get, report, *times)

    def _send(self, metrics: NodeMetrics) -> None:
        """Through bytes, as over the link."""
        message = decode_from_member(encode(MetricsUpdate(metrics)))
        assert isinstance(message, MetricsUpdate)
        self.sent.append(message.metrics)
        if self.linked:
            self.tracker.take("b", message.metrics)

    def begin(self) -> None:
        for name, ranks in RANKS.items():
            for rank in ranks:
                path = self.job_dirs[name].attempt(self.job, 1) / f"stats-{rank}"
                path.touch()
                page = self.pages[rank] = StatsPage(str(path))
                page.words[3] = int((self.now + DAY) * 1e9)
                page.words[stats.WORLD] = 4

    def count(self, rank: int, waits: float = 0.5) -> None:
        """Ten operations and a step in a second, so much of it waiting."""
        page = self.pages[rank]
        page.words[stats.OPERATIONS] += 10
        page.words[stats.WAITING_NS] += int(waits * 1e9)
        page.say(page.words[stats.OPERATIONS] // 10, 1000, 0.5, 32)
        clock = self.now + (AHEAD if rank in RANKS["b"] else 0.0)
        page.words[stats.SAID_NS] = int(clock * 1e9)  # not by the clock of the machine

    def work(self, seconds: int, late: int = 2, silent: tuple[int, ...] = ()) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for rank in self.pages:
                if rank not in silent:
                    self.count(rank, 0.0 if rank == late else 0.5)
            self.push()
            self.tracker.sample()

    def push(self) -> None:
        self.pusher._push(self.reader.look(self.following))

    def end(self) -> RunRecord:
        self.world.now = self.now + DAY
        for name in RANKS:
            if name == "b":
                self.pusher.last(self.job, 1)
                self.following.clear()
            self.world.ended_on(self.job, name)
            self.tracker.update(self.world.state)
        found = self.tracker.latest(self.job)
        assert found is not None
        return found

    def close(self) -> None:
        self.store.close()


class Clock:
    """A loop of which a test moves the time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.due: tuple[float, Any] | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Any) -> Any:
        self.due = (when, call)
        return SimpleNamespace(cancel=self._cancel)

    def _cancel(self) -> None:
        self.due = None

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.due is not None and self.due[0] <= end:
            (self.now, call), self.due = self.due, None
            call()
        self.now = end

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        return self  # type: ignore[return-value]
