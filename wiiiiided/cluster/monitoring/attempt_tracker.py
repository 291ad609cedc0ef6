"""The attempts that are being looked at, on whatever nodes, from their placement to their end.

    placed ──► begun: new metrics, or those that an earlier daemon wrote down
    take   ──► a node's samples wait for the next tick
    tick   ──► pages of this node read, metrics take all samples; written down now and then, every
               5 s at first, every minute later
    over   ──► pages read once more, the end written down

Other nodes' metrics are checked before they count: an attempt that is followed, ranks that sit on
that node, counters that do not fall. Others are dropped, with a line in the log once
an hour.

Changes of the state come by `update`, after they are stored; nothing here can keep one from
happening. A record that could not be written waits for its next turn, and goes at last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from wiiiiided.backend.shm.stats import METRIC_NAME, METRICS
from wiiiiided.cluster.control.events import StepsCompared
from wiiiiided.cluster.control.job import AttemptKey, Backoff, Ended, Job, Stopping
from wiiiiided.cluster.control.state import State
from wiiiiided.cluster.control.transitions import with_error, worst
from wiiiiided.cluster.monitoring.defects import Defects
from wiiiiided.cluster.monitoring.rank_stats import RankStatsReader, ranks_on
from wiiiiided.cluster.monitoring.stats_pages import CODEC_CHARS, WHY_CHARS
from wiiiiided.cluster.peering.metrics_codec import NodeMetrics, Observed, PackedMetrics, unpack
from wiiiiided.cluster.state.run_records import RunRecords
from wiiiiided.domain.metrics import Metrics, RankSample, RunRecord
from wiiiiided.log import about, logger
from wiiiiided.metrics.attempt_metrics import AttemptMetrics
from wiiiiided.metrics.rates import blank, fell
from wiiiiided.text import plain

FIRST_SAVED_S: Final = 2.0  # a daemon that is killed soon after leaves at least a trace
SAVED_EVERY_S: Final = 60.0  # an old run; a young one oftener
LEAST_EVERY_S: Final = 5.0
SAVED_SHARE: Final = 0.1  # of a run so far: what a killed daemon lost is a flat part of its charts
WAITING: Final = 1000  # records that could not be written and wait
SAID_EVERY_S: Final = 60.0  # about the straggler of one job
BORN_S: Final = 0.05  # before it was followed: two clocks differ by as much, a restart takes longer

# How an attempt ended that was not the job's last.
STOPPED: Final = {"requeue": "requeued", "hang": "hung", "node-left": "node-lost"}

REASON_CHARS: Final = 1000
NONSENSE_EVERY_S: Final = 3600.0  # between two lines that a node's metrics are dropped


class LatestSample(NamedTuple):
    """A rank's latest sample since the last tick."""

    node: str
    at: float  # when, by our own clock
    observed: Observed


@dataclass
class Followed:
    """One attempt, as long as anything of it may run."""

    job: Job
    attempt_metrics: AttemptMetrics
    since: float  # when it began to be followed
    due: float  # when it is written down next
    said: int | None = None  # the straggler that was told
    said_at: float = float("-inf")
    came: dict[int, LatestSample] = field(default_factory=dict)  # rank → its latest, not taken yet
    codecs: dict[int, tuple[str, str]] = field(default_factory=dict)  # of ranks elsewhere
    metrics: dict[int, Metrics] = field(default_factory=dict)  # of ranks elsewhere

    @property
    def key(self) -> AttemptKey:
        return self.attempt_metrics.id, self.attempt_metrics.attempt


