"""The attempts on this node that are being looked at, from their placement to their end.

    placed ──► begun: a new course, or the one an earlier daemon wrote down
    tick   ──► pages read, course takes the samples; written down at most once a minute
    over   ──► pages read once more, the end written down

Changes of the state come by `update`, after they are stored; nothing here can keep one from
happening. What could not be written waits for its next turn, and goes at last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from wiiiiided.control.job import Attempt, Ended, Job, Stopping
from wiiiiided.control.state import State
from wiiiiided.daemon.machine import SLOW_S, resident
from wiiiiided.daemon.pages import Pages, Reading
from wiiiiided.daemon.records import Records
from wiiiiided.daemon.shims import Shim
from wiiiiided.domain.figures import RunRecord
from wiiiiided.figures.course import Course
from wiiiiided.figures.rates import blank
from wiiiiided.log import about, logger

FIRST_SAVED_S: Final = 5.0  # a daemon that is killed soon after leaves at least a trace
SAVED_EVERY_S: Final = 60.0
WAITING: Final = 1000  # records that could not be written and wait
WEIGHED: Final = 256  # ranks whose memory is looked at
YOUNG_S, YOUNG_EVERY_S = 15.0, 0.9  # at first oftener: a short job has a memory too
SAID_EVERY_S: Final = 60.0  # about the straggler of one job
BORN_S: Final = 0.05  # before it was followed: two clocks differ by as much, a restart takes longer

# How an attempt ended that was not the job's last.
STOPPED: Final = {"requeue": "requeued", "hang": "hung"}

Key = tuple[int, int]  # job, attempt
Readings = list[tuple[Job, list[Reading]]]


@dataclass
class Followed:
    """One attempt, as long as it is on this node."""

    job: Job
    course: Course
    since: float  # when it began to be followed
    due: float  # when it is written down next
    weighed: float = float("-inf")
    said: int | None = None  # the straggler that was told
    said_at: float = float("-inf")
    ranks: range = field(default_factory=lambda: range(0))

    @property
    def key(self) -> Key:
        return self.course.id, self.course.attempt


class Courses:
    """`find` gives a job, over or not; `monotonic` and `clock` are the two kinds of time."""

    def __init__(
        self,
        node: str,
        pages: Pages,
        records: Records,
        shims: Mapping[Key, Shim],
        find: Callable[[int], Job | None],
        monotonic: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.node = node
        self.live: dict[Key, Followed] = {}
        self._pages = pages
        self._records = records
        self._shims = shims
        self._find = find
        self._monotonic = monotonic
        self._clock = clock
        self._ended: list[RunRecord] = []  # not yet written

    # ---- what the state says

    def update(self, state: State) -> None:
        """Follow what has come, end what has gone."""
        here: dict[Key, Job] = {}
        for number in state.claims.get(self.node, {}):
            job = state.jobs[number]
            if job.attempt is not None:
                here[number, job.attempt.number] = job
        for key in [key for key in self.live if key not in here]:
            self._end(self.live.pop(key))
        for key, job in here.items():
            if key in self.live:
                self.live[key].job = job
            else:
                self.live[key] = self._begin(job, self._records.attempt(*key))

    def end_what_was_left(self) -> None:
        """At the start: attempts that ended when no daemon was there to write it down."""
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
        course = Course(record, now - age, now)
        same = attempt.number == record.attempt
        ranks = _ranks_on(self.node, attempt) if same else range(record.workers)
        return Followed(job, course, now, now + FIRST_SAVED_S, ranks=ranks)

    def _end(self, followed: Followed, seen: bool = True) -> None:
        self._read(followed)
        now = self._clock() if seen else None
        state, code, ended_at = how_it_ended(followed, self._find(followed.job.id), now)
        record = followed.course.record(ended_at=ended_at, state=state, code=code)
        self._ended = [*self._ended, record][-WAITING:]
        self._pages.forget(*followed.key)

    # ---- sampling

    def sample(self) -> Readings:
        """Look at every rank; what was read, for whoever watches for hangs."""
        found = [(followed.job, self._read(followed)) for followed in self.live.values()]
        for followed in self.live.values():
            self._tell(followed)
        self._save_due()
        return found

    def _read(self, followed: Followed) -> list[Reading]:
        course, now = followed.course, self._monotonic()
        young = now - followed.since < YOUNG_S
        if now - followed.weighed >= (YOUNG_EVERY_S if young else SLOW_S):
            self._weigh(followed, now)
        readings = self._pages.read(*followed.key, followed.ranks)
        samples = [reading.sample for reading in readings if reading.sample is not None]
        for reading in readings:
            sample, born = reading.sample, reading.born
            new = sample is not None and reading.rank not in course.ranks
            # Its first counts are known from its birth on, if that was seen here.
            if new and sample is not None and followed.since - BORN_S <= born < sample.at:
                course.begin(blank(sample, max(born, course.began)))
        course.take(now, {self.node: samples})
        return readings

    def _weigh(self, followed: Followed, now: float) -> None:
        followed.weighed = now
        shim = self._shims.get(followed.key)
        told = shim.ranks[:WEIGHED] if shim is not None else []
        found = {}
        for rank in told:
            number, pid = rank.get("rank"), rank.get("pid")
            if isinstance(number, int) and isinstance(pid, int) and rank.get("code") is None:
                memory = resident(pid)
                if memory is not None:
                    found[number] = memory
        self._pages.weigh(*followed.key, found)

    def _tell(self, followed: Followed) -> None:
        """The straggler's appearance and change: one line, at most one a minute."""
        late = followed.course.verdict.straggler
        rank = late.rank if late is not None else None
        now = self._monotonic()
        if rank == followed.said or now - followed.said_at < SAID_EVERY_S:
            return
        followed.said, followed.said_at = rank, now
        text = late.why if late is not None else "no rank is late any more"
        job = followed.job
        node = (late.node,) if late is not None else ()
        logger.info("job %d (%s): %s", job.id, job.spec.name, text, extra=about(job.id, rank, node))

    # ---- writing

    def _save_due(self) -> None:
        now = self._monotonic()
        due = [followed for followed in self.live.values() if now >= followed.due]
        for followed in due:
            followed.due = now + SAVED_EVERY_S
        self._records.write(followed.course.record() for followed in due)

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
        self._ended += [followed.course.record() for followed in self.live.values()]
        self.flush()

    # ---- looking

    def of(self, job: int) -> list[RunRecord]:
        """What is known of a job's attempts, oldest first: those that ended and the one that
        runs."""
        found = {record.attempt: record for record in self._records.of(job)}
        found |= {record.attempt: record for record in self._ended if record.job == job}
        for (number, attempt), followed in self.live.items():
            if number == job:
                found[attempt] = followed.course.record()
        return [found[attempt] for attempt in sorted(found)]

    def latest(self, job: int) -> RunRecord | None:
        """Of the latest attempt that was seen, as it is now."""
        for (number, _), followed in self.live.items():
            if number == job:
                return followed.course.record()
        ended = [record for record in self._ended if record.job == job]
        return ended[-1] if ended else self._records.latest(job)

    def done(self, name: str) -> list[RunRecord]:
        """The latest done runs of a name."""
        self.flush()
        return self._records.done(name)


def _ranks_on(node: str, attempt: Attempt) -> range:
    for share in attempt.layout.shares:
        if share.node == node:
            return range(share.first_rank, share.first_rank + share.workers)
    return range(0)


def how_it_ended(
    followed: Followed, job: Job | None, now: float | None
) -> tuple[str, int | None, float | None]:
    """State, code and time of an attempt's end, from the job before and after it."""
    if job is None or job.attempt is None:
        return "failed", None, None  # nobody knows any more
    before, number = followed.job.phase, followed.course.attempt
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
