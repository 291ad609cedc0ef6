"""The record of a run, sample by sample: points over time, and every rank's totals.

    samples   s s s s s s s s s s s s        4 a second at most
    stretch   ├─────────┤─────────┤──        open until it is `grain_s` long and something ended;
    points         o         o               where steps are said, one of every rank that works

Of the stretch that is open when a record is made, what did not happen in it is not known: the last
moments of a run, after its last step, are no rate of 0.

A record goes on from what an earlier daemon wrote. The ranks have counted on meanwhile, so what was
lost, or never looked at, is one stretch with the mean of it: it reaches back to the last point that
was written. `observed_s` says for how long a daemon looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from wiiiiided.domain.metrics import Point, RankRecord, RankSample, Rates, RunRecord
from wiiiiided.metrics.point_history import PointHistory
from wiiiiided.metrics.rates import between, fell, metrics_of, moved, together, total_of

IDLE_S: Final = 60.0  # a stretch in which nothing ends is closed after this long
SILENT_S: Final = 5.0  # the same for ranks that count and report nothing: memory and CPU are seen
TOGETHER_S: Final = 10.0  # for all ranks of an earlier daemon to be heard again, in one point

Ranks = Mapping[int, tuple[str, RankSample]]  # rank → its node, its sample


class Recorder:
    """Makes the record of one attempt. Times are seconds since the attempt began."""

    def __init__(self, record: RunRecord, at: float) -> None:
        self._record = record  # without points and ranks, which are below
        self._history = PointHistory(record.points)
        self._ranks = {rank.rank: rank for rank in record.ranks}
        self._earlier = {rank.rank: rank.totals for rank in record.ranks}
        self._together_by = at + TOGETHER_S
        self._looked_at = at
        self._since = at  # where the open stretch begins
        self._base: dict[int, RankSample] = {}  # each rank at that moment
        self._last: Ranks = {}
        self._stragglers: dict[int | None, float] = {}  # seconds of the stretch

    def begin(self, at: float, sample: RankSample) -> None:
        """Take a rank whose beginning is known: it had counted nothing at `at`."""
        if (old := self._earlier.get(sample.rank)) is not None and old.pid == sample.pid:
            return  # it is known from later on
        if not self._base:
            self._since = self._written or at
        self._base.setdefault(sample.rank, sample)

    def take(self, at: float, ranks: Ranks, straggler: int | None) -> None:
        passed = max(0.0, at - self._looked_at)
        self._looked_at = at
        self._record = replace(self._record, observed_s=self._record.observed_s + passed)
        if not ranks:
            return
        for rank, (node, sample) in ranks.items():
            self._ranks[rank] = self._rank(node, sample, passed if rank == straggler else 0.0)
        self._last = ranks
        went_on = {rank: self._went_on(sample) for rank, (_, sample) in ranks.items()}
        if not self._base:
            passed_s = max(sample.at - went_on[rank].at for rank, (_, sample) in ranks.items())
            self._since = (self._written or at - passed_s) if passed_s else at
        self._base = went_on | self._base
        self._stragglers[straggler] = self._stragglers.get(straggler, 0.0) + passed
        if self._is_whole(at):
            self._close(at)

    def record(
        self,
        *,
        ended_at: float | None = None,
        state: str = "",
        code: int | None = None,
        reason: str = "",
    ) -> RunRecord:
        """The record as it is now; or as it stays, with its end."""
        point = self._open_point()
        return replace(
            self._record,
            ended_at=ended_at,
            state=state,
            code=code,
            reason=reason,
            points=(*self._history.points, *([point] if point is not None else [])),
            ranks=tuple(self._ranks[rank] for rank in sorted(self._ranks)),
        )

    def _rank(self, node: str, sample: RankSample, late_s: float) -> RankRecord:
        old = self._ranks.get(sample.rank)
        peaks = (sample.memory, old.memory_peak if old is not None else None)
        return RankRecord(
            rank=sample.rank,
            node=node,
            totals=sample,
            memory_peak=max((peak for peak in peaks if peak is not None), default=None),
            straggled_s=late_s + (old.straggled_s if old is not None else 0.0),
        )

    @property
    def _written(self) -> float:
        """The moment up to which an earlier daemon wrote points; 0: none did."""
        points = self._history.points if self._earlier else []
        return points[-1].at if points else 0.0

    def _went_on(self, sample: RankSample) -> RankSample:
        """The rank as an earlier daemon saw it last; the sample itself where none did."""
        old = self._earlier.get(sample.rank)
        if old is None or old.pid != sample.pid or old.at >= sample.at or fell(old, sample):
            return sample
        return old

    def _is_whole(self, at: float) -> bool:
        span = at - self._since
        if span < self._history.grain_s:
            return False
        if at < self._together_by and not self._earlier.keys() <= self._last.keys():
            return False
        samples = [sample for _, sample in self._last.values()]
        silent = not any(sample.measured or sample.step is not None for sample in samples)
        longest = SILENT_S if silent else IDLE_S
        return span >= max(longest, self._history.grain_s) or self._has_ended()

    def _has_ended(self) -> bool:
        """Whether an operation ended in the open stretch; for ranks that report steps, a step."""
        pairs = [(self._base[rank], sample) for rank, (_, sample) in self._last.items()]
        working = [(old, new) for old, new in pairs if moved(old, new)]
        return bool(working) and all(
            new.step is None or new.step != old.step for old, new in working
        )

    def _close(self, at: float) -> None:
        if (point := self._point(at)) is not None:
            self._history.add(point)
        self._since = at
        self._base = {rank: sample for rank, (_, sample) in self._last.items()}
        self._stragglers = {}
        self._earlier = {}

    def _open_point(self) -> Point | None:
        """The open stretch as a point; without rates while it is less than half a grain long."""
        point = self._point(self._looked_at)
        if point is None or self._is_whole(self._looked_at):
            return point
        if not self._has_ended() or (
            self._history.points and 2 * point.span < self._history.grain_s
        ):
            return replace(point, rates=Rates(measured=False))
        return point

    def _point(self, at: float) -> Point | None:
        """The open stretch as a point."""
        if at <= self._since or not self._last:
            return None
        samples = [sample for _, sample in self._last.values()]
        steps = [sample.step for sample in samples if sample.step is not None]
        losses = [sample.loss for sample in samples if sample.loss is not None]
        spent = self._stragglers
        return Point(
            at=at,
            span=at - self._since,
            rates=together([between(self._base[sample.rank], sample) for sample in samples]),
            step=min(steps, default=None),
            loss=sum(losses) / len(losses) if losses else None,
            memory=total_of(sample.memory for sample in samples),
            cpu=total_of(sample.cpu for sample in samples),
            metrics=metrics_of(samples),
            straggler=max(spent, key=lambda rank: spent[rank], default=None),
        )