class AttemptTracker:
    """`find` gives a job, over or not; `monotonic` and `clock` are the two kinds of time."""

    def __init__(
        self,
        reader: RankStatsReader,
        records: RunRecords,
        find: Callable[[int], Job | None],
        report: Callable[[StepsCompared], None],
        monotonic: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.node = reader.node
        self.live: dict[AttemptKey, Followed] = {}
        self.reader = reader
        self.report = report
        self._records = records
        self._find = find
        self._monotonic = monotonic
        self._clock = clock
        self._ended: list[RunRecord] = []  # not yet written
        self._nonsense: dict[str, float] = {}  # node → when it was said of it
        self._defects = Defects()

    # ---- what the state says

    def update(self, state: State) -> None:
        """Follow attempts that are new in the state, and end those that are no more in it."""
        there: dict[AttemptKey, Job] = {}
        for number in {number for claims in state.claims.values() for number in claims}:
            job = state.jobs[number]
            if job.attempt is not None:
                there[number, job.attempt.number] = job
        for key in [key for key in self.live if key not in there]:
            self._end(self.live.pop(key))
        for key in sorted(there):
            if key in self.live:
                self.live[key].job = there[key]
            else:
                self.live[key] = self._begin(there[key], self._records.attempt(*key))

    def _here(self) -> dict[AttemptKey, Job]:
        """The attempts of which something may run on this node."""
        return {
            key: followed.job
            for key, followed in self.live.items()
            if followed.job.attempt is not None and self.node in followed.job.attempt.live
        }

    def end_what_was_left(self) -> None:
        """End, at the start, the records of attempts that ended when no daemon was there to write
        it down."""
        for record in self._records.unfinished():
            job = self._find(record.job)
            if (record.job, record.attempt) not in self.live and job is not None:
                self._end(self._begin(job, record), seen=False)

    def _begin(self, job: Job, earlier: RunRecord | None) -> Followed:
        attempt = job.attempt
        assert attempt is not None
        record = earlier or RunRecord(
            job=job.id,
            name=job.spec.name,
            attempt=attempt.number,
            nodes=attempt.nodes,
            workers=attempt.layout.world_size,
            started_at=attempt.placed_at,
        )
        now = self._monotonic()
        # The clock may have been set back since: what comes now comes after what was written.
        age = max(0.0, self._clock() - record.started_at, *(p.at for p in record.points[-1:]))
        return Followed(job, AttemptMetrics(record, now - age, now), now, now + FIRST_SAVED_S)

    def _end(self, followed: Followed, seen: bool = True) -> None:
        now = self._clock() if seen else None
        job = self._find(followed.job.id)
        state, code, ended_at = how_it_ended(followed, job, now)
        reason = why_it_ended(followed, job)
        at, last = self._monotonic(), self._last(followed)
        if ended_at is not None and not followed.attempt_metrics.ranks:
            # It ended while no daemon looked: what it counted, it had counted by then.
            ago_s = max(0.0, self._clock() - ended_at)
            at = max(followed.attempt_metrics.written_until, at - ago_s)
            last = [_seen_at(one, min(one.sample.at, at)) for one in last]
        self._came(followed, self.node, last)
        self._take(followed, at)
        record = followed.attempt_metrics.record(
            ended_at=ended_at, state=state, code=code, reason=plain(reason, REASON_CHARS)
        )
        self._ended = [*self._ended, record][-WAITING:]

    def _last(self, followed: Followed) -> list[Observed]:
        """Read this node's ranks once more. Where they sat in an earlier attempt is not known any
        more, but each node has the pages of its own."""
        attempt, attempt_metrics = followed.job.attempt, followed.attempt_metrics
        same = attempt is not None and attempt.number == attempt_metrics.attempt
        ranks = ranks_on(self.node, attempt) if attempt and same else range(attempt_metrics.workers)
        return self.reader.last(*followed.key, ranks).observed

    # ---- sampling

    def sample(self) -> set[str]:
        """Look at every rank here, and take what came from elsewhere; nodes with anything new."""
        now = self._monotonic()
        looks = {look.key: look for look in self.reader.look(self._here())}
        found: set[str] = set()
        for key, followed in self.live.items():
            with self._defects.of(followed.job.id):
                if key in looks:
                    self._came(followed, self.node, looks[key].observed)
                found |= self._take(followed, now)
                self._tell(followed)
        for followed in list(self.live.values()):  # what is reported may change which there are
            self._compare(followed)
        self._save_due()
        return found

    def take(self, node: str, metrics: NodeMetrics) -> None:
        """Another node's samples, checked. One that does not belong is dropped."""
        try:
            for each in metrics.attempts:
                self._take_from(node, metrics.at, each)
        except ValueError as problem:
            now = self._monotonic()
            if now - self._nonsense.get(node, float("-inf")) >= NONSENSE_EVERY_S:
                logger.warning("metrics of node %s are dropped: %s", node, problem)
                self._nonsense[node] = now

    def _take_from(self, node: str, at: float, metrics: PackedMetrics) -> None:
        followed = self.live.get((metrics.job, metrics.attempt))
        attempt = followed.job.attempt if followed is not None else None
        if followed is None or attempt is None:
            return  # it has just ended, or is not known here yet
        found = unpack(at, metrics.ranks)
        ranks = ranks_on(node, attempt)
        if any(one.sample.rank not in ranks for one in found):
            raise ValueError(f"ranks of job {metrics.job} that do not run there")
        if metrics.codec is not None and metrics.codec[0] in ranks:
            rank, name, why = metrics.codec
            followed.codecs[rank] = plain(name, CODEC_CHARS), plain(why, WHY_CHARS)
        for rank, said in metrics.metrics.items():
            if rank in ranks:
                followed.metrics[rank] = _believed(said)
        whole = (_whole(one, followed) for one in found)
        self._came(followed, node, whole)

    def _came(self, followed: Followed, node: str, found: Iterable[Observed]) -> None:
        now, known = self._monotonic(), followed.attempt_metrics.ranks
        for one in found:
            rank = one.sample.rank
            old = followed.came[rank].observed.sample if rank in followed.came else None
            old = old or (known[rank][1] if rank in known else None)
            if old is None or not _backwards(old, one.sample):
                followed.came[rank] = LatestSample(node, now, one)

    def _take(self, followed: Followed, now: float) -> set[str]:
        """The samples that came go into the attempt's metrics; the nodes they came from."""
        attempt_metrics, came = followed.attempt_metrics, followed.came
        followed.came = {}
        samples: dict[str, list[RankSample]] = {}
        for one in came.values():
            if one.observed.sample.rank not in attempt_metrics.ranks:
                self._first(followed, one)
            samples.setdefault(one.node, []).append(one.observed.sample)
        attempt_metrics.take(now, samples)
        return set(samples)

    def _first(self, followed: Followed, came: LatestSample) -> None:
        """A rank's first counts are known from its birth on."""
        sample, lived_s = came.observed
        attempt_metrics = followed.attempt_metrics
        if lived_s is None:
            return
        seen = came.at - lived_s >= followed.since - BORN_S
        lived_s = min(lived_s, came.at - attempt_metrics.began)
        attempt_metrics.begin(came.at - lived_s, blank(sample, sample.at - lived_s), seen)

    def _compare(self, followed: Followed) -> None:
        """Ranks that train apart become a part of the job: of its story, and of its sentence."""
        attempt, apart = followed.job.attempt, followed.attempt_metrics.apart
        if attempt is None or apart is None or attempt.number != followed.attempt_metrics.attempt:
            return
        if attempt.apart != apart:
            self.report(StepsCompared(self._clock(), *followed.key, apart))

    def _tell(self, followed: Followed) -> None:
        """The straggler's appearance and change: one line, at most one a minute."""
        late, why, _ = followed.attempt_metrics.verdict
        rank = late.rank if late is not None else None
        now = self._monotonic()
        if rank == followed.said or now - followed.said_at < SAID_EVERY_S:
            return
        followed.said, followed.said_at = rank, now
        text = why if late is not None else f"no rank is late any more: {why}"
        job = followed.job
        node = (late.node,) if late is not None else ()
        logger.info("job %d (%s): %s", job.id, job.spec.name, text, extra=about(job.id, rank, node))

    # ---- writing

    def _save_due(self) -> None:
        now = self._monotonic()
        due = [followed for followed in self.live.values() if now >= followed.due]
        for followed in due:
            age_s = now - followed.attempt_metrics.began
            followed.due = now + min(SAVED_EVERY_S, max(LEAST_EVERY_S, SAVED_SHARE * age_s))
        self._records.write(followed.attempt_metrics.record() for followed in due)

    @property
    def waiting(self) -> bool:
        """Whether there are ends that are not written yet."""
        return bool(self._ended)

    def flush(self) -> None:
        """Write the ends that are not written yet."""
        if self._ended and self._records.write(self._ended):
            self._ended = []

    def close(self) -> None:
        """Write everything: the daemon goes, the jobs go on."""
        self._ended += [followed.attempt_metrics.record() for followed in self.live.values()]
        self.flush()

    # ---- looking

    def of(self, job: int) -> list[RunRecord]:
        """Records of a job's attempts, oldest first: those that ended and the one that
        runs."""
        found = {record.attempt: record for record in self._records.of(job)}
        found |= {record.attempt: record for record in self._ended if record.job == job}
        for (number, attempt), followed in self.live.items():
            if number == job:
                found[attempt] = followed.attempt_metrics.record()
        return [found[attempt] for attempt in sorted(found)]

    def latest(self, job: int) -> RunRecord | None:
        """The record of the latest attempt that was seen, as it is now."""
        for (number, _), followed in self.live.items():
            if number == job:
                return followed.attempt_metrics.record()
        ended = [record for record in self._ended if record.job == job]
        return ended[-1] if ended else self._records.latest(job)

    def left_s(self) -> dict[int, float | None]:
        """The seconds until the last step of each job that runs, as far as it says."""
        return {
            number: followed.attempt_metrics.left_s for (number, _), followed in self.live.items()
        }

    def knows(self, name: str) -> bool:
        """Whether `longest` has the answer without reading."""
        self.flush()
        return self._records.knows(name)

    def longest(self, name: str) -> float | None:
        """Seconds of the longest of the latest done runs of a name."""
        self.flush()
        return self._records.longest(name)

    def done(self, name: str) -> list[RunRecord]:
        """The latest done runs of a name."""
        self.flush()
        return self._records.done(name)


def _backwards(old: RankSample, new: RankSample) -> bool:
    """Whether a later sample of a process is an earlier one: what no clock and no counter does."""
    return old.pid == new.pid and (new.at < old.at or fell(old, new))


def _whole(one: Observed, followed: Followed) -> Observed:
    """Add to a sample what a message tells of a few ranks only."""
    rank = one.sample.rank
    name, why = followed.codecs.get(rank, ("", ""))
    metrics = followed.metrics.get(rank, {})
    return one._replace(sample=replace(one.sample, codec=name, codec_why=why, metrics=metrics))


def _believed(said: Metrics) -> Metrics:
    """Metrics as another node tells them: names that are names, and no more than there can be."""
    names = [name for name in list(said)[:METRICS] if METRIC_NAME.fullmatch(name)]
    known = {name: said[name] for name in names}
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in known.items()
    }


