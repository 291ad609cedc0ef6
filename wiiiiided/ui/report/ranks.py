"""Where the time of each rank and each node went, and what each of them did: pure sums.

    ├──────────── length of the attempt ────────────┤
    │ compute, and all the rest │ exchange │ waiting │     exchange_s holds both of the last

The counters run while no daemon looks, so they stand against the whole attempt, not against the
stretches that were observed. Start-up and reading of data are in "compute": no counter tells them
apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from wiiiiided.domain.metrics import Metrics, RankRecord, RunRecord
from wiiiiided.metrics.rates import metrics_of as means
from wiiiiided.metrics.rates import total_of
from wiiiiided.ui.report.run_history import length_of

RANKS = 256  # bars and rows of one attempt; --json has them all


@dataclass(frozen=True)
class Split:
    """Seconds of compute and the rest, of exchange, of waiting for peers."""

    compute: float
    exchange: float
    waiting: float

    @property
    def shares(self) -> tuple[float, float, float]:
        whole = self.compute + self.exchange + self.waiting
        parts = (self.compute, self.exchange, self.waiting)
        return (1.0, 0.0, 0.0) if whole <= 0 else tuple(part / whole for part in parts)  # type: ignore[return-value]


@dataclass(frozen=True)
class Spread:
    """The ranks of a node together: the least, the mean, the most."""

    low: float
    mean: float
    high: float

    @property
    def share(self) -> float:
        """How far apart they are, against the mean."""
        return (self.high - self.low) / self.mean if self.mean else 0.0


@dataclass(frozen=True)
class NodeSum:
    """The ranks of one node together."""

    name: str
    ranks: int
    split: Split | None  # mean of its ranks that are measured; None: none of them is
    raw: int  # bytes sent to other hosts, before the codec
    wire: int  # as they travelled, headers included
    samples: int | None
    steps: Spread | None
    operations: Spread


def measured(run: RunRecord) -> tuple[RankRecord, ...]:
    """The ranks whose counters say something: those with a group of the backend."""
    return tuple(rank for rank in run.ranks if rank.totals.measured)


def is_measured(run: RunRecord) -> bool:
    """Whether anything is known of the attempt's exchange; without ranks, its points tell."""
    if run.ranks:
        return bool(measured(run))
    return not run.points or any(point.rates.measured for point in run.points)


def split_of(rank: RankRecord, length: float) -> Split:
    """Where the time of a rank went that is measured."""
    exchange = rank.totals.exchange_s
    waiting = min(rank.totals.waiting_s, exchange)
    return Split(max(length - exchange, 0.0), exchange - waiting, waiting)


def nodes_of(run: RunRecord) -> tuple[NodeSum, ...]:
    """The sums of each node, in the order of the ranks."""
    length = length_of(run)
    names = dict.fromkeys(rank.node for rank in run.ranks)
    return tuple(_node(name, [r for r in run.ranks if r.node == name], length) for name in names)


def _node(name: str, ranks: list[RankRecord], length: float) -> NodeSum:
    return NodeSum(
        name=name,
        ranks=len(ranks),
        split=mean_split([split_of(rank, length) for rank in ranks if rank.totals.measured]),
        raw=sum(r.totals.wire_out_raw for r in ranks),
        wire=sum(r.totals.wire_out for r in ranks),
        samples=total_of(r.totals.samples for r in ranks),
        steps=spread([r.totals.step for r in ranks]),
        operations=spread([operations_of(r) for r in ranks]) or Spread(0, 0, 0),
    )


def mean_split(splits: list[Split]) -> Split | None:
    many = len(splits)
    if not many:
        return None
    return Split(
        sum(s.compute for s in splits) / many,
        sum(s.exchange for s in splits) / many,
        sum(s.waiting for s in splits) / many,
    )


def spread(values: list[int | None]) -> Spread | None:
    some = [value for value in values if value is not None]
    return Spread(min(some), sum(some) / len(some), max(some)) if some else None


def waits_most_for(rank: RankRecord) -> tuple[int, float] | None:
    """The peer it waited for longest, and for how many seconds."""
    waits = {p: s for p, s in rank.totals.waited_for.items() if s > 0}
    return max(waits.items(), key=lambda wait: wait[1]) if waits else None


def waited_for(run: RunRecord, slow: int) -> float | None:
    """For how long the other ranks waited for this one, in the mean; None where none says so."""
    others = [rank.totals for rank in measured(run) if rank.rank != slow]
    waits = [totals.waited_for.get(slow, 0.0) for totals in others]
    return sum(waits) / len(waits) if any(wait > 0 for wait in waits) else None


def operations_of(rank: RankRecord) -> int | None:
    return rank.totals.operations if rank.totals.measured else None


def steps_of(run: RunRecord) -> int | None:
    """The step of the rank that is least far."""
    said = [rank.totals.step for rank in run.ranks if rank.totals.step is not None]
    return min(said) if said else None


def total_steps_of(run: RunRecord) -> int | None:
    said = [rank.totals.total for rank in run.ranks if rank.totals.total is not None]
    return max(said) if said else None


def samples_of(run: RunRecord) -> int | None:
    return total_of(rank.totals.samples for rank in run.ranks)


def loss_of(run: RunRecord) -> float | None:
    """The mean of the ranks' last losses; without any, the last that was seen in a point. Of a rank
    that diverged, the last finite one counts."""
    said = [loss for rank in run.ranks if (loss := rank.totals.loss) is not None]
    if said:
        return sum(said) / len(said)
    return next((p.loss for p in reversed(run.points) if p.loss is not None), None)


def diverged(run: RunRecord) -> bool:
    """Whether the loss that some rank said last is not a finite number."""
    return any(rank.totals.diverged for rank in run.ranks)


def memory_of(run: RunRecord) -> int | None:
    """The most bytes of memory that any rank had."""
    peaks = [rank.memory_peak for rank in run.ranks if rank.memory_peak is not None]
    return max(peaks) if peaks else None


def cpu_of(run: RunRecord) -> float | None:
    """The cores in use in the mean, all ranks together."""
    spent = [rank.totals.cpu_s for rank in run.ranks if rank.totals.cpu_s is not None]
    length = length_of(run)
    return sum(spent) / length if spent and length > 0 else None


def metrics_of(run: RunRecord) -> Metrics:
    """The means of the metrics that ranks reported last, by name."""
    return means(rank.totals for rank in run.ranks)


def codecs_of(run: RunRecord) -> tuple[tuple[str, str], ...]:
    """Each codec that was in use between hosts, with the reason of the first rank that had it."""
    said = {r.totals.codec: r.totals.codec_why for r in reversed(run.ranks) if r.totals.codec}
    return tuple(said.items())[::-1][:8]
