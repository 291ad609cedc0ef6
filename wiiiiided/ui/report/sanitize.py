"""Records as they come, made fit for arithmetic: the one place that mistrusts numbers.

The daemon checks what it reads from a rank's page, but clocks are set, disks fail and versions
differ. A number that cannot be (a negative count, an infinite rate, an attempt of 30 years) becomes
unknown where that can be said, else 0. So do the counters of a process without a group of the
backend: they say nothing, whatever stands in them. Everything behind this can add, divide and take
logarithms.
"""

from __future__ import annotations

from msgspec.structs import replace

from wiiiiided import text
from wiiiiided.cluster.rpc.messages import JobRecords
from wiiiiided.domain.metrics import (
    METRICS,
    Metrics,
    Point,
    RankRecord,
    RankSample,
    Rates,
    RunRecord,
    TrainingMetrics,
)
from wiiiiided.ui.report.formats import LATEST, known

MOST_CORES = 1 << 20
NAME = 32  # characters of a metric's name
LONGEST_S = 1e9  # 30 years: no attempt, and no stretch of one, is longer
_COUNTS = (
    "operations",
    "failed",
    "shm_bytes",
    "wire_out",
    "wire_in",
    "wire_out_raw",
    "wire_in_raw",
)
_SECONDS = ("exchange_s", "waiting_s", "encode_s", "decode_s")
_NUMBERS = tuple(name for name in Rates.__struct_fields__ if name != "measured")
_SAID = ("step", "total", "samples", "memory")


def sanitized(records: JobRecords) -> JobRecords:
    return replace(records, runs=tuple(map(sanitized_run, records.runs)))


def sanitized_run(run: RunRecord) -> RunRecord:
    started, ended = _moment(run.started_at), _moment(run.ended_at)
    if ended is not None and (started is None or not 0 <= ended - started < LONGEST_S):
        ended = None
    return replace(
        run,
        workers=max(run.workers, 0),
        started_at=started or 0.0,
        ended_at=ended,
        observed_s=_seconds(run.observed_s),
        points=tuple(_point(point) for point in run.points),
        ranks=tuple(_rank(rank) for rank in run.ranks),
    )


def _point(point: Point) -> Point:
    return replace(
        point,
        at=_seconds(point.at),
        span=_seconds(point.span),
        rates=_rates(point.rates),
        step=_count(point.step),
        loss=known(point.loss),
        memory=_count(point.memory),
        straggler=point.straggler if point.rates.measured else None,
        cpu=_cores(point.cpu),
        metrics=_metrics(point.metrics),
    )


def _rates(rates: Rates) -> Rates:
    names = _NUMBERS if rates.measured else ("steps", "samples")
    values = {name: known(getattr(rates, name)) for name in names}
    return Rates(
        **{name: value for name, value in values.items() if value is not None and value >= 0},
        measured=bool(rates.measured),
    )


def _rank(rank: RankRecord) -> RankRecord:
    return replace(
        rank,
        totals=_sample(rank.totals),
        memory_peak=_count(rank.memory_peak),
        straggled_s=_seconds(rank.straggled_s) if rank.totals.measured else 0.0,
    )


def _sample(sample: RankSample) -> RankSample:
    said = {name: _count(getattr(sample, name)) for name in _SAID}
    if not sample.measured:
        nothing = dict.fromkeys((*_COUNTS, *_SECONDS), 0)
        sample = replace(sample, **nothing, waited_for={}, codec="", codec_why="")
    return replace(
        sample,
        **{name: _count(getattr(sample, name)) or 0 for name in _COUNTS},
        **{name: _seconds(getattr(sample, name)) for name in _SECONDS},
        **said,
        waited_for={peer: _seconds(waited) for peer, waited in sample.waited_for.items()},
        loss=known(sample.loss),
        cpu=_cores(sample.cpu),
        cpu_s=None if sample.cpu_s is None else _seconds(sample.cpu_s),
        metrics=_metrics(sample.metrics),
        training=_training(sample.training),
    )


def _training(told: TrainingMetrics) -> TrainingMetrics:
    names = (name for name in told.__struct_fields__ if name != "own_steps")
    values = {name: known(getattr(told, name)) for name in names}
    found = {name: value for name, value in values.items() if value is not None and value > 0}
    return TrainingMetrics(**found, own_steps=told.own_steps)


def _metrics(said: Metrics) -> Metrics:
    some = list(said.items())[:METRICS]
    return {text.plain(name, NAME): known(value) for name, value in some}


def _cores(many: float | None) -> float | None:
    return many if many is not None and 0 <= many < MOST_CORES else None


def _count(many: int | None) -> int | None:
    return many if many is not None and 0 <= many < 1 << 63 else None


def _seconds(long: float) -> float:
    return long if 0 <= long < LONGEST_S else 0.0


def _moment(at: float | None) -> float | None:
    return at if at is not None and 0 <= at < LATEST else None
