"""A job's attempts on one time axis, and what was seen of them as lines with gaps.

    axis   0 ─────────────────────────────────────────────────────────────► seconds
    attempt 1 ├──▪▪▪▪▪▪▪▪──────▪▪▪▪┤   pause   attempt 2 ├▪▪▪▪▪▪▪▪▪▪▪▪▪▪┤
                         └ the daemon was away: a gap, not a line

A point is a stretch of time that a daemon looked at: it covers `at - span` to `at`. Stretches that
touch make one line; where the next begins later than the last ended, the line ends. A pause between
attempts that is longer than all the running would press the runs together: it is cut short, and the
report says so. A clock that was set back cannot put an attempt before the one it follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wiiiiided.cluster.rpc.messages import JobRecords
from wiiiiided.domain.metrics import Point, RunRecord
from wiiiiided.domain.states import ON_NODES
from wiiiiided.metrics.point_history import merge

ATTEMPTS = 20  # the latest, that are drawn; a job may have had hundreds
DRAWN = 600  # points of one line, all attempts together; the page stays below 1 MB
SLACK_S = 2.0  # the daemon looks once a second and may be late

Line = tuple[tuple[float, float], ...]  # (axis seconds, value), without a gap in it


@dataclass(frozen=True)
class Stretch:
    """A stretch of time that a daemon looked at, on the axis."""

    begin: float
    end: float
    point: Point

    @property
    def middle(self) -> float:
        return (self.begin + self.end) / 2


@dataclass(frozen=True)
class PlacedAttempt:
    run: RunRecord
    begin: float  # on the axis
    length: float  # seconds
    pause: float = 0.0  # real seconds between the one before and this one
    running: bool = False
    seen: tuple[tuple[Stretch, ...], ...] = ()  # lines of stretches without a gap

    @property
    def end(self) -> float:
        return self.begin + self.length


@dataclass(frozen=True)
class RunHistory:
    attempts: tuple[PlacedAttempt, ...]  # that are drawn, oldest first
    length: float  # of the axis
    cut: float = 0.0  # seconds of pauses that the axis leaves out
    earlier: int = 0  # attempts that are not drawn

    def stretches(self) -> Iterator[Stretch]:
        return (s for attempt in self.attempts for line in attempt.seen for s in line)

    def lines(self, value: Callable[[Point], float | None], ends: bool = False) -> list[Line]:
        """The `value` of each point in lines: at the point's middle, or with `ends` at its end."""
        found: list[Line] = []
        for line in (line for attempt in self.attempts for line in attempt.seen):
            run: list[tuple[float, float]] = []
            for stretch in line:
                seen = value(stretch.point)
                if seen is not None:
                    run.append((stretch.end if ends else stretch.middle, seen))
                elif run:
                    found.append(tuple(run))
                    run = []
            if run:
                found.append(tuple(run))
        return found


def history(records: JobRecords) -> RunHistory:
    """The attempts of a job as they are drawn over time."""
    runs = records.runs[-ATTEMPTS:]
    lengths = [length_of(run) for run in runs]
    pauses = [0.0, *_pauses(runs, lengths)][: len(runs)]
    # Pauses together get at most as much room as the running; each keeps its share.
    room = min(1.0, sum(lengths) / sum(pauses)) if sum(pauses) > 0 else 1.0
    most = max(2, DRAWN // max(1, len(runs)))
    placed: list[PlacedAttempt] = []
    for run, length, pause in zip(runs, lengths, pauses, strict=True):
        begin = (placed[-1].end if placed else 0.0) + pause * room
        seen = _seen(run, begin, length, most)
        placed.append(PlacedAttempt(run, begin, length, pause, is_running(records, run), seen))
    end = placed[-1].end if placed else 0.0
    return RunHistory(tuple(placed), end, sum(pauses) * (1 - room), len(records.runs) - len(runs))


def is_running(records: JobRecords, run: RunRecord) -> bool:
    """Whether this attempt goes on; one that stands open may also have ended unseen."""
    job = records.job
    latest = run.attempt == max(job.attempt, records.runs[-1].attempt)
    return latest and run.ended_at is None and job.state in ON_NODES


def length_of(run: RunRecord) -> float:
    """Seconds of an attempt: to its end, or as far as it was seen."""
    if run.ended_at is not None:
        return max(run.ended_at - run.started_at, 0.0)
    return max((point.at for point in run.points), default=run.observed_s)


def _pauses(runs: tuple[RunRecord, ...], lengths: list[float]) -> Iterator[float]:
    for before, length, after in zip(runs, lengths, runs[1:], strict=False):
        yield max(after.started_at - before.started_at - length, 0.0)


def _seen(
    run: RunRecord, begin: float, length: float, most: int
) -> tuple[tuple[Stretch, ...], ...]:
    """The points as stretches on the axis, in lines without gaps: at most `most`, or one a line."""
    lines: list[list[Stretch]] = []
    last = 0.0
    for point in sorted(run.points, key=lambda p: p.at):
        end = min(point.at, length)
        start = max(point.at - point.span, last)
        if start > end:  # behind the attempt's end, or inside what was seen already
            continue
        stretch = Stretch(begin + start, begin + end, point)
        if lines and start - last <= _slack(lines[-1][-1], stretch):
            lines[-1].append(stretch)
        else:
            lines.append([stretch])
        last = end
    while len(lines) < sum(map(len, lines)) > most:
        lines = [_halved(line) for line in lines]
    return tuple(map(tuple, lines))


def _slack(before: Stretch, after: Stretch) -> float:
    """How far apart two stretches may be and still touch: less than half of the shorter one."""
    return max(SLACK_S, 0.5 * min(before.end - before.begin, after.end - after.begin))


def _halved(line: list[Stretch]) -> list[Stretch]:
    """Every two neighbours as one: means by their length, values of the later one."""
    pairs = zip(line[::2], line[1::2], strict=False)
    made = [Stretch(one.begin, two.end, merge(one.point, two.point)) for one, two in pairs]
    return made + line[len(made) * 2 :]
