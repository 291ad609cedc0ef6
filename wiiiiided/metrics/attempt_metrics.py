"""Metrics of one attempt: everything that follows from its samples, kept while it runs.

    {node: [RankSample, …]} ──take──► meters (rates) ── straggler ── pace (ETA) ── recorder
                                          └──────────► now() → JobNow      record() → RunRecord

Samples come by node, each with its own clock: rates are of one rank, so clocks never mix. `at` is
the clock of the daemon that puts them together.

A rank of which nothing has come for STALE_S is stale: what it did then is not what it does now, so
it has no rates, is no straggler and adds nothing to the job's. Its step and its loss stay as they
were while no other rank has newer ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wiiiiided.domain.metrics import JobNow, RankNow, RankSample, Rates, RunRecord
from wiiiiided.metrics.eta import Pace
from wiiiiided.metrics.rates import RateMeter, in_step, metrics_of, together, total_of
from wiiiiided.metrics.run_record import Recorder
from wiiiiided.metrics.step_spread import StepsFinder
from wiiiiided.metrics.straggler import StragglerFinder, StragglerVerdict

STALE_S: Final = 5.0  # a node with ranks says how they are once a second

Samples = Mapping[str, Sequence[RankSample]]
Ranks = dict[int, tuple[str, RankSample]]  # rank → its node, its latest sample


def measured(ranks: Ranks) -> Ranks:
    """The ranks whose waiting is known: a group of this backend counts it."""
    return {rank: found for rank, found in ranks.items() if found[1].measured}


class AttemptMetrics:
    """`began` is when the attempt did, by the clock of `at`; `record` may be of an earlier daemon,
    or empty."""

    def __init__(self, record: RunRecord, began: float, at: float) -> None:
        self.id, self.attempt, self.name = record.job, record.attempt, record.name
        self.workers = record.workers
        self.began = began
        self.written_until = began + max((point.at for point in record.points), default=0.0)
        self.ranks: Ranks = {}
        self.fresh: Ranks = {}  # the ranks of which something has come lately
        self.at = at
        self._came: dict[int, float] = {}  # rank → when its latest sample came
        self._meters: dict[int, RateMeter] = {}
        self._rates: dict[int, Rates] = {}  # of the fresh ranks that have any
        self._finder = StragglerFinder()
        self._steps = StepsFinder()
        self._pace = Pace()
        self._recorder = Recorder(record, at - began)
        self.record = self._recorder.record

    def begin(self, at: float, sample: RankSample, seen: bool = True) -> None:
        """Take a rank that had counted nothing yet. If that was `seen`, and not found out later,
        its rates now are counted from there as well."""
        if seen:
            self._meter(sample.rank).take(sample)
        self._recorder.begin(at - self.began, sample)

    def take(self, at: float, samples: Samples) -> None:
        """Take the samples; ranks without a new sample stay as they are."""
        ranks = dict(self.ranks)
        for node, found in samples.items():
            for sample in found:
                self._meter(sample.rank).take(sample)
                self._came[sample.rank] = at
                ranks[sample.rank] = (node, sample)
        self.at, self.ranks = at, ranks
        self.fresh = {r: found for r, found in ranks.items() if at - self._came[r] <= STALE_S}
        self._rates = self._fresh_rates()
        late = self._finder.take(at, measured(self.fresh)).straggler
        self._steps.take(at, self.fresh)
        self._pace.take(at, self.step)
        self._recorder.take(at - self.began, self.fresh, late.rank if late is not None else None)

    @property
    def verdict(self) -> StragglerVerdict:
        """Which rank is the straggler, or why none is."""
        return self._finder.verdict

    @property
    def apart(self) -> str | None:
        """Which ranks train at other steps than the first, a sentence; empty: none do; None: that
        cannot be told yet."""
        return self._steps.why

    @property
    def step(self) -> int | None:
        """The step of the rank that is least far."""
        return min((s.step for s in self._latest() if s.step is not None), default=None)

    @property
    def total(self) -> int | None:
        """The number of steps there will be."""
        return max((s.total for s in self._latest() if s.total is not None), default=None)

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step; None when that cannot be said."""
        return self._pace.left_s(self.at, self.total)

    def rates(self, node: str | None = None) -> list[Rates]:
        """The rates of each rank that has any, on one node or on all."""
        return [rates for rank, rates in self._rates.items() if node in (None, self.fresh[rank][0])]

    def uses(self) -> tuple[float | None, int | None]:
        """Cores and bytes of memory, all ranks together."""
        samples = self._latest()
        return total_of(one.cpu for one in samples), total_of(one.memory for one in samples)

    def now(self) -> JobNow:
        samples = self._latest()
        losses = [sample.loss for sample in samples if sample.loss is not None]
        cpu, memory = self.uses()
        return JobNow(
            id=self.id,
            rates=together(self.rates()),
            step=self.step,
            total=self.total,
            loss=sum(losses) / len(losses) if losses else None,
            diverged=any(sample.diverged for sample in samples),
            eta_s=self.left_s,
            memory=memory,
            cpu=cpu,
            metrics=metrics_of(samples),
            straggler=self.verdict.straggler,
            turns=self.verdict.why if self.verdict.turns else "",
            ranks=tuple(self._rank(rank) for rank in sorted(self.ranks)),
        )

    def _fresh_rates(self) -> dict[int, Rates]:
        found = {r: rates for r in self.fresh if (rates := self._meter(r).rates) is not None}
        samples = {rank: self.fresh[rank][1] for rank in found}
        if any(sample.training.own_steps for sample in samples.values()):
            return found
        return in_step(found, {r: one.step for r, one in samples.items() if one.step is not None})

    def _meter(self, rank: int) -> RateMeter:
        return self._meters.setdefault(rank, RateMeter())

    def _latest(self) -> list[RankSample]:
        """The samples known now; where there are none, the last ones."""
        return [sample for _, sample in (self.fresh or self.ranks).values()]

    def _rank(self, rank: int) -> RankNow:
        node, sample = self.ranks[rank]
        return RankNow(
            rank=rank,
            node=node,
            rates=self._rates.get(rank, Rates(measured=False)),
            step=sample.step,
            loss=sample.loss,
            diverged=sample.diverged,
            memory=sample.memory,
            cpu=sample.cpu if rank in self.fresh else None,
            metrics=sample.metrics,
            codec=sample.codec,
            codec_why=sample.codec_why,
            waits_for=self._meter(rank).waits_for if rank in self.fresh else None,
            training=sample.training,
        )