def _seen_at(one: Observed, at: float) -> Observed:
    """Move a sample to another time."""
    lived_s = None if one.lived_s is None else max(0.0, one.lived_s - (one.sample.at - at))
    return one._replace(sample=replace(one.sample, at=at), lived_s=lived_s)


def how_it_ended(
    followed: Followed, job: Job | None, now: float | None
) -> tuple[str, int | None, float | None]:
    """State, code and time of an attempt's end, from the job before and after it."""
    if job is None or job.attempt is None:
        return "failed", None, None  # not known any more
    before, number = followed.job.phase, followed.attempt_metrics.attempt
    same = job.attempt.number == number
    if same and isinstance(job.phase, Ended):
        return job.phase.outcome, job.phase.code, job.phase.since
    results = list(job.attempt.results.values()) if same else []
    code = max((result.code for result in results), default=None)
    state = "failed"
    if any(result.lost for result in results):
        state = "node-lost"
    elif isinstance(before, Stopping):
        state = STOPPED.get(before.cause, state)
    return state, code, job.phase.since if same else now


def why_it_ended(followed: Followed, job: Job | None) -> str:
    """An attempt's end in a sentence; empty where it was done, or is not known."""
    attempt = job.attempt if job is not None else None
    if (
        job is not None
        and attempt is not None
        and attempt.number == followed.attempt_metrics.attempt
    ):
        if isinstance(job.phase, Ended):
            return "" if job.phase.outcome == "done" else job.phase.reason
        if isinstance(job.phase, Backoff):
            return job.phase.reason
        _, result = worst(attempt)
        if result is not None:
            return with_error(result)
    before = followed.job.phase
    return before.reason if isinstance(before, Stopping) else ""
