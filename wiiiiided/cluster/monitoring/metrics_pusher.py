"""A member's metrics on their way to the coordinator: read here, packed, sent, and forgotten.

    jobs on this node     │ p p p p p p p p p p      EVERY_S
    none                  │ p         p              IDLE_S: how the machine is, and that it is
    an allocation ends    │       p                  at once, before the news of its end

Nothing here waits: where there is no link, `send` drops what it gets, and the next metrics
are whole again. Looking goes on meanwhile, since a hang is noticed here. A rank's codec is
said of one rank in a message, first of those where it has changed: it is long and changes seldom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from wiiiiided.cluster.control.job import AttemptKey, Job
from wiiiiided.cluster.monitoring.defects import Defects
from wiiiiided.cluster.monitoring.host_stats import HostStats
from wiiiiided.cluster.monitoring.rank_stats import AttemptReading, RankStatsReader
from wiiiiided.cluster.peering.metrics_codec import METRIC_RANKS, NodeMetrics, PackedMetrics, pack
from wiiiiided.domain.metrics import Metrics

EVERY_S: Final = 1.0
IDLE_S: Final = 5.0
WHY_BYTES: Final = 180  # of a codec's reason, as it travels

CodecChoice = tuple[str, str]  # its name, why
RankKey = tuple[AttemptKey, int]


class MetricsPusher:
    """Sends this node's metrics to the coordinator, from `start` until `close`. Call `changed` when
    jobs have come to this node or gone; `following` are those that are here."""

    def __init__(
        self,
        reader: RankStatsReader,
        following: Callable[[], Mapping[AttemptKey, Job]],
        machine: HostStats,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[NodeMetrics], None],
    ) -> None:
        self.reader = reader
        self.following = following
        self.machine = machine
        self.send = send
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._pushed_at = float("-inf")
        self._told: dict[RankKey, CodecChoice] = {}  # the one told last at the end
        self._turn = 0  # the rank with the next metrics
        self._guarded = Defects().guarded

    def start(self) -> None:
        """Begin, also when a new link stands: its coordinator has heard nothing yet."""
        self._told.clear()
        self._pushed_at = float("-inf")
        self._plan()

    def changed(self) -> None:
        if self._timer is not None:
            self._plan()

    def last(self, job: int, attempt: int) -> None:
        """An allocation has ended: its last metrics, before the report of its end."""
        self._guarded(lambda: self._push([self.reader.last(job, attempt)]))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        every_s = EVERY_S if self.following() else IDLE_S
        at = max(self._loop.time(), self._pushed_at + every_s)
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._pushed_at = self._loop.time()
        self._guarded(lambda: self._push(self.reader.look(self.following())))
        self._plan()

    def _push(self, looks: list[AttemptReading]) -> None:
        health, at = self.machine.look(), round(self.reader.monotonic(), 3)
        codec = self._codec(looks)
        metrics = self._metrics(looks)
        attempts = tuple(
            PackedMetrics(
                *look.key,
                pack(at, look.observed),
                codec[1] if codec is not None and codec[0] == look.key else None,
                metrics.get(look.key, {}),
            )
            for look in looks
            if look.readings
        )
        cpu, memory = (_rounded(ratio) for ratio in (health.cpu, health.memory_used))
        self.send(NodeMetrics(at, cpu, memory, health.swapping, attempts))

    def _metrics(self, looks: Iterable[AttemptReading]) -> dict[AttemptKey, dict[int, Metrics]]:
        """Metrics reported by name, of a few ranks: the others are told in the next messages."""
        said = [(look.key, one.sample) for look in looks for one in look.observed]
        said = [(key, sample) for key, sample in said if sample.metrics]
        first = self._turn if self._turn < len(said) else 0
        self._turn = first + METRIC_RANKS
        found: dict[AttemptKey, dict[int, Metrics]] = {}
        for key, sample in said[first : first + METRIC_RANKS]:
            found.setdefault(key, {})[sample.rank] = sample.metrics
        return found

    def _codec(
        self, looks: Iterable[AttemptReading]
    ) -> tuple[AttemptKey, tuple[int, str, str]] | None:
        """The codec said now: one that has changed, else the one said longest ago."""
        now: dict[RankKey, CodecChoice] = {
            (look.key, one.sample.rank): (one.sample.codec, _cut(one.sample.codec_why))
            for look in looks
            for one in look.observed
        }
        self._told = {rank: codec for rank, codec in self._told.items() if rank in now}
        news = (rank for rank, codec in now.items() if self._told.get(rank, ("", "")) != codec)
        chosen = next(news, None) or next(iter(self._told), None)
        if chosen is None:
            return None
        self._told.pop(chosen, None)
        self._told[chosen] = now[chosen]
        return chosen[0], (chosen[1], *now[chosen])


def _cut(text: str) -> str:
    return text.encode()[:WHY_BYTES].decode(errors="ignore")


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)
